from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, SinkDamaged
from rowferry.flow.sink.storage.go_json import marshal_indent
from rowferry.flow.sink.storage.paths import SchemaFile, parse_path
from rowferry.flow.sink.storage.schema_file import (
    SchemaDocument,
    column_form,
    of_change,
    of_changes,
    of_table,
    read_document,
)
from rowferry.mysql.type_facts import display_width


def form(sql_type: SqlType, **column: Any) -> dict[str, Any]:
    found = column_form(Column(3, "c", sql_type, **column), in_primary_key=False)
    assert found.pop("ColumnName") == "c"
    return found


@pytest.mark.parametrize(
    ("sql_type", "expected"),
    [
        (SqlType("int"), {"ColumnType": "INT", "ColumnPrecision": "11"}),
        (
            SqlType("bigint", unsigned=True),
            {"ColumnType": "BIGINT UNSIGNED", "ColumnPrecision": "20"},
        ),
        (SqlType("bit", unsigned=True, length=5), {"ColumnType": "BIT", "ColumnPrecision": "5"}),
        (SqlType("year", unsigned=True), {"ColumnType": "YEAR", "ColumnPrecision": "4"}),
        (
            SqlType("decimal"),
            {"ColumnType": "DECIMAL", "ColumnPrecision": "10", "ColumnScale": "0"},
        ),
        (
            SqlType("decimal", unsigned=True, length=12, scale=3),
            {"ColumnType": "DECIMAL UNSIGNED", "ColumnPrecision": "12", "ColumnScale": "3"},
        ),
        (SqlType("double"), {"ColumnType": "DOUBLE", "ColumnPrecision": "22"}),
        (SqlType("date"), {"ColumnType": "DATE"}),
        (SqlType("time", scale=3), {"ColumnType": "TIME", "ColumnScale": "3"}),
        (SqlType("timestamp", scale=0), {"ColumnType": "TIMESTAMP"}),
        (SqlType("json"), {"ColumnType": "JSON"}),
        (SqlType("vector", length=3), {"ColumnType": "VECTOR"}),
        (SqlType("enum", elements=("a", "b")), {"ColumnType": "ENUM", "ColumnElems": ["a", "b"]}),
        (SqlType("set", elements=("x",)), {"ColumnType": "SET", "ColumnElems": ["x"]}),
        (
            SqlType("varchar", length=30),
            {"ColumnType": "VARCHAR", "ColumnPrecision": "30", "ColumnLength": "30"},
        ),
        (
            SqlType("varbinary", length=30),
            {"ColumnType": "VARBINARY", "ColumnPrecision": "30", "ColumnLength": "30"},
        ),
        (
            SqlType("longblob"),
            {
                "ColumnType": "LONGBLOB",
                "ColumnPrecision": "4294967295",
                "ColumnLength": "4294967295",
            },
        ),
        (
            SqlType("geometry"),
            {"ColumnType": "BLOB", "ColumnPrecision": "65535", "ColumnLength": "65535"},
        ),
        (
            SqlType("uuid"),
            {"ColumnType": "TEXT", "ColumnPrecision": "65535", "ColumnLength": "65535"},
        ),
        (
            SqlType("inet6"),
            {"ColumnType": "TEXT", "ColumnPrecision": "65535", "ColumnLength": "65535"},
        ),
    ],
)
def test_column_types(sql_type: SqlType, expected: dict[str, Any]) -> None:
    assert form(sql_type) == expected


def test_key_order_of_a_column() -> None:
    column = Column(7, "c", SqlType("varchar", length=3), nullable=False, default="x")
    found = column_form(column, in_primary_key=True, with_id=True)
    assert list(found.items()) == [
        ("ColumnId", "7"),
        ("ColumnName", "c"),
        ("ColumnType", "VARCHAR"),
        ("ColumnDefault", "x"),
        ("ColumnPrecision", "3"),
        ("ColumnLength", "3"),
        ("ColumnNullable", "false"),
        ("ColumnIsPk", "true"),
    ]


