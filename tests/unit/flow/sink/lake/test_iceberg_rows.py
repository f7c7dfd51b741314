"""An Iceberg table equals the source's, whatever happens on the way; pyiceberg judges."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from iceberg_kit import IcebergLake
from lake_kit import FEED, NOON, PLAIN, TEXT_KEY, TWO_KEYS, Model, ordered, table
from lake_readers import assert_same, iceberg_rows
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput, BadOption, Fenced, SinkOwned, TargetLost, TargetUnfit
from rowferry.moment import watched


def equal(lake: IcebergLake, model: Model) -> bool:
    return ordered(lake.rows(), model.schema.handle_key) == model.expected()


@pytest.mark.parametrize("schema", [PLAIN, TEXT_KEY, TWO_KEYS], ids=["number", "text", "two"])
def test_random_changes(schema: TableSchema, tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(schema, 7)
    for _ in range(4):
        lake.open()
        for _ in range(2):
            lake.step(schema, model.changes(25), model.changes(25))
            assert equal(lake, model)
    entries = lake.iceberg().inspect.entries()
    assert entries.num_rows == len(lake.data_files())
    properties = lake.iceberg().properties
    assert properties[f"rowferry.txn.rowferry/{FEED}/1"] == "8"
    assert [s["rowferry.checkpoint-ts"] for s in lake.summaries()] == [
        str(NOON + n) for n in range(1, 9)
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["renamed", "gone"])
def test_a_rename_whose_answer_was_lost(lost: bool, tmp_path: Path) -> None:
    """The catalog has done it when it is asked again; a table that is gone is another matter."""
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 7)
    lake.open()
    lake.step(PLAIN, model.changes(25))
    new = replace(PLAIN, id=TableId("shop", "sales"), version=102)
    moved = lake.change(DdlKind.RENAME_TABLE, new, previous=PLAIN.id)

    def done_before(name: str) -> None:
        if name == "rename iceberg table":
            with closing(lake.catalog()) as catalog:
                if lost:
                    catalog.drop_table(("shop", "orders"))
                else:
                    catalog.rename_table(("shop", "orders"), ("shop", "sales"))

    with watched(done_before):
        if lost:
            with pytest.raises(TargetLost, match="has no table shop/orders;"):
                lake.step(PLAIN, changes=[moved])
            return
        lake.step(PLAIN, changes=[moved])
    lake.step(new, model.changes(25))
    assert ordered(lake.rows(name="shop/sales"), ["id"]) == model.expected()


def test_tables_of_other_prefixes_in_one_catalog(tmp_path: Path) -> None:
    """They are somebody else's, whole or in pieces."""
    catalog = f"&catalog=file://{tmp_path}/all.db"
    theirs = IcebergLake(tmp_path / "theirs", catalog, "theirs")
    theirs.open()
    theirs.step(PLAIN, Model(PLAIN, 1).changes(9))
    for turn in range(2):
        schema = replace(PLAIN, id=TableId("shop", f"mine{turn}"))
        lake, model = IcebergLake(tmp_path / f"mine{turn}", catalog, f"f{turn}"), Model(schema, 2)
        lake.catalog = lambda: SqlCatalog("rowferry", uri=f"sqlite:///{tmp_path}/all.db")  # type: ignore[method-assign]
        lake.open()
        lake.step(schema, model.changes(9))
        assert ordered(lake.rows(name=f"shop/mine{turn}"), ["id"]) == model.expected()
        shutil.rmtree(tmp_path / "theirs" / "shop", ignore_errors=True)


def test_the_history_is_bounded_and_manifests_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowferry.flow.sink.lake.iceberg.snapshot._MOST_MANIFESTS", 5)
    lake, model = IcebergLake(tmp_path, "&history=3"), Model(PLAIN, 3)
    lake.open()
    for _ in range(9):
        lake.step(PLAIN, model.changes(20))
        assert equal(lake, model)
    metadata = lake.iceberg().metadata
    assert len(metadata.snapshots) == 3
    current = metadata.current_snapshot()
    assert current is not None and len(current.manifests(lake.iceberg().io)) <= 6


def test_small_files_are_merged_and_nothing_else_changes(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 3)
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=5")
    lake.open()
    for _ in range(12):
        lake.step(PLAIN, model.changes(20))
        assert equal(lake, model)
    operations = [s["operation"] for s in lake.summaries()]
    assert operations.count("replace") >= 2
    assert int(lake.summaries()[-1]["total-delete-files"]) < 6


