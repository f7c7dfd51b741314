"""Messages that are longer than the queue takes: refused, shortened to the key, or left in storage.

Also the compression of each message's value, which belongs to the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableId
from rowferry.columnar.inflate import LONGEST_ROW, inflated
from rowferry.columnar.render import text_buffers
from rowferry.errors import BadOption, DecodeError, MessageTooLarge, OptionsConflict
from rowferry.flow.encode.claim_check import ClaimChecks
from rowferry.flow.encode.contract import Encoded, LargeRows
from rowferry.flow.encode.options import one_of_or_empty
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, flag, option, text
from rowferry.spec.sink_traits import SinkTraits


class LargeMessageOptions(Section, section="sink.kafka-config.large-message-handle"):
    """What becomes of rows that are too large for a message."""

    large_message_handle_option = option(
        one_of_or_empty("none", "claim-check", "handle-key-only"),
        "none",
        "What becomes of a row whose message is longer than the topic takes: `none` stops the "
        "feed, `handle-key-only` sends the handle key's columns alone, `claim-check` stores the "
        "row and sends where it is.",
    )
    large_message_handle_compression = option(
        one_of_or_empty("none", "snappy", "lz4"),
        "none",
        "How the value of every message is compressed.",
    )
    claim_check_storage_uri = option(
        text(),
        "",
        "Where claim checks are stored: `file:///directory`, or a prefix of a bucket with the "
        "parameters of its login, as the storage sink has them.",
        secret=True,
        names="storage",
    )
    claim_check_raw_value = option(
        flag(),
        False,
        "A claim check's file holds the message's value alone, not JSON with its key and value.",
    )


_HANDLING_PATH: Final = LargeMessageOptions.path(LargeMessageOptions.large_message_handle_option)
_COMPRESSION_PATH: Final = LargeMessageOptions.path(
    LargeMessageOptions.large_message_handle_compression
)
_URI_PATH: Final = LargeMessageOptions.path(LargeMessageOptions.claim_check_storage_uri)
_RAW_PATH: Final = LargeMessageOptions.path(LargeMessageOptions.claim_check_raw_value)
_SHOWN: Final = 40  # characters of a key's value in an error
_SNAPPY_GROWTH: Final = 64  # more than any snappy block can grow


def check_large_messages(
    options: LargeMessageOptions, protocol: str, form: LargeRows | None, extension: bool
) -> None:
    """Refuse settings of large messages that a protocol with such a form cannot keep.

    Raises:
        OptionsConflict: the protocol has no form for it, or lacks the extension that carries it.
        BadOption: claim checks without a place for them.
    """
    handling = options.large_message_handle_option
    if handling == "none":
        return
    path = _HANDLING_PATH
    if form is None:
        known = [name for name in CODECS.names() if CODECS.load(name).TRAITS.large_rows]
        raise OptionsConflict(
            f"{path} = {handling}: protocol {protocol} has no such messages; "
            f"set it to none, or use {' or '.join(known)}"
        )
    if form.needs_extension and not extension:
        raise OptionsConflict(
            f"{path} = {handling}: {protocol} tells it in the extension; "
            "set enable-tidb-extension=true"
        )
    if handling != "claim-check":
        return
    if not options.claim_check_storage_uri:
        raise BadOption(f"{path} = {handling} needs {_URI_PATH}")
    if options.claim_check_raw_value and form.needs_key:
        raise OptionsConflict(
            f"{_RAW_PATH}: {protocol} messages need their key too; set it to false"
        )


def refuse_compression(options: LargeMessageOptions, protocol: str) -> None:
    """Refuse compressed messages, for protocols whose readers know none.

    Raises:
        OptionsConflict: they are asked for.
    """
    if options.large_message_handle_compression != "none":
        raise OptionsConflict(
            f"{_COMPRESSION_PATH}: protocol {protocol} has no compressed messages; set it to none"
        )


Pair = tuple[bytes | None, bytes]
# Encodes rows with the columns of the handle key only, and where each was stored (None: nowhere).
Shorten = Callable[[Rows, pa.Array | None], Encoded]


class LargeMessages:
    """The settings of one changefeed, at work."""

    def __init__(
        self,
        spec: ChangefeedSpec,
        sink: SinkTraits,
        protocol: str,
        form: LargeRows | None,
        extension: bool,
    ) -> None:
        """Read and check the settings. Pure: no storage is touched."""
        options = spec.options(LargeMessageOptions)
        check_large_messages(options, protocol, form, extension)
        self._handling = options.large_message_handle_option
        compression = "none" if sink.takes_files else options.large_message_handle_compression
        if compression != "none" and not sink.has_topics:
            raise OptionsConflict(
                f"{_COMPRESSION_PATH} = {compression}: messages over {spec.sink.scheme} are lines "
                "of text; set it to none"
            )
        self._codec = None if compression == "none" else pa.Codec(compression)
        self._claims: ClaimChecks | None = None
        if options.claim_check_storage_uri:
            path = _URI_PATH
            self._claims = ClaimChecks(
                options.claim_check_storage_uri,
                path,
                options.claim_check_raw_value,
                spec.changefeed_id,
            )

    def compress(self, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Return the values as they are sent."""
        if self._codec is None:
            return values
        squeeze = self._codec.compress
        return pa.array([squeeze(v.as_buffer(), asbytes=True) for v in values], pa.large_binary())

    def decompress(self, value: bytes) -> bytes:
        """Return what `compress` was given.

        Raises:
            DecodeError: it was compressed in another way, or not at all.
        """
        if self._codec is None:
            return value
        try:
            if self._codec.name == "lz4":
                return inflated(value, "lz4", LONGEST_ROW)
            size = _snappy_size(value)
            return bytes(self._codec.decompress(value, decompressed_size=size, asbytes=True))
        except (pa.ArrowException, OSError, ValueError) as err:
            raise DecodeError(f"a value is no {self._codec.name} data: {err}") from None

    def fit(
        self,
        rows: Rows,
        whole: Encoded,
        topic: Topic,
        overhead: int,
        shorten: Shorten,
        stored_as: Callable[[bytes | None, bytes], Pair] = lambda key, value: (key, value),
    ) -> Encoded:
        """Return the messages with every one that is too long handled.

        Args:
            rows: what the messages were made of.
            whole: the messages, one for each row.
            topic: says how long a message may be.
            overhead: what counts beside key and value.
            shorten: makes the messages of rows that do not fit.
            stored_as: the key and value that a claim check keeps of a message's.

        Raises:
            MessageTooLarge: a row cannot be made to fit, or nobody said that it may be.
        """
        lengths = message_lengths(whole, overhead)
        over = np.flatnonzero(lengths > topic.max_message_bytes)
        if not len(over):
            return whole
        if self._handling == "none" or not rows.table.written_key:
            raise _too_large(rows, int(over[0]), int(lengths[over[0]]), topic)
        part, locations = rows.take(over), None
        if self._handling == "claim-check":
            locations = self._leave(part, _taken(whole, over), stored_as)
        short = shorten(part, locations)
        left = message_lengths(short, overhead)
        still = np.flatnonzero(left > topic.max_message_bytes)
        if len(still):
            raise _too_large(part, int(still[0]), int(left[still[0]]), topic)
        return _replaced(whole, over, short)

    def fetch(self, location: str) -> Pair:
        """Return the key and value that a message's claim check stands for.

        Raises:
            DecodeError: there is none, or this reader was not told where claim checks are.
        """
        if self._claims is None:
            raise DecodeError(f"a row waits at {location}: set {_URI_PATH} to fetch it")
        return self._claims.fetch(location)

    def _leave(
        self, rows: Rows, whole: Encoded, stored_as: Callable[[bytes | None, bytes], Pair]
    ) -> pa.Array:
        claims = self._claims
        if claims is None:
            raise TypeError("claim checks without a store")
        keys = whole.keys.to_pylist() if whole.keys is not None else [None] * len(rows)
        places = zip(rows.commit_ts.tolist(), rows.batch.column("seq").to_pylist(), strict=True)
        locations = [
            claims.leave(*stored_as(key, value), *place)
            for key, value, place in zip(keys, whole.values.to_pylist(), places, strict=True)
        ]
        return pa.array(locations, pa.large_utf8())


