"""Offsets of a query: whole, repeatable, and stopped where the table is altered."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Again, Segment, Stretch, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT, RangeProgress, Stage
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import NoSuchTable, PlanRefused, TableAltered, TableIneligible
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.spark import table_stretches
from rowferry.spark.table_request import TableRequest, read_request
from rowferry.spark.table_stretches import Form, Offset, Stretches, plan_all

NAME = TableId("d", "t")


def version(number: int, *names: str, table_id: int = 7) -> TableSchema:
    columns = tuple(Column(i, n, SqlType("int")) for i, n in enumerate(names or ("id",), 1))
    return TableSchema(NAME, table_id, number, columns)


@dataclass(frozen=True)
class Piece:
    """Bytes that a source has read; those that do not travel are in this machine's memory."""

    data: bytes
    travels: bool = True

    @property
    def nbytes(self) -> int:
        return len(self.data)


def segment(of: TableSchema, here: bytes = b"", **more: Any) -> Segment:
    mine = TableSlice(NAME, of.table_id, of.version)
    near = (Piece(here),) if here else ()
    return Segment(0, {"kind": "log"}, (mine,), 1, 2, near=near, **more)


def bytes_here(segments: Iterable[Segment]) -> list[bytes]:
    return [b"".join(cast(Piece, piece).data for piece in one.near) for one in segments]


def progress(range_id: int, index: int) -> RangeProgress:
    return RangeProgress("d", "t", 7, 7, range_id, "", "", Stage.LOG, last_log_index=index)


@dataclass
class Script:
    """A source that gives stretches one after the other; it is its own planner and request."""

    stretches: list[Stretch]
    versions: list[TableSchema]
    now: TableSchema | None = None
    starts_now: bool = False
    lag: int | None = None
    shares: list[tuple[SnapshotShare, ...]] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    table: TableId = NAME
    stretch_bytes: int = 1 << 20

    def request(self) -> TableRequest:
        return cast(TableRequest, self)

    @property
    def spec(self) -> Any:
        return read_request({"source": "range://h:1", "table": "d.t"}, "spark-1").spec

    def source(self) -> Script:
        return self

    def decision(self) -> None:
        return None

    def planner(self, decision: Any, position: Form, ranges: Any, versions: Any) -> Script:
        self.opened.append((position, ranges, versions))
        self._left = self._following(position)
        return self

    def _following(self, position: Form) -> Iterator[Stretch]:
        yield from self.stretches[position.get("n", 0) :]
        while True:
            yield Stretch((), (), {"n": len(self.stretches)}, caught_up=True)

    def plan(self, appetite: Appetite) -> Stretch:
        return next(self._left)

    def table_versions(self) -> tuple[TableSchema, ...]:
        return tuple(self.versions)

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        return self.shares.pop(0) if self.shares else ()

    def warnings(self) -> tuple[str, ...]:
        return ()

    def lag_ms(self) -> int | None:
        return self.lag

    def close(self) -> None:
        pass

    def present(self) -> TableSchema:
        if self.now is None:
            raise NoSuchTable("gone")
        return self.now


def script(*made: dict[str, Any], columns: tuple[str, ...] = ("id",), **more: Any) -> Script:
    """Return a source with these stretches; positions count them."""
    parts = [
        Stretch(**{"segments": (), "schema_changes": (), "position": {"n": n}, **one})
        for n, one in enumerate(made, 1)
    ]
    return Script(
        parts, more.pop("versions", [version(1)]), **{"now": version(9, *columns), **more}
    )


def query(of: Script, *columns: str) -> Stretches:
    names = list(columns or ("id",))
    return Stretches(of.request(), lambda t: [c.name for c in t.columns] == names)


def through_json(form: Form) -> Form:
    found: Form = json.loads(json.dumps(form))
    return found


FIRST = Offset().to_json()
ROWS = {"segments": (segment(version(1)),)}


def ddl(kind: DdlKind, schema: TableSchema | None, **more: Any) -> dict[str, Any]:
    change = SchemaChange(5, kind, "ALTER  TABLE\n t", more.pop("table", NAME), schema, **more)
    return {"schema_changes": (change,)}


# --- offsets -------------------------------------------------------------------------------------


