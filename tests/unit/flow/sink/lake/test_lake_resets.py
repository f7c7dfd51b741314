"""Tables that are met anew, as after a reset: their columns have other numbers, and older names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iceberg_kit import IcebergLake
from lake_kit import ORDERS, TEXT, Lake, ddl, minute, ordered, texts
from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import SchemaChangeRefused


def alter(lake: Lake, old: TableSchema, new: TableSchema, **more: Any) -> TableSchema:
    lake.step(old, changes=[ddl(new, **more)])
    return new


def rows(lake: Lake) -> list[dict[str, Any]]:
    return ordered(lake.rows(), ["id"])


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> type[Lake]:
    found: type[Lake] = request.param
    return found


@pytest.fixture
def lake(kind: type[Lake], tmp_path: Path) -> Lake:
    found = kind(tmp_path)
    found.open()
    return found


def test_numbers_of_columns_count_no_more(lake: Lake) -> None:
    """One was dropped: the others have moved up, and those behind it would get their values."""
    first = texts(minute(0), "a", "b", "c")
    lake.put(first, 1)
    lake.put(alter(lake, first, texts(minute(1), "b", "c", b=3, c=4)), 2)
    lake.reset()
    lake.put(texts(minute(2), "b", "c"), 3)
    assert rows(lake) == [{"id": n, "b": f"b{n}", "c": f"c{n}"} for n in (1, 2, 3)]
    # What is added then has the number of one that was there.
    lake.put(alter(lake, texts(minute(2), "b", "c"), texts(minute(3), "b", "c", "d")), 4)
    assert [r["d"] for r in rows(lake)] == [None, None, None, "d4"]


def test_a_place_before_a_column_got_its_name(lake: Lake) -> None:
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    renamed = texts(minute(5), "a", "c", c=3)
    lake.put(alter(lake, first, renamed), 2)
    lake.reset()
    early = texts(minute(3), "a", "b", b=7)  # as the log itself describes it
    lake.put(early, 3)
    assert rows(lake) == [
        {"id": n, "a": f"a{n}", "b": v} for n, v in ((1, "b1"), (2, "c2"), (3, "b3"))
    ]
    again = texts(minute(5), "a", "c", c=7)
    lake.put(alter(lake, early, again), 4)
    assert [r["c"] for r in rows(lake)] == ["b1", "c2", "b3", "c4"]


def test_a_place_before_the_name_went_to_another_column(lake: Lake) -> None:
    """`a` is called `b`, and there is a new `a`: an old `a` is none of the new one's."""
    first = texts(minute(0), "a")
    lake.put(first, 1)
    renamed = alter(lake, first, texts(minute(5), "b", b=2))
    lake.put(alter(lake, renamed, texts(minute(6), "b", "a", b=2, a=3)), 2)
    lake.reset()
    early = texts(minute(3), "a", a=3)
    lake.put(early, 3)
    assert [r["a"] for r in rows(lake)] == ["a1", "b2", "a3"]
    renamed = alter(lake, early, texts(minute(5), "b", b=3))
    lake.put(alter(lake, renamed, texts(minute(6), "b", "a", b=3, a=4)), 4)
    assert [(r["b"], r["a"]) for r in rows(lake)] == [
        ("a1", None),
        ("b2", None),
        ("a3", None),
        ("b4", "a4"),
    ]


@pytest.mark.parametrize("with_rows", [False, True], ids=["first", "behind rows"])
def test_two_columns_that_trade_their_names_behind_the_place(lake: Lake, with_rows: bool) -> None:
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    lake.put(alter(lake, first, texts(minute(5), "b", "a", b=2, a=3)), 2)
    before = [{"id": 1, "b": "a1", "a": "b1"}, {"id": 2, "b": "b2", "a": "a2"}]
    assert rows(lake) == before
    lake.reset()
    early = texts(minute(3), "a", "b", a=3, b=2)  # numbered by what the source has today
    if with_rows:
        lake.put(early, 3)
        before.append({"id": 3, "b": "a3", "a": "b3"})
        assert [(r["a"], r["b"]) for r in rows(lake)] == [("a1", "b1"), ("b2", "a2"), ("a3", "b3")]
    traded = texts(minute(5), "b", "a", b=3, a=2)
    lake.put(alter(lake, early, traded), 4)
    assert rows(lake) == [*before, {"id": 4, "b": "b4", "a": "a4"}]


def test_a_place_before_a_column_was_added(lake: Lake) -> None:
    first = texts(minute(0), "a")
    lake.put(first, 1)
    second = texts(minute(5), "d", "a", a=2, d=3)
    lake.put(alter(lake, first, second), 2)
    lake.reset()
    early = texts(minute(3), "a", a=3)
    lake.put(early, 3)
    assert rows(lake) == [{"id": n, "a": f"a{n}"} for n in (1, 2, 3)]
    again = texts(minute(5), "d", "a", a=3, d=4)
    alter(lake, early, again)
    lake.step(again, [(Op.INSERT, None, {"id": 2, "a": "a2", "d": "d2"})])
    assert [r["d"] for r in rows(lake)] == [None, "d2", None]


def test_a_place_before_a_column_was_dropped_and_another_added(lake: Lake) -> None:
    """None of them is the other by another name: the lake knows when each came."""
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    second = alter(lake, first, texts(minute(5), "b", "d", b=3, d=4))
    lake.put(second, 2)
    lake.reset()
    early = texts(minute(3), "a", "b", a=8, b=2)
    lake.put(early, 3)
    assert rows(lake) == [
        {"id": 1, "a": None, "b": "b1"},
        {"id": 2, "a": None, "b": "b2"},
        {"id": 3, "a": "a3", "b": "b3"},
    ]
    untold = replace(early, columns=(*early.columns, Column(9, "x", TEXT, untold=True)))
    with pytest.raises(SchemaChangeRefused, match="by another name; .* reset --snapshot"):
        lake.step(untold, [(Op.INSERT, None, {"id": 4, "a": "", "b": "", "x": ""})])