def message_lengths(messages: Encoded, overhead: int) -> npt.NDArray[np.int64]:
    """Return how long each message is, with its key and what else counts."""
    lengths: npt.NDArray[np.int64] = np.diff(text_buffers(messages.values)[0]) + overhead
    if messages.keys is not None:
        lengths += np.diff(text_buffers(messages.keys)[0])
    return lengths


def refuse_large(
    name: TableId,
    messages: Encoded,
    topic: Topic,
    overhead: int,
    protocol: str,
    cure: str = "or leave columns out",
) -> None:
    """Raise MessageTooLarge where a message is longer than its topic takes.

    For protocols that have no other form for large rows.
    """
    longest = int(message_lengths(messages, overhead).max(initial=0))
    if longest > topic.max_message_bytes:
        raise MessageTooLarge(
            f"table {name}: a message of {longest} bytes is longer than topic {topic.name!r} "
            f"takes ({topic.max_message_bytes}), and {protocol} has no other form for large rows; "
            f"raise max-message-bytes and the topic's own limit, {cure}"
        )


def _taken(messages: Encoded, places: npt.NDArray[np.int64]) -> Encoded:
    wanted = pa.array(places)
    keys = None if messages.keys is None else messages.keys.take(wanted)
    return Encoded(messages.values.take(wanted), keys)


def _replaced(whole: Encoded, places: npt.NDArray[np.int64], short: Encoded) -> Encoded:
    """Return the messages with some of them exchanged."""
    order = np.arange(len(whole.values))
    order[places] = len(order) + np.arange(len(places))
    wanted = pa.array(order)
    keys = None
    if whole.keys is not None and short.keys is not None:
        keys = pa.concat_arrays([whole.keys, short.keys]).take(wanted)
    return Encoded(pa.concat_arrays([whole.values, short.values]).take(wanted), keys)


def _too_large(rows: Rows, row: int, length: int, topic: Topic) -> MessageTooLarge:
    image: dict[str, Any] = (rows.before if rows.op[row] == Op.DELETE else rows.after)[row].as_py()
    key = ", ".join(f"{n} = {_shown(image[n])}" for n in rows.table.handle_key if n in image)
    return MessageTooLarge(
        f"a row of {rows.table.id} ({key or 'the table has no key'}) makes a message of {length} "
        f"bytes, and topic {topic.name} takes {topic.max_message_bytes}: raise max-message-bytes "
        f"and the topic's max.message.bytes, or set {_HANDLING_PATH} to handle-key-only "
        "or claim-check"
    )


def _shown(value: Any) -> str:
    whole = repr(value)
    return whole if len(whole) <= _SHOWN else whole[:_SHOWN] + "…"


def _snappy_size(value: bytes) -> int:
    """Return the length that a snappy block begins with."""
    size = shift = 0
    for byte in value[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if size > _SNAPPY_GROWTH * len(value):
                raise ValueError("its length cannot be right")
            return size
    raise ValueError("it has no length")
