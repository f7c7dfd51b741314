"""What every source promises; see `rowferry.flow.capture.contract`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from source_harness import SourceHarness

from rowferry.change.chunk import Op, Rows, SchemaChange
from rowferry.change.plan import Again, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import RowferryError, SnapshotGone, SourceError, Verdict
from rowferry.flow.capture.contract import Appetite, Planner

APPETITE = Appetite(
    segment_bytes=lambda table: 1 << 20, stretch_bytes=64 << 20, partition_label=lambda ts: ""
)
PATIENCE_S = 120.0  # an upper bound for a machine under load, never reached by working code


@pytest.fixture
def table(source: SourceHarness, request: pytest.FixtureRequest) -> TableId:
    """A table with ten rows in a database of the test's own."""
    found = TableId(re.sub(r"\W", "_", request.node.name).lower()[:60], "t")
    source.create(found)
    source.insert(found, rows(range(10)))
    return found


def rows(ids: Any, text: str = "first") -> list[dict[str, Any]]:
    return [{"id": i, "v": f"{text} {i}"} for i in ids]


@dataclass
class Reader:
    """A changefeed's source half: what is published is kept as JSON, as the meta database does."""

    source: SourceHarness
    table: TableId
    position: str = "{}"
    ranges: dict[int, Any] = field(default_factory=dict)
    versions: dict[tuple[int, int], TableSchema] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    chunks: list[Rows] = field(default_factory=list)
    changes: list[SchemaChange] = field(default_factory=list)
    planner: Planner | None = None

    def __post_init__(self) -> None:
        self.spec = self.source.spec(self.table)
        self.tasks = self.source.build(self.spec)

    def open(self) -> Planner:
        """Open a planner after what was published, as a new process does."""
        if self.planner is not None:
            self.planner.close()
        ranges = tuple(RangeProgress.from_json(json.loads(r)) for r in self.ranges.values())
        self.planner = self.source.build(self.spec).planner(
            self.source.decision(self.spec),
            json.loads(self.position),
            ranges,
            tuple(self.versions.values()),
        )
        return self.planner

    def plan(self, appetite: Appetite = APPETITE) -> Stretch:
        """Plan the next stretch, through its JSON form."""
        planner, stretch = self._planned(appetite)
        self.versions.update({(v.table_id, v.version): v for v in planner.table_versions()})
        return Stretch.from_json(json.loads(json.dumps(stretch.to_json())))

    def _planned(self, appetite: Appetite) -> tuple[Planner, Stretch]:
        """Plan with the open planner, or with a new one where connections are being cut."""
        end = time.monotonic() + PATIENCE_S
        while True:
            planner = self.planner or self.open()
            try:
                return planner, planner.plan(appetite)
            except SourceError as err:
                if not self.source.breaks_connections or err.verdict is not Verdict.RETRY:
                    raise
                assert time.monotonic() < end, err
                self.open()

    def tables(self, slices: tuple[TableSlice, ...]) -> dict[TableSlice, TableSchema]:
        return {s: self.versions[s.table_id, s.version] for s in slices}

    def read(self, stretch: Stretch) -> list[Rows]:
        return [
            chunk
            for part in stretch.segments
            for chunk in self.tasks.read(part, self.tables(part.slices))
        ]

    def publish(self, stretch: Stretch) -> None:
        self.position = json.dumps(stretch.position)
        self.ranges.update({r.range_id: json.dumps(r.to_json()) for r in stretch.ranges})
        for gone in stretch.gone_ranges:
            self.ranges.pop(gone, None)
        if stretch.watermark is not None:
            self.marks.append(stretch.watermark)

    def catch_up(self, reopen: bool = False, disturb: bool = False) -> None:
        """Deliver everything that is in the source now; `reopen`: a new process for each step."""
        self.open()
        end = time.monotonic() + PATIENCE_S
        while not self._go_on(reopen, disturb).caught_up:
            assert time.monotonic() < end, "it never caught up"

    def deliver_all(self, appetite: Appetite = APPETITE) -> list[Stretch]:
        """Go on with the planner that is open until the table is as it is in the source."""
        wanted, found = self.source.content(self.table), []
        end = time.monotonic() + PATIENCE_S
        while self.rebuilt() != wanted:
            found.append(self._go_on(appetite=appetite))
            assert time.monotonic() < end, "it never caught up"
        return found

    def _go_on(
        self, reopen: bool = False, disturb: bool = False, appetite: Appetite = APPETITE
    ) -> Stretch:
        stretch = self.plan(appetite)
        if disturb and any(not s.snapshot for s in stretch.segments):
            self.source.disturb(self.table)
        self.chunks += self.read(stretch)
        self.changes += stretch.schema_changes
        self.publish(stretch)
        if reopen:
            self.open()
        return stretch

    def delivered(self) -> list[dict[str, Any]]:
        return [row for chunk in self.chunks for row in chunk.batch.to_pylist()]

    def rebuilt(self) -> list[dict[str, Any]]:
        """Apply what was delivered; every before-image must be the row as it then was."""
        state: dict[int, Any] = {}
        for row in self.delivered():
            image = row["after"] or row["before"]
            assert state.get(image["id"]) == row["before"], row
            if row["after"] is None:
                del state[image["id"]]
            else:
                state[image["id"]] = row["after"]
        return [state[key] for key in sorted(state)]


