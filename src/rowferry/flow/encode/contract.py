"""What a format promises: a codec makes messages of rows, a row format whole files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Change, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import COMMON_KINDS, Kind
from rowferry.change.table import Column, TableSchema
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits


@dataclass(frozen=True, slots=True)
class TextBody:
    """How messages are joined to one text, e.g. the body of a request."""

    content_type: str
    opening: bytes
    between: bytes
    closing: bytes


@dataclass(frozen=True, slots=True)
class LargeRows:
    """How a protocol tells of a row that is too large for a message.

    Attributes:
        needs_extension: it does so in the `_tidb` extension.
        needs_key: a claim check keeps the message's key, too.
    """

    needs_extension: bool = False
    needs_key: bool = False


@dataclass(frozen=True, slots=True)
class CommitTime:
    """How exactly data files tell when a row was committed; `why` it is not told better."""

    exactness: Literal["exact", "millisecond", "none"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class CodecTraits:
    """What other stages may ask about a codec. No defaults for facts that matter.

    Attributes:
        file_suffix: what names of data files end with; "": it is not a format of files.
        body: how its messages are joined to one text; None: they are not.
        needs_old_rows: a delete has all columns of its row.
        large_rows: how it tells of rows that are too large; None: it has no such messages.
        kinds: what column types may be for it to have a form; a table with another one is refused.
        binary_keys: messages' keys are no text.
        remembers: what it makes of a row depends on what was made before, of which all arrives.
    """

    file_suffix: str
    schema_change_goes_to: Literal["all-partitions", "partition-0", "nowhere"]
    carries_before_image: bool
    can_omit_columns: bool
    one_table_per_topic: bool = False
    body: TextBody | None = None
    needs_old_rows: bool = False
    large_rows: LargeRows | None = None
    kinds: frozenset[Kind] = COMMON_KINDS
    binary_keys: bool = False
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """Messages as two columns of bytes; one message per row change (or as the codec batches them).

    `values` is a large_binary array whose data buffer is contiguous: a file of these messages is
    that buffer. `keys` is None where the format has no keys. `rows` is how many row changes are in
    it, where that is not one for each value (0 for a file's head). `partitions` has the partition
    of each message, where there are any. A null value is a message without one (a tombstone);
    `tombstones` says behind which messages `batch` is to put one, and `lead` is a message that it
    is to put before all others.
    """

    values: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray | None = None
    rows: int | None = None
    partitions: npt.NDArray[np.int32] | None = None
    tombstones: npt.NDArray[np.bool_] | None = None
    lead: bytes | None = None

    @property
    def row_count(self) -> int:
        """How many row changes are in it."""
        return len(self.values) if self.rows is None else self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        values = self.values
        if len(values) == 0:
            return 0
        offsets = values.buffers()[1]
        view = memoryview(offsets).cast("q")
        return int(view[values.offset + len(values)] - view[values.offset])

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each message, its key among them."""
        parts = [self.values] if self.keys is None else [self.values, self.keys]
        lengths = [pc.fill_null(pc.binary_length(part), 0).cast(pa.int64()) for part in parts]
        sizes: npt.NDArray[np.int64] = np.sum([part.to_numpy() for part in lengths], axis=0)
        return sizes

    def value_bytes(self) -> memoryview:
        """Return all values one after the other, without a copy."""
        values = self.values
        if len(values) == 0:
            return memoryview(b"")
        view = memoryview(values.buffers()[1]).cast("q")
        return memoryview(values.buffers()[2])[
            view[values.offset] : view[values.offset + len(values)]
        ]


class Format(Protocol):
    """What `protocol` names: how changes are written, and read back.

    Built from the spec and its sink's traits.
    """

    TRAITS: ClassVar[CodecTraits]
    TABLES: ClassVar[tuple[OptionTable, ...]]

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None: ...

    def probe(self) -> None:
        """Ask the world for what this format needs (a schema registry); writes nothing.

        Raises the error that rows would meet later, so that a changefeed is not created with it.
        """

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Read back what was written (a file's content, or one message).

        What the format does not carry comes back as the format's readers would see it. Raises
        DecodeError with the place.
        """


@runtime_checkable
class StoredFormat(Format, Protocol):
    """A format of data files of which tables can be rebuilt."""

    @property
    def commit_time(self) -> CommitTime:
        """How exactly rows tell when they were committed."""

    @property
    def unseen_moves(self) -> str:
        """Why an update that changes a key does not tell the old one; "": it does."""


@runtime_checkable
class PlainValues(Protocol):
    """A format whose bytes tell whether they can hold a value, without being decoded."""

    def plain_value(self, column: Column, text: str) -> bytes:
        """Return bytes that are in every file or message with this value in this column.

        `text` is a whole number, or a word of ASCII letters, digits, `_` and `-`; a digit before or
        behind the bytes makes another number of it. Empty: nothing is known of such a column.
        """


class RowFile(Protocol):
    """A data file on its way."""

    def add(self, rows: Rows) -> None:
        """Add rows at the end.

        Raises:
            EncodeError: a row cannot be written.
        """

    def finish(self) -> None:
        """End the file: all of its bytes were given on."""


@runtime_checkable
class RowFormat(Format, Protocol):
    """A format of files that are made of rows as a whole, and not of a message for each row.

    The sink that writes them is a `RowSink`.
    """

    def check_table(self, table: TableSchema) -> None:
        """Raise BadInput where a table cannot be written; the text names it."""

    def file(self, table: TableSchema, put: Callable[[bytes], None]) -> RowFile:
        """Begin a file of a table version; its bytes go to `put` as they come.

        Reads no clock and no random source: equal rows give equal bytes, however they are cut into
        chunks. A file without rows is one that readers take, too.
        """


class Codec(Format, Protocol):
    """A format of messages: how each change becomes bytes."""

    def file_head(self, table: TableSchema) -> bytes:
        """Return what each data file of this table version begins with (may be empty)."""

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk, a message for each row, in order.

        Reads no clock and no random source: equal input gives equal bytes. When the sink writes
        files, every value ends with the terminator. With a topic, no message is longer than the
        topic takes: what is longer is handled as `large-message-handle` says.

        Raises:
            MessageTooLarge: a row does not fit, and nothing was said about such rows.
        """

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Join messages of one partition as far as the format can; else return them as they are.

        Order inside each partition is kept, and so is which row goes where.
        """

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL for a message queue; None: this format sends none."""

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark for a message queue; None: this format sends none."""

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message of a queue back, with no table known beforehand.

        Rows come in the message's order, `seq` counting from 0. Their table is made of what the
        message carries: the written name, the columns and their types as far as the format tells
        them, the handle key as its index; `table_id` and `version` are 0. A row whose other columns
        did not fit into the message has `key_only` set; a row that was left in storage (a claim
        check) is fetched from there. Raises DecodeError.
        """


class MessageCodec:
    """What most codecs have in common: a base for those that are like them."""

    def probe(self) -> None:
        """Ask nothing: most formats need no other service."""

    def file_head(self, table: TableSchema) -> bytes:
        """Return nothing: files begin with the first row."""
        return b""

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Return messages as they are: each row is a message of its own."""
        return messages


@runtime_checkable
class JoiningCodec(Codec, Protocol):
    """A codec of files that can encode chunks of tables of the same layout with one call."""

    def encode_same_layout(self, whole: Rows, parts: Sequence[Rows], planned_at_ms: int) -> Encoded:
        """Encode neighbours (see `Cut`), the same bytes for each row as `encode_rows` gives.

        `whole` has the rows of all parts, one part behind the other, and the first one's table.

        Raises:
            EncodeError: a row cannot be encoded; it may name another table than the row's.
        """
