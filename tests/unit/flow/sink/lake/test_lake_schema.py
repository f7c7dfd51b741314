"""Schema changes of a source's table become those of its lake table; old rows stay readable."""

from __future__ import annotations

import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from iceberg_kit import IcebergLake
from lake_kit import NOON, ORDERS, PLAIN, Lake, ordered, table, with_columns
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId
from rowferry.errors import EncodeError, SchemaChangeRefused, TargetLost
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.stored_columns import StoredColumns, evolve
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import watched

ID, NOTE = PLAIN.columns
ADD, DROP, MODIFY = DdlKind.ADD_COLUMN, DdlKind.DROP_COLUMN, DdlKind.MODIFY_COLUMN


@pytest.fixture(params=[Lake, IcebergLake], ids=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> type[Lake]:
    found: type[Lake] = request.param
    return found


@pytest.fixture
def lake(kind: type[Lake], tmp_path: Path) -> Lake:
    """A table with two rows."""
    found = kind(tmp_path)
    found.open()
    found.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": f"n{n}"}) for n in (1, 2)])
    return found


def test_columns_are_added_renamed_and_dropped(lake: Lake) -> None:
    price = Column(3, "price", SqlType("decimal", length=8, scale=2))
    second = with_columns(PLAIN, ID, NOTE, price)
    lake.step(PLAIN, changes=[lake.change(ADD, second)])
    lake.step(second, [(Op.INSERT, None, {"id": 3, "note": "n3", "price": "1.50"})])
    third = with_columns(second, ID, replace(NOTE, name="remark"), price)
    lake.step(second, changes=[lake.change(MODIFY, third)])
    old, new = ({"id": 1, "remark": r, "price": None} for r in ("n1", "x"))
    lake.step(third, [(Op.UPDATE, old, new)])
    assert ordered(lake.rows(), ["id"]) == [
        {"id": 1, "remark": "x", "price": None},
        {"id": 2, "remark": "n2", "price": None},
        {"id": 3, "remark": "n3", "price": Decimal("1.50")},
    ]
    # One that was dropped and added again is another column: its old values do not come back.
    fourth = with_columns(third, ID, price)
    fifth = with_columns(fourth, ID, price, Column(4, "remark", SqlType("varchar", length=60)))
    lake.step(third, changes=[lake.change(DROP, fourth)])
    lake.open()
    lake.step(fourth, changes=[lake.change(ADD, fifth)])
    lake.step(fifth, [(Op.INSERT, None, {"id": 4, "price": None, "remark": "n4"})])
    assert [(r["id"], r["remark"]) for r in ordered(lake.rows(), ["id"])] == [
        (1, None),
        (2, None),
        (3, None),
        (4, "n4"),
    ]
    assert lake.column_names() == ["id", "price", "remark"]


def test_old_rows_of_a_changelog_have_the_names_of_their_columns(
    kind: type[Lake], tmp_path: Path
) -> None:
    """Whatever these are called in data files: a name with a space is another one there."""
    lake = kind(tmp_path, "&mode=changelog")
    lake.open()
    spaced = with_columns(PLAIN, ID, replace(NOTE, name="a note"))
    lake.step(spaced, [(Op.UPDATE, {"id": 1, "a note": "old"}, {"id": 1, "a note": "new"})] * 2)
    third = with_columns(spaced, ID, replace(NOTE, name="remark"))
    lake.step(spaced, changes=[lake.change(MODIFY, third)])
    lake.step(third, [(Op.DELETE, {"id": 1, "remark": "new"}, None)])
    assert sorted((r["_op"], r["remark"], r["_before"]["remark"]) for r in lake.rows()) == [
        ("delete", "new", "new"),
        ("update", "new", "old"),
        ("update", "new", "old"),
    ]


def test_columns_that_are_called_as_those_in_data_files(kind: type[Lake], tmp_path: Path) -> None:
    """A column that is added does not take their values up, though it gets their number."""
    text = SqlType("varchar", length=60)
    dropped = table(("id", SqlType("bigint")), ("col-3", text))
    stays = table(("id", SqlType("bigint")), ("a", text), ("col-4", text))
    for place, first in (("dropped", dropped), ("stays", stays)):
        (tmp_path / place).mkdir()
        lake = kind(tmp_path / place)
        lake.open()
        names = [c.name for c in first.columns]
        lake.step(first, [(Op.INSERT, None, {n: n for n in names} | {"id": 1})])
        second = with_columns(first, ID, *first.columns[2:])
        lake.step(first, changes=[lake.change(DROP, second)])
        third = with_columns(second, *second.columns, Column(9, "b", text))
        lake.step(second, changes=[lake.change(ADD, third)])
        kept = {n: n for n in names[2:]}
        assert lake.rows() == [{"id": 1, **kept, "b": None}]
        lake.step(third, [(Op.INSERT, None, {"id": 2, **kept, "b": "b"})])
        assert [r["b"] for r in ordered(lake.rows(), ["id"])] == [None, "b"]


def test_older_rows_get_the_default_of_a_new_column(lake: Lake) -> None:
    second = with_columns(PLAIN, ID, NOTE, Column(3, "state", SqlType("int"), filled=7, default=7))
    third = with_columns(second, *second.columns, Column(4, "n", SqlType("int"), nullable=False))
    lake.step(PLAIN, changes=[lake.change(ADD, second)])
    lake.step(second, changes=[lake.change(ADD, third)])
    lake.step(third, [(Op.DELETE, {"id": 1, "note": "n1", "state": 7, "n": 0}, None)])
    assert lake.rows() == [{"id": 2, "note": "n2", "state": 7, "n": 0}]


def test_any_number_of_schema_changes_that_write_files_anew(lake: Lake) -> None:
    """Names of files do not grow with them; versions have 18 digits where they are commit-ts."""
    schema = replace(PLAIN, version=NOON)
    for number in range(12):
        added = Column(3 + number, f"c{number}", SqlType("int"), filled=7, default=7)
        new = replace(schema, columns=(*schema.columns, added), version=schema.version + 1)
        lake.step(schema, changes=[lake.change(ADD, new)])
        schema = new
    (first, second) = ordered(lake.rows(), ["id"])
    assert list(first.values()) == [1, "n1", *[7] * 12]
    lake.step(schema, [(Op.DELETE, second, None)])
    assert lake.rows() == [first]


def test_types_get_wider_or_the_feed_stops(lake: Lake) -> None:
    number = Column(3, "v", SqlType("decimal", length=6, scale=2))
    second = with_columns(PLAIN, ID, NOTE, number)
    lake.step(PLAIN, changes=[lake.change(ADD, second)])
    lake.step(second, [(Op.INSERT, None, {"id": 3, "note": None, "v": "1.25"})])
    wide = replace(number, type=SqlType("decimal", length=12, scale=4))
    third = with_columns(second, ID, NOTE, wide)
    lake.step(second, changes=[lake.change(MODIFY, third)])
    assert ordered(lake.rows(), ["id"])[2]["v"] == Decimal("1.2500")
    version = lake.commits()
    for kind in (SqlType("decimal", length=6, scale=2), SqlType("varchar", length=9)):
        fourth = with_columns(third, ID, NOTE, replace(number, type=kind))
        with pytest.raises(SchemaChangeRefused, match="'v' changed to .* reset --snapshot"):
            lake.step(third, changes=[lake.change(MODIFY, fourth)])
    assert lake.commits() == version


def test_a_key_of_a_column_that_older_rows_did_not_have(lake: Lake) -> None:
    """Those rows are replaced, but lie in files still: alone, or beside rows that count."""

    def row(number: int, uid: int | None) -> dict[str, Any]:
        return {"id": number, "note": f"n{number}", "uid": uid}

    uid = Column(3, "uid", SqlType("bigint"))
    second = with_columns(PLAIN, ID, NOTE, uid)
    lake.step(PLAIN, changes=[lake.change(ADD, second)])
    lake.step(second, [(Op.INSERT, None, row(3, None)), (Op.INSERT, None, row(4, 40))])
    lake.step(second, [(Op.UPDATE, row(n, None), row(n, 10 * n)) for n in (1, 2, 3)])
    third = replace(
        with_columns(second, ID, NOTE, replace(uid, nullable=False)),
        indexes=(Index(1, "PRIMARY", ("uid",), True, True),),
    )
    lake.step(second, changes=[lake.change(MODIFY, third)])
    lake.step(third, [(Op.UPDATE, row(4, 40), {**row(4, 40), "note": "x"})])
    assert [(r["uid"], r["note"]) for r in ordered(lake.rows(), ["uid"])] == [
        (10, "n1"),
        (20, "n2"),
        (30, "n3"),
        (40, "x"),
    ]


def test_a_column_that_the_source_has_numbered_stops_the_feed(lake: Lake) -> None:
    number = Column(3, "n", SqlType("int"), nullable=False, auto_increment=True)
    with pytest.raises(SchemaChangeRefused, match=r"numbered older rows .* reset --snapshot"):
        lake.step(PLAIN, changes=[lake.change(ADD, with_columns(PLAIN, ID, NOTE, number))])


def test_values_that_change_with_their_type_stop_the_feed(kind: type[Lake], tmp_path: Path) -> None:
    """Though the type in the lake stays the same, also where a new process has read the table."""
    short = table(("id", SqlType("bigint")), ("b", SqlType("binary", length=10)))
    lake = kind(tmp_path)
    lake.open()
    lake.step(short, [(Op.INSERT, None, {"id": 1, "b": b"x".ljust(10, b"\0")})])
    lake.open()
    long = with_columns(short, ID, replace(short.columns[1], type=SqlType("binary", length=16)))
    with pytest.raises(SchemaChangeRefused, match=r"binary\(10\) to binary\(16\), by which"):
        lake.step(short, changes=[lake.change(MODIFY, long)])
    free = with_columns(short, ID, replace(short.columns[1], type=SqlType("varbinary", length=16)))
    lake.step(short, changes=[lake.change(MODIFY, free)])
    lake.step(free, [(Op.INSERT, None, {"id": 2, "b": b"y"})])
    assert [len(r["b"]) for r in ordered(lake.rows(), ["id"])] == [10, 1]


TEXT, JSON, YEAR = SqlType("varchar", length=9), SqlType("json"), SqlType("year")
LETTERS = SqlType("set", elements=("a", "b"))


@pytest.mark.parametrize(
    ("old", "new", "follows"),
    [
        (SqlType("varbinary", length=9), SqlType("binary", length=9), False),
        (SqlType("binary", length=9), SqlType("blob"), True),
        (SqlType("blob"), SqlType("geometry"), False),
        (TEXT, SqlType("char", length=9), False),
        (SqlType("char", length=9), TEXT, True),
        (TEXT, SqlType("longtext"), True),
        (TEXT, JSON, False),
        (JSON, TEXT, True),
        (TEXT, LETTERS, False),
        (LETTERS, TEXT, True),
        (LETTERS, SqlType("set", elements=("a", "b", "c")), True),
        (LETTERS, SqlType("set", elements=("b", "a")), False),
        (SqlType("enum", elements=("a", "b")), SqlType("enum", elements=("b", "a")), True),
        (SqlType("enum", elements=("a", "b")), SqlType("enum", elements=("A", "b")), False),
        (SqlType("inet4"), SqlType("inet6"), False),
        (SqlType("int"), YEAR, False),
        (YEAR, SqlType("int"), True),
        (SqlType("int"), SqlType("bigint"), True),
        (SqlType("int"), SqlType("decimal", length=24, scale=2), True),
        (SqlType("float"), SqlType("double"), True),
        (SqlType("float"), SqlType("float", length=7, scale=2), False),
        (
            SqlType("decimal", length=50, scale=2),
            SqlType("decimal", length=60, scale=4),
            False,
        ),
    ],
    ids=lambda one: one.sql if isinstance(one, SqlType) else str(one),
)
def test_which_changes_of_a_type_a_table_follows(old: SqlType, new: SqlType, follows: bool) -> None:
    plain, log = LakeColumns("upsert", "null"), LakeColumns("changelog", "null")
    first = table(("id", SqlType("bigint")), ("v", old))
    second = table(("id", SqlType("bigint")), ("v", new), version=101)

    def stored(lake: LakeColumns) -> StoredColumns:
        columns = evolve(None, first, lake, mapped=True).columns
        read = StoredColumns.read(columns.schema_text(), True, columns.max_id, columns.numberings)
        assert read == columns
        return columns

    if follows:
        evolve(stored(plain), second, plain)
        return
    with pytest.raises(SchemaChangeRefused, match="the source may have changed older rows"):
        evolve(stored(plain), second, plain)
    evolve(stored(log), second, log)  # each row there is what it was at its time
    evolve(stored(plain), replace(second, inferred=True), plain)
    unnoted = [replace(f, source_type="") for f in stored(plain).fields]
    evolve(replace(stored(plain), fields=tuple(unnoted)), second, plain)


def test_a_new_snapshot_gives_the_table_new_columns(lake: Lake) -> None:
    """It is the cure where a table cannot follow: nothing of the old columns counts then."""
    renamed = with_columns(PLAIN, ID, replace(NOTE, name="remark"))
    lake.step(PLAIN, changes=[lake.change(MODIFY, renamed)])
    dated = with_columns(renamed, ID, replace(NOTE, type=SqlType("date")))
    for schema, name, value in ((renamed, "remark", "five"), (dated, "note", "2024-01-01")):
        lake.micro_batch = 0
        lake.open(continues=False)
        lake.step(schema, [(Op.INSERT, None, {"id": 5, name: value})])
        lake.step(schema, [(Op.INSERT, None, {"id": 6, name: value})])
        found = ordered(lake.rows(), ["id"])
        assert [(r["id"], str(r[name])) for r in found] == [(5, value), (6, value)]
        assert lake.column_names() == ["id", name]


def test_fewer_digits_of_seconds_stop_the_feed(kind: type[Lake], tmp_path: Path) -> None:
    exact = table(("id", SqlType("bigint")), ("at", SqlType("datetime", scale=6)))
    lake = kind(tmp_path)
    lake.open()
    lake.step(exact, [(Op.INSERT, None, {"id": 1, "at": "2024-02-29 23:59:59.000001"})])
    rounded = with_columns(exact, ID, replace(exact.columns[1], type=SqlType("datetime")))
    with pytest.raises(SchemaChangeRefused, match="'at' changed to datetime"):
        lake.step(exact, changes=[lake.change(MODIFY, rounded)])


def test_truncate_rename_and_drop(lake: Lake) -> None:
    lake.step(PLAIN, changes=[lake.change(DdlKind.TRUNCATE_TABLE, PLAIN, dropped_table_id=1)])
    assert lake.rows() == []
    lake.step(PLAIN, [(Op.INSERT, None, {"id": 5, "note": "n5"})])
    new = replace(PLAIN, id=TableId("shop", "sales"), version=PLAIN.version + 1)
    lake.step(PLAIN, changes=[lake.change(DdlKind.RENAME_TABLE, new, previous=ORDERS)])
    assert not lake.has("shop/orders")
    lake.open()
    lake.step(new, [(Op.INSERT, None, {"id": 6, "note": "n6"})])
    assert [r["id"] for r in ordered(lake.rows(name="shop/sales"), ["id"])] == [5, 6]
    gone = replace(lake.change(DdlKind.DROP_TABLE, None), table=new.id)
    lake.step(new, changes=[gone])
    assert len(lake.rows(name="shop/sales")) == 2  # it is kept
    made = with_columns(new, ID)
    lake.step(new, changes=[lake.change(DdlKind.CREATE_TABLE, made)])
    lake.step(made, [(Op.INSERT, None, {"id": 9})])
    assert lake.rows(name="shop/sales") == [{"id": 9}]
    lake.uri += "&on-drop=drop"
    lake.open()
    lake.step(made, changes=[replace(lake.change(DdlKind.DROP_TABLE, None), table=new.id)])
    assert not lake.has("shop/sales")
    assert list(lake.root.glob("shop/**/*.parquet")) == []


@pytest.mark.parametrize("renames", [False, True], ids=["alter", "rename"])
def test_a_schema_change_does_not_make_a_lost_table_anew(lake: Lake, renames: bool) -> None:
    if isinstance(lake, IcebergLake):
        lake.catalog().drop_table(("shop", "orders"))
    else:
        shutil.rmtree(lake.root / "shop/orders")
    if renames:
        new = replace(PLAIN, id=TableId("shop", "sales"), version=PLAIN.version + 1)
        change = lake.change(DdlKind.RENAME_TABLE, new, previous=ORDERS)
    else:
        new = with_columns(PLAIN, ID, NOTE, Column(3, "v", SqlType("int")))
        change = lake.change(ADD, new)
    with pytest.raises(TargetLost, match="reset --snapshot"):
        lake.publish(lake.plan(PLAIN, 0, [change]), PLAIN, [])
    assert not lake.has(f"shop/{new.id.table}")


def test_two_renames_that_swap_are_done_once(lake: Lake) -> None:
    """A crash behind each of them: those that were noted are not done again."""
    names = [ORDERS, TableId("shop", "aside"), TableId("shop", "b")]
    other = replace(PLAIN, id=names[2], table_id=2)
    lake.step(other, [(Op.INSERT, None, {"id": 8, "note": "b"})])
    moves = [(PLAIN, 0, 1), (other, 2, 0), (PLAIN, 1, 2)]
    changes = [
        lake.change(DdlKind.RENAME_TABLE, replace(t, id=names[b]), previous=names[a])
        for t, a, b in moves
    ]
    plan = lake.plan(PLAIN, 0, changes)
    for step in range(3):
        lake.open()
        lake.sink._advance(plan, lake.sink._note(plan), 0, final=False) if not step else None
        doing = changes[: step + 1]
        part = replace(plan, stretch=replace(plan.stretch, schema_changes=tuple(doing)))
        lake.sink._change_tables(part, lake.sink._note(plan))
    lake.publish(plan, PLAIN, [])
    assert lake.rows() == [{"id": 8, "note": "b"}]
    assert len(lake.rows(name="shop/b")) == 2 and not lake.has("shop/aside")


def test_what_takes_unnamed_rows_away_stops_the_feed(lake: Lake) -> None:
    with pytest.raises(SchemaChangeRefused, match="the log does not name"):
        lake.step(PLAIN, changes=[lake.change(DdlKind.DROP_PARTITION, PLAIN)])


def test_days_that_no_calendar_has(kind: type[Lake], tmp_path: Path) -> None:
    schema = table(("id", SqlType("bigint")), ("d", SqlType("date")))
    zero = [(Op.INSERT, None, {"id": 1, "d": "0000-00-00"})]
    texts = kind(tmp_path / "a", "&zero-date=string")
    texts.open()
    texts.step(schema, zero)
    assert texts.rows() == [{"id": 1, "d": "0000-00-00"}]
    strict = kind(tmp_path / "b", "&zero-date=error")
    strict.open()
    with pytest.raises(EncodeError, match="zero-date = 'null' or 'string'"):
        strict.step(schema, zero)
    keyed = table(("d", SqlType("date")), ("note", SqlType("text")), key=("d",))
    plain = kind(tmp_path / "c")
    plain.open()
    with pytest.raises(EncodeError, match="zero-date = 'string'"):
        plain.step(keyed, [(Op.INSERT, None, {"d": "0000-00-00", "note": None})])


def test_keys_of_decimal_that_no_whole_number_holds(kind: type[Lake], tmp_path: Path) -> None:
    """They come among keys that are numbers of 64 bits, and go again."""
    schema = table(("id", SqlType("decimal", length=20)), ("note", SqlType("text")))
    lake = kind(tmp_path)
    lake.open()
    plain, beyond = ["0", "7", str(2**64 - 1)], ["-1", str(2**64), "9" * 20]
    lake.step(schema, [(Op.INSERT, None, {"id": n, "note": "a"}) for n in plain])
    lake.step(schema, [(Op.INSERT, None, {"id": n, "note": "a"}) for n in beyond])
    lake.step(schema, [(Op.UPDATE, {"id": "7", "note": "a"}, {"id": "7", "note": "b"})])
    mixed = [("7", "c"), ("-1", "c"), (str(2**64), "c")]
    for share in (mixed[:1], mixed[1:]):
        lake.open()
        lake.step(
            schema,
            [(Op.UPDATE, {"id": n, "note": "b"}, {"id": n, "note": "x"}) for n, _ in mixed],
            [(Op.UPDATE, {"id": n, "note": "x"}, {"id": n, "note": v}) for n, v in share],
        )
    lake.step(schema, [(Op.DELETE, {"id": n, "note": "a"}, None) for n in ("0", "9" * 20)])
    found = {str(r["id"]): r["note"] for r in lake.rows()}
    assert found == {"7": "x", "-1": "c", str(2**64): "c", str(2**64 - 1): "a"}


def test_a_plan_given_up_amid_its_schema_changes(lake: Lake) -> None:
    """The next plan has its number; rows and changes of both are there."""
    second = with_columns(PLAIN, ID, NOTE, Column(3, "v", SqlType("int")))
    first = lake.plan(PLAIN, 1, [lake.change(ADD, second)])
    new = [(Op.INSERT, None, {"id": n, "note": None}) for n in (7, 8)]

    class Killed(BaseException):
        pass

    told: list[str] = []

    def end(name: str) -> None:
        told.append(name)
        if told.count("publish lake progress") == 2:
            raise Killed

    with pytest.raises(Killed), watched(end):
        lake.publish(first, PLAIN, lake.write(first, PLAIN, [new[:1]]))
    lake.open()
    assert lake.sink.discard(first) is True
    lake.step(PLAIN, new, changes=[lake.change(ADD, second)])
    assert sorted(r["id"] for r in lake.rows()) == [1, 2, 7, 8]
    assert lake.column_names()[2] == "v"


def test_plans_that_are_given_up_one_after_the_other(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's rows came in: without locks the second one's note must not stand for them."""
    monkeypatch.setattr(LocalFiles, "has_locks", False)
    new = [(Op.INSERT, None, {"id": n, "note": "a"}) for n in (7, 8)]

    class Killed(BaseException):
        pass

    def end(name: str) -> None:
        if name == "publish lake progress":
            raise Killed

    first = lake.plan(PLAIN)
    with pytest.raises(Killed), watched(end):
        lake.publish(first, PLAIN, lake.write(first, PLAIN, [new[:1]]))
    lake.open()
    assert lake.sink.discard(first) is True
    assert lake.sink.discard(lake.plan(PLAIN)) is False
    lake.step(PLAIN, new)
    assert sorted(r["id"] for r in lake.rows()) == [1, 2, 7, 8]
    lake.step(PLAIN, [(Op.UPDATE, {"id": 8, "note": "a"}, {"id": 8, "note": "b"})])
    assert [r["note"] for r in lake.rows() if r["id"] == 8] == ["b"]