@pytest.fixture
def reader(source: SourceHarness, table: TableId) -> Iterator[Reader]:
    found = Reader(source, table)
    yield found
    if found.planner is not None:
        found.planner.close()


def work(source: SourceHarness, table: TableId, text: str) -> None:
    """Change some rows of each kind, in several transactions."""
    source.update(table, rows([1, 40] if text == "second" else [1], text))
    source.delete(table, [2] if text == "second" else [3])
    source.insert(table, rows([2, 90] if text == "second" else [91], text))


def as_values(chunks: list[Rows]) -> list[Any]:
    return [(c.table.version, c.physical_id, c.batch.to_pylist()) for c in chunks]


# --- probing --------------------------------------------------------------------------------------


def test_probe_names_the_tables(source: SourceHarness, table: TableId) -> None:
    source.create(TableId(table.database, "keyless_not"))
    spec = source.spec(table)
    found = source.build(spec).probe(source.decision(spec))
    assert [t.id.table for t in found] == ["keyless_not", "t"]
    assert [c.name for c in found[1].columns] == ["id", "v"]


def test_traits_are_said_without_asking(source: SourceHarness, table: TableId) -> None:
    here = source.build(source.spec(table)).traits()
    assert source.build(source.spec(table, source.dead_uri())).traits() == here


def test_a_source_that_does_not_answer_is_an_error_with_a_verdict(
    source: SourceHarness, table: TableId
) -> None:
    spec = source.spec(table, source.dead_uri())
    dead, decision = source.build(spec), source.decision(spec)

    def plan() -> None:
        with closing(dead.planner(decision, {}, (), ())) as planner:
            planner.plan(APPETITE)

    for call in (lambda: dead.probe(decision), plan):
        with pytest.raises(SourceError) as raised:
            call()
        assert raised.value.verdict is Verdict.RETRY
        assert "\n" not in str(raised.value)


# --- reading --------------------------------------------------------------------------------------


def test_snapshot_and_log_give_the_table(reader: Reader) -> None:
    source, table = reader.source, reader.table
    source.insert(table, rows([40]))
    reader.catch_up()
    work(source, table, "second")
    reader.catch_up(disturb=True)
    work(source, table, "third")
    reader.deliver_all()
    ops = [row["op"] for row in reader.delivered()]
    assert set(ops) == {Op.INSERT, Op.UPDATE, Op.DELETE}


