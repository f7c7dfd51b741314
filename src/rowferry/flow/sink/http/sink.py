"""The HTTP sink: tasks post the rows, lane by lane; the driver posts what follows them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Watermark
from rowferry.change.plan import Output, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableSchema
from rowferry.columnar.cuts import cuts_of
from rowferry.errors import OptionsConflict
from rowferry.flow.dispatch.by_topic import ByKey
from rowferry.flow.encode.contract import Codec, Encoded, TextBody
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.defaults import LaneDefaults
from rowferry.flow.sink.http.client import Receiver
from rowferry.flow.sink.http.options import HttpOptions, read_settings
from rowferry.flow.sink.lanes import in_lanes
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri_form import UriForm, UriPart


class HttpSink(LaneDefaults):
    """Posts batches of changes to one address.

    Rows are visible to the receiver as soon as they are sent, and a replay sends them again: each
    request has a key that is the same every time, so that the receiver can tell.
    """

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="http",
        refuses_no_row="is answered for a whole batch, not for a row",
        section="sink.http-config",
        protocol="allowed",
        default_protocol="json",
        forwards_parameters=True,
        takes_partial_rows=True,
        place_keys=PlaceKeys(("url",), ("url",), itemgetter("url")),
        form=UriForm(
            "HTTP receiver",
            address=UriPart("Host and port", "hooks.example:8443"),
            path=UriPart("Path", "audit/changes", needed=False),
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (HttpOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        body = codec.TRAITS.body
        if body is None:
            raise OptionsConflict(
                f"protocol {spec.protocol} cannot be sent over {spec.sink.scheme}; "
                "use protocol=json, canal-json, debezium or simple"
            )
        self._body: TextBody = body
        self._settings = read_settings(spec, (*own_tables(self.TRAITS), *codec.TABLES))
        self._receiver = Receiver(self._settings)
        self.counts = self._receiver.counts
        self._codec = codec
        self._changefeed = spec.changefeed_id
        self._epoch = 0

    @property
    def dispatch(self) -> ByKey:
        """All changes of a key go to one lane."""
        return ByKey()

    def probe(self, owner: Owner) -> None:
        """See whether somebody listens there. No request is made: POST may be all it knows."""
        self._receiver.connect()

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Remember who writes. A receiver cannot be claimed: every request names the epoch."""
        self._epoch = owner.epoch

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give each slice a topic named as its table is written, with a partition for each lane."""
        options = self._settings.options
        outputs = []
        for segment in stretch.segments:
            for place, one in enumerate(segment.slices):
                name = str(tables[one].written_as)
                topic = Topic(name, options.worker_count, options.max_batch_bytes)
                outputs.append(Output(segment.ordinal, place, topic.to_json()))
        return tuple(outputs), None

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Post packets, those of one lane one after the other; on return all are taken."""
        in_lanes(packets, self._lane_of, self._settings.options.worker_count, self._send_packet)

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Post schema changes in order, then the watermark: the rows before them were taken."""
        for place, change in enumerate(plan.stretch.schema_changes):
            if not change.query:
                continue  # the statement of a change before it has made this one, too
            self._note(
                plan, f"ddl {place}", self._codec.encode_schema_change(change, plan.planned_at_ms)
            )
        if plan.stretch.watermark is not None:
            mark = Watermark(plan.stretch.watermark)
            self._note(plan, "watermark", self._codec.encode_watermark(mark, plan.planned_at_ms))

    def close(self) -> None:
        """Let connections go."""
        self._receiver.close()

    # --- pieces -----------------------------------------------------------------------------------

    def _lane_of(self, packet: Packet) -> tuple[str, int]:
        return packet.topic.name, packet.partition

    def _send_packet(self, packet: Packet, stop: threading.Event) -> None:
        where = f"{packet.topic.name} {packet.partition} {packet.segment} {packet.number}"
        options = self._settings.options
        limits = options.max_batch_rows, options.max_batch_bytes
        for number, body in enumerate(bodies(packet.messages.values, self._body, *limits)):
            if stop.is_set():
                return
            about = self._headers(packet.micro_batch, packet.epoch, f"{where} {number}", body)
            self._receiver.send(body, about, stop)

    def _note(self, plan: Plan, place: str, encoded: Encoded | None) -> None:
        if encoded is None:
            return
        for body in bodies(encoded.values, self._body, 1, self._settings.options.max_batch_bytes):
            self._receiver.send(body, self._headers(plan.micro_batch, self._epoch, place, body))

    def _headers(self, micro_batch: int, epoch: int, place: str, body: bytes) -> dict[str, str]:
        """Return what tells a request from others; only the epoch differs on a replay.

        The content is part of the key: a snapshot that is read again may give other rows in the
        same place, and a receiver must not take those for the ones that it has.
        """
        about = f"{self._changefeed}\n{micro_batch}\n{place}\n".encode()
        key = hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(about).digest())
        return {
            "Content-Type": self._body.content_type,
            "Idempotency-Key": key.hexdigest(),
            "Rowferry-Changefeed": self._changefeed,
            "Rowferry-Micro-Batch": str(micro_batch),
            "Rowferry-Epoch": str(epoch),
        }


def bodies(
    messages: pa.LargeBinaryArray, form: TextBody, max_rows: int, max_bytes: int
) -> Iterator[bytes]:
    """Yield the messages in their order, joined to bodies.

    A body has at most `max_rows` messages and, unless a single one is longer, at most `max_bytes`
    of messages and what stands between them.
    """
    cuts = cuts_of(messages, max_rows, max_bytes, len(form.between))
    for start, stop in pairwise(cuts):
        part = messages.slice(start, stop - start).cast(pa.binary())
        whole = pa.ListArray.from_arrays(pa.array([0, stop - start], pa.int32()), part)
        joined = pc.binary_join(whole, form.between)[0]
        yield form.opening + joined.as_buffer().to_pybytes() + form.closing