@pytest.mark.parametrize("default", [0, "", 1.5, -3])
def test_a_default_is_written_unless_it_is_null(default: object) -> None:
    assert form(SqlType("int"), default=default)["ColumnDefault"] == default
    assert "ColumnDefault" not in form(SqlType("int"), default=None)


@pytest.mark.parametrize("default", [2**53, -(2**53), 2**53 + 1, -(2**63), 2**64 - 1])
def test_a_reader_with_floats_finds_the_same_default(default: int) -> None:
    """TiCDC's consumer writes what it has read again, numbers as floats, to check the file."""
    written = form(SqlType("bigint"), default=default)["ColumnDefault"]
    again = json.loads(marshal_indent(written), parse_int=float)
    assert marshal_indent(again) == marshal_indent(written)
    assert int(written) == default
    assert (written == default) == (abs(default) <= 2**53)


def test_a_default_of_bytes_that_are_no_text() -> None:
    """Definitions keep such a byte as half of a surrogate pair, which no file can hold."""
    columns = (Column(1, "b", SqlType("binary", length=3), default="a\udcff\udc80"),)
    document = of_table(TableSchema(TableId("d", "t"), 1, 12, columns))
    assert document.columns[0]["ColumnDefault"] == "a\ufffd\ufffd"
    found = read_document(document.content(), file_of(document), "f").table_schema()
    assert found is not None
    assert found.columns[0].default == "a\ufffd\ufffd"


def test_a_default_of_minus_zero_is_read_back() -> None:
    columns = (Column(1, "d", SqlType("double"), default=-0.0),)
    document = of_table(TableSchema(TableId("d", "t"), 1, 12, columns))
    assert b'"ColumnDefault": -0,' in document.content()
    assert read_document(document.content(), file_of(document), "f") == document


TABLE = TableSchema(
    TableId("hr", "a<b>&c"),
    9,
    441349361156227074,
    (
        Column(1, "Id", SqlType("int", unsigned=True), nullable=False),
        Column(2, "Name", SqlType("varchar", length=20), default="<\u2028>"),
        Column(4, "Size", SqlType("enum", elements=("s", "m,l"))),
        Column(5, "Price", SqlType("decimal", length=10, scale=2)),
        Column(6, "Virtual", SqlType("int"), generated="virtual"),
    ),
    (Index(1, "PRIMARY", ("id",), unique=True, primary=True),),
)


def test_the_text_of_a_file() -> None:
    schema = TableSchema(TableId("hr", "a&b"), 1, 12, TABLE.columns[:1], TABLE.indexes)
    expected = """{
    "Table": "a\\u0026b",
    "Schema": "hr",
    "Version": 1,
    "TableVersion": 12,
    "Query": "",
    "Type": 0,
    "TableColumns": [
        {
            "ColumnName": "Id",
            "ColumnType": "INT UNSIGNED",
            "ColumnPrecision": "10",
            "ColumnNullable": "false",
            "ColumnIsPk": "true"
        }
    ],
    "TableColumnsTotal": 1
}"""
    assert of_table(schema).content() == expected.encode()


def test_the_text_of_a_database_file() -> None:
    change = SchemaChange(
        12, DdlKind.CREATE_DATABASE, "CREATE DATABASE `schema1`", TableId("schema1", "")
    )
    document = of_change(change)
    assert document.path == "schema1/meta/schema_12_3233644819.json"
    assert json.loads(document.content()) == {
        "Table": "",
        "Schema": "schema1",
        "Version": 1,
        "TableVersion": 12,
        "Query": "CREATE DATABASE `schema1`",
        "Type": 1,
        "TableColumns": None,
        "TableColumnsTotal": 0,
    }


def test_a_dropped_table_has_a_file_with_the_columns_that_it_had() -> None:
    change = SchemaChange(12, DdlKind.DROP_TABLE, "DROP TABLE t", TABLE.id, last_schema=TABLE)
    document = of_change(SchemaChange.from_json(change.to_json()))
    assert (document.columns, document.checksum) == (
        of_table(TABLE).columns,
        of_table(TABLE).checksum,
    )
    assert (document.query, document.kind, document.table_version) == ("DROP TABLE t", 4, 12)
    form = json.loads(document.content())
    assert form["TableColumnsTotal"] == len(form["TableColumns"]) == len(TABLE.visible)