def test_an_offset_says_all_that_is_needed_to_go_on() -> None:
    kept = (progress(1, 4), progress(2, 5))
    source = script({**ROWS, "ranges": kept}, {"gone_ranges": (1,), **ROWS})
    running = query(source)
    one = through_json(running.follow(FIRST))
    two = through_json(running.follow(one))
    assert len(source.opened) == 1
    again = query(source)
    assert through_json(again.follow(one)) == two
    assert source.opened[1] == ({"n": 1}, kept, (version(1),))
    again.follow(two)
    assert query(source).follow(two) == two
    assert source.opened[2] == ({"n": 2}, (progress(2, 5),), (version(1),))


def test_the_same_question_has_the_same_answer() -> None:
    source = script(ROWS, ROWS)
    running = query(source)
    one = running.follow(FIRST)
    assert running.follow(FIRST) == one
    two = running.follow(through_json(one))
    assert two != one
    assert running.follow(one) == two
    assert len(source.opened) == 1  # planned anew, it might be cut differently


def test_a_batch_that_runs_again_reads_what_was_planned() -> None:
    source = script({"segments": (segment(version(1), b"abc"), segment(version(1)))})
    running = query(source)
    end = through_json(running.follow(FIRST))
    planned = running.between(FIRST, end)
    assert [s.ordinal for s, _ in planned] == [0, 1]
    assert bytes_here(s for s, _ in planned) == [b"abc", b""]
    assert all(tables == [version(1)] for _, tables in planned)
    later = query(source)
    assert later.between(FIRST, end) == planned
    assert bytes_here(s for s, _ in later.between(FIRST, end)) == [b"", b""]
    assert len(source.opened) == 1


def test_an_offset_says_where_rows_are_and_holds_none() -> None:
    running = query(script({"segments": (segment(version(1), b"a row"),)}, ROWS, ROWS, ROWS))
    place, offsets = FIRST, [FIRST]
    for _ in range(4):
        place = running.follow(place)
        offsets.append(place)
    texts = [json.dumps(one) for one in offsets]
    assert not any("a row" in t or b64encode(b"a row").decode() in t for t in texts)
    assert all(not s.bytes_here for one in offsets for s in Offset.from_json(one).segments)


def test_an_offset_of_before_that_holds_rows_is_gone_on_from() -> None:
    """As they were before 0.1.0: with the log's bytes in the segments."""
    source = script({"segments": (segment(version(1), b"a row"),)}, ROWS)
    new = Offset.from_json(query(source).follow(FIRST))
    old = replace(new, segments=(replace(segment(version(1)), payload=b"a row"),)).to_json()
    assert b64encode(b"a row").decode() in json.dumps(old)
    again = query(source)
    assert [s.payload for s, _ in again.between(FIRST, old)] == [b"a row"]
    two = again.follow(old)
    assert len(again.between(old, two)) == 1


def test_bytes_of_stretches_long_past_are_not_kept() -> None:
    running = query(script(*[{"segments": (segment(version(1), b"row"),)}] * 6))
    places = [FIRST]
    for _ in range(6):
        places.append(running.follow(places[-1]))
    kept = [running.between(*pair)[0][0] for pair in pairwise(places)]
    assert bytes_here(kept) == [b"", b"", b"", b"", b"row", b"row"]


def test_nothing_lies_between_an_offset_and_itself() -> None:
    source = script(ROWS)
    running = query(source)
    end = running.follow(FIRST)
    assert running.between(end, end) == []
    assert running.between(FIRST, FIRST) == []


def test_offsets_that_do_not_follow_one_another_are_refused() -> None:
    running = query(script(ROWS, ROWS))
    one = running.follow(FIRST)
    two = running.follow(one)
    with pytest.raises(PlanRefused):
        running.between(FIRST, two)


def test_bytes_are_carried_only_while_they_are_few() -> None:
    much = bytes(table_stretches.CARRY_BYTES)
    running = query(script({"segments": (segment(version(1), much),)}, {
        "segments": (segment(version(1), much), segment(version(1), b"x"))
    }))  # fmt: skip
    one = running.follow(FIRST)
    assert bytes_here(s for s, _ in running.between(FIRST, one)) == [much]
    two = running.follow(one)
    assert bytes_here(s for s, _ in running.between(one, two)) == [b"", b""]


