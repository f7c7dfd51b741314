from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from kit_scenario import (
    ACCOUNT,
    account,
    add_column,
    bank,
    chunk,
    delete,
    histories,
    insert,
    renamed,
    row,
    truncate,
    update,
)

from codec_kit import codec_for
from rowferry.change.chunk import Change, DdlKind, Op, SchemaChange, Watermark, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadInput, SinkDamaged
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.storage import schema_file
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.feed import FeedFacts, WatchedFeed
from rowferry.testing.model import Commit, History
from rowferry.testing.rebuild import (
    RebuiltTable,
    TableDifferences,
    compare,
    rebuild,
    rebuild_changes,
)
from rowferry.testing.storage import StorageDecoder, deliver_storage, renamed_from
from rowferry.testing.validators import AllPromises, DeliveryOracle, StorageLayout

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def as_changes(history: History) -> list[Change]:
    """Return a history as a feed of chunks, one for each transaction."""
    found: list[Change] = []
    for entry in history.entries():
        match entry:
            case SchemaChange():
                found.append(entry)
            case Commit():
                table = history.version_at(ACCOUNT, entry.commit_ts)
                found.append(chunk(table, [(entry.commit_ts, c) for c in entry.changes]))
    return found


def rows(changes: list[Change], **options: Any) -> dict[Any, Any]:
    found = rebuild_changes(changes, **options).get(ACCOUNT)
    return found.by_key() if found else {}


# --- rebuilding ----------------------------------------------------------------------------------


def test_the_last_change_of_each_key_wins():
    assert rows(as_changes(bank())) == bank().rows_at(ACCOUNT, 70)


@QUICK
@given(histories(most=20))
def test_any_history_rebuilds_to_its_last_state(history: History):
    assert rows(as_changes(history)) == history.rows_at(ACCOUNT, history.last_commit_ts())


@QUICK
@given(histories(most=20))
def test_repeats_do_no_harm(history: History):
    changes = as_changes(history)
    twice = [c for change in changes for c in ([change] * (2 - isinstance(change, SchemaChange)))]
    assert rows(twice) == history.rows_at(ACCOUNT, history.last_commit_ts())


def test_one_chunk_says_the_same_as_many():
    whole = chunk(account(), bank().changes(ACCOUNT))
    assert rows([whole, Watermark(70)]) == bank().rows_at(ACCOUNT, 70)


def test_a_whole_update_of_the_key_removes_the_old_row():
    one = chunk(account(), [(10, insert(row(1, "a", 1))), (10, insert(row(2, "b", 2)))])
    moves = [
        (20, update(row(1, "a", 1), row(3, "a", 1))),
        (20, update(row(2, "b", 2), row(1, "b", 2))),
    ]
    assert rows([one, chunk(account(), moves)]) == {
        (1,): row(1, "b", 2),
        (3,): row(3, "a", 1),
    }


def test_deletes_may_hold_the_key_only():
    first = chunk(account(), [(10, insert(row(1, "a", 1))), (10, insert(row(2, "b", 2)))])
    only_key = pa.struct([("id", pa.int64())])
    second = make_rows(
        account(),
        pa.array([2], pa.int8()),
        pa.array([20], pa.uint64()),
        pa.array([0], pa.int64()),
        pa.array([{"id": 1}], only_key),
        pa.array([None], account().image),
    )
    assert rows([first, second]) == {(2,): row(2, "b", 2)}


def test_a_new_image_without_a_column_is_refused():
    only_key = pa.struct([("id", pa.int64())])
    partial = make_rows(
        account(),
        pa.array([0], pa.int8()),
        pa.array([20], pa.uint64()),
        pa.array([0], pa.int64()),
        pa.array([None], account().image),
        pa.array([{"id": 1}], only_key),
    )
    with pytest.raises(BadInput, match="lack the columns owner, balance"):
        rebuild_changes([partial])


def test_tables_without_a_key_are_bags():
    table = TableSchema(ACCOUNT, 7, 1, account().columns)
    same = row(1, "a", 1)
    changes = [(10, insert(same)), (10, insert(same)), (10, insert(same))]
    changes += [(20, delete(same)), (30, update(same, row(1, "b", 1)))]
    found = rebuild_changes([chunk(table, changes)])[ACCOUNT]
    assert sorted(r["owner"] for r in found.rows.to_pylist()) == ["a", "b"]
    assert found.key == ()
    blind = chunk(table, [(10, update(same, same)._replace(before=None))])
    with pytest.raises(BadInput, match="no key"):
        rebuild_changes([blind])
    named = rebuild_changes([chunk(table, changes)], keys={ACCOUNT: ("id",)})[ACCOUNT]
    assert named.by_key() == {(1,): row(1, "b", 1)}


