"""The search sink before a real server; what readers see is in the order in which it came."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
from lane_harness import LaneHarness
from sink_harness import FEED, NOON, ORDERS

from rowferry.change.chunk import Op
from rowferry.change.plan import Plan, Segment
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column
from rowferry.errors import Fenced
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import LaneSink, Packet
from rowferry.testing.receiver import ReceiverFault, Refusal
from rowferry.testing.search_front import Fault, SearchFront
from rowferry.testing.servers import OpenSearch
from rowferry.testing.servers.certificates import Certificates

_FAST = "backoff=1ms&max-backoff=2ms&max-retry=3&number-of-replicas=0&insecure-skip-verify=true"


class SearchHarness(LaneHarness):
    """Indexes of its own, behind a front that keeps a log.

    A word is a document; a schema change is a field of its name; a watermark is in a note.
    """

    scheme = "es"
    server: OpenSearch  # set by the fixture

    def __enter__(self) -> Self:
        self._prefix = f"contract-{uuid4().hex}"
        self._epoch = 1
        self.front = SearchFront(self.server.address, self._tls()).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.front.__exit__(kind, err, trace)
        names = f"{self._orders},{self._prefix}-shop-items,{self._prefix}-notes"
        self.server.ask("DELETE", f"/{names}?ignore_unavailable=true")

    @property
    def _orders(self) -> str:
        return f"{self._prefix}-shop-orders"

    def uri(self) -> str:
        names = f"index={self._prefix}-{{schema}}-{{table}}&ownership-index={self._prefix}-notes"
        return f"{self.scheme}://{self.front.address}?{names}&{_FAST}"

    def received(self) -> list[bytes]:
        """What went to the server in this order, as far as it is there."""
        there = {document["word"] for document in self._documents().values()}
        found: list[bytes] = []
        reached = 0
        for request in list(self.front.taken):
            if request.path.startswith("/_bulk"):
                documents = [json.loads(line) for line in request.body.splitlines()[1::2]]
                found += [d["word"].encode() for d in documents if d["word"] in there]
            elif request.path.endswith("/_mapping") and request.method == "PUT":
                fields = json.loads(request.body)["properties"]
                found += [name.encode() for name in fields if name.startswith("ALTER")]
            elif f"changefeed%3A{FEED}" in request.path and request.method == "PUT":
                moved = int(json.loads(request.body)["commit_ts"])
                found += [b"%d" % moved] if moved > reached else []
                reached = max(reached, moved)
        return found

    def _documents(self) -> dict[str, Any]:
        names = {i["index"] for i in self.server.ask("GET", "/_cat/indices?format=json")}
        return self.server.documents(self._orders) if self._orders in names else {}

    def break_for_now(self) -> None:
        self.front.faults.extend([Refusal(503, words=b"busy")] * 100)

    def break_for_good(self) -> None:
        self.server.ask("PUT", f"/{self._orders}/_settings", {"index.blocks.write": True})

    def build(self, changefeed: str = FEED) -> LaneSink:
        return cast(LaneSink, _OfWords(super().build(changefeed), self))

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        self._epoch = epoch
        return super().opened(epoch, state)

    @property
    def epoch(self) -> int:
        """Of the last owner."""
        return self._epoch

    def plan(self, sink: LaneSink, number: int, *segments: Segment, **more: Any) -> Plan:
        plan = super().plan(sink, number, *segments, **more)
        changes = tuple(
            replace(c, schema=replace(c.schema, columns=(*c.schema.columns, _column(c.query))))
            for c in plan.stretch.schema_changes
            if c.schema is not None
        )
        return plan.with_(stretch=replace(plan.stretch, schema_changes=changes))

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        """An owner of before is refused, and changes nothing."""
        with suppress(Fenced):
            super().publish(sink, plan)

    def _tls(self) -> ssl.SSLContext | None:
        return None


class SearchTlsHarness(SearchHarness):
    """The same with TLS."""

    scheme = "es+ssl"

    def _tls(self) -> ssl.SSLContext:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(Certificates.make(self.folder).server)
        return found


class FlakySearchHarness(SearchHarness):
    """Of every three requests two fail: before they were taken, or after (a lost answer)."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.front.faults_for_all = True
        self.front.faults.extend(islice(self._faults(), 300))
        return self

    def uri(self) -> str:
        return super().uri().replace("max-retry=3", "max-retry=50")

    def received(self) -> list[bytes]:
        """Versions make repeats harmless: a reader sees each once."""
        return list(dict.fromkeys(super().received()))

    def _faults(self) -> Iterator[Fault]:
        for fault in cycle([ReceiverFault.DROP, ReceiverFault.LOSE_ANSWER, Refusal(503)]):
            yield fault
            yield Refusal(429, {"Retry-After": "0"})
            yield None


class _OfWords:
    """A sink of documents that is given words: each has its own id."""

    def __init__(self, sink: LaneSink, harness: SearchHarness) -> None:
        self._sink, self._harness = sink, harness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, packets: Iterator[Packet]) -> None:
        epoch = self._harness.epoch
        self._sink.deliver(replace(p, messages=_frame(p), epoch=epoch) for p in packets)


def _frame(packet: Packet) -> Encoded:
    said = packet.messages.values.to_pylist()
    keys = [b"%d" % crc32(word) for word in said]
    index = packet.topic.name.encode()
    items = [
        b'{"index":{"_index":"%s","_id":"%s","version":%d,"version_type":"external_gte"}}\n'
        b'{"word":"%s"}\n' % (index, key, NOON, word)
        for key, word in zip(keys, said, strict=True)
    ]
    frame = RowFrame(
        ORDERS,
        np.full(len(said), Op.INSERT, np.int8),
        np.full(len(said), NOON, np.uint64),
        np.arange(len(said)) + (packet.segment << 40) + (packet.number << 20),
        pa.array(keys, pa.large_binary()),
        pa.array(items, pa.large_binary()),
    )
    size, body = frame.to_parts()
    value = size + body.to_pybytes()
    return Encoded(pa.array([value], pa.large_binary()), pa.array([frame.head], pa.large_binary()))


def _column(name: str) -> Column:
    return Column(99, name, SqlType("int"))


SEARCH_HARNESSES = {
    "es": SearchHarness,
    "es+flaky": FlakySearchHarness,
    "es+ssl": SearchTlsHarness,
}
