"""A table that is made again begins without the rows of the one that had its name before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iceberg_kit import IcebergLake
from lake_kit import ORDERS, Lake, ddl, minute, ordered, texts
from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import watched

FIRST = texts(minute(0), "a")
SECOND = texts(minute(4), "a", table_id=2)
OTHER = texts(minute(4), "x", table_id=2)
DROP = SchemaChange(minute(3), DdlKind.DROP_TABLE, "DROP", ORDERS, dropped_table_id=1)


class Killed(BaseException):
    pass


@pytest.fixture(params=["keep", "drop"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> type[Lake]:
    found: type[Lake] = request.param
    return found


@pytest.fixture
def lake(kind: type[Lake], policy: str, tmp_path: Path) -> Lake:
    found = kind(tmp_path, f"&on-drop={policy}")
    found.open()
    return found


def again(table: TableSchema, how: str) -> list[SchemaChange]:
    """What makes the table anew."""
    if how == "truncate":
        return [ddl(table, DdlKind.TRUNCATE_TABLE, dropped_table_id=1)]
    return [DROP, ddl(table, DdlKind.CREATE_TABLE)]


def insert(table: TableSchema, *numbers: int) -> list[Any]:
    names = [c.name for c in table.columns[1:]]
    return [
        (Op.INSERT, None, {"id": number, **{n: f"{n}{number}" for n in names}})
        for number in numbers
    ]


def ids(lake: Lake) -> list[int]:
    return [row["id"] for row in ordered(lake.rows("id"), ["id"])]


def moments_of(lake: Lake, plan: Plan, content: Sequence[Any]) -> list[str]:
    """Carry a plan out; return the calls that its publishing made."""
    told: list[str] = []
    receipts = lake.write(plan, FIRST, content)
    with watched(told.append):
        lake.publish(plan, FIRST, receipts)
    return told


@pytest.mark.parametrize("how", ["create", "truncate"])
def test_a_process_that_is_killed_at_any_moment(
    kind: type[Lake], policy: str, how: str, tmp_path: Path
) -> None:
    def begun(name: str) -> tuple[Lake, Plan]:
        (tmp_path / name).mkdir()
        lake = kind(tmp_path / name, f"&on-drop={policy}")
        lake.open()
        lake.put(FIRST, 1)
        return lake, lake.plan(FIRST, 1, again(SECOND, how))

    every = moments_of(*begun("all"), [insert(FIRST, 2)])
    for last in range(len(every)):
        lake, plan = begun(str(last))
        left = last

        def end(_: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        receipts = lake.write(plan, FIRST, [insert(FIRST, 2)])
        with pytest.raises(Killed), watched(end):
            lake.publish(plan, FIRST, receipts)
        lake.open()
        receipts = lake.write(plan, FIRST, [insert(FIRST, 2)])
        lake.publish(plan, FIRST, receipts)
        lake.step(SECOND, insert(SECOND, 3))
        assert ids(lake) == [3], every[last]


@pytest.mark.parametrize(
    ("table", "how"),
    [(SECOND, "create"), (OTHER, "create"), (SECOND, "truncate")],
    ids=["create", "create other", "truncate"],
)
def test_the_log_is_read_again_from_before_it(lake: Lake, table: TableSchema, how: str) -> None:
    """Rows of the first table come in again, and have to go again."""
    lake.put(FIRST, 1)
    for number in (3, 4):
        lake.step(FIRST, insert(FIRST, 2), changes=again(table, how))
        lake.step(table, insert(table, number))
        assert ids(lake) == [number]
        lake.reset()


@pytest.mark.parametrize("how", ["create", "truncate"])
def test_a_plan_that_is_given_up_amid_its_changes(lake: Lake, how: str) -> None:
    """The next one has its number, and brings the rows of the first table once more."""
    lake.put(FIRST, 1)
    plan = lake.plan(FIRST, 1, again(SECOND, how))
    steps = 0

    def end(name: str) -> None:
        nonlocal steps
        steps += name == "publish lake progress"
        if steps == 1 + len(again(SECOND, how)):  # all are made, and not the last is noted
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, FIRST, lake.write(plan, FIRST, [insert(FIRST, 2)]))
    lake.open()
    assert lake.sink.discard(plan) is True
    lake.step(FIRST, insert(FIRST, 2), changes=again(SECOND, how))
    lake.step(SECOND, insert(SECOND, 3))
    assert ids(lake) == [3]


@pytest.mark.parametrize("told", [False, True], ids=["rows", "statement"])
def test_a_dropped_table_is_followed_by_one_without_a_create(lake: Lake, told: bool) -> None:
    """As where nobody could read the statement: it comes as a table of another name, or as rows."""
    lake.put(FIRST, 1)
    lake.step(FIRST, changes=[DROP])
    if told:
        lake.step(FIRST, changes=[ddl(OTHER, DdlKind.RENAME_TABLE)])
    lake.step(OTHER, insert(OTHER, 3))
    assert lake.rows() == [{"id": 3, "x": "x3"}]


def test_an_empty_table_gets_the_name_of_a_dropped_one(lake: Lake) -> None:
    """It has had no rows, so that the lake has no table of it yet."""
    lake.put(FIRST, 1)
    previous = TableId("shop", "next")
    lake.step(FIRST, changes=[DROP, ddl(OTHER, DdlKind.RENAME_TABLE, previous=previous)])
    lake.step(OTHER, insert(OTHER, 3))
    assert lake.rows() == [{"id": 3, "x": "x3"}]


def test_a_table_that_is_gone_does_not_get_the_name_of_a_dropped_one(
    kind: type[Lake], tmp_path: Path
) -> None:
    lake = kind(tmp_path)
    lake.open()
    lake.put(FIRST, 1)
    previous = TableId("shop", "next")
    there = replace(OTHER, id=previous)
    lake.step(there, insert(there, 2))
    lake.sink.tables().remove("shop/next", lake.sink._ownership.fenced)
    lake.open()
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.step(FIRST, changes=[DROP, ddl(OTHER, DdlKind.RENAME_TABLE, previous=previous)])
    assert ids(lake) == [1]


def test_a_dropped_table_stays_whole_when_the_log_is_read_again(
    kind: type[Lake], tmp_path: Path
) -> None:
    lake = kind(tmp_path)
    lake.open()
    lake.put(FIRST, 1)
    lake.step(FIRST, insert(FIRST, 2), changes=[DROP])
    lake.reset()
    lake.step(texts(minute(1), "a"), insert(FIRST, 2), changes=[DROP])
    assert ids(lake) == [1, 2]


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "behind a checkpoint"])
def test_what_a_removal_that_was_cut_off_has_left_joins_no_other_table(
    cleaned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changefeed is reset then, so that nobody ends the removal."""
    delete = LocalFiles.delete
    for last in range(100):
        (root := tmp_path / str(last)).mkdir()
        lake = Lake(root, "&on-drop=drop&checkpoint-interval=4")
        lake.open()
        for number in range(1, 7):
            lake.put(FIRST, number)
        log = root / "shop/orders/_delta_log"
        assert (log / "_last_checkpoint").exists()
        for version in range(4) if cleaned else ():
            (log / f"{version:020d}.json").unlink()
        files = len([p for p in log.iterdir() if p.is_file()])
        left = last

        def deleted(self: LocalFiles, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            delete(self, path)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(LocalFiles, "delete", deleted)
            lake.step(FIRST, changes=[DROP])
        lake.open(continues=False)
        for number in range(11, 19):
            lake.put(SECOND, number)
        assert ids(lake) == list(range(11, 19)), last
        lake.open()
        lake.put(SECOND, 20)
        assert ids(lake) == [*range(11, 19), 20], last
        if last > files:
            return


def test_a_changelog_keeps_the_changes_of_both(kind: type[Lake], tmp_path: Path) -> None:
    lake = kind(tmp_path, "&mode=changelog")
    lake.open()
    lake.put(FIRST, 1)
    lake.step(FIRST, changes=[DROP])
    lake.step(FIRST, changes=[ddl(OTHER, DdlKind.RENAME_TABLE)])
    lake.step(OTHER, insert(OTHER, 3))
    assert [(r["id"], r["x"]) for r in ordered(lake.rows(), ["id"])] == [(1, None), (3, "x3")]


@pytest.mark.parametrize("others_are_there", [True, False])
def test_a_dropped_database_leaves_what_routing_brings_to_its_name(
    lake: Lake, others_are_there: bool
) -> None:
    """Its own tables were dropped one by one; those of another database are written there, too."""
    target = replace(FIRST, target=ORDERS, id=TableId("other", "orders"))
    lake.step(target, insert(target, 1))
    query = "" if others_are_there else "DROP DATABASE `shop`"
    gone = SchemaChange(minute(3), DdlKind.DROP_DATABASE, query, TableId("mine", ""))
    lake.step(target, changes=[replace(gone, target=TableId("shop", ""))])
    lake.step(target, changes=[replace(gone, query="", table=TableId("shop", ""))])
    later = replace(target, version=minute(5))
    lake.step(later, insert(later, 2))
    assert ids(lake) == [1, 2]
    assert not lake.built().target_at("shop/orders").is_dropped()