def test_schema_changes():
    history = bank()
    history.note_schema_change(add_column(80))
    assert rows(as_changes(history))[(1,)] == row(1, "ann", 50, note="x")
    history.note_schema_change(truncate(90))
    assert rows(as_changes(history)) == {}
    changes = as_changes(bank())
    other = renamed(account(), "b", 80)
    rename = SchemaChange(80, DdlKind.RENAME_TABLE, "R", other.id, other, previous=ACCOUNT)
    moved = rebuild_changes([*changes, rename])
    assert list(moved) == [other.id]
    assert moved[other.id].by_key() == bank().rows_at(ACCOUNT, 70)
    drop = SchemaChange(90, DdlKind.DROP_TABLE, "D", other.id)
    assert rebuild_changes([*changes, rename, drop]) == {}
    gone = SchemaChange(90, DdlKind.DROP_DATABASE, "D", TableId("bank", ""))
    assert rebuild_changes([*changes, gone]) == {}
    with pytest.raises(BadInput, match="from where"):
        rebuild_changes([*changes, replace(rename, previous=None)])
    with pytest.raises(BadInput, match="DROP_PARTITION"):
        rebuild_changes([SchemaChange(90, DdlKind.DROP_PARTITION, "D", ACCOUNT, account())])


def test_rows_of_an_older_version_after_a_newer_one_are_refused():
    with pytest.raises(BadInput, match="version 1 come after version 80"):
        rebuild_changes([add_column(80), *as_changes(bank())])


def test_columns_change_their_type():
    wide = replace(
        account(80),
        columns=(
            account().columns[0],
            Column(2, "holder", SqlType("varbinary", length=20)),
            Column(3, "balance", SqlType("decimal", length=12, scale=1)),
            Column(4, "kind", SqlType("enum", elements=("a", "b")), default="b"),
        ),
    )
    query = "ALTER TABLE account RENAME COLUMN owner TO holder, MODIFY balance decimal(12,1)"
    change = SchemaChange(80, DdlKind.MULTI_SCHEMA_CHANGE, query, ACCOUNT, wide)
    history = bank()
    history.note_schema_change(change)
    want = {"id": 1, "holder": b"ann", "balance": "50.0", "kind": 2}
    assert rows([*as_changes(bank()), change])[(1,)] == want
    assert history.rows_at(ACCOUNT, 80)[(1,)] == want


# --- comparing -----------------------------------------------------------------------------------


def test_compare_counts_and_shows_differences():
    have = rebuild_changes(as_changes(bank()))
    same = compare(have, {ACCOUNT: bank().rows_at(ACCOUNT, 70)})
    assert same.same and same.equal == 2 and "2 rows equal" in str(same)
    want = {(1,): row(1, "ann", 51), (7,): row(7, "gus", 0)}
    found = compare(have, {ACCOUNT: want})
    assert not found.same
    assert (found.equal, found.missing, found.extra, found.different) == (0, 1, 1, 1)
    assert any(s.startswith("different: bank.account (1,)") for s in found.samples)
    assert any(s.startswith("missing: bank.account (7,)") for s in found.samples)
    assert any(s.startswith("extra: bank.account (2,)") for s in found.samples)


def test_compare_takes_missing_tables_as_empty():
    have = rebuild_changes(as_changes(bank()))
    assert compare({}, {ACCOUNT: bank().rows_at(ACCOUNT, 70)}).missing == 2
    assert compare({}, have).missing == 2
    assert compare(have, {}).extra == 2
    assert compare(have, have).same
    assert compare({}, {}) == TableDifferences()


def test_compare_counts_equal_rows_of_keyless_tables():
    table = TableSchema(ACCOUNT, 7, 1, account().columns)

    def bag(times: int) -> dict[TableId, RebuiltTable]:
        return rebuild_changes([chunk(table, [(10, insert(row(1, "a", 1)))] * times)])

    assert compare(bag(3), bag(3)).same
    found = compare(bag(5), bag(2))
    assert (found.equal, found.extra, found.missing) == (2, 3, 0)
    assert compare(bag(1), bag(4)).missing == 3


