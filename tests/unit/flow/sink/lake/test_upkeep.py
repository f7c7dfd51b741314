"""`rowferry lake`: what it tells, what it merges, and that it removes nothing that is needed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table.statistics import StatisticsFile
from typer.testing import CliRunner

from iceberg_kit import IcebergLake
from lake_kit import PLAIN, Changes, Lake, Model, ordered
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.table import TableId
from rowferry.errors import BadInput, BadUri, SinkUnwritable
from rowferry.face.cli.downstream.lake import app
from rowferry.flow.sink.lake.delta.upkeep import retention_ms


def told(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    found: Lake = request.param(tmp_path / "lake")
    found.open()
    return found


def test_status_optimize_orphans_and_expire(lake: Lake) -> None:
    model = Model(PLAIN, 4)
    for _ in range(6):
        lake.step(PLAIN, model.changes(30))
    found = json.loads(told("status", lake.uri, "--json"))
    (one,) = found["tables"]
    assert (one["directory"], one["rows"], one["mode"]) == (
        "shop/orders",
        len(model.rows),
        "upsert",
    )
    assert one["deleted"] > 0 and one["files"] > 1
    assert "shop/orders" in told("status", lake.uri)
    assert told("orphans", lake.uri) == "0 lake files\n"
    assert " lake files replaced" in told("optimize", lake.uri)
    (after,) = json.loads(told("status", lake.uri, "--json"))["tables"]
    assert (after["files"], after["deleted"], after["rows"]) == (1, 0, len(model.rows))
    assert ordered(lake.rows(), ["id"]) == model.expected()
    # A plan that is pending, and a file that nobody knows.
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(30)])
    (place,) = lake.root.glob("shop/orders*")
    stray = place / "stray.parquet"
    stray.write_bytes(b"")
    assert (
        told("orphans", lake.uri, "--remove").splitlines()[0] == f"shop/{place.name}/stray.parquet"
    )
    assert not stray.exists()
    lake.publish(plan, PLAIN, receipts)
    assert ordered(lake.rows(), ["id"]) == model.expected()
    assert told("expire", lake.uri, "--older-than", "1000000h") == "0 lake files\n"
    time.sleep(0.01)
    assert told("expire", lake.uri, "--older-than", "0s", "--remove").endswith(
        "lake files deleted\n"
    )
    left = [p.name for p in place.glob("*.parquet")]
    assert len(left) == len(lake.data_files())
    if isinstance(lake, IcebergLake):
        assert lake.commits() == 1  # readers are led to nothing that is gone
    lake.open()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()


def test_what_was_replaced_more_than_a_week_ago_is_found_behind_a_checkpoint(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, "&checkpoint-interval=1")
    lake.open()
    now, row = int(time.time() * 1000), {"id": 1, "note": "a"}
    contents = [[(Op.INSERT, None, row)], [(Op.DELETE, row, None)], [(Op.INSERT, None, row)]]
    for days, content in zip((13, 12, 0), contents, strict=True):
        plan = replace(lake.plan(PLAIN), planned_at_ms=now - days * 86_400_000)
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, [content]))
    assert len(list(tmp_path.glob("shop/orders/_delta_log/*.checkpoint.parquet"))) == 2
    (old, found) = told("expire", lake.uri).splitlines()
    assert found == "1 lake file" and old.startswith("shop/orders/part-")
    assert (tmp_path / old).is_file() and str(tmp_path / old) not in lake.data_files()


def test_the_log_of_a_delta_table_is_removed_behind_a_checkpoint_when_it_is_old(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, "&checkpoint-interval=3")
    lake.open()
    now, model = int(time.time() * 1000), Model(PLAIN, 7)
    for days in (40, 39, 38, 37, 36, 35, 34, 33, 2, 1):
        plan = replace(lake.plan(PLAIN), planned_at_ms=now - days * 86_400_000)
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, [model.changes(30)]))
    log = tmp_path / "shop/orders/_delta_log"
    before = {p.name for p in log.iterdir()}
    assert {f"{n:020d}.checkpoint.parquet" for n in (3, 6, 9)} <= before
    found = told("expire", lake.uri).splitlines()
    old = [line for line in found if "_delta_log" in line]
    # 7 is the last version that is old enough to be left out: it begins at the checkpoint of 6.
    wanted = [f"{n:020d}.json" for n in (0, 1, 2)]
    wanted += [f"{3:020d}.checkpoint.parquet"] + [f"{n:020d}.json" for n in (3, 4, 5)]
    assert old == [f"shop/orders/_delta_log/{name}" for name in wanted]
    kept = told("expire", lake.uri, "--older-than", "864h")  # 36 days: longer than the log is kept
    old = [line for line in kept.splitlines() if "_delta_log" in line]
    assert [line.rpartition("/")[2] for line in old] == wanted[:3]
    told("expire", lake.uri, "--remove")
    assert {p.name for p in log.iterdir()} == before - set(wanted)
    assert ordered(lake.rows(), ["id"]) == model.expected()
    lake.step(PLAIN, model.changes(30))
    lake.open()
    lake.step(PLAIN, model.changes(30))
    assert ordered(lake.rows(), ["id"]) == model.expected()
    told("orphans", lake.uri, "--remove")  # what was replaced more than 14 days ago
    assert ordered(lake.rows(), ["id"]) == model.expected()


@pytest.mark.parametrize(
    ("given", "days"),
    [("", 30), ("interval 2 weeks 1 day", 15), ("INTERVAL 1 DAYS", 1), ("forever", None)],
)
def test_how_long_a_delta_table_keeps_its_log(given: str, days: int | None) -> None:
    assert retention_ms(given) == (None if days is None else days * 86_400_000)


def test_no_log_is_removed_where_no_checkpoint_is_named(tmp_path: Path) -> None:
    """As after a crash between a checkpoint and the file that leads readers to it."""
    lake = Lake(tmp_path, "&checkpoint-interval=2")
    lake.open()
    now = int(time.time() * 1000)
    for number in range(5):
        changes: Changes = [(Op.INSERT, None, {"id": number, "note": "a"})]
        plan = replace(lake.plan(PLAIN), planned_at_ms=now - 90 * 86_400_000)
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, [changes]))
    (tmp_path / "shop/orders/_delta_log/_last_checkpoint").unlink()
    assert "_delta_log" not in told("expire", lake.uri)


def test_a_feed_goes_on_after_files_were_merged_under_it(lake: Lake) -> None:
    model = Model(PLAIN, 12)
    for _ in range(3):
        lake.step(PLAIN, model.changes(30))
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(30)])
    told("optimize", lake.uri)
    lake.publish(plan, PLAIN, receipts)
    assert ordered(lake.rows(), ["id"]) == model.expected()


@pytest.mark.parametrize("named", ["&catalog=file://{}/all.db", "&catalog-name=lakes"])
def test_tables_of_a_catalog_that_is_not_named_are_no_orphans(named: str, tmp_path: Path) -> None:
    """As with a URI whose catalog stands in the changefeed's configuration file only."""
    lake = IcebergLake(tmp_path / "lake")
    plain = lake.uri
    lake.uri += named.format(tmp_path)
    lake.open()
    lake.step(PLAIN, Model(PLAIN, 4).changes(30))
    before = sorted(p for p in lake.root.rglob("*") if p.is_file())
    with pytest.raises(BadInput, match="give the changefeed's own catalog and catalog-name"):
        told("orphans", plain, "--remove")
    assert sorted(p for p in lake.root.rglob("*") if p.is_file()) == before
    assert told("orphans", lake.uri, "--remove") == "0 lake files deleted\n"


