"""Whose tables lie in a lake: by its mark, not by the name of a changefeed alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from iceberg_kit import IcebergLake
from lake_kit import FEED, NOON, PLAIN, Lake
from rowferry.change.chunk import Op
from rowferry.errors import Fenced, SinkOwned, TargetLost
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

ROW = {"id": 1, "note": "one"}
GONE = "rowferry.owner, which says by which one, is gone; choose another sink URI"


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> type[Lake]:
    found: type[Lake] = request.param
    return found


@pytest.fixture
def lake(kind: type[Lake], tmp_path: Path) -> Lake:
    """A lake with a row, whose mark is gone."""
    found = kind(tmp_path)
    found.open()
    found.step(PLAIN, [(Op.INSERT, None, ROW)])
    (tmp_path / "rowferry.owner").unlink()
    return found


def begins(lake: Lake, owner: Owner | None = None) -> None:
    lake.built().open(owner or Owner(FEED, 1), None)


def checks(lake: Lake) -> None:
    lake.built().check_tables([PLAIN])


def probes(lake: Lake) -> None:
    lake.built().probe(Owner(FEED, 0))


def is_reset(lake: Lake) -> None:
    lake.open(continues=False)


def as_it_is(lake: Lake) -> tuple[Any, ...]:
    return lake.commits(), lake.rows(), sorted(p.name for p in lake.root.iterdir())


@pytest.mark.parametrize("asks", [begins, checks, probes, is_reset])
def test_a_namesake_does_not_take_a_lake_whose_mark_is_gone(
    lake: Lake, asks: Callable[[Lake], None]
) -> None:
    before = as_it_is(lake)
    with pytest.raises(SinkOwned, match=GONE) as raised:
        asks(lake)
    assert "\n" not in str(raised.value)
    assert as_it_is(lake) == before


@pytest.mark.parametrize("asks", [begins, checks])
def test_nor_one_that_has_lost_all_but_its_tables(lake: Lake, asks: Callable[[Lake], None]) -> None:
    (lake.root / "rowferry.progress").unlink()
    before = as_it_is(lake)
    with pytest.raises(SinkOwned, match=f"orders.* was written by a changefeed, .*{GONE}"):
        asks(lake)
    assert as_it_is(lake) == before


def test_its_own_changefeed_says_that_the_mark_is_gone(lake: Lake) -> None:
    with pytest.raises(TargetLost, match="rowferry.owner is gone"):
        lake.open()


def test_a_mark_that_was_written_anew_by_hand_is_enough(lake: Lake) -> None:
    mark = {"changefeed": FEED, "epoch": 0}
    (lake.root / "rowferry.owner").write_text(json.dumps(mark))
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 2, "note": "two"})])
    assert len(lake.rows()) == 2
    lake.open(continues=False)  # a reset to a new snapshot
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 3, "note": "three"})])
    assert lake.rows() == [{"id": 3, "note": "three"}]


def test_tables_that_others_have_made_there_are_in_nobodys_way(
    kind: type[Lake], tmp_path: Path
) -> None:
    """Those of another prefix, too, where one catalog has them all."""
    other = kind(tmp_path / "b", changefeed="other")
    other.open()
    other.step(PLAIN, [(Op.INSERT, None, ROW)])
    for file in ("rowferry.owner", "rowferry.progress"):
        (tmp_path / "b" / file).unlink()
    begins(kind(tmp_path / "b"))


def test_a_storage_does_not_begin_where_a_lake_has_lost_its_mark(lake: Lake) -> None:
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = Uri.parse(f"file://{lake.root}?protocol=csv&fsync=false", "sink")
    storage = assemble(ChangefeedSpec(FEED, source, sink)).sink
    with pytest.raises(SinkOwned, match=GONE):
        storage.probe(Owner(FEED, 0))


# --- changefeeds of one name ----------------------------------------------------------------------


def test_a_namesake_of_another_meta_database_is_told_from_the_owner(
    kind: type[Lake], tmp_path: Path
) -> None:
    """Its epoch may be any: both have begun before one of them came to the lake."""
    lake = kind(tmp_path)
    lake.sink.open(Owner(FEED, 1, made_ms=1_000), None)
    for epoch in (1, 2):
        stranger = Owner(FEED, epoch, made_ms=2_000)
        for refused in (lake.built().probe, lambda o: lake.built().open(o, None)):
            with pytest.raises(SinkOwned, match="of another meta database or of earlier"):
                refused(stranger)
    lake.built().open(Owner(FEED, 2, made_ms=1_000), None)
    with pytest.raises(Fenced, match="epoch 2, ours is 1"), lake.sink._ownership.fenced():
        pass


def test_a_mark_of_an_earlier_version_tells_no_moment(kind: type[Lake], tmp_path: Path) -> None:
    lake = kind(tmp_path)
    lake.sink.open(Owner(FEED, 1), None)
    lake.built().open(owner := Owner(FEED, 2, made_ms=1_000), None)
    assert json.loads((tmp_path / "rowferry.owner").read_text())["made"] == 1_000
    with pytest.raises(Fenced, match="another meta database"):
        (tmp_path / "rowferry.owner").write_text(
            json.dumps({"changefeed": FEED, "epoch": 2, "made": 2_000})
        )
        lake.sink = lake.built()
        lake.sink._ownership._owner = replace(owner, delivered=NOON)
        with lake.sink._ownership.fenced():
            pass


# --- tables that have lost their property ---------------------------------------------------------


def without_property(lake: Lake) -> None:
    if isinstance(lake, IcebergLake):
        catalog: SqlCatalog = lake.catalog()
        with catalog.load_table(("shop", "orders")).transaction() as change:
            change.remove_properties("rowferry.changefeed")
        return
    log = lake.root / "shop/orders/_delta_log"
    lines = (log / f"{0:020d}.json").read_text().splitlines()
    (metadata,) = [json.loads(x)["metaData"] for x in lines if '"metaData"' in x]
    kept = {k: v for k, v in metadata["configuration"].items() if k != "rowferry.changefeed"}
    action = json.dumps({"metaData": {**metadata, "configuration": kept}})
    (log / f"{lake.commits():020d}.json").write_text(action)


def test_a_table_that_has_lost_its_property_says_so(kind: type[Lake], tmp_path: Path) -> None:
    lake = kind(tmp_path)
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, ROW)])
    without_property(lake)
    words = (
        "has commits of changefeed 'feed', and has lost the property rowferry.changefeed that "
        "says so; set it to 'feed' again"
    )
    lake.open()
    with pytest.raises(SinkOwned, match=words):
        lake.plan(PLAIN)
    with pytest.raises(SinkOwned, match=words):
        checks(lake)


def test_snapshots_tell_whose_they_are_without_any_property(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, ROW)])
    table = lake.catalog().load_table(("shop", "orders"))
    ours = [name for name in table.properties if name.startswith("rowferry.")]
    with table.transaction() as change:
        change.remove_properties(*ours)
    with pytest.raises(SinkOwned, match="has commits of changefeed 'feed', and has lost"):
        checks(lake)