def test_a_dropped_table_that_nobody_knew_has_a_file_without_columns() -> None:
    change = SchemaChange(12, DdlKind.DROP_TABLE, "DROP TABLE t", TableId("hr", "t"))
    document = of_change(change)
    assert document.path.startswith("hr/t/meta/schema_12_")
    assert json.loads(document.content())["TableColumns"] is None


def test_the_checksum_knows_columns_but_not_their_order_nor_our_own_key() -> None:
    document = of_table(TABLE)
    turned = SchemaDocument("hr", "a<b>&c", 5, "X", 5, document.columns[::-1])
    assert turned.checksum == document.checksum
    bare = [{k: v for k, v in c.items() if k != "ColumnLength"} for c in document.columns]
    assert SchemaDocument("hr", "a<b>&c", 1, columns=tuple(bare)).checksum == document.checksum
    assert SchemaDocument("hr", "other", 1, columns=document.columns).checksum != document.checksum
    with_ids = of_table(TABLE, column_ids=True)
    assert with_ids.checksum != document.checksum


def test_tables_of_equal_columns_have_texts_of_their_own() -> None:
    whole = of_table(TABLE)
    renamed = of_table(replace(TABLE, id=TableId("hr", "other")))
    assert renamed.content() == whole.content().replace(b"a\\u003cb\\u003e\\u0026c", b"other")
    plain = SchemaDocument("hr", "other", whole.table_version, columns=whole.columns)
    assert (renamed.content(), renamed.checksum) == (plain.content(), plain.checksum)
    keyless = of_table(replace(TABLE, indexes=()))
    assert b"ColumnIsPk" in whole.content()
    assert b"ColumnIsPk" not in keyless.content()


def test_equal_defaults_of_other_types_are_written_as_they_are() -> None:
    def text(default: object) -> bytes:
        column = Column(1, "a", SqlType("double"), default=default)
        return of_table(TableSchema(TableId("d", "t"), 1, 1, (column,), ())).content()

    assert b'"ColumnDefault": 1,' in text(1)
    assert b'"ColumnDefault": true,' in text(True)
    assert b'"ColumnDefault": 1,' in text(1)


def file_of(document: SchemaDocument) -> SchemaFile:
    found = parse_path(document.path)
    assert isinstance(found, SchemaFile)
    return found


def test_a_table_version_is_read_back() -> None:
    document = of_table(TABLE, column_ids=True)
    found = read_document(document.content(), file_of(document), "f")
    assert found == document
    schema = found.table_schema()
    assert schema is not None
    assert (schema.id, schema.version) == (TABLE.id, TABLE.version)
    assert schema.primary_key == ("Id",)
    # Rows hold no virtual column, and a reader of csv counts the columns.
    for read, written in zip(schema.columns, TABLE.columns[:-1], strict=True):
        assert (read.id, read.name, read.nullable) == (written.id, written.name, written.nullable)
        assert read.default == written.default
        assert read.type.name == written.type.name
        assert read.type.unsigned == written.type.unsigned
        assert read.type.elements == written.type.elements
        assert display_width(read.type) == display_width(written.type)
        assert read.type.fraction_digits == written.type.fraction_digits