@pytest.mark.parametrize("call", ["load_table", "list_tables"])
def test_tables_that_the_login_may_not_see_are_no_orphans(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = IcebergLake(tmp_path)
    lake.open()
    lake.step(PLAIN, Model(PLAIN, 4).changes(30))

    def refused(*_: object) -> None:
        raise ForbiddenError("not yours")

    monkeypatch.setattr(f"rowferry.flow.sink.lake.iceberg.catalog._Sql.{call}", refused)
    with pytest.raises(SinkUnwritable, match="refuses the login: not yours"):
        told("orphans", lake.uri, "--remove")


def test_statistics_and_the_catalog_itself_are_no_orphans(tmp_path: Path) -> None:
    place = tmp_path / "shop/catalog.db"
    lake = IcebergLake(tmp_path, f"&catalog=file://{place}")
    lake.open()
    lake.step(PLAIN, Model(PLAIN, 4).changes(30))
    orders = SqlCatalog("rowferry", uri=f"sqlite:///{place}").load_table("shop.orders")
    stats = f"{orders.metadata.location}/metadata/theirs.stats"
    Path(stats.removeprefix("file://")).write_bytes(b"")
    snapshot = orders.metadata.current_snapshot_id
    assert snapshot is not None
    with orders.update_statistics() as update:
        about = {"statistics-path": stats, "snapshot-id": snapshot, "blob-metadata": []}
        sizes = {"file-size-in-bytes": 0, "file-footer-size-in-bytes": 0}
        update.set_statistics(StatisticsFile.model_validate(about | sizes))
    assert told("orphans", lake.uri, "--remove") == "0 lake files deleted\n"


def test_merging_by_hand_forgets_no_snapshot(tmp_path: Path) -> None:
    """How many a table keeps stands in the changefeed's settings, which the command lacks."""
    lake, model = IcebergLake(tmp_path / "lake"), Model(PLAIN, 4)
    lake.open()
    for _ in range(4):
        lake.step(PLAIN, model.changes(30))
    told("optimize", f"{lake.uri}&history=2")
    assert lake.commits() == 5


def test_a_name_that_the_log_of_a_table_has_as_a_url(tmp_path: Path) -> None:
    """As Spark writes it for a partition with a space in its value."""
    lake, row = Lake(tmp_path / "lake"), {"id": 1, "note": "a"}
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, row)])
    place = lake.root / "shop/orders"
    (ours,) = place.glob("part-*.parquet")
    theirs = place / "a b.parquet"
    theirs.write_bytes(ours.read_bytes())
    lines = (place / f"_delta_log/{0:020d}.json").read_text().splitlines()
    (add,) = [json.loads(line)["add"] for line in lines if line.startswith('{"add"')]
    moved = [
        {"remove": {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}},
        {"add": {**add, "path": "a%20b.parquet", "dataChange": False}},
    ]
    (place / f"_delta_log/{1:020d}.json").write_text("\n".join(map(json.dumps, moved)))
    assert theirs.name not in told("orphans", lake.uri, "--remove")
    assert theirs.exists()
    lake.open()
    lake.step(PLAIN, [(Op.DELETE, row, None)])
    time.sleep(0.01)
    told("expire", lake.uri, "--older-than", "0s", "--remove")
    assert not theirs.exists()