def test_memory_of_one_machine_is_not_kept_for_tasks() -> None:
    """They may run on another one; and small pieces would keep large files of it."""
    near = replace(segment(version(1)), near=(Piece(b"near", travels=False),))
    running = query(script({"segments": (near, segment(version(1), b"x"))}))
    one = running.follow(FIRST)
    assert bytes_here(s for s, _ in running.between(FIRST, one)) == [b"", b"x"]


def test_a_new_query_notes_where_it_began_although_nothing_came() -> None:
    running = query(script({}, {}))
    one = running.follow(FIRST)
    assert Offset.from_json(one).position == {"n": 1}
    assert running.between(FIRST, one) == []
    assert running.follow(one) == one


def test_an_idle_query_moves_on_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    running = query(script({}, {}, {}, {}))
    one = running.follow(FIRST)
    assert running.follow(one) == one
    monkeypatch.setattr(table_stretches, "IDLE_S", -1.0)
    two = running.follow(one)
    assert Offset.from_json(two).position == {"n": 3}
    assert Offset.from_json(two).segments == ()


def test_what_an_idle_stretch_said_is_not_lost() -> None:
    running = query(script({}, {"ranges": (progress(1, 4),)}, ROWS))
    one = running.follow(FIRST)
    assert running.follow(one) == one
    two = Offset.from_json(running.follow(one))
    assert two.ranges == (progress(1, 4),)
    assert len(two.segments) == 1


# --- ends ----------------------------------------------------------------------------------------


def test_a_bounded_query_ends_when_it_has_caught_up() -> None:
    source = script(ROWS, {}, ROWS, {"caught_up": True}, ROWS)
    running = query(source)
    running.end_when_caught_up()
    one = running.follow(FIRST)
    two = running.follow(one)
    assert Offset.from_json(two).position == {"n": 3}
    assert running.follow(two) == two
    assert running.follow(two) == two


def test_a_bounded_query_ends_although_the_source_never_rests() -> None:
    def at(ms: int) -> dict[str, Any]:
        return {**ROWS, "watermark": ms << PHYSICAL_SHIFT}

    source = script(at(100), at(140), at(150), at(160), at(170), lag=50)
    running = query(source)
    running.end_when_caught_up()
    place, seen = FIRST, 0
    while (after := running.follow(place)) != place:
        place, seen = after, seen + 1
    assert seen == 3


def test_everything_is_one_stretch() -> None:
    running = query(script(ROWS, {}, ROWS, ROWS))
    end = running.follow(FIRST, everything=True)
    assert [s.ordinal for s, _ in running.between(FIRST, end)] == [0, 1, 2]


def test_a_single_read_takes_all() -> None:
    source = script(ROWS, ROWS)
    found = plan_all(source.request(), lambda t: True)
    assert [s.ordinal for s, _ in found] == [0, 1]


def test_begun_now_a_query_leaves_the_present_rows_out() -> None:
    snapshot = segment(version(1), snapshot=True)
    source = script({"segments": (snapshot,)}, ROWS, starts_now=True)
    running = query(source)
    one = running.follow(FIRST)
    assert running.between(FIRST, one) == []
    two = running.follow(one)
    assert len(running.between(one, two)) == 1


def test_begun_now_no_offset_lies_inside_a_snapshot_that_nobody_reads() -> None:
    parts = [{"segments": (segment(version(1), snapshot=True),)} for _ in range(3)]
    left = [(SnapshotShare(NAME, n, 3),) for n in (1, 2)]
    source = script(*parts, ROWS, starts_now=True, shares=left)
    running = query(source)
    one = through_json(running.follow(FIRST))
    assert Offset.from_json(one).position == {"n": 3}
    assert running.between(FIRST, one) == []
    two = running.follow(one)
    assert len(running.between(one, two)) == 1


def test_rows_that_can_be_read_only_once_are_for_a_single_read() -> None:
    once = segment(version(1), snapshot=True, again=Again.NEVER)
    source = script({"segments": (once,)}, ROWS)
    assert len(plan_all(source.request(), lambda t: True)) == 1
    with pytest.raises(TableIneligible, match="startingPosition = now"):
        query(source).follow(FIRST)


# --- alterations ---------------------------------------------------------------------------------


