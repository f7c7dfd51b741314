"""Spark 4.1 with the published Delta and Iceberg reads and changes what a changefeed keeps.

`make test-lake` runs it: Spark and its libraries are fetched first.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codec_harness import TYPE_CASES
from engine_kit import SparkDelta, SparkIceberg

from lake_kit import PLAIN, TEXT_KEY, TWO_KEYS, Model, ordered, table, with_columns
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.testing.servers.spark.lake_engine import LakeSpark

ADD, DROP, MODIFY = DdlKind.ADD_COLUMN, DdlKind.DROP_COLUMN, DdlKind.MODIFY_COLUMN


@pytest.fixture(params=[SparkDelta, SparkIceberg], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, engine: LakeSpark, tmp_path: Path) -> SparkDelta:
    made: SparkDelta = request.param(tmp_path / "lake", engine)
    made.open()
    return made


def equal(lake: SparkDelta, model: Model) -> bool:
    return ordered(lake.rows(), model.schema.handle_key) == model.expected()


def test_every_type(lake: SparkDelta) -> None:
    """Spark has the values that other readers have, also after it has written them anew."""
    kinds = [case.type for case in TYPE_CASES]
    schema = table(("id", SqlType("bigint")), *((f"c{i}", k) for i, k in enumerate(kinds)))
    images: list[dict[str, Any]] = [
        {"id": n, **{f"c{i}": getattr(c, name) for i, c in enumerate(TYPE_CASES)}}
        for n, name in enumerate(("value", "least", "most"))
    ]
    images.append({"id": 3, **{f"c{i}": None for i in range(len(kinds))}})
    lake.step(schema, [(Op.INSERT, None, image) for image in images])
    before = ordered(lake.rows(), ["id"])
    lake.sql(
        "MERGE INTO {table} t USING (SELECT * FROM {table}) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET *"
    )
    assert ordered(lake.rows(), ["id"]) == before
    lake.step(schema, [(Op.UPDATE, images[0], images[0]), (Op.DELETE, images[1], None)])
    assert ordered(lake.rows(), ["id"]) == [before[0], *before[2:]]
    lake.sql(lake.upkeep[0])
    assert ordered(lake.rows(), ["id"]) == [before[0], *before[2:]]


@pytest.mark.parametrize("schema", [PLAIN, TEXT_KEY, TWO_KEYS], ids=["number", "text", "two"])
def test_spark_merges_and_looks_after_the_table(lake: SparkDelta, schema: TableSchema) -> None:
    """The feed goes on after each statement, and the table equals the source."""
    model = Model(schema, 11)
    lake.step(schema, model.changes(40))
    on = " AND ".join(f"t.{name} = s.{name}" for name in schema.handle_key)
    merge = (
        "MERGE INTO {table} t USING (SELECT * FROM {table} WHERE length(note) % 2 = 0) s ON "
        f"{on} WHEN MATCHED THEN UPDATE SET *"
    )
    for number, statement in enumerate((merge, *lake.upkeep)):
        lake.sql(statement)
        if number % 2:
            lake.open()  # another process reads all of it anew
        lake.step(schema, model.changes(25), model.changes(25))
        assert equal(lake, model), statement


def test_what_spark_changed_is_replaced_by_what_the_source_says(lake: SparkDelta) -> None:
    """Rows that others changed, deleted and added: the next change of a key counts."""
    rows = {n: {"id": n, "note": f"n{n}"} for n in range(8)}
    lake.step(PLAIN, [(Op.INSERT, None, row) for row in rows.values()])
    lake.sql("UPDATE {table} SET note = 'theirs' WHERE id < 3")
    lake.sql("DELETE FROM {table} WHERE id IN (3, 4)")
    lake.sql("INSERT INTO {table} VALUES (20, 'theirs')")
    lake.sql(lake.upkeep[0])
    changed = [(Op.UPDATE, rows[n], {"id": n, "note": f"ours{n}"}) for n in range(5)]
    lake.step(PLAIN, [*changed, (Op.INSERT, None, {"id": 20, "note": "ours20"})])
    names = [f"ours{n}" for n in range(5)] + ["n5", "n6", "n7", "ours20"]
    assert [row["note"] for row in ordered(lake.rows(), ["id"])] == names


KEYS = {
    "timestamp": ("timestamp", 6, "2024-02-29 01:02:03.000004", "2024-02-29 01:02:03.000005"),
    "datetime": ("datetime", 6, "1000-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"),
    "date": ("date", 0, "1000-01-01", "9999-12-31"),
    "decimal": ("decimal", 2, "-1.50", "12345678.90"),
    "varbinary": ("varbinary", 0, b"\x00\xff", b""),
    "varchar": ("varchar", 0, "ü ", "%20/ 'x'"),
    "unsigned": ("bigint", 0, 1, (1 << 64) - 1),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_in_files_that_spark_wrote(lake: SparkDelta, name: str) -> None:
    """Rows are found again by their keys wherever Spark has put them, in whatever form."""
    kind, digits, one, two = KEYS[name]
    length = {"decimal": 10, "varbinary": 9, "varchar": 9}.get(kind, -1)
    made = SqlType(kind, length=length, scale=digits, unsigned=name == "unsigned")
    schema = table(("id", made), ("note", SqlType("varchar", length=9)))
    images = [{"id": value, "note": "old"} for value in (one, two)]
    lake.step(schema, [(Op.INSERT, None, image) for image in images])
    lake.sql("UPDATE {table} SET note = 'theirs'")
    lake.sql(lake.upkeep[0])
    lake.open()
    new = {**images[0], "note": "ours"}
    lake.step(schema, [(Op.UPDATE, images[0], new), (Op.DELETE, images[1], None)])
    assert [row["note"] for row in lake.rows()] == ["ours"]


def test_schema_changes_between_sparks_own_work(lake: SparkDelta) -> None:
    """Columns added, dropped, renamed, in another order, wider: Spark sees and writes them."""
    key, note = PLAIN.columns
    lake.step(PLAIN, [(Op.INSERT, None, {"id": n, "note": f"n{n}"}) for n in range(4)])
    price = Column(3, "price", SqlType("decimal", length=6, scale=2), filled="1.50", default="1.50")
    rate = Column(4, "rate", SqlType("float"))
    wide = replace(price, type=SqlType("decimal", length=12, scale=4), filled=None)
    steps = (
        (ADD, (key, note, price, rate)),
        (MODIFY, (key, replace(note, name="remark"), price, rate)),
        (MODIFY, (key, price, rate, replace(note, name="remark"))),
        (MODIFY, (key, wide, replace(rate, type=SqlType("double")), replace(note, name="remark"))),
        (DROP, (key, wide, replace(note, name="remark"))),
    )
    schema, number = PLAIN, 10
    for kind, columns in steps:
        new = with_columns(schema, *columns)
        lake.step(schema, changes=[lake.change(kind, new)])
        lake.rows()
        image = {c.name: None for c in columns} | {"id": number}
        lake.step(new, [(Op.INSERT, None, image)])
        lake.sql("UPDATE {table} SET id = id WHERE id % 2 = 0")
        lake.sql(lake.upkeep[0])
        found = ordered(lake.rows(), ["id"])
        assert list(found[0]) == [c.name for c in columns]
        assert [row["id"] for row in found] == [0, 1, 2, 3, *range(10, number + 1)]
        schema, number = new, number + 1
    found = ordered(lake.rows(), ["id"])
    assert [str(row["price"]) for row in found[:4]] == ["1.5000"] * 4
    assert [row["remark"] for row in found[:4]] == ["n0", "n1", "n2", "n3"]


def test_changelog_tables(request: pytest.FixtureRequest, lake: SparkDelta) -> None:
    lake.uri += "&mode=changelog"
    lake.open()
    model = Model(PLAIN, 2)
    count = 0
    for statement in ("", lake.upkeep[0]):
        if statement:
            lake.sql(statement)
        changes = model.changes(30)
        lake.step(PLAIN, changes)
        count += len(changes)
        found = lake.rows()
        assert len(found) == count
    ops = {"insert", "update", "delete"}
    assert {row["_op"] for row in found} == ops
