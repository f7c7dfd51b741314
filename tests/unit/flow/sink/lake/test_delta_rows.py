"""A Delta table equals the source's, whatever happens on the way; delta-rs judges."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_kit import FEED, NOON, PLAIN, TEXT_KEY, TWO_KEYS, Lake, Model, ordered, table
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.plan import Plan
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput, Fenced, SinkOwned, TargetLost, TargetUnfit
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.lake.delta.log import DeltaLog
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import watched


def equal(lake: Lake, model: Model) -> bool:
    return ordered(lake.rows(), model.schema.handle_key) == model.expected()


@pytest.mark.parametrize("schema", [PLAIN, TEXT_KEY, TWO_KEYS], ids=["number", "text", "two"])
def test_random_changes(schema: TableSchema, tmp_path: Path) -> None:
    lake, model = Lake(tmp_path, "&checkpoint-interval=3"), Model(schema, 7)
    for _ in range(8):
        lake.open()
        for _ in range(2):
            lake.step(schema, model.changes(25), model.changes(25))
            assert equal(lake, model)
    last = json.loads((tmp_path / "shop/orders/_delta_log/_last_checkpoint").read_text())
    assert last["version"] >= 12
    assert lake.delta().transaction_version(f"rowferry/{FEED}/1") == 16


def test_small_files_are_merged_and_nothing_else_changes(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 3)
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=5")
    lake.open()
    for _ in range(12):
        lake.step(PLAIN, model.changes(20))
        assert equal(lake, model)
    assert len(lake.delta().file_uris()) <= 5
    operations = [entry["operation"] for entry in lake.delta().history()]
    assert operations.count("OPTIMIZE") >= 2 and operations.count("MERGE") == 12


def test_a_change_does_not_read_or_write_what_it_does_not_touch(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": "a"}) for n in range(500)])
    (first,) = (tmp_path / "shop/orders").glob("part-*.parquet")
    before = first.stat().st_mtime_ns
    told: list[str] = []
    with watched(told.append):
        lake.step(PLAIN, [(Op.UPDATE, {"id": 7, "note": "a"}, {"id": 7, "note": "b"})])
    assert first.stat().st_mtime_ns == before
    assert "read data file for its keys" not in told and "put deletion vectors" in told
    assert [r for r in lake.rows() if r["id"] == 7] == [{"id": 7, "note": "b"}]


def test_runs_that_are_lost_are_made_anew(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(TEXT_KEY, 11)
    lake.open()
    lake.step(TEXT_KEY, model.changes(40))
    for number, run in enumerate((tmp_path / "shop/orders/_rowferry").glob("*.run")):
        run.write_bytes(b"torn" if number else b"")
    lake.open()
    lake.step(TEXT_KEY, model.changes(40))
    assert equal(lake, model)


# --- crashes, replays, owners ---------------------------------------------------------------------

STEPS = (
    "put lake files",
    "name lake files",
    "lake files put",
    "publish lake",
    "read delta commits",
    "read key run",
    "put deletion vectors",
    "commit delta version",
    "delta version committed",
    "publish lake progress",
)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("rows_again", [False, True], ids=["looks", "writes"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_and_carried_out_again(
    step: str, rows_again: bool, tmp_path: Path
) -> None:
    """Also where rows are written again, as another table of the plan needs it."""
    lake, model = Lake(tmp_path), Model(PLAIN, 5)
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
    merges = [e for e in lake.delta().history() if e["operation"] == "MERGE"]
    assert sorted(e["rowferry.micro-batch"] for e in merges) == [1, 2, 3]
    assert {e["rowferry.checkpoint-ts"] for e in merges} == {NOON + n for n in (1, 2, 3)}


def test_killed_and_carried_out_again_with_files_in_another_order(tmp_path: Path) -> None:
    """As the checkpoint of somebody else has them: deletion vectors stand in that order, too."""
    lake, model = Lake(tmp_path), Model(PLAIN, 5)
    lake.open()
    for _ in range(3):
        lake.step(PLAIN, model.changes(30))
    lake.open()
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(60)])

    def end(name: str) -> None:
        if name == "commit delta version":
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, PLAIN, receipts)
    log = DeltaLog(lake.sink._files, "shop/orders")
    state = log.read()
    state.files = dict(reversed(state.files.items()))
    log.write_checkpoint(state, 0)
    lake.open()
    lake.publish(plan, PLAIN, receipts)
    assert len(list((tmp_path / "shop/orders").glob("deletion_vector_*"))) == 4
    assert equal(lake, model)


def test_an_owner_that_was_replaced_commits_nothing(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 6)
    lake.open()
    lake.step(PLAIN, model.changes(10))
    old, plan = lake.sink, lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(10)])
    lake.open()
    version = lake.delta().version()
    with pytest.raises(Fenced):
        old.publish(plan, receipts, {plan.stretch.segments[0].slices[0]: PLAIN})
    assert lake.delta().version() == version
    lake.publish(plan, PLAIN, receipts)
    assert equal(lake, model)


def test_a_plan_given_up_after_its_commit_is_not_taken_for_the_next(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.open()
    plan = lake.plan(PLAIN)
    first = [(Op.INSERT, None, {"id": 1, "note": "a"})]

    def end(name: str) -> None:
        if name == "publish lake progress":
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, [first]))
    lake.open()
    assert lake.sink.discard(plan) is True
    lake.step(PLAIN, [*first, (Op.INSERT, None, {"id": 2, "note": "b"})])
    assert ordered(lake.rows(), ["id"]) == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]


def test_a_meta_database_that_went_back(tmp_path: Path) -> None:
    """Micro-batches get numbers that the table has had: none of them is taken for done."""
    lake, model = Lake(tmp_path), Model(PLAIN, 15)
    lake.open()
    lake.step(PLAIN, model.changes(20))
    backup = lake.micro_batch, lake.state
    again = [model.changes(20) for _ in range(3)]
    for changes in again:
        lake.step(PLAIN, changes)
    lake.micro_batch, lake.state = backup
    lake.open()
    plan = lake.plan(PLAIN, 4)
    content = [*again, model.changes(20)]

    def end(name: str) -> None:
        if name == "publish lake progress":
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(plan, PLAIN, lake.write(plan, PLAIN, content))
    lake.open()
    commits = lake.commits()
    lake.publish(plan, PLAIN, lake.write(plan, PLAIN, content))
    assert lake.commits() == commits and equal(lake, model)
    lake.open()
    lake.step(PLAIN, model.changes(20))
    assert equal(lake, model)
    assert lake.sink._ownership.discard_count() == 1


def publish_killed(lake: Lake, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish schema changes; the process ends when it has deleted two files."""
    deleted: list[str] = []
    delete = LocalFiles.delete

    def end(files: LocalFiles, path: str) -> None:
        if len(deleted) == 2:
            raise Killed
        deleted.append(path)
        delete(files, path)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(LocalFiles, "delete", end)
        lake.publish(plan, PLAIN, [])
    assert all("/_delta_log/" in path for path in deleted)