def test_files_with_lengths_and_numbers_as_texts_are_read() -> None:
    column = {"ColumnName": "LastName", "ColumnType": "CHAR", "ColumnLength": "20"}
    document = SchemaDocument("hr", "t", 12, columns=(column,))
    content = {
        "Table": "t",
        "Schema": "hr",
        "Version": 1,
        "TableVersion": 12,
        "Query": "",
        "Type": 0,
        "TableColumns": [column],
        "TableColumnsTotal": "1",
    }
    schema = read_document(json.dumps(content).encode(), file_of(document), "f").table_schema()
    assert schema is not None
    assert schema.columns[0].type == SqlType("char", length=20)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"[]",
        lambda text: b"\xff" + text,
        lambda text: text.replace(b'"Price"', b'"Prize"'),
        lambda text: text.replace(b"441349361156227074", b"441349361156227075"),
        lambda text: text.replace(b'"TableColumnsTotal": 4', b'"TableColumnsTotal": 5'),
        lambda text: text.replace(b'"hr"', b'"hq"'),
        lambda text: text.replace(b'"10"', b'"ten"'),
        lambda text: text.replace(b'"Price"', b'"\\ud800"'),
    ],
)
def test_a_changed_file_is_refused_by_name(damage: Any) -> None:
    document = of_table(TABLE)
    content = damage(document.content())
    assert content != document.content()
    with pytest.raises(SinkDamaged, match="^\\[RF-4005\\] the/file "):
        read_document(content, file_of(document), "the/file")


def test_a_column_whose_number_is_none() -> None:
    """Under the name that its content asks for, too."""
    columns = ({"ColumnId": "A1", "ColumnName": "c", "ColumnType": "INT"},)
    document = SchemaDocument("d", "t", 1, columns=columns)
    with pytest.raises(SinkDamaged, match="the/file is not a schema file"):
        read_document(document.content(), file_of(document), "the/file")


@pytest.mark.parametrize("name", ["bit", "year", "int"])
def test_no_statement_calls_a_bit_or_a_year_unsigned(name: str) -> None:
    """As TiDB counts them as unsigned, TiCDC's files name the types like this."""
    column = {"ColumnName": "c", "ColumnType": f"{name.upper()} UNSIGNED", "ColumnPrecision": "4"}
    schema = SchemaDocument("d", "t", 1, columns=(column,)).table_schema()
    assert schema is not None
    assert schema.columns[0].type == SqlType(name, length=4, unsigned=name == "int")


def test_an_unknown_column_type_is_named() -> None:
    document = SchemaDocument("hr", "t", 1, columns=({"ColumnName": "c", "ColumnType": "CUBE"},))
    with pytest.raises(BadInput, match="'c' has the type 'CUBE'"):
        document.table_schema()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.0, "0"),
        (-1.25, "-1.25"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (2.5e-10, "2.5e-10"),
        ("<a>&\u2028\u2029", '"\\u003ca\\u003e\\u0026\\u2028\\u2029"'),
        ('"\\\n\t\x01\x7fé', '"\\"\\\\\\n\\t\\u0001\x7fé"'),
        ([], "[]"),
        ({}, "{}"),
        (None, "null"),
        (True, "true"),
        (18446744073709551615, "18446744073709551615"),
        ({"a": [1, {}]}, '{\n    "a": [\n        1,\n        {}\n    ]\n}'),
    ],
)
def test_json_as_go_writes_it(value: object, text: str) -> None:
    assert marshal_indent(value) == text


def test_an_exchange_of_partitions_is_told_once() -> None:
    """Its second table has a file of its new version, without the statement."""
    columns = (Column(1, "id", SqlType("int"), nullable=False),)
    tables = [TableSchema(TableId("d", name), 1, 9, columns) for name in ("t", "u")]
    text = "ALTER TABLE d.t EXCHANGE PARTITION p WITH TABLE d.u"
    kind = DdlKind.EXCHANGE_PARTITION
    both = [SchemaChange(9, kind, text, t.id, t) for t in tables]
    other = SchemaChange(
        10, DdlKind.ADD_COLUMN, "ALTER TABLE d.t ADD c int", tables[0].id, tables[0]
    )
    found = of_changes([*both, other, *both])
    told = [(d.table, d.query, d.kind) for d in found]
    once = [("t", text, 42), ("u", "", 0)]
    assert told == [*once, ("t", other.query, int(other.kind)), *once]
    assert found[1].columns
    assert of_changes(both[1:])[0].query == text
    untold = of_changes([both[0], replace(both[1], query="")] * 2)  # and back again
    assert [(d.table, d.query, d.kind) for d in untold] == once * 2
    assert [d.query for d in of_changes(both[:1] * 2)] == [text, text]