# --- tables of others -----------------------------------------------------------------------------


def theirs_beside(lake: Lake) -> Path:
    """A table of somebody else below the prefix, partitioned as no changefeed does it."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "kind": ["a", "b"]})
    if not isinstance(lake, IcebergLake):
        write_deltalake(str(lake.root / "shop/theirs"), rows, partition_by=["kind"])
        return lake.root / "shop/theirs"
    catalog = lake.catalog()
    catalog.create_namespace_if_not_exists("shop")
    made = catalog.create_table(
        "shop.theirs", rows.schema, location=f"file://{lake.root}/shop/theirs"
    )
    made.append(rows)
    with made.update_spec() as update:
        update.add_identity("kind")
    made.append(rows)
    return lake.root / "shop/theirs"


def test_a_table_of_somebody_else_is_left_alone(lake: Lake) -> None:
    place = theirs_beside(lake)
    (place / "begun.parquet").write_bytes(b"")  # what its writer has not committed yet
    before = sorted(p for p in place.rglob("*") if p.is_file())
    model = Model(PLAIN, 4)
    for _ in range(3):
        lake.step(PLAIN, model.changes(30))
    lake.open(continues=False)
    lake.micro_batch = 0
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 1, "note": "new"})])
    assert lake.rows() == [{"id": 1, "note": "new"}]
    (one,) = json.loads(told("status", lake.uri, "--json"))["tables"]
    assert one["directory"] == "shop/orders"
    assert told("optimize", lake.uri).startswith("shop/orders: ")
    told("orphans", lake.uri, "--remove")
    time.sleep(0.01)
    told("expire", lake.uri, "--older-than", "0s", "--remove")
    lake.uri += "&on-drop=drop"
    lake.open()
    gone = replace(lake.change(DdlKind.DROP_DATABASE, None), table=TableId("shop", ""))
    lake.step(PLAIN, changes=[gone])
    assert not lake.has("shop/orders") and lake.has("shop/theirs")
    assert sorted(p for p in place.rglob("*") if p.is_file()) == before


def test_what_is_no_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUri, match="holds no tables of a lake; known: delta"):
        told("status", f"file://{tmp_path}")