def test_a_rename_over_a_table_whose_removal_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, other = Lake(tmp_path), replace(PLAIN, id=TableId("shop", "sales"), table_id=2)
    lake.open()
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 1, "note": "a"})])
    for n in (7, 8, 9):
        lake.step(other, [(Op.INSERT, None, {"id": n, "note": "b"})])
    gone = replace(lake.change(DdlKind.DROP_TABLE, None), table=other.id)
    lake.step(other, changes=[gone])
    new = replace(PLAIN, id=other.id, version=PLAIN.version + 1)
    renamed = lake.change(DdlKind.RENAME_TABLE, new, previous=PLAIN.id)
    plan = lake.plan(PLAIN, 0, [renamed])
    publish_killed(lake, plan, monkeypatch)
    lake.open()
    lake.publish(plan, PLAIN, [])
    lake.step(new, [(Op.INSERT, None, {"id": 2, "note": "a"})])
    assert [r["id"] for r in ordered(lake.rows(name="shop/sales"), ["id"])] == [1, 2]
    assert not lake.has("shop/orders")


def test_a_dropped_database_whose_removal_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the log would go on where a table of that name has come so far."""
    lake = Lake(tmp_path, "&on-drop=drop")
    lake.open()
    for n in (7, 8, 9):
        lake.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": "b"})])
    gone = replace(lake.change(DdlKind.DROP_DATABASE, None), table=TableId("shop", ""))
    plan = lake.plan(PLAIN, 0, [gone])
    publish_killed(lake, plan, monkeypatch)
    lake.open()
    lake.publish(plan, PLAIN, [])
    assert not lake.has("shop/orders")
    for n in (1, 2, 3):
        lake.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": "a"})])
    assert [r["id"] for r in ordered(lake.rows(), ["id"])] == [1, 2, 3]


def test_a_reset_fills_the_tables_anew(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 8)
    lake.open()
    lake.step(PLAIN, model.changes(30))
    lake.open(continues=False)
    lake.micro_batch = 0
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 1, "note": "new"})])
    assert lake.rows() == [{"id": 1, "note": "new"}]


# --- commits of others ----------------------------------------------------------------------------


def test_a_compaction_by_others_is_met(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 9)
    lake.open()
    lake.step(
        PLAIN,
        [(Op.INSERT, None, model.rows.setdefault((n,), {"id": n, "note": "x"})) for n in range(9)],
    )
    theirs = tmp_path / "shop/orders/theirs.parquet"
    (ours,) = (tmp_path / "shop/orders").glob("part-*.parquet")
    theirs.write_bytes(ours.read_bytes())
    plan = lake.plan(PLAIN)
    receipts = lake.write(plan, PLAIN, [model.changes(40)])
    log = tmp_path / "shop/orders/_delta_log"
    (add,) = [
        json.loads(x)["add"]
        for x in (log / f"{0:020d}.json").read_text().splitlines()
        if '"add"' in x
    ]
    moved = [
        {"remove": {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}},
        {"add": {**add, "path": theirs.name, "dataChange": False}},
    ]
    told: list[str] = []

    def others(name: str) -> None:
        if name == "commit delta version" and not told:
            told.append(name)
            (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, moved)))

    with watched(others):
        lake.publish(plan, PLAIN, receipts)
    assert told and equal(lake, model)
    assert (log / f"{2:020d}.json").is_file()


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    Lake(tmp_path / "a", changefeed="other").open()
    lake = Lake(tmp_path / "a")
    with pytest.raises(SinkOwned, match="other"):
        lake.sink.probe(Owner(FEED, 9))
    log = tmp_path / "b/shop/orders/_delta_log"
    log.mkdir(parents=True)
    schema = json.dumps({"type": "struct", "fields": []})
    metadata = {"id": "1", "schemaString": schema, "partitionColumns": [], "configuration": {}}
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    lines = [{"protocol": protocol}, {"metaData": metadata}]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    lake = Lake(tmp_path / "b")
    with pytest.raises(SinkOwned, match="was not made by a changefeed; choose another sink URI"):
        lake.sink.check_tables([PLAIN])
    newer = {**protocol, "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["later"]}
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": newer}))
    with pytest.raises(TargetUnfit, match="needs what this version cannot keep: later"):
        Lake(tmp_path / "b").sink.check_tables([PLAIN])


def test_a_table_without_a_key_needs_the_mode_changelog(tmp_path: Path) -> None:
    bare = table(("id", SqlType("bigint")), ("note", SqlType("text")), key=())
    with pytest.raises(BadInput, match="sink.lake.mode = 'changelog'"):
        Lake(tmp_path / "a").sink.check_tables([bare])
    lake = Lake(tmp_path / "b", "&mode=changelog")
    lake.sink.check_tables([bare])
    lake.open()
    new = {"id": 1, "note": "b"}
    lake.step(
        bare, [(Op.INSERT, None, {"id": 1, "note": "a"}), (Op.UPDATE, {"id": 1, "note": "a"}, new)]
    )
    lake.step(bare, [(Op.DELETE, new, None)])
    found = lake.rows("_op, _commit_ts, note, _before.note AS old")
    assert sorted((r["_op"], r["note"], r["old"]) for r in found) == [
        ("delete", "b", "b"),
        ("insert", "a", None),
        ("update", "b", "a"),
    ]
    assert {r["_commit_ts"] for r in found} == {NOON}


def test_a_table_that_was_deleted_is_not_made_anew(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 2)
    lake.open()
    lake.step(PLAIN, model.changes(5))
    (tmp_path / "shop/orders").rename(tmp_path / "away")
    lake.open()
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.plan(PLAIN)


def test_a_table_that_is_deleted_under_a_running_feed_is_not_made_anew(tmp_path: Path) -> None:
    lake, model = Lake(tmp_path), Model(PLAIN, 2)
    lake.open()
    lake.step(PLAIN, model.changes(5))
    (tmp_path / "shop/orders").rename(tmp_path / "away")
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.step(PLAIN, model.changes(5))
    assert not lake.has("shop/orders/_delta_log")


def test_a_log_that_others_have_cleaned_up_is_read_anew(tmp_path: Path) -> None:
    """Their commits are gone behind their checkpoint, when we look for the next one."""
    lake, model = Lake(tmp_path), Model(PLAIN, 14)
    lake.open()
    for _ in range(4):
        lake.step(PLAIN, model.changes(30))
    log = tmp_path / "shop/orders/_delta_log"
    lines = (log / f"{3:020d}.json").read_text().splitlines()
    add = [json.loads(x)["add"] for x in lines if x.startswith('{"add"')][-1]
    theirs = {**add, "path": "theirs.parquet", "dataChange": False}
    (tmp_path / "shop/orders/theirs.parquet").write_bytes(
        (tmp_path / "shop/orders" / add["path"]).read_bytes()
    )
    removal = {k: add[k] for k in ("path", "deletionVector") if k in add}
    removal |= {"dataChange": False, "deletionTimestamp": 1}
    moved = [{"remove": removal}, {"add": theirs}]
    (log / f"{4:020d}.json").write_text("\n".join(map(json.dumps, moved)))
    for version in (5, 6):
        (log / f"{version:020d}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1}}))
    lake.delta().create_checkpoint()
    for version in range(6):
        (log / f"{version:020d}.json").unlink()
    lake.step(PLAIN, model.changes(40))
    assert (log / f"{7:020d}.json").is_file() and not (log / f"{4:020d}.json").exists()
    assert equal(lake, model)


def test_a_checkpoint_of_others_says_more_of_a_file(tmp_path: Path) -> None:
    """Spark has least and most values there in their own types; no commit can hold a date."""
    lake = Lake(tmp_path, "&checkpoint-interval=1")
    lake.open()
    old = {"id": 1, "note": "a"}
    lake.step(PLAIN, [(Op.INSERT, None, old), (Op.INSERT, None, {"id": 2, "note": "a"})])
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 3, "note": "a"})])
    (place,) = (tmp_path / "shop/orders/_delta_log").glob("*.checkpoint.parquet")
    rows = pq.read_table(place)
    adds = rows.column("add").combine_chunks()
    parsed = pa.StructArray.from_arrays([pa.array([date(2024, 2, 29)] * len(adds))], ["day"])
    theirs = pa.StructArray.from_arrays(
        [*adds.flatten(), parsed],
        fields=[*adds.type, pa.field("stats_parsed", parsed.type)],
        mask=adds.is_null(),
    )
    pq.write_table(rows.set_column(rows.schema.get_field_index("add"), "add", theirs), place)
    lake.open()
    lake.step(PLAIN, [(Op.UPDATE, old, {"id": 1, "note": "b"})])
    assert [r["note"] for r in ordered(lake.rows(), ["id"])] == ["b", "a", "a"]


def test_bounds_of_files_that_others_wrote_are_tight_no_more(tmp_path: Path) -> None:
    """Spark says that they are, and takes the most of a column from them while they are."""
    number = SqlType("decimal", length=30, scale=10)
    schema = table(("id", SqlType("bigint")), ("tightBounds", number), ("note", SqlType("text")))
    lake = Lake(tmp_path)
    lake.open()
    rows = [
        {"id": n, "tightBounds": f"{n}.0000000001", "note": '"tightBounds":true'} for n in (1, 2)
    ]
    lake.step(schema, [(Op.INSERT, None, row) for row in rows])
    log = tmp_path / "shop/orders/_delta_log"
    (add,) = [
        a
        for line in (log / f"{0:020d}.json").read_text().splitlines()
        if (a := json.loads(line).get("add"))
    ]
    exact = '"maxValues":{"tightBounds":12345678901234567890.0000000001,'
    tight = add["stats"].replace('"maxValues": {', exact)[:-1] + ',"tightBounds":true}'
    theirs = {**add, "path": "theirs.parquet", "stats": tight}
    (tmp_path / "shop/orders" / add["path"]).rename(tmp_path / "shop/orders/theirs.parquet")
    gone = {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}
    merged = [{"remove": gone}, {"add": {**theirs, "dataChange": False}}]
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, merged)))
    lake.step(schema, [(Op.DELETE, rows[1], None)])
    lines = (log / f"{2:020d}.json").read_text().splitlines()
    (add,) = [a for line in lines if (a := json.loads(line).get("add"))]
    assert json.loads(add["stats"])["tightBounds"] is False
    assert add["stats"] == tight.replace('":true}', '": false}')
    # Of a file of ours nothing was said, and a column may be called so.
    lake.step(schema, [(Op.INSERT, None, row | {"id": row["id"] + 5}) for row in rows])
    lake.step(schema, [(Op.DELETE, rows[0] | {"id": 6}, None)])
    lines = (log / f"{4:020d}.json").read_text().splitlines()
    (add,) = [a for line in lines if (a := json.loads(line).get("add"))]
    assert json.loads(add["stats"])["tightBounds"] is False


@pytest.mark.parametrize("name", ["hash#", "question?", "per%cent", "sla/sh", "日本", "a b", "a@b"])
def test_readers_find_tables_of_every_name(tmp_path: Path, name: str) -> None:
    """A place is a path to some readers and a URI to others, which decode it at times."""
    lake, named = (
        Lake(tmp_path, "&checkpoint-interval=1"),
        replace(PLAIN, id=TableId("sh#op", name)),
    )
    lake.open()
    lake.step(named, [(Op.INSERT, None, {"id": n, "note": "x"}) for n in (1, 2)])
    lake.step(named, [(Op.DELETE, {"id": 1, "note": "x"}, None)])
    (found,) = lake.sink.tables().directories()
    assert table_at(found) == named.id
    assert lake.rows(name=found) == [{"id": 2, "note": "x"}]