def test_a_change_does_not_read_or_write_what_it_does_not_touch(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": "a"}) for n in range(500)])
    (first,) = tmp_path.glob("shop/orders-*/part-*.parquet")
    before = first.stat().st_mtime_ns
    told: list[str] = []
    with watched(told.append):
        lake.step(PLAIN, [(Op.UPDATE, {"id": 7, "note": "a"}, {"id": 7, "note": "b"})])
    assert first.stat().st_mtime_ns == before
    assert "read data file for its keys" not in told and "put position deletes" in told
    assert [r for r in lake.rows() if r["id"] == 7] == [{"id": 7, "note": "b"}]


def test_bounds_let_readers_leave_files_out(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.open()
    for low in (0, 100, 200):
        images = [{"id": n, "note": f"{n:03}"} for n in range(low, low + 10)]
        lake.step(PLAIN, [(Op.INSERT, None, image) for image in images])
    by_number = lake.iceberg().scan(row_filter="id = 105")
    by_text = lake.iceberg().scan(row_filter="note = '203'")
    assert [len(list(s.plan_files())) for s in (by_number, by_text)] == [1, 1]
    assert by_number.to_arrow().to_pylist() == [{"id": 105, "note": "105"}]
    assert by_text.to_arrow().to_pylist() == [{"id": 203, "note": "203"}]


# --- crashes, replays, owners ---------------------------------------------------------------------

STEPS = (
    "put lake files",
    "name lake files",
    "lake files put",
    "publish lake",
    "ask iceberg catalog",
    "read key run",
    "put position deletes",
    "put iceberg metadata",
    "commit iceberg snapshot",
    "iceberg snapshot committed",
    "publish lake progress",
)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("rows_again", [False, True], ids=["looks", "writes"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_and_carried_out_again(
    step: str, rows_again: bool, tmp_path: Path
) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 5)
    lake.open()
    lake.step(PLAIN, model.changes(30))
    lake.open()
    plan = lake.plan(PLAIN, 2)
    content = [model.changes(20), model.changes(20)]

    def end(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, content))
    lake.open()
    known = lake.sink.has_rows_of(plan) and not rows_again
    receipts = [] if known else lake.write(plan, PLAIN, content)
    lake.publish(plan, PLAIN, receipts)
    assert equal(lake, model)
    lake.step(PLAIN, model.changes(20))
    assert equal(lake, model)
    assert [s["rowferry.micro-batch"] for s in lake.summaries()] == ["1", "2", "3"]


def test_an_owner_that_was_replaced_commits_nothing(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 6)
    lake.open()
    lake.step(PLAIN, model.changes(10))
    old, plan = lake.sink, lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(10)])
    lake.open()
    with pytest.raises(Fenced):
        old.publish(plan, receipts, {plan.stretch.segments[0].slices[0]: PLAIN})
    assert len(lake.summaries()) == 1
    lake.publish(plan, PLAIN, receipts)
    assert equal(lake, model)


def test_a_meta_database_that_went_back(tmp_path: Path) -> None:
    """Micro-batches get numbers that the table has had: none of them is taken for done."""
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 15)
    lake.open()
    lake.step(PLAIN, model.changes(20))
    backup = lake.micro_batch, lake.state
    again = [model.changes(20) for _ in range(3)]
    for changes in again:
        lake.step(PLAIN, changes)
    lake.micro_batch, lake.state = backup
    lake.open()
    lake.step(PLAIN, *again, model.changes(20))
    assert equal(lake, model)
    lake.open()
    lake.step(PLAIN, model.changes(20))
    assert equal(lake, model)


def test_a_reset_fills_the_tables_anew(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 8)
    lake.open()
    lake.step(PLAIN, model.changes(30))
    lake.open(continues=False)
    lake.micro_batch = 0
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 1, "note": "new"})])
    assert lake.rows() == [{"id": 1, "note": "new"}]
    lake.step(PLAIN, [(Op.DELETE, {"id": 1, "note": "new"}, None)])
    assert lake.rows() == []


# --- commits of others ----------------------------------------------------------------------------