def test_a_place_without_a_time_is_refused_where_names_were_traded(lake: Lake) -> None:
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    traded = alter(lake, first, texts(minute(5), "b", "a", b=2, a=3))
    lake.reset()
    commits = lake.commits()
    with pytest.raises(SchemaChangeRefused, match="is not known; .* reset --snapshot"):
        lake.put(texts(1, "b", "a"), 2)
    assert lake.commits() == commits
    # The same within a second of the change, where a commit-ts need not be the one that it was.
    with pytest.raises(SchemaChangeRefused, match="is not known; .* reset --snapshot"):
        lake.put(texts(minute(5) - 5, "b", "a"), 2)
    lake.put(texts(traded.version, "b", "a"), 2)
    assert rows(lake)[1] == {"id": 2, "b": "b2", "a": "a2"}


def test_a_place_without_a_time_goes_by_the_names_that_fit(lake: Lake) -> None:
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    lake.put(alter(lake, first, texts(minute(5), "a", "c", "d", c=3, d=4)), 2)
    for number, table in ((3, texts(1, "d", "c", "a")), (4, texts(1, "a", "b"))):
        lake.reset()
        lake.put(table, number)
        assert rows(lake)[number - 1]["a"] == f"a{number}"
    assert [r["b"] for r in rows(lake)] == ["b1", "c2", "c3", "b4"]


def test_a_table_that_is_taken_in_again(lake: Lake) -> None:
    """Its columns are numbered anew, and nobody saw what became of them meanwhile."""
    first = texts(minute(0), "a", "b", "c")
    lake.put(first, 1)
    second = alter(lake, first, texts(minute(1), "b", "c", b=3, c=4))
    lake.put(second, 2)
    lake.put(texts(minute(2), "b", "c", table_id=2), 3)
    assert rows(lake) == [{"id": n, "b": f"b{n}", "c": f"c{n}"} for n in (1, 2, 3)]
    commits = lake.commits()
    with pytest.raises(SchemaChangeRefused, match=r"\(id, b, x\) .* \(id, b, c\) is not known"):
        lake.put(texts(minute(3), "b", "x", table_id=3), 4)
    assert lake.commits() == commits


def test_a_second_reset_goes_by_what_the_first_has_left(lake: Lake) -> None:
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    lake.put(alter(lake, first, texts(minute(5), "a", "c", c=3)), 2)
    for number in (3, 4):
        lake.reset()
        early = texts(minute(3), "b", "a")
        lake.put(early, number)
        lake.put(alter(lake, early, texts(minute(5), "c", "a", c=2, a=3)), number + 10)
    assert [(r["a"], r["c"]) for r in rows(lake)] == [
        ("a1", "b1"),
        ("a2", "c2"),
        ("a3", "b3"),
        ("a4", "b4"),
        ("a13", "c13"),
        ("a14", "c14"),
    ]


def test_a_process_that_ends_before_the_first_plan_behind_a_reset(lake: Lake) -> None:
    first = texts(minute(0), "a", "b", "c")
    lake.put(first, 1)
    lake.put(alter(lake, first, texts(minute(1), "b", "c", b=3, c=4)), 2)
    lake.reset()
    table = texts(minute(2), "b", "c")
    plan = lake.plan(table)
    receipts = lake.write(plan, table, [[(Op.INSERT, None, {"id": 3, "b": "b3", "c": "c3"})]])
    lake.reset()  # the plan is recorded, and nothing was published since the reset
    lake.publish(plan, table, receipts)
    lake.put(table, 4)
    lake.open()
    lake.put(table, 5)
    assert rows(lake) == [{"id": n, "b": f"b{n}", "c": f"c{n}"} for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_a_column_that_is_renamed_behind_a_truncate(
    kind: type[Lake], mode: str, tmp_path: Path
) -> None:
    """The source's table is another one then, with the same columns."""
    lake = kind(tmp_path, f"&mode={mode}")
    lake.open()
    first = texts(minute(0), "a")
    lake.put(first, 1)
    emptied = texts(minute(1), "a", table_id=2)
    told = ddl(emptied, DdlKind.TRUNCATE_TABLE, dropped_table_id=1)
    renamed = texts(minute(2), "b", table_id=2)
    lake.step(first, changes=[told, ddl(renamed)])
    lake.put(renamed, 2)
    kept = [("b", 1, "a1")] if mode == "changelog" else []
    assert [("b", r["id"], r["b"]) for r in rows(lake)] == [*kept, ("b", 2, "b2")]


def test_a_changelog_goes_on_with_another_table_of_the_name(
    kind: type[Lake], tmp_path: Path
) -> None:
    """Values of the one are not shown in columns of the other, nor are there defaults."""
    lake = kind(tmp_path, "&mode=changelog")
    lake.open()
    first = texts(minute(0), "a", "b")
    lake.put(first, 1)
    second = texts(minute(2), "x", "b", table_id=2)
    number = Column(4, "n", SqlType("int"), nullable=False)
    second = replace(second, columns=(*second.columns, number))
    dropped = SchemaChange(minute(1), DdlKind.DROP_TABLE, "DROP", ORDERS, dropped_table_id=1)
    lake.step(first, changes=[dropped, ddl(second, DdlKind.CREATE_TABLE)])
    lake.step(second, [(Op.INSERT, None, {"id": 2, "x": "x2", "b": "b2", "n": 5})])
    assert [(r["id"], r["x"], r["b"], r["n"]) for r in rows(lake)] == [
        (1, None, "b1", None),
        (2, "x2", "b2", 5),
    ]
