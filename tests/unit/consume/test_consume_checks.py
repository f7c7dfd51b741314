"""What a consumer counts, and what it calls a violation."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume.arrival import ArrivedRow, ArrivedStatement, Where
from rowferry.downstream.consume.checks import MOST_SAMPLES, Checks, ConsumeFindings
from rowferry.downstream.consume.replay import ChangeReplay

COLUMNS = (Column(1, "id", SqlType("int"), nullable=False), Column(2, "v", SqlType("text")))
KEYED = TableSchema(TableId("d", "t"), 0, 0, COLUMNS, (Index(1, "PRIMARY", ("id",), True, True),))
KEYLESS = TableSchema(TableId("d", "n"), 0, 0, COLUMNS)


def row(
    stamp: int,
    key: int = 1,
    value: Any = "a",
    where: str = "t[0]",
    op: Op = Op.INSERT,
    table: TableSchema = KEYED,
) -> ArrivedRow:
    image = {"id": key, "v": value}
    before, after = (image, None) if op is Op.DELETE else (None, image)
    return ArrivedRow(table, op, stamp, before, after, Where(where, stamp))


def ddl(
    stamp: int, where: str = "t[0]", query: str = "ALTER TABLE t ADD c INT"
) -> ArrivedStatement:
    return ArrivedStatement(
        SchemaChange(stamp, DdlKind.ADD_COLUMN, query, TableId("d", "t")), Where(where)
    )


@pytest.fixture
def findings() -> ConsumeFindings:
    return ConsumeFindings()


def test_repeats_are_counted_and_allowed(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    seen = [checks.note_row(r) for r in (row(5), row(6, value="b"), row(5), row(6, value="b"))]
    assert seen == [False, False, True, True]
    checks.note_watermark(6, Where("t[0]"))
    assert checks.note_row(row(5)) is True
    assert (findings.rows, findings.repeats, findings.violations) == (5, 3, 0)


def test_another_row_at_the_same_time_is_no_repeat(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    seen = [
        checks.note_row(r)
        for r in (row(5), row(5, key=2), row(5, value="b"), row(5, op=Op.DELETE), row(5, where="x"))
    ]
    assert not any(seen)
    assert findings.violations == 0


def test_a_key_goes_back(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    for one in (row(5), row(7), row(6, value="late"), row(3, key=2), row(4, where="t[1]")):
        checks.note_row(one)
    assert findings.samples == [
        "t[0]@6: d.t (1,) insert at 6: first seen after the key's change at 7"
    ]


def test_a_new_row_below_the_watermark_of_its_partition(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    checks.note_watermark(5, Where("t[0]"))
    checks.note_row(row(5))
    checks.note_row(row(5, where="t[1]"))
    checks.note_row(row(6))
    assert findings.samples == ["t[0]@5: d.t (1,) insert at 5: first seen after the watermark 5"]


def test_a_watermark_goes_back(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    for stamp, where in ((5, "t[0]"), (4, "t[1]"), (5, "t[0]"), (3, "t[0]")):
        checks.note_watermark(stamp, Where(where, 9))
    assert findings.samples == ["t[0]@9: the watermark goes back from 5 to 3"]
    checks.note_row(row(4))  # the highest one counts
    assert findings.violations == 2


def test_a_schema_change_counts_once(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    assert [checks.note_statement(ddl(5, f"t[{n}]")) for n in range(3)] == [False, True, True]
    assert checks.note_statement(ddl(5, query="ALTER TABLE t ADD d INT")) is False
    checks.note_watermark(6, Where("t[0]"))
    assert checks.note_statement(ddl(5)) is True
    assert findings.violations == 0
    checks.note_statement(ddl(6))
    assert (findings.schema_changes, findings.violations) == (3, 1)


def test_rows_that_cannot_be_told_apart_are_only_counted(findings: ConsumeFindings) -> None:
    checks = Checks(findings)
    checks.note_watermark(9, Where("t[0]"))
    for one in (row(0), row(0), row(5, table=KEYLESS), row(5, table=KEYLESS)):
        assert checks.note_row(one) is False
    assert (findings.rows, findings.repeats, findings.violations) == (4, 0, 0)


def test_who_begins_late_may_meet_repeats_of_what_was_not_read(findings: ConsumeFindings) -> None:
    checks = Checks(findings, from_beginning=False)
    checks.note_watermark(5, Where("t[0]"))
    assert checks.note_row(row(4)) is True
    checks.note_watermark(8, Where("t[0]"))
    assert checks.note_row(row(7)) is False
    assert (findings.repeats, findings.violations) == (1, 1)


def test_samples_are_some(findings: ConsumeFindings) -> None:
    for number in range(MOST_SAMPLES + 5):
        findings.fault(str(number))
    assert (findings.violations, len(findings.samples)) == (MOST_SAMPLES + 5, MOST_SAMPLES)


def test_changes_wait_for_all_partitions() -> None:
    replay = ChangeReplay(["t[0]", "t[1]"])
    for one in (row(5, where="t[1]"), row(7), row(3), ddl(5)):
        replay.add(one, seen=False)
    assert replay.ready() == []
    replay.mark("t[0]", 9)
    assert (replay.ready(), replay.resolved) == ([], 0)
    replay.mark("t[1]", 5)
    assert replay.ready() == [row(3), ddl(5), row(5, where="t[1]")]
    assert (replay.resolved, replay.waiting) == (5, 1)
    replay.mark("t[1]", 2)  # a violation, which others report
    assert replay.resolved == 5
    replay.include("t[2]")
    replay.mark("t[1]", 9)
    assert replay.ready() == []
    replay.mark("t[2]", 8)
    assert replay.ready() == [row(7)]


def test_repeats_below_the_watermark_are_left_out() -> None:
    replay = ChangeReplay(["t[0]"])
    replay.add(row(5), seen=False)
    replay.mark("t[0]", 5)
    replay.add(row(5), seen=True)
    assert replay.ready() == [row(5)]
    replay.add(row(6), seen=False)
    replay.add(row(6), seen=True)  # not given yet: both are, in their order
    replay.mark("t[0]", 6)
    assert replay.ready() == [row(6), row(6)]


def test_nothing_above_the_end_is_given() -> None:
    replay = ChangeReplay(["t[0]"])
    for stamp in (3, 5):
        replay.add(row(stamp), seen=False)
    replay.mark("t[0]", 9)
    assert replay.ready(most=4) == [row(3)]


def test_an_update_that_leaves_its_key() -> None:
    moved = ArrivedRow(KEYED, Op.UPDATE, 1, {"id": 1, "v": "a"}, {"id": 2, "v": "a"}, Where(""))
    assert (moved.key, moved.left_key) == ((2,), (1,))
    partial = ArrivedRow(KEYED, Op.UPDATE, 1, {"v": "a"}, {"id": 2, "v": "b"}, Where(""))
    assert (partial.key, partial.left_key) == ((2,), None)