def test_a_rewrite_by_others_is_met(tmp_path: Path) -> None:
    """Their file has the same rows in another order, and no key run."""
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 9)
    lake.open()
    lake.step(PLAIN, model.changes(60))
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(40)])
    told: list[str] = []

    def others(name: str) -> None:
        if name == "commit iceberg snapshot" and not told:
            told.append(name)
            theirs = lake.iceberg()
            with pytest.warns(UserWarning, match="Merge on read"):
                theirs.overwrite(theirs.scan().to_arrow().sort_by([("note", "descending")]))

    with watched(others):
        lake.publish(plan, PLAIN, receipts)
    assert told and equal(lake, model)
    lake.step(PLAIN, model.changes(40))
    assert equal(lake, model)


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    catalog = lake.catalog()
    catalog.create_namespace("shop")
    theirs = pa.table({"id": pa.array([1], pa.int64())})
    catalog.create_table("shop.orders", theirs.schema).append(theirs)
    with pytest.raises(SinkOwned, match="was not made by a changefeed; choose another catalog"):
        lake.sink.check_tables([PLAIN])
    lake.open()
    with pytest.raises(SinkOwned):
        lake.plan(PLAIN)
    assert lake.rows() == [{"id": 1}]


def test_columns_that_others_changed_stop_the_feed(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 4)
    lake.open()
    lake.step(PLAIN, model.changes(5))
    with lake.iceberg().update_schema() as update:
        update.rename_column("note", "remark")
    lake.open()
    with pytest.raises(TargetUnfit, match="columns that this changefeed did not give it"):
        lake.plan(PLAIN)


def test_a_table_without_a_key_needs_the_mode_changelog(tmp_path: Path) -> None:
    bare = table(("id", SqlType("bigint")), ("note", SqlType("text")), key=())
    with pytest.raises(BadInput, match=r"sink.lake.mode = 'changelog'"):
        IcebergLake(tmp_path / "a").sink.check_tables([bare])
    lake = IcebergLake(tmp_path / "b", "&mode=changelog")
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=2")
    lake.sink.check_tables([bare])
    lake.open()
    new = {"id": 1, "note": "b"}
    lake.step(
        bare, [(Op.INSERT, None, {"id": 1, "note": "a"}), (Op.UPDATE, {"id": 1, "note": "a"}, new)]
    )
    lake.step(bare, [(Op.DELETE, new, None)])
    assert lake.summaries()[-1]["operation"] == "replace"
    assert sorted((r["_op"], r["note"], (r["_before"] or {}).get("note")) for r in lake.rows()) == [
        ("delete", "b", "b"),
        ("insert", "a", None),
        ("update", "b", "a"),
    ]


def test_a_table_that_was_dropped_is_not_made_anew(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 2)
    lake.open()
    lake.step(PLAIN, model.changes(5))
    lake.catalog().drop_table(("shop", "orders"))
    lake.open()
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.plan(PLAIN)


def test_a_table_that_is_dropped_under_a_running_feed_is_not_made_anew(tmp_path: Path) -> None:
    lake, model = IcebergLake(tmp_path), Model(PLAIN, 2)
    lake.open()
    lake.step(PLAIN, model.changes(5))
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(5)])
    lake.catalog().drop_table(("shop", "orders"))
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.publish(plan, PLAIN, receipts)
    assert not lake.has("shop/orders")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("&catalog=hive://h:9083", "no catalog of that kind is known here; known: file"),
        ("&catalog=https://h/&catalog-token=t&catalog-credential=a:b", "two ways to log in"),
    ],
)
def test_catalogs_that_cannot_be_used(parameters: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=words):
        IcebergLake(tmp_path, parameters)


@pytest.mark.parametrize("name", ["hash#", "question?", "per%cent", "sla/sh", "日本", "a b"])
def test_readers_find_tables_of_every_name(tmp_path: Path, name: str) -> None:
    """A location is a path to some readers and a URI to others; only the catalog has the name."""
    root = tmp_path / "a b"
    lake, named = IcebergLake(root), replace(PLAIN, id=TableId("sh#op", name))
    lake.open()
    lake.step(named, [(Op.INSERT, None, {"id": n, "note": "x"}) for n in (1, 2)])
    lake.step(named, [(Op.DELETE, {"id": 1, "note": "x"}, None)])
    found = lake.catalog().load_table(("sh#op", name))
    rows = [{"id": 2, "note": "x"}]
    assert found.scan().to_arrow().to_pylist() == rows
    assert_same(rows, iceberg_rows(found))


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%b"])
def test_a_directory_that_readers_do_not_find_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadOption, match="choose another directory"):
        IcebergLake(tmp_path / quote(name))