def test_compare_refuses_other_columns():
    have = rebuild_changes(as_changes(bank()))
    with pytest.raises(BadInput, match="must have the columns"):
        compare(have, {ACCOUNT: {(1,): {"id": 1}}})


def test_every_type_can_be_a_key_and_be_compared():
    types = ("bigint", "varchar", "varbinary", "float", "double", "decimal", "enum")
    columns = tuple(
        Column(i, t, SqlType(t, elements=("a", "b") if t == "enum" else ()), nullable=False)
        for i, t in enumerate(types, 1)
    )
    index = replace(account().indexes[0], columns=types)
    table = TableSchema(ACCOUNT, 7, 1, columns, (index,))
    values = dict(zip(types, (-5, "é", b"\xff", 0.5, 0.1, "1.50", 2), strict=True))
    other = {**values, "varbinary": b"\xfe"}
    changes = [(10, insert({**v, "id": 0})) for v in (values, other, values)]
    made = rebuild_changes([chunk(table, changes)])
    assert made[ACCOUNT].rows.num_rows == 2
    assert compare(made, {ACCOUNT: {(1,): values, (2,): other}}).same


# --- storage -------------------------------------------------------------------------------------


def codec(name: str, **sink: Any) -> Codec:
    uri = Uri.parse(f"file:///tmp/x?protocol={name}", "sink")
    spec = ChangefeedSpec("c", Uri.parse("range://127.0.0.1:1", "source"), uri, {"sink": sink})
    return codec_for(CODECS.load(name), spec)


class Directory:
    """Writes a storage directory as a sink does."""

    def __init__(self, root: Path, codec: Codec) -> None:
        self.root = root
        self.codec = codec
        self.numbers: dict[Path, int] = {}

    def write(self, history: History, day: str = "2024-01-01") -> None:
        for change in as_changes(history):
            if isinstance(change, SchemaChange):
                self.put(schema_file.of_change(change))
                continue
            folder = self.root / f"{change.table.id.database}/{change.table.id.table}"
            folder = folder / f"{change.table.version}/{day}"
            (folder / "meta").mkdir(parents=True, exist_ok=True)
            if not list((folder.parent.parent / "meta").glob(f"schema_{change.table.version}_*")):
                self.put(schema_file.of_table(change.table))
            number = self.numbers[folder] = self.numbers.get(folder, 0) + 1
            name = f"CDC{number:020d}{self.codec.TRAITS.file_suffix}"
            content = bytes(self.codec.encode_rows(change, 1).value_bytes())
            (folder / name).write_bytes(self.codec.file_head(change.table) + content)
            (folder / "meta/CDC.index").write_text(f"{name}\n")
        checkpoint = history.last_commit_ts()
        (self.root / "metadata").write_text(f'{{"checkpoint-ts":{checkpoint}}}')

    def put(self, document: schema_file.SchemaDocument) -> None:
        path = self.root / document.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.content())


def evolving() -> History:
    history = bank()
    history.note_schema_change(add_column(80))
    history.note_commit(90, [insert(row(4, "dee", 5, note=None))])
    return history


CSV_DATED = {"csv": {"include-commit-ts": True}}
EXTENDED = {"enable-tidb-extension": True}


@pytest.mark.parametrize(
    ("name", "sink"), [("csv", {}), ("csv", CSV_DATED), ("canal-json", EXTENDED)]
)
def test_rebuild_a_directory(tmp_path: Path, name: str, sink: dict[str, Any]):
    made = codec(name, **sink)
    Directory(tmp_path, made).write(evolving())
    found = rebuild(tmp_path, made)
    assert compare(found, {ACCOUNT: evolving().rows_at(ACCOUNT, 90)}).same
    if sink:
        early = rebuild(tmp_path, made, until_ts=45)
        assert early[ACCOUNT].by_key() == evolving().rows_at(ACCOUNT, 45)
    last = max(tmp_path.rglob("CDC*[0-9].*"))
    last.unlink()
    with pytest.raises(SinkDamaged):
        rebuild(tmp_path, made)


