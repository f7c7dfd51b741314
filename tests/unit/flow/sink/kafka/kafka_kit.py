"""A Kafka sink without a broker: what it asks of its clients is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.plan import Segment, Stretch, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import RowferryError
from rowferry.flow.assemble import codec_name
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.kafka import sink
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

Sent = tuple[str, int, list[bytes | None]]


@dataclass
class FakeBroker:
    """Topics with partition counts, and what was sent; `faults` meet the next calls of `send`."""

    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    ids_of: dict[str, str] = field(default_factory=dict)
    cluster: str = "c"
    in_sync: int = 1
    made: list[tuple[str, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    faults: list[RowferryError | None] = field(default_factory=list)
    given_up: int = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(sink, "Topics", lambda settings: self)
        patch.setattr(sink, "Sender", lambda settings, largest, counts: FakeSender(self))

    # --- as `Topics` -----------------------------------------------------------------------------

    def partition_counts(self) -> dict[str, int]:
        return dict(self.counts)

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        return {t: self.ids_of.get(t, "1") if t in self.counts else None for t in topics}

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self.limits.get(topic, 1000) for topic in topics}

    def least_in_sync(self) -> int:
        return self.in_sync

    def create(self, wanted: Mapping[str, int]) -> None:
        self.made += wanted.items()
        self.counts = {**wanted, **self.counts}

    def check_create(self, wanted: Mapping[str, int]) -> None:
        self.asked += [f"create {topic} {partitions}" for topic, partitions in wanted.items()]

    def check_write(self, topics: Iterable[str]) -> None:
        self.asked += [f"write {topic}" for topic in topics]


class FakeSender:
    """Writes down what it sends; a message of a topic that is not there fails."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.missing = ""

    def send(self, topic: str, partition: int, messages: Encoded) -> None:
        fault = self._broker.faults.pop(0) if self._broker.faults else None
        if fault is not None:
            self.missing = "" if topic in self._broker.counts else topic
            raise fault
        self._broker.sent.append((topic, partition, messages.values.to_pylist()))

    def flush(self) -> None:
        """All is durable at once."""

    def give_up(self) -> None:
        self._broker.given_up += 1


def kafka_of(query: str = "protocol=canal-json", **rule: Any) -> sink.KafkaSink:
    """A sink with the default topic `fallback` and at most one dispatch rule."""
    config = {"sink": {"dispatchers": [{"matcher": ["*.*"], **rule}]}} if rule else {}
    source = Uri.parse("range://127.0.0.1:1", "source")
    spec = ChangefeedSpec(
        "feed", source, Uri.parse(f"kafka://b:1/fallback?{query}", "sink"), config
    )
    return sink.KafkaSink(spec, codec_for(CODECS.load(codec_name(spec)), spec))


def table(name: str, number: int = 1) -> TableSchema:
    found = parse_create(f"CREATE TABLE shop.{name} (id int PRIMARY KEY)", "shop")
    return found.at(100) if number == 1 else found.at(number)


def stretch_of(*tables: TableSchema, **more: Any) -> tuple[Stretch, Mapping[TableSlice, Any]]:
    """A stretch with one segment of these tables, and what `allocate` is told of them."""
    slices = {TableSlice(t.id, t.table_id, t.version): t for t in tables}
    segments = (Segment(0, {}, tuple(slices), 1, 1),) if slices else ()
    return Stretch(segments, more.pop("changes", ()), {}, **more), slices


def words(*values: bytes) -> Encoded:
    return Encoded(pa.array(values, pa.large_binary()))
