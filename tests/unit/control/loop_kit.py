"""A scripted source, and the loop's parts with a place to fail at before or after each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.dialect import SourceDialect
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.contract import Hold, MetaStore
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.capture.contract import Appetite, PlannerPosition, SnapshotShare, SourceTraits
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.registry import SOURCES
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri import Uri

NAME = TableId("shop", "orders")
START = 1_700_000_000_000 << 18


def _table(version: int, *names: str, id: TableId = NAME, table_id: int = 7) -> TableSchema:
    columns = [Column(1, "id", SqlType("bigint"), nullable=False)]
    columns += [Column(2 + i, n, SqlType("varchar", length=20)) for i, n in enumerate(names)]
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(id, table_id, version, tuple(columns), (primary,))


@dataclass
class Script:
    """What a scripted source holds: ids of inserted rows, in transactions, and DDLs between them.

    Attributes:
        most: how many transactions one stretch takes.
        most_changes: how many DDLs in a row one stretch takes.
        now: the source's clock; an idle stretch moves the watermark there.
        first: versions that are met by the first stretch, whether it has rows of them or not.
        tables: of which table an entry's rows are, by its place, where it is not `NAME`.
        left: ids of tables that are gone behind an entry, by its place.
    """

    entries: list[list[int] | SchemaChange] = field(default_factory=list)
    versions: list[TableSchema] = field(default_factory=lambda: [_table(START, "note")])
    most: int = 2
    most_changes: int = 1
    now: int = 0
    first: list[TableSchema] = field(default_factory=list)
    tables: dict[int, TableId] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    def commit(self, *ids: int) -> None:
        self.entries.append(list(ids))

    def begin_with(self, *names: TableId) -> None:
        """Have these tables, and no other, before the first entry."""
        self.first = [
            _table(START, "note", id=name, table_id=10 + i) for i, name in enumerate(names)
        ]
        self.versions = list(self.first)

    def commit_to(self, name: TableId, *ids: int) -> None:
        self.tables[len(self.entries)] = name
        self.commit(*ids)

    def create(self, name: TableId) -> None:
        at = self.ts(len(self.entries))
        table = _table(at, "note", id=name, table_id=100 + len(self.entries))
        self.versions.append(table)
        query = f"CREATE TABLE {name} (id bigint PRIMARY KEY, note varchar(20))"
        self.entries.append(SchemaChange(at, DdlKind.CREATE_TABLE, query, name, table))

    def drop(self, name: TableId) -> None:
        at = self.ts(len(self.entries))
        last = self.version_of(name, at)
        change = SchemaChange(at, DdlKind.DROP_TABLE, f"DROP TABLE {name}", name)
        self.entries.append(replace(change, dropped_table_id=last.table_id, last_schema=last))
        self.let_go(name)

    def rename(self, old: TableId, new: TableId) -> None:
        at = self.ts(len(self.entries))
        table = replace(self.version_of(old, at), id=new, version=at)
        self.versions.append(table)
        query = f"RENAME TABLE {old} TO {new}"
        self.entries.append(SchemaChange(at, DdlKind.RENAME_TABLE, query, new, table, old))

    def let_go(self, name: TableId) -> None:
        """Let a table be gone behind the last entry, whatever that says."""
        place = len(self.entries) - 1
        self.left[place] = self.version_of(name, self.ts(place)).table_id

    def version_of(self, name: TableId, at: int) -> TableSchema:
        return [v for v in self.versions if v.version <= at and v.id == name][-1]

    def add_column(self, name: str) -> None:
        at = self.ts(len(self.entries))
        names = [c.name for c in self.versions[-1].columns[1:]]
        table = _table(at, *names, name)
        self.versions.append(table)
        query = f"ALTER TABLE orders ADD COLUMN {name} varchar(20)"
        self.entries.append(SchemaChange(at, DdlKind.ADD_COLUMN, query, NAME, table))

    def ts(self, place: int) -> int:
        return START + place + 1

    def version_at(self, place: int) -> TableSchema:
        return self.version_of(self.tables.get(place, NAME), self.ts(place))

    def ids(self) -> list[int]:
        return [i for e in self.entries if isinstance(e, list) for i in e]


SCRIPTS: dict[str, Script] = {}


class ScriptedSource:
    """A source whose log is the script of its address; positions are places in it."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = ()
    DIALECT: ClassVar[SourceDialect] = MYSQL_DIALECT
    STAMPED_BY_ROWS: ClassVar[bool] = False
    notices: tuple[str, ...] = ()
    unnumbered: tuple[TableId, ...] = ()
    identity = ""

    def __init__(self, spec: ChangefeedSpec) -> None:
        self.script = SCRIPTS[spec.source.address]

    def traits(self) -> SourceTraits:
        return SourceTraits(True, True)

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        return (self.script.versions[-1],)

    def planner(
        self,
        decision: Decision,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: tuple[TableSchema, ...],
    ) -> ScriptedPlanner:
        return ScriptedPlanner(self.script, position.get("next", 0), versions)

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        table = tables[segment.slices[0]]
        for place in range(segment.read["from"], segment.read["until"]):
            ids = self.script.entries[place]
            assert isinstance(ids, list)
            images = [
                {c.name: i if c.name == "id" else f"{c.name}-{i}" for c in table.columns}
                for i in ids
            ]
            count, first = len(ids), (segment.ordinal << 40) + place
            yield make_rows(
                table,
                pa.array([int(Op.INSERT)] * count, pa.int8()),
                pa.array([self.script.ts(place)] * count, pa.uint64()),
                pa.array(range(first, first + count), pa.int64()),
                pa.nulls(count, table.image),
                pa.array(images, table.image),
            )

    def facts_read(self, segment: Segment) -> dict[str, Any] | None:
        return None

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return stretch.position

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        return position