def altered() -> tuple[TableSchema, Script]:
    new = version(5, "id", "more")
    source = script(
        {**ROWS, **ddl(DdlKind.ADD_COLUMN, new)},
        {"segments": (segment(new),)},
        versions=[version(1), new],
        columns=("id", "more"),
    )
    return new, source


def test_a_query_stops_behind_the_rows_before_an_alteration() -> None:
    _, source = altered()
    running = query(source)
    one = through_json(running.follow(FIRST))
    assert len(running.between(FIRST, one)) == 1
    with pytest.raises(TableAltered, match=r"altered at commit-ts 5 \(ALTER TABLE t\)"):
        running.follow(one)


def test_begun_again_it_goes_on_with_the_new_columns() -> None:
    new, source = altered()
    one = through_json(query(source).follow(FIRST))
    again = query(source, "id", "more")
    two = again.follow(one)
    assert again.between(one, two)[0][1] == [new]


def test_a_query_with_the_newest_columns_reads_older_rows() -> None:
    new, source = altered()
    running = query(source, "id", "more")
    one = running.follow(FIRST)
    assert running.between(FIRST, one)[0][1] == [version(1)]
    two = running.follow(one)
    assert running.between(one, two)[0][1] == [new]


def test_alterations_that_are_history_do_not_stop_it() -> None:
    between, new = version(5, "id", "other"), version(6, "id", "more")
    source = script(
        {**ROWS, **ddl(DdlKind.ADD_COLUMN, between)},
        {"segments": (segment(between),), **ddl(DdlKind.MULTI_SCHEMA_CHANGE, new)},
        {"segments": (segment(new),)},
        versions=[version(1), between, new],
        columns=("id", "more"),
    )
    running, place = query(source, "id", "more"), FIRST
    for wanted in (version(1), between, new):
        after = running.follow(place)
        assert running.between(place, after)[0][1] == [wanted]
        place = after


def test_columns_that_changed_without_a_statement_stop_a_query_too() -> None:
    new = version(5, "id", "more")
    source = script({"segments": (segment(new),)}, versions=[new], columns=("id", "more"))
    with pytest.raises(TableAltered, match="commit-ts 5, and this query"):
        query(source).follow(FIRST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (ddl(DdlKind.ADD_INDEX, version(5)), ""),
        (ddl(DdlKind.DATABASE_CHARSET, None, table=TableId("d", "")), ""),
        (ddl(DdlKind.TRUNCATE_TABLE, version(5, table_id=8), dropped_table_id=7), "lost rows"),
        (ddl(DdlKind.DROP_PARTITION, version(5)), "lost rows"),
        (ddl(DdlKind.DROP_TABLE, None, dropped_table_id=7), "dropped or renamed"),
        (ddl(DdlKind.DROP_DATABASE, None, table=TableId("d", "")), "dropped or renamed"),
        (
            ddl(DdlKind.RENAME_TABLE, version(5), table=TableId("d", "u"), previous=NAME),
            "dropped or renamed",
        ),
    ],
)
def test_what_stops_a_query_once(change: dict[str, Any], words: str) -> None:
    source = script({**ROWS, **change}, ROWS, versions=[version(1), version(5)])
    running = query(source)
    one = running.follow(FIRST)
    if not words:
        assert running.follow(one) != one
        return
    with pytest.raises(TableAltered, match=words):
        running.follow(one)
    assert query(source).follow(one) != one
    rerun = query(source)
    rerun.between(FIRST, one)
    with pytest.raises(TableAltered, match=words):
        rerun.follow(one)


def test_a_table_that_is_gone_is_altered() -> None:
    new, source = altered()
    running = query(replace(source, now=None), "other")
    with pytest.raises(TableAltered):
        running.follow(FIRST)


def test_a_single_read_of_a_table_that_is_altered_meanwhile_is_refused() -> None:
    _, source = altered()
    with pytest.raises(TableAltered):
        plan_all(source.request(), lambda t: len(t.columns) == 1)


def test_old_definitions_do_not_pile_up() -> None:
    old = [version(n, table_id=n) for n in range(1, 6)]
    source = script(
        *({"segments": (segment(v),)} for v in old), versions=old, now=version(5, table_id=5)
    )
    running, place = query(source), FIRST
    for _ in old:
        place = running.follow(place)
    assert Offset.from_json(place).versions == (old[3], old[4])
