"""What operators change while a changefeed runs reaches its readers: tables, places, ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from operated_kit import Database, Operated, RangeDatabase, SqlDatabase

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.operator.operations import ChangedSettings
from rowferry.errors import IllegalMove, TargetTsTooEarly
from rowferry.refstore.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("store"), 1) as running:
        yield running


@pytest.fixture(params=["mysql", "range"])
def source(request: pytest.FixtureRequest) -> Iterator[Database]:
    database = "operated_" + re.sub(r"\W+", "_", request.node.name).strip("_")[5:40]
    if request.param == "mysql":
        yield SqlDatabase(request.getfixturevalue("mysql_server"), database)
        return
    running: LocalCluster = request.getfixturevalue("cluster")
    with running.store() as store:
        yield RangeDatabase(running, store, database)


@pytest.fixture
def operated(source: Database, tmp_path: Path) -> Iterator[Operated]:
    found = Operated(source, tmp_path)
    yield found
    found.close()


def test_tables_come_and_go_while_it_runs(operated: Operated) -> None:
    source, desk = operated.source, operated.desk
    for table in ("orders", "items", "people"):
        source.create(table)
    source.insert("orders", 1, 2)
    source.insert("items", 1, 2, 3)
    operated.create("orders")
    operated.catch_up()
    assert {name for name, _, _ in operated.arrived()} == {"orders"}

    desk.add_tables("feed", [operated.name("items"), operated.name("people")])
    source.insert("items", 4)
    source.insert("orders", 3)
    operated.run_until(lambda step: len(desk.see("feed").tables) == 3)
    source.insert("items", 5)
    operated.catch_up()
    assert operated.arrived_ids("items") == [1, 2, 3, 4, 5]
    assert operated.times("orders", 1) == 1  # its snapshot did not come again
    assert operated.times("items", 1) == 1

    desk.drop_tables("feed", [operated.name("orders")])
    operated.run_until(lambda step: len(desk.see("feed").tables) == 2)
    source.insert("orders", 4)
    source.insert("people", 1)
    operated.catch_up()
    assert operated.arrived_ids("orders") == [1, 2, 3]
    assert [t.table for t in desk.see("feed").tables] == ["items", "people"]
    assert operated.subscribed() == ["items", "people"]

    desk.add_tables("feed", [operated.name("orders")])  # again: with all its rows
    operated.run_until(lambda step: len(desk.see("feed").tables) == 3)
    operated.catch_up()
    assert operated.arrived_ids("orders") == [1, 2, 3, 4]


def test_a_new_snapshot_takes_the_place_of_an_unfinished_plan(operated: Operated) -> None:
    source, desk = operated.source, operated.desk
    source.create("orders")
    source.insert("orders", 1)
    operated.create("orders")
    operated.catch_up()
    operated.runner.lose_answers = True
    source.insert("orders", 2)
    while operated.store.pending("feed") is None:
        operated.step()
    with pytest.raises(IllegalMove):
        desk.reset("feed", snapshot=True)
    desk.pause("feed")
    assert operated.step() is None  # the owner sees it, and leaves
    source.insert("orders", 3)
    assert desk.reset("feed", snapshot=True).watermark == 0
    assert operated.store.pending("feed") is None
    operated.runner.lose_answers = False
    desk.resume("feed")
    operated.catch_up()
    assert operated.arrived_ids("orders") == [1, 2, 3]
    assert operated.times("orders", 1) == 2
    assert operated.times("orders", 2) == 1  # what the unfinished plan had written is gone
    assert "reset" in [note.what for note in desk.see("feed").history]


def test_it_goes_on_behind_a_commit_ts_and_ends_at_another(operated: Operated) -> None:
    source, desk = operated.source, operated.desk
    source.create("orders")
    operated.create("orders")
    operated.run_until(lambda step: step.caught_up)
    for row in (1, 2, 3):
        source.insert("orders", row)
    operated.catch_up()
    stamps = {row: ts for _, row, ts in operated.arrived()}
    desk.pause("feed")
    operated.step()
    desk.resume("feed", overwrite_checkpoint_ts=stamps[2])
    operated.run_until(lambda step: step.caught_up and step.watermark > stamps[3])
    assert [operated.times("orders", row) for row in (1, 2, 3)] == [1, 1, 2]
    source.create("items")  # not captured yet
    source.insert("items", 1)
    operated.catch_up()  # the log has passed it
    desk.add_tables("feed", [operated.name("items")])
    operated.run_until(lambda step: len(desk.see("feed").tables) == 2)
    operated.catch_up()
    assert operated.times("items", 1) == 1  # though the feed began without a snapshot

    desk.pause("feed")
    operated.step()
    with pytest.raises(TargetTsTooEarly):
        desk.update("feed", ChangedSettings(target_ts=operated.feed.watermark))
    end = operated.feed.watermark + (200 << PHYSICAL_SHIFT)
    desk.update("feed", ChangedSettings(target_ts=end))
    desk.resume("feed")
    operated.run_until(lambda step: step.watermark >= end)
    assert operated.feed.watermark == end
    source.insert("orders", 4)
    assert [step for _ in range(3) if (step := operated.step()) and step.rows] == []
