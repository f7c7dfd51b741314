"""The judge of PostgreSQL tables under the nemesis: it must notice each way to be wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from kit_scenario import ACCOUNT, add_column, bank, row

from rowferry.mysql.ddl.statement import parse_create
from rowferry.testing.nemesis_output import Written
from rowferry.testing.nemesis_postgresql import TableSight, in_postgresql, judge_sights
from rowferry.testing.validators import SnapshotWindow

Rows = list[dict[str, Any]]
FIRST = [row(1, "ann", 60), row(2, "bob", 40)]
MOVED = [row(1, "ann", 50), row(2, "bob", 50)]
THIRD = [*MOVED, row(3, "cy", 0)]


def judged(*sights: tuple[int, Rows], high: int = 0) -> list[str]:
    written = Written(bank(), [SnapshotWindow(ACCOUNT, 0, high)], lambda tables: None, False)
    return list(judge_sights([TableSight(ts, {ACCOUNT: rows}) for ts, rows in sights], written))


@pytest.mark.parametrize(
    ("at", "rows"),
    [
        (12, FIRST),
        (12, MOVED),  # ahead of the watermark
        (12, [FIRST[0], MOVED[1]]),  # one row is, another is not
        (35, THIRD),
        (35, MOVED),  # which is how it is after its delete
        (65, [row(1, "ann", 0), MOVED[1]]),
        (75, MOVED),
    ],
)
def test_rows_of_a_watermark_or_later_pass(at: int, rows: Rows) -> None:
    assert judged((at, rows)) == []


@pytest.mark.parametrize(
    ("at", "rows"),
    [
        (25, FIRST),  # behind the watermark
        (25, [FIRST[0], MOVED[1]]),
        (12, FIRST[:1]),  # a row is missing
        (12, []),
        (12, [*FIRST, row(9, "zoe", 1)]),  # one was never there
        (55, THIRD),  # one is gone since 50
        (25, [row(1, "ann", 51), MOVED[1]]),  # a value was never there
        (75, [row(1, "ann", 0), MOVED[1]]),
    ],
)
def test_rows_that_the_source_had_before_or_never_are_noticed(at: int, rows: Rows) -> None:
    (failure,) = judged((10, FIRST), (at, rows))
    assert failure.startswith(f"P4: bank.account at {at}: ")


def test_before_the_snapshots_end_nothing_is_said() -> None:
    assert judged((12, FIRST[:1]), high=20) == []
    assert judged((20, FIRST[:1]), high=20)


def test_a_column_counts_where_both_have_it() -> None:
    history = bank()
    history.note_schema_change(add_column(80))
    written = Written(history, [], lambda tables: None, False)
    filled, other = ([{**r, "note": text} for r in MOVED] for text in ("x", "y"))
    for rows, is_wrong in ((MOVED, False), (filled, False), (other, True)):
        assert bool(list(judge_sights([TableSight(85, {ACCOUNT: rows})], written))) == is_wrong


def test_values_are_those_that_the_client_reads() -> None:
    table = parse_create(
        "create table d.t (id int key, f float, de decimal(5,2), b bit(3), e enum('x','y'),"
        " s set('x','y','z'), d date, dt datetime(3), ts timestamp null, t time(2), j json)"
    )
    values: list[Any] = [
        *(1, 3.4028234663852886e38, "1.50", 5, 2, 5, "2024-02-29", "2024-02-29 01:02:03.004"),
        *("2024-02-29 01:02:03", "-838:59:59.25", "null"),
    ]
    names = [c.name for c in table.columns]
    length = timedelta(hours=838, minutes=59, seconds=59, microseconds=250_000)
    wanted: list[Any] = [
        *(1, 3.4028235e38, Decimal("1.50"), "101", "y", "x,z", date(2024, 2, 29)),
        *(datetime(2024, 2, 29, 1, 2, 3, 4000), datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        *(-length, (None,)),
    ]
    assert in_postgresql(table, dict(zip(names, values, strict=True))) == dict(
        zip(names, wanted, strict=True)
    )
    zeros = {**dict.fromkeys(names), "d": "0000-00-00", "dt": "0000-00-00 00:00:00.000"}
    assert in_postgresql(table, zeros) == dict.fromkeys(names)
