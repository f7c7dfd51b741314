"""Each sink on something that tests can look into, also a slow and a flaky one."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from rowferry.change.chunk import Op, Rows, SchemaChange, make_rows
from rowferry.change.plan import Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import SinkUnavailable
from rowferry.flow.encode.contract import CodecTraits, Encoded
from rowferry.flow.sink.contract import Owner, Sink
from rowferry.flow.sink.storage import buckets, local_files
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.paths import DataFile, index_path, parse_data_name, parse_path
from rowferry.flow.sink.storage.reader import StoredData, StoredSchema, read_storage
from rowferry.registry import ROW_FORMATS, SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import ObjectServer, Relay
from rowferry.testing.servers.objects.object_server import BUCKET

T = TypeVar("T")
TRAITS = CodecTraits(".csv", "nowhere", carries_before_image=False, can_omit_columns=False)


class Bare:
    """A codec for sinks that ask only for its traits, and for what files begin with."""

    TRAITS: ClassVar = TRAITS

    @staticmethod
    def file_head(table: TableSchema) -> bytes:
        """Return nothing."""
        return b""


NOON = 1_683_633_600_000 << 18  # 2023-05-09 12:00 UTC
FEED = "feed"


def table(name: str = "orders", version: int = 100, table_id: int = 1) -> TableSchema:
    columns = (
        Column(1, "id", SqlType("bigint"), nullable=False),
        Column(2, "note", SqlType("varchar", length=20)),
    )
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("shop", name), table_id, version, columns, (primary,))


ORDERS, ITEMS = table(), table("items", table_id=2)
Frames = list[tuple[int, list[bytes]]]


def slice_of(schema: TableSchema) -> TableSlice:
    return TableSlice(schema.id, schema.table_id, schema.version)


def segment(ordinal: int, *schemas: TableSchema) -> Segment:
    return Segment(ordinal, {}, tuple(slice_of(s) for s in schemas), NOON, NOON, 1000)


def encoded(values: list[bytes]) -> Encoded:
    return Encoded(pa.array(values, pa.large_binary()))


class Writer(Protocol):
    """Calls a sink; a flaky sink's caller calls again, as the supervisor does."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def once(call: Callable[[], T]) -> T:
    return call()