def test_a_segment_read_twice_gives_equal_chunks(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    source.insert(table, rows([40]))
    work(source, table, "second")
    checked = 0
    for _ in range(200):
        stretch = reader.plan()
        first = reader.read(stretch)
        if any(not s.snapshot for s in stretch.segments):
            source.disturb(table)
            work(source, table, "third")
            checked += 1
        other = source.build(reader.spec)
        again = [
            chunk
            for part in stretch.segments
            for chunk in other.read(part, reader.tables(part.slices))
        ]
        assert _rows(again) == _rows(first)
        reader.publish(stretch)
        if checked:
            return
    raise AssertionError("no log segment was planned")


def _rows(chunks: list[Rows]) -> list[Any]:
    """Rows in their order with all that they carry; where chunks end does not matter."""
    found = as_values(chunks)
    return [(version, part, row) for version, part, batch in found for row in batch]


def test_a_snapshot_segment_read_twice_gives_what_it_says(reader: Reader) -> None:
    source, table = reader.source, reader.table
    stretch = _first_segments(reader)
    assert all(s.snapshot for s in stretch.segments)
    first = as_values(reader.read(stretch))
    assert first
    work(source, table, "third")
    again = as_values(reader.read(stretch))
    if {s.again for s in stretch.segments} == {Again.SAME}:
        assert again == first
        return
    assert {s.again for s in stretch.segments} == {Again.EQUIVALENT}
    found = [row for _, _, batch in again for row in batch]
    assert [row["after"] for row in found] == source.content(table)
    low = {row["commit_ts"] for _, _, batch in first for row in batch}
    assert {(row["op"], row["commit_ts"]) for row in found} == {(Op.INSERT, *low)}


def test_no_watermark_comes_before_all_that_the_snapshot_shows(reader: Reader) -> None:
    """A snapshot's part may be read long after it was planned, and show what came meanwhile."""
    source, table = reader.source, reader.table
    stretch = _first_segments(reader)
    source.create(TableId(table.database, "another"))  # a stretch of the log ends here
    source.update(table, rows([1], "late"))
    while not reader.marks:
        reader.chunks += reader.read(stretch)
        reader.publish(stretch)
        stretch = reader.plan()
    seen = [row for row in reader.delivered() if (row["after"] or {}).get("id") == 1]
    if seen[0]["after"]["v"] == "late 1":
        assert [row["op"] for row in seen] == [Op.INSERT, Op.UPDATE]
        assert seen[1]["commit_ts"] <= reader.marks[0]


def _first_segments(reader: Reader) -> Stretch:
    for _ in range(50):
        stretch = reader.plan()
        if stretch.segments:
            return stretch
        reader.publish(stretch)
    raise AssertionError("nothing was planned")


def test_rows_are_numbered_from_their_segment_on(reader: Reader) -> None:
    stretch = _first_segments(reader)
    for part in stretch.segments:
        chunks = list(reader.tasks.read(part, reader.tables(part.slices)))
        seqs = [s for c in chunks for s in c.batch.column("seq").to_pylist()]
        first = part.ordinal << 40
        assert seqs == list(range(first, first + len(seqs)))
    assert [s.ordinal for s in stretch.segments] == list(range(len(stretch.segments)))


def test_chunks_are_what_their_segment_says(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    source.insert(table, rows([40]))
    work(source, table, "second")
    seen = 0
    for _ in range(300):
        stretch = reader.plan()
        for part in stretch.segments:
            for chunk in reader.tasks.read(part, reader.tables(part.slices)):
                seen += len(chunk)
                assert chunk.table == reader.versions[chunk.table.table_id, chunk.table.version]
                assert chunk.after.type == chunk.table.image
                stamps = chunk.commit_ts
                assert part.first_commit_ts <= stamps.min()
                assert stamps.max() <= part.last_commit_ts
                assert chunk.batch.schema.field("op").type == pa.int8()
        reader.publish(stretch)
        if seen >= 5:
            return
    raise AssertionError("the changes were never planned")


# --- planning -------------------------------------------------------------------------------------


def test_an_empty_stretch_carries_nothing_but_time(reader: Reader) -> None:
    reader.catch_up()
    stretch = reader.plan()
    assert (stretch.segments, stretch.schema_changes) == ((), ())
    assert stretch.caught_up
    assert reader.read(stretch) == []


def test_a_database_without_captured_tables_is_caught_up(
    source: SourceHarness, table: TableId
) -> None:
    reader = Reader(source, TableId(f"no_{table.database}"[:60], "t"))
    reader.catch_up()
    assert (reader.chunks, reader.changes) == ([], [])
    assert reader.marks
    reader.open().close()


def test_the_watermark_never_goes_back(reader: Reader) -> None:
    for text in ("second", "third"):
        reader.source.insert(reader.table, rows([40 if text == "second" else 41]))
        work(reader.source, reader.table, text)
        reader.catch_up(reopen=text == "third", disturb=True)
    assert reader.marks == sorted(reader.marks)
    assert len(set(reader.marks)) > 1


def test_no_row_comes_at_or_below_a_watermark_that_was_given(reader: Reader) -> None:
    reader.catch_up()
    for text in ("second", "third"):
        reader.source.insert(reader.table, rows([40 if text == "second" else 41]))
        work(reader.source, reader.table, text)
        mark = reader.marks[-1]
        start = len(reader.chunks)
        reader.catch_up()
        stamps = [t for c in reader.chunks[start:] for t in c.commit_ts.tolist()]
        assert stamps
        assert min(stamps) > mark
        assert max(stamps) <= reader.marks[-1]


def test_positions_survive_json_at_every_step(reader: Reader) -> None:
    """A new process after every single stretch: no gap, no repeat."""
    source, table = reader.source, reader.table
    source.insert(table, rows([40]))
    reader.catch_up(reopen=True)
    work(source, table, "second")
    reader.catch_up(reopen=True, disturb=True)
    assert reader.rebuilt() == source.content(table)
    keys = [(r["commit_ts"], (r["after"] or r["before"])["id"]) for r in reader.delivered()]
    assert len(keys) == len(set(keys))


def test_a_discarded_stretch_comes_again(reader: Reader) -> None:
    source, table = reader.source, reader.table
    source.insert(table, rows([40]))
    reader.catch_up()
    work(source, table, "second")
    for _ in range(300):
        lost = reader.plan()
        if lost.segments:
            break
        reader.publish(lost)
    wanted = _rows(reader.read(lost))
    assert wanted
    reader.open()
    work(source, table, "third")
    reader.deliver_all()


def test_a_snapshot_that_was_discarded_begins_again(reader: Reader) -> None:
    lost = _first_segments(reader)
    reader.read(lost)
    reader.open()
    reader.catch_up()
    assert reader.rebuilt() == reader.source.content(reader.table)


def test_nothing_is_planned_after_the_wished_end(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    end = reader.marks[-1]
    source.insert(table, rows([40]))
    appetite = Appetite(
        APPETITE.segment_bytes, APPETITE.stretch_bytes, APPETITE.partition_label, until_ts=end
    )
    for _ in range(5):
        stretch = reader.plan(appetite)
        assert (stretch.segments, stretch.watermark or end) == ((), end)
    reader.open()
    reader.catch_up()
    assert reader.rebuilt() == source.content(table)


def test_small_wishes_cut_many_segments_with_the_same_rows(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    for i in range(20):
        source.insert(table, rows([100 + i], "x" * 30))
    reader.deliver_all(Appetite(lambda name: 1, 1, lambda ts: ""))


def test_a_day_is_never_crossed(reader: Reader) -> None:
    """Two commit-ts that must not share a segment do not, whatever separates them."""
    source, table = reader.source, reader.table
    reader.catch_up()
    for i in range(4):
        source.insert(table, rows([100 + i]))
        time.sleep(0.005)
    by_ms = Appetite(
        APPETITE.segment_bytes, APPETITE.stretch_bytes, lambda ts: str((ts >> 18) // 4)
    )
    for stretch in reader.deliver_all(by_ms):
        for part in stretch.segments:
            assert by_ms.partition_label(part.first_commit_ts) == by_ms.partition_label(
                part.last_commit_ts
            )


# --- schema changes -------------------------------------------------------------------------------


def test_a_schema_change_stands_between_the_rows_of_its_versions(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    source.insert(table, rows([40]))
    source.ddl(f"ALTER TABLE {table.database}.{table.table} ADD COLUMN extra varchar(10)")
    source.insert(table, [{**row, "extra": "new"} for row in rows([41])])
    reader.catch_up(reopen=True)
    (change,) = [c for c in reader.changes if "ADD COLUMN" in c.query.upper()]
    assert change.schema is not None
    assert [c.name for c in change.schema.columns] == ["id", "v", "extra"]
    by_version = {
        c.table.version: [r["after"]["id"] for r in c.batch.to_pylist()] for c in reader.chunks[-2:]
    }
    assert list(by_version.values()) == [[40], [41]]
    assert max(by_version) == change.schema.version == change.commit_ts
    assert reader.delivered()[-1]["after"] == {"id": 41, "v": "first 41", "extra": "new"}


def test_a_table_made_later_is_captured_from_its_first_row(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    later = TableId(table.database, "later")
    source.create(later)
    source.insert(later, rows([5, 60]))
    reader.catch_up()
    assert [c.table for c in reader.changes] == [later]
    mine = [c for c in reader.chunks if c.table.id == later]
    assert sorted(r["after"]["id"] for c in mine for r in c.batch.to_pylist()) == [5, 60]


def test_a_dropped_table_ends_with_its_rows(reader: Reader) -> None:
    source, table = reader.source, reader.table
    reader.catch_up()
    source.insert(table, rows([40]))
    source.ddl(f"DROP TABLE {table.database}.{table.table}")
    reader.catch_up()
    assert [r["after"]["id"] for r in reader.delivered()][-1] == 40
    assert [c.query.upper()[:10] for c in reader.changes] == ["DROP TABLE"]
    assert reader.ranges == {}


def test_what_can_never_be_read_again_asks_for_a_new_plan() -> None:
    """The one error of a source that is neither repeated nor final."""
    assert SnapshotGone("x").verdict is Verdict.REPLAN
    assert issubclass(SnapshotGone, RowferryError)
