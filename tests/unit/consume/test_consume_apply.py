"""How changes become statements, as far as no database is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.own_tables import EXCHANGES
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume.apply import Applier, create_statement
from rowferry.downstream.consume.arrival import ArrivedRow, ArrivedStatement, Where
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import BadInput, RowferryError, RowRejected, SinkUnavailable
from rowferry.mysql.refusals import refusal_of_number
from rowferry.spec.uri import Uri

KEY = Index(1, "PRIMARY", ("id",), True, True)
COLUMNS = (Column(1, "id", SqlType("int"), nullable=False), Column(2, "v%", SqlType("varchar")))
TABLE = TableSchema(TableId("d", "t"), 0, 0, COLUMNS, (KEY,))


class Database(MySqlTarget):
    """Notes statements; its tables have the columns that the test says."""

    def __init__(self, columns: Sequence[tuple[str, str]] = (("id", ""), ("v%", ""))) -> None:
        self.columns = list(columns)
        self.said: list[Any] = []

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if EXCHANGES in values:  # nothing was exchanged before
            return []
        if "information_schema" in sql:
            return [(*column, "varchar") for column in self.columns]
        self.said.append((sql, list(values)))
        if sql.startswith(("CREATE TABLE", "ALTER")):
            self.columns = [("id", ""), ("v%", "")]
        return []

    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self.said.append((sql, [list(r) for r in rows]))

    def commit(self) -> None:
        self.said.append("COMMIT")

    def change_schema(self, database: str, query: str) -> None:
        self.said.append((f"USE {database}", query))


def change(op: Op, before: dict[str, Any] | None, after: dict[str, Any] | None) -> ArrivedRow:
    return ArrivedRow(TABLE, op, 1, before, after, Where("t[0]", 7))


def put(key: int, value: str) -> ArrivedRow:
    return change(Op.INSERT, None, {"id": key, "v%": value})


def drop(key: int) -> ArrivedRow:
    return change(Op.DELETE, {"id": key, "v%": ""}, None)


def applied(*changes: ArrivedRow | ArrivedStatement, database: Database | None = None) -> list[Any]:
    found = database or Database()
    Applier(found, ConsumeFindings()).take(changes)
    return [s for s in found.said if "DATABASE IF NOT EXISTS" not in str(s)]


def test_the_last_change_of_each_key_counts() -> None:
    moved = change(Op.UPDATE, {"id": 4, "v%": "x"}, {"id": 5, "v%": "x"})
    said = applied(put(1, "a"), put(2, "b"), drop(1), put(3, "c"), put(2, "d"), put(4, "x"), moved)
    assert said == [
        ("DELETE FROM `d`.`t` WHERE (`id`) IN ((%s), (%s))", [1, 4]),
        (
            "REPLACE INTO `d`.`t` (`id`, `v%%`) VALUES (%s, %s)",
            [[3, "c"], [2, "d"], [5, "x"]],
        ),
        "COMMIT",
    ]


def test_a_schema_change_is_a_border() -> None:
    query = SchemaChange(2, DdlKind.ADD_COLUMN, "ALTER TABLE t ADD c INT", TableId("d", "t"))
    said = applied(put(1, "a"), ArrivedStatement(query, Where("")), put(1, "b"))
    assert [s if isinstance(s, str) else s[0].split()[0] for s in said] == [
        "REPLACE", "COMMIT", "USE", "COMMIT", "REPLACE", "COMMIT",
    ]  # fmt: skip
    assert said[2] == ("USE d", "ALTER TABLE t ADD c INT")


def test_a_database_is_not_entered_before_it_is_made() -> None:
    query = SchemaChange(2, DdlKind.NONE, "CREATE DATABASE d", TableId("d", ""))
    assert applied(ArrivedStatement(query, Where("")))[0] == ("USE ", "CREATE DATABASE d")


def test_missing_tables_and_columns_are_made() -> None:
    said = applied(put(1, "a"), database=Database([]))
    assert said[0][0] == (
        "CREATE TABLE `d`.`t` (`id` int NOT NULL, `v%` longtext NULL, PRIMARY KEY (`id`))"
    )
    said = applied(put(1, "a"), database=Database([("ID", "")]))
    assert said[0][0] == "ALTER TABLE `d`.`t` ADD COLUMN `v%` longtext NULL"


def test_generated_columns_are_not_set() -> None:
    for extra, names in (("STORED GENERATED", "`id`"), ("DEFAULT_GENERATED", "`id`, `v%%`")):
        said = applied(put(1, "a"), database=Database([("id", ""), ("v%", extra)]))
        assert said[0][0].startswith(f"REPLACE INTO `d`.`t` ({names}) ")


@pytest.mark.parametrize(
    ("table", "before", "after", "words"),
    [
        (replace(TABLE, indexes=()), None, {"id": 1, "v%": "b"}, "tells no key"),
        (TABLE, {"id": 1, "v%": "a"}, {"id": 1}, "not hold all columns"),
    ],
)
def test_an_update_that_would_become_something_else(
    table: TableSchema, before: dict[str, Any] | None, after: dict[str, Any], words: str
) -> None:
    """A row more where the old one is not told, or a row without what the update does not hold."""
    found, database = ConsumeFindings(), Database()
    row = ArrivedRow(table, Op.UPDATE, 1, before, after, Where("CDC01.csv", 7))
    Applier(database, found).take([row])
    assert database.said == ["COMMIT"]
    assert found.violations == 1 and words in found.samples[0]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(1146, RowRejected), (1317, SinkUnavailable), (1053, SinkUnavailable), (0, SinkUnavailable)],
)
def test_what_was_interrupted_may_have_been_done(number: int, kind: type[RowferryError]) -> None:
    """Only what the server refuses has certainly not been carried out."""
    database = Database()
    database._name = "db:3306"
    assert type(database._error("RENAME …", refusal_of_number(number, "words"))) is kind


def test_a_row_that_is_only_a_key_is_a_violation() -> None:
    findings, database = ConsumeFindings(), Database()
    row = ArrivedRow(TABLE, Op.INSERT, 1, None, {"id": 1}, Where("t[0]", 7), key_only=True)
    Applier(database, findings).take([row])
    assert findings.samples == [
        "t[0]@7: d.t (1,) insert at 1: cannot be applied, the message holds its key only"
    ]
    assert database.said == ["COMMIT"]


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (SqlType("decimal"), "decimal(65,30)"),
        (SqlType("decimal", length=10, scale=2), "decimal(10,2)"),
        (SqlType("bit"), "bit(64)"),
        (SqlType("enum"), "bigint unsigned"),
        (SqlType("enum", elements=("x", "y'")), "enum('x','y''')"),
        (SqlType("varchar", length=9), "varchar(9)"),
        (SqlType("varbinary"), "longblob"),
        (SqlType("text", length=65535), "text"),
        (SqlType("timestamp"), "timestamp(6)"),
        (SqlType("uuid"), "varchar(64)"),
        (SqlType("bigint", unsigned=True), "bigint unsigned"),
        (SqlType("json"), "json"),
        (SqlType("float", length=12), "float"),
        (SqlType("double", length=22, unsigned=True), "double unsigned"),
        (SqlType("double", length=10, scale=2), "double(10,2)"),
    ],
)
def test_types_are_complete(type_: SqlType, expected: str) -> None:
    table = TableSchema(TableId("d", "t"), 0, 0, (Column(1, "c", type_),))
    assert create_statement(table) == f"CREATE TABLE `d`.`t` (`c` {expected} NULL)"


def test_a_text_in_a_key() -> None:
    columns = (Column(1, "a", SqlType("varchar")), Column(2, "b", SqlType("text")))
    index = Index(1, "PRIMARY", ("a", "b"), True, True)
    table = TableSchema(TableId("d", "t"), 0, 0, columns, (index,))
    assert create_statement(table) == (
        "CREATE TABLE `d`.`t` (`a` varchar(255) COLLATE utf8mb4_bin NOT NULL, "
        "`b` text COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (`a`, `b`(255)))"
    )


@pytest.mark.parametrize(
    ("there", "collation"),
    [
        ([("utf8mb4_nopad_bin",)], "utf8mb4_nopad_bin"),
        ([("utf8mb4_0900_bin",)], "utf8mb4_0900_bin"),
        ([], "utf8mb4_bin"),
    ],
)
def test_keys_that_the_source_tells_apart_stay_apart(
    there: list[tuple[str]], collation: str
) -> None:
    """Nothing tells the source's collation, and to the database's own `a` and `A` may be one."""

    class Asked(Database):
        def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
            if "information_schema.collations" in sql:
                return list(there)
            return super().execute(sql, values)

    columns = (Column(1, "id", SqlType("varchar", length=9), nullable=False), COLUMNS[1])
    texts = replace(TABLE, columns=columns)
    database = Asked([])
    rows = [
        ArrivedRow(texts, Op.INSERT, 1, None, {"id": key, "v%": "x"}, Where("t[0]", 7))
        for key in ("a", "A", "a ")
    ]
    made, put_in = applied(*rows, database=database)[:2]
    assert f"(`id` varchar(9) COLLATE {collation} NOT NULL, `v%` longtext NULL" in made[0]
    assert [key for key, _ in put_in[1]] == ["a", "A", "a "]


@pytest.mark.parametrize(
    "uri",
    ["kafka://a@h:1/", "mysql://h:1/", "mysql://a@h:x/", "mysql://a@h/db", "mysql://a@h/?ssl=1"],
)
def test_a_wrong_target(uri: str) -> None:
    with pytest.raises(BadInput, match="--apply"):
        MySqlTarget(Uri.parse(uri, "--apply"))