class SinkHarness(ABC):
    """One target, and what its readers see: there is no other way to satisfy the suite.

    Attributes:
        scheme: the registered name.
    """

    scheme: ClassVar[str]

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.patch = patch
        self.asks: Writer = once

    @abstractmethod
    def uri(self) -> str:
        """The sink URI of the target."""

    @abstractmethod
    def visible_rows(self) -> list[bytes]:
        """What readers see, each written value once, in their order."""

    @abstractmethod
    def visible_changes(self) -> list[str]:
        """The texts of the schema changes that readers see, in their order."""

    @abstractmethod
    def watermark(self) -> int | None:
        """The watermark that readers see."""

    @abstractmethod
    def traces(self) -> dict[str, bytes]:
        """Everything that is there by name, also what readers do not look at."""

    @abstractmethod
    def break_for_now(self) -> None:
        """Make the target fail in a way that passes."""

    @abstractmethod
    def break_for_good(self) -> None:
        """Make the target fail in a way that no repetition cures."""

    def spec(self, changefeed: str = FEED) -> ChangefeedSpec:
        return ChangefeedSpec(
            changefeed, Uri.parse("range://127.0.0.1:1", "source"), Uri.parse(self.uri(), "sink")
        )

    def build(self, changefeed: str = FEED) -> Sink:
        """A sink as a new process builds it: from the JSON form of the spec, nothing else."""
        spec = ChangefeedSpec.from_json(self.spec(changefeed).to_json())
        return SINKS.load(self.scheme)(spec, self.codec(spec))

    def codec(self, spec: ChangefeedSpec) -> Any:
        """What the values were made with."""
        return Bare()

    def hand(
        self, sink: Any, part: Segment, outputs: Any, frames: Iterable[tuple[int, list[bytes]]]
    ) -> list[Receipt]:
        """Give a sink the values of one segment in the shape that it takes."""
        given = ((place, encoded(values)) for place, values in frames)
        return list(sink.write(part, outputs, given))

    def opened(
        self, epoch: int = 1, state: dict[str, Any] | None = None, changefeed: str = FEED
    ) -> Sink:
        sink = self.build(changefeed)
        self.asks(lambda: sink.open(Owner(changefeed, epoch), state))
        return sink

    def plan(
        self,
        sink: Sink,
        number: int,
        *segments: Segment,
        changes: Sequence[SchemaChange] = (),
        watermark: int | None = NOON,
    ) -> Plan:
        """A plan through its JSON form: what runs is what was recorded."""
        stretch = Stretch(segments, tuple(changes), {}, watermark=watermark)
        outputs, state = self.asks(lambda: sink.allocate(stretch, tables_of(stretch)))
        return Plan.from_json(Plan(number, 1, 0, stretch, outputs, state).to_json())

    def write(self, sink: Sink, plan: Plan, content: Mapping[int, Frames]) -> list[Receipt]:
        """Run the plan's segments; `content` is the frames of each segment by ordinal."""
        found: list[Receipt] = []
        for part in plan.stretch.segments:
            frames, outputs = content.get(part.ordinal, []), plan.outputs_of(part.ordinal)

            def run(
                part: Segment = part, frames: Frames = frames, outputs: Any = outputs
            ) -> list[Receipt]:
                return self.hand(sink, part, outputs, frames)

            found += self.asks(run)
        return found

    def publish(self, sink: Sink, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self.asks(lambda: sink.publish(plan, receipts, tables_of(plan.stretch)))


def tables_of(stretch: Stretch) -> dict[TableSlice, TableSchema]:
    slices = {s for part in stretch.segments for s in part.slices}
    return {s: table_of(s) for s in slices}


def table_of(one: TableSlice) -> TableSchema:
    return {ORDERS.id: ORDERS, ITEMS.id: ITEMS}[one.table].at(one.version)


class FileHarness(SinkHarness):
    """A directory."""

    scheme: ClassVar[str] = "file"

    def uri(self) -> str:
        return f"file://{self.place}?protocol=csv&fsync=false"

    def visible_rows(self) -> list[bytes]:
        steps = (s for s in self._steps() if isinstance(s, StoredData))
        return [line for s in steps for line in s.content.splitlines(keepends=True)]

    def visible_changes(self) -> list[str]:
        steps = (s for s in self._steps() if isinstance(s, StoredSchema))
        return [s.document.query for s in steps if s.document.query]

    def watermark(self) -> int | None:
        last = list(self._steps())[-1:]
        marks = [s.commit_ts for s in last if not isinstance(s, StoredData | StoredSchema)]
        return marks[0] if marks else None

    def _steps(self) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch:
            _heal(patch)  # readers are not flaky
            yield from list(read_storage(self.place))

    def traces(self) -> dict[str, bytes]:
        own = ("rowferry.owner", "rowferry.lock")  # who writes here, and the lock: not content
        return {
            str(p.relative_to(self.place)): p.read_bytes()
            for p in sorted(self.place.rglob("*"))
            if p.is_file() and p.name not in own
        }

    def break_for_now(self) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch.setattr(os, "write", full)

    def break_for_good(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.parent.mkdir(parents=True, exist_ok=True)
        self.place.write_text("a file where the directory was")


_REAL = {name: getattr(local_files.LocalStaged, name) for name in ("append", "create", "swap")}


def _heal(patch: pytest.MonkeyPatch) -> None:
    for name, real in _REAL.items():
        patch.setattr(local_files.LocalStaged, name, real)


class FlakyFileHarness(FileHarness):
    """Every call fails once, each at another step: before it was done, or after (a lost answer).

    The caller does what the supervisor does about SinkUnavailable: it calls again.
    """

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)
        self.asks = self._ask_twice
        self._calls = 0
        self._countdown: int | None = None
        self._counting = threading.Lock()
        for name, real in _REAL.items():
            patch.setattr(local_files.LocalStaged, name, self._flaky(real))

    def _ask_twice(self, call: Callable[[], T]) -> T:
        self._calls += 1
        self._countdown = self._calls % 5
        try:
            return call()
        except SinkUnavailable:
            assert self._countdown is None
            return call()
        finally:
            self._countdown = None

    def _flaky(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self._counting:  # files are named by several threads
                due = self._countdown == 0
                self._countdown = None if due else self._countdown and self._countdown - 1
            if not due:
                return real(*arguments)
            if self._calls % 2:
                raise SinkUnavailable("it did not answer")
            real(*arguments)
            raise SinkUnavailable("its answer was lost")

        return call


class SlowFileHarness(FileHarness):
    """Every step on a file takes its time."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)

        def slow(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                time.sleep(0.002)
                return real(*arguments)

            return call

        for name, real in _REAL.items():
            patch.setattr(local_files.LocalStaged, name, slow(real))


class ObjectHarness(FileHarness):
    """A prefix of a bucket, whose name holds `place`, reached through a relay that can be cut."""

    scheme: ClassVar[str]
    server: ObjectServer
    relay: Relay

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)
        self._wrong: dict[str, str] = {}
        patch.setitem(buckets.RETRIES, "max_retries", 2)

    def uri(self) -> str:
        return self._uri(self.relay.port, **self._wrong)

    def _uri(self, port: int, **wrong: str) -> str:
        endpoint = urlsplit(self.server.parameters()["endpoint"])
        through = endpoint._replace(netloc=f"127.0.0.1:{port}").geturl()
        uri = self.server.uri(str(self.place).lstrip("/"), protocol="csv", endpoint=through)
        bucket = wrong.get("bucket", BUCKET)
        return f"{self.scheme}://{bucket}{uri.partition(BUCKET)[2]}"

    def _files(self) -> Files:
        uri = self._uri(self.server.client_port)
        spec = ChangefeedSpec(FEED, self.spec().source, Uri.parse(uri, "sink"))
        sink: Any = SINKS.load(self.scheme)
        return sink.files_of(spec, read_settings(spec))  # type: ignore[no-any-return]

    def _steps(self) -> Iterator[Any]:
        yield from read_storage(self._files())

    def traces(self) -> dict[str, bytes]:
        """Every object but the owner's, byte by byte, except for what a new owner may change.

        That is the blanks at the end of `metadata`, and empty data files above the index: a plan
        that is given up leaves one in each of its numbers, which no late task can fill then.
        """
        files = self._files()
        found = {p: files.get(p) for p in sorted(files.paths(9)) if p != "rowferry.owner"}
        kept = {p: s.data for p, s in found.items() if s is not None}
        if "metadata" in kept:
            kept["metadata"] = kept["metadata"].rstrip(b" \t")
        return {
            p: data
            for p, data in kept.items()
            if not self.is_empty(p, data) or not _is_above_index(p, kept)
        }

    def is_empty(self, path: str, data: bytes) -> bool:
        """Whether a file has no rows."""
        return not data

    def break_for_now(self) -> None:
        self.relay.cut()

    def break_for_good(self) -> None:
        self._wrong = {"bucket": "nobody-made-it"}


def _is_above_index(path: str, objects: Mapping[str, bytes]) -> bool:
    """Whether a path is that of a data file that its directory's index does not count."""
    kind = parse_path(path)
    if not isinstance(kind, DataFile):
        return False
    index = objects.get(index_path(path.rpartition("/")[0]), b"").decode().strip()
    named = parse_data_name(index)
    return named is None or kind.number > named[0]


class LosingObjectHarness(ObjectHarness):
    """Answers get lost now and then: what was asked for is done, and nobody hears of it."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)
        self.asks = self._ask_again
        self._calls = 0

    def _ask_again(self, call: Callable[[], T]) -> T:
        self._calls += 1
        self.relay.lose_answers(self._calls % 3)
        for _ in range(4):
            try:
                return call()
            except SinkUnavailable:
                continue
        return call()


class RowHarness(FileHarness):
    """The values as texts in a column of rows, which the sink makes files of by itself."""

    protocol: ClassVar[str]

    def uri(self) -> str:
        return super().uri().replace("protocol=csv", f"protocol={self.protocol}")

    def codec(self, spec: ChangefeedSpec) -> Any:
        return ROW_FORMATS.load(self.protocol)(spec, SINKS.load(self.scheme).TRAITS)

    def hand(
        self, sink: Any, part: Segment, outputs: Any, frames: Iterable[tuple[int, list[bytes]]]
    ) -> list[Receipt]:
        """Files are measured by their own bytes; the suite knows those of the values."""
        tables = [table_of(one) for one in part.slices]
        sizes = [0] * len(tables)

        def rows() -> Iterator[tuple[int, Rows]]:
            number = 0
            for place, values in frames:
                yield place, text_rows(tables[place], values, number)
                number += len(values)
                sizes[place] += sum(map(len, values))

        receipts = list(sink.write_rows(part, outputs, tables, rows()))
        assert all(r.bytes > 0 for r in receipts)  # a file without rows has its columns
        return [replace(r, bytes=sizes[r.slice]) for r in receipts]

    def visible_rows(self) -> list[bytes]:
        steps = [s for s in self._steps() if isinstance(s, StoredData)]
        return [text for s in steps for text in self._texts(s.content, s.schema)]

    def is_empty(self, path: str, data: bytes) -> bool:
        return isinstance(parse_path(path), DataFile) and not self._texts(data, ORDERS)

    def _texts(self, data: bytes, schema: TableSchema) -> list[bytes]:
        changes = self.codec(self.spec()).decode(data, schema)
        return [v.encode() for rows in changes for v in rows.after.field("note").to_pylist()]


def text_rows(schema: TableSchema, values: Sequence[bytes], first: int) -> Rows:
    """Inserts with these notes, numbered from `first`."""
    numbers = range(first, first + len(values))
    images = [{"id": n, "note": v.decode()} for n, v in zip(numbers, values, strict=True)]
    return make_rows(
        schema,
        pa.array([Op.INSERT] * len(values), pa.int8()),
        pa.array([NOON] * len(values), pa.uint64()),
        pa.array(numbers, pa.int64()),
        pa.nulls(len(values), schema.image),
        pa.array(images, schema.image),
    )


def _rows(protocol: str, kind: type[FileHarness]) -> type[FileHarness]:
    return type(f"{kind.__name__}_{protocol}", (RowHarness, kind), {"protocol": protocol})


def _objects(scheme: str, kind: type[ObjectHarness] = ObjectHarness) -> type[ObjectHarness]:
    return type(f"{kind.__name__}_{scheme}", (kind,), {"scheme": scheme})


OBJECT_SERVERS = {"azblob": "azure_server", "gcs": "gcs_server", "s3": "s3_server"}

SINK_HARNESSES: dict[str, Callable[[Path, pytest.MonkeyPatch], SinkHarness]] = {
    "file": FileHarness,
    "file+flaky": FlakyFileHarness,
    "file+slow": SlowFileHarness,
    **{scheme: _objects(scheme) for scheme in OBJECT_SERVERS},
    "s3+losing": _objects("s3", LosingObjectHarness),
    **{f"file+{name}": _rows(name, FlakyFileHarness) for name in ROW_FORMATS.names()},
    **{f"s3+{name}": _rows(name, _objects("s3")) for name in ROW_FORMATS.names()},
}