def _progress(table: TableSchema) -> RangeProgress:
    ids = (table.table_id, table.table_id, table.table_id)
    return RangeProgress(*table.id, *ids, "", "", Stage.LOG)


class ScriptedPlanner:
    """The driver's half of a scripted source."""

    def __init__(self, script: Script, start: int, versions: tuple[TableSchema, ...]) -> None:
        self.script, self.next = script, start
        self._known = {(v.table_id, v.version) for v in versions}
        self._met: list[TableSchema] = []

    def plan(self, appetite: Appetite) -> Stretch:
        script, start = self.script, self.next
        end = start
        last = min(len(script.entries), (appetite.until_place or {}).get("next", 1 << 62))
        changes: list[SchemaChange] = []
        while end < last and isinstance(script.entries[end], list) and end - start < script.most:
            if script.tables.get(end) != script.tables.get(start):
                break
            end += 1
        self.next = end
        while self.next < last and end - start < script.most:
            entry = script.entries[self.next]
            if not isinstance(entry, SchemaChange) or len(changes) == script.most_changes:
                break
            changes.append(entry)
            self.next += 1
        if not start:
            for table in script.first:
                self._meet(table)
        segments: tuple[Segment, ...] = ()
        if end > start:
            table = script.version_at(start)
            self._meet(table)
            slices = (TableSlice(table.id, table.table_id, table.version),)
            read = {"from": start, "until": end}
            segments = (Segment(0, read, slices, script.ts(start), script.ts(end - 1), 100),)
        for change in changes:
            if change.schema is not None:
                self._meet(change.schema)
        left = tuple(i for place, i in script.left.items() if start <= place < self.next)
        at_end = self.next == len(script.entries)
        reached = script.ts(self.next - 1) if self.next else None
        if at_end and script.now:
            reached = max(reached or 0, script.now)
        return Stretch(
            segments,
            tuple(changes),
            {"next": self.next},
            tuple(_progress(t) for t in script.first if not start and t.table_id not in left),
            left,
            watermark=reached,
            caught_up=at_end,
        )

    def _meet(self, table: TableSchema) -> None:
        if (table.table_id, table.version) not in self._known:
            self._known.add((table.table_id, table.version))
            self._met.append(table)

    def place_reached(self, place: Mapping[str, Any]) -> PlannerPosition:
        if self.next == place["next"]:
            return PlannerPosition.AT
        return PlannerPosition.PAST if self.next > place["next"] else PlannerPosition.BEFORE

    def table_versions(self) -> tuple[TableSchema, ...]:
        found, self._met = tuple(self._met), []
        return found

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        return ()

    def warnings(self) -> tuple[str, ...]:
        return ()

    def lag_ms(self) -> int | None:
        return None

    def close(self) -> None:
        pass


# --- the parts, watched ---------------------------------------------------------------------------


class Journal:
    """Notes calls in their order; fails once, before or after a call, where it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._faults: dict[tuple[str, str], Exception] = {}

    def fail(self, when: str, call: str, error: Exception) -> None:
        self._faults[when, call] = error

    def note(self, call: str, do: Callable[[], Any]) -> Any:
        if error := self._faults.pop(("before", call), None):
            raise error
        found = do()
        self.calls.append(call)
        if error := self._faults.pop(("after", call), None):
            raise error
        return found


class Watched:
    """An object of which some methods are noted, under names of ours."""

    def __init__(self, inner: Any, journal: Journal, **names: str) -> None:
        self._inner, self._journal, self._names = inner, journal, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "planner":
            return lambda *args: Watched(found(*args), self._journal, plan="plan")
        if name not in self._names:
            return found
        call = self._names[name]
        return lambda *args: self._journal.note(call, lambda: found(*args))


ORDER = ["plan", "allocate", "record", "run", "show", "publish"]


class Bench:
    """One changefeed from a script to a directory; every `loop()` is a new process's loop."""

    def __init__(self, root: Path, store: MetaStore) -> None:
        self.root, self.store = root, store
        self.script = SCRIPTS.setdefault(root.name, Script())
        self.spec = ChangefeedSpec(
            "feed",
            Uri.parse(f"scripted://{root.name}", "source"),
            Uri.parse(f"file://{root}?protocol=canal-json&fsync=false", "sink"),
            {"sink": {"terminator": "\n", "enable-tidb-extension": True}},
        )
        self.journal = Journal()
        self.clock = 1_000
        store.create_changefeed(self.spec)

    def claim(self) -> Claim:
        return self.store.claim("feed", Holder.here(), float(self.clock), 0.0)

    def loop(
        self, claim: Claim | None = None, hold: Callable[[], Hold | None] = lambda: None
    ) -> Loop:
        flow, journal = assemble(self.spec), self.journal
        watched: Any = Flow(
            Watched(flow.capture, journal),  # type: ignore[arg-type]
            flow.decide,
            flow.dispatch,
            flow.encode,
            Watched(flow.sink, journal, allocate="allocate", publish="show", discard="discard"),  # type: ignore[arg-type]
        )
        store: Any = Watched(
            self.store, journal, record="record", publish="publish", discard="forget"
        )
        runner: Any = Watched(InProcessRunner(), journal, run="run")
        return Loop("feed", watched, store, claim or self.claim(), runner, self._now_ms, hold=hold)

    def _now_ms(self) -> int:
        self.clock += 1  # no two plans have the same clock reading
        return self.clock


def register_scripted_source() -> None:
    SOURCES._places["scripted"] = f"{__name__}:ScriptedSource"


def forget_scripted_source() -> None:
    del SOURCES._places["scripted"]
    SCRIPTS.clear()