@pytest.mark.parametrize(
    ("name", "sink", "dated", "before"),
    [
        ("csv", {}, False, False),
        ("csv", CSV_DATED, True, False),
        ("canal-json", EXTENDED, True, True),
    ],
)
def test_validate_a_directory(
    tmp_path: Path, name: str, sink: dict[str, Any], dated: bool, before: bool
):
    made = codec(name, **sink)
    Directory(tmp_path, made).write(evolving())
    facts = FeedFacts(before, dated, schema_changes_go_to="files")
    oracle = DeliveryOracle(evolving(), facts)
    whole = AllPromises.of(oracle)
    feed = WatchedFeed(facts, [whole])
    deliver_storage(tmp_path, made, feed)
    assert feed.finish() == []
    assert bool(whole.unchecked) is not (dated and before)
    layout = StorageLayout(tmp_path, oracle, StorageDecoder(tmp_path, made))
    layout.finish()
    assert layout.failures == []


@pytest.mark.parametrize(("name", "sink"), [("csv", {}), ("canal-json", EXTENDED)])
def test_validate_finds_a_lost_file(tmp_path: Path, name: str, sink: dict[str, Any]):
    made = codec(name, **sink)
    history = evolving()
    Directory(tmp_path, made).write(history)
    history.note_commit(85, [update(row(1, "ann", 50, note="x"), row(1, "ann", 9, note="x"))])
    facts = FeedFacts(name != "csv", bool(sink), schema_changes_go_to="files")
    whole = AllPromises.of(DeliveryOracle(history, facts))
    feed = WatchedFeed(facts, [whole])
    deliver_storage(tmp_path, made, feed)
    assert {f[:2] for f in feed.finish()} == {"P1", "P4"}


def test_the_decoder_refuses_what_is_no_data_file(tmp_path: Path):
    decoder = StorageDecoder(tmp_path, codec("csv"))
    with pytest.raises(BadInput, match="not the name of a data file"):
        list(decoder(tmp_path / "bank/account/readme"))
    path = tmp_path / "bank/account/1/2024-01-01/CDC000001.csv"
    with pytest.raises(BadInput, match="no schema file"):
        list(decoder(path))


@pytest.mark.parametrize(
    ("query", "old"),
    [
        ("RENAME TABLE a TO b", "a"),
        ("rename table `bank`.`a``x` to `bank`.`b`", "a`x"),
        ("RENAME TABLE x TO y, bank.a TO bank . b;", "a"),
        ("ALTER TABLE a RENAME TO b", "a"),
        ("alter table `a` rename b", "a"),
        ("ALTER TABLE a ADD COLUMN c int, RENAME AS `b`", "a"),
        ("ALTER TABLE a RENAME COLUMN x TO y, RENAME b", "a"),
    ],
)
def test_where_a_rename_came_from(query: str, old: str):
    assert renamed_from(query, TableId("bank", "b")) == TableId("bank", old)


def test_a_rename_that_cannot_be_followed_is_refused():
    with pytest.raises(BadInput, match="cannot be followed"):
        renamed_from("RENAME TABLE a TO c", TableId("bank", "b"))


# --- many rows -----------------------------------------------------------------------------------


def test_many_rows_in_chunks():
    count, size = 200_000, 50_000
    generator = np.random.default_rng(7)
    ids = generator.integers(0, 30_000, count)
    ops = np.where(generator.random(count) < 0.2, int(Op.DELETE), int(Op.UPDATE)).astype(np.int8)
    want: dict[int, int] = {}
    for place, (key, op) in enumerate(zip(ids.tolist(), ops.tolist(), strict=True)):
        if op == Op.DELETE:
            want.pop(key, None)
        else:
            want[key] = place

    def part(start: int) -> Change:
        here = slice(start, start + size)
        fields = [ids[here], np.full(size, "x").astype(object), np.arange(start, start + size)]
        columns = [
            pa.array(f, c.type.arrow) for f, c in zip(fields, account().columns, strict=True)
        ]
        gone = ops[here] == Op.DELETE
        names = [c.name for c in account().columns]
        return make_rows(
            account(),
            pa.array(ops[here]),
            pa.array(np.arange(start, start + size, dtype=np.uint64)),
            pa.array(np.arange(size)),
            pa.StructArray.from_arrays(columns, names, mask=pa.array(~gone)),
            pa.StructArray.from_arrays(columns, names, mask=pa.array(gone)),
        )

    made = rebuild_changes(part(start) for start in range(0, count, size))
    expected = {ACCOUNT: {(k,): row(k, "x", v) for k, v in want.items()}}
    found = compare(made, expected)
    assert found.same, str(found)
    assert found.equal == len(want)
