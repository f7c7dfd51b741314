"""What rows of information_schema mean, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from statements_kit import MARIADB, MYSQL

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import SourceUnsupported
from rowferry.mysql import catalog
from rowferry.mysql.session import Login, ServerFacts

LOGIN = Login("h", 1, "u", "")
T = TableId("d", "t")


class Answers:
    """Stands in for a server: one table, with these columns and indexes."""

    def __init__(self, columns: list[tuple[Any, ...]], indexes: list[tuple[Any, ...]]) -> None:
        self.columns = columns
        self.indexes = indexes

    def rows(self, _: Any, __: Any, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        if ".TABLES" in sql:
            return [(*T, "latin1_swedish_ci", "note", "BASE TABLE")]
        found = self.columns if ".COLUMNS" in sql else self.indexes
        return [(*T, *row) for row in found]


def read(
    monkeypatch: pytest.MonkeyPatch,
    facts: ServerFacts,
    columns: list[tuple[Any, ...]],
    indexes: list[tuple[Any, ...]] | None = None,
) -> TableSchema:
    monkeypatch.setattr(catalog, "rows", Answers(columns, indexes or []).rows)
    found = catalog.read_table(None, LOGIN, facts, T, 5)
    assert found is not None
    return found


def column(
    monkeypatch: pytest.MonkeyPatch,
    facts: ServerFacts,
    kind: str,
    default: Any = None,
    extra: str = "",
    charset: str | None = None,
) -> Column:
    row = ("a", kind, charset, charset and f"{charset}_bin", "YES", default, extra, None, "", "1")
    return read(monkeypatch, facts, [row]).columns[0]


@pytest.mark.parametrize(
    ("kind", "text", "extra", "value", "expression"),
    [
        ("int", None, "", None, ""),
        ("int", "-5", "", -5, ""),
        ("varchar(9)", "NULL", "", "NULL", ""),
        ("varchar(9)", "it's", "", "it's", ""),
        ("varchar(9)", "", "", "", ""),
        ("decimal(5,2)", "1.50", "", "1.50", ""),
        ("double", "1e100", "", 1e100, ""),
        ("bit(3)", "b'101'", "", 5, ""),
        ("varbinary(3)", "0x4142", "", "AB", ""),
        ("varbinary(3)", "0x", "", "", ""),
        ("binary(3)", "0x410000", "", "A", ""),
        ("year", "0000", "", 0, ""),
        ("datetime(3)", "CURRENT_TIMESTAMP(3)", "DEFAULT_GENERATED", "CURRENT_TIMESTAMP(3)", ""),
        ("varchar(20)", "CURRENT_TIMESTAMP", "", "CURRENT_TIMESTAMP", ""),
        ("datetime", "now()", "DEFAULT_GENERATED", None, "now()"),
        ("varchar(9)", r"concat(_utf8mb4\'a\',_utf8mb4\'\\\'\')", "DEFAULT_GENERATED", None,
         r"concat(_utf8mb4'a',_utf8mb4'\'')"),
    ],
)  # fmt: skip
def test_defaults_of_mysql(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    text: str | None,
    extra: str,
    value: Any,
    expression: str,
) -> None:
    found = column(monkeypatch, MYSQL, kind, text, extra, "utf8mb4")
    assert (found.default, found.expression) == (value, expression)


@pytest.mark.parametrize(
    ("kind", "text", "value", "expression"),
    [
        ("int(11)", "NULL", None, ""),
        ("int(11)", "-5", -5, ""),
        ("varchar(9)", "'NULL'", "NULL", ""),
        ("varchar(9)", r"'q''\n\\'", "q'\n\\", ""),
        ("varchar(20)", "'current_timestamp()'", "current_timestamp()", ""),
        ("binary(5)", r"'abc\0\0'", "abc", ""),
        ("bit(3)", "b'101'", 5, ""),
        ("datetime(3)", "current_timestamp(3)", "CURRENT_TIMESTAMP(3)", ""),
        ("date", "current_timestamp()", None, "CURRENT_TIMESTAMP"),
        ("int(11)", "(1 + 1)", None, "1 + 1"),
        ("int(11)", "`b`", None, "`b`"),
        ("int(11)", "1 + `b`", None, "1 + `b`"),
        ("varchar(36)", "uuid()", None, "uuid()"),
    ],
)
def test_defaults_of_mariadb(
    monkeypatch: pytest.MonkeyPatch, kind: str, text: str, value: Any, expression: str
) -> None:
    found = column(monkeypatch, MARIADB, kind, text, charset="utf8mb4")
    assert (found.default, found.expression) == (value, expression)


def test_types_and_character_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed = column(monkeypatch, MARIADB, "varchar(9) /*M!100301 COMPRESSED*/", charset="utf8")
    assert compressed.type == SqlType("varchar", length=9, charset="utf8mb3")
    assert compressed.type.collation == "utf8_bin"
    choice = column(monkeypatch, MYSQL, "enum('x')")
    assert choice.type == SqlType("enum", elements=("x",), charset="binary")
    assert column(monkeypatch, MARIADB, "inet4").type == SqlType("inet4")


def test_an_unknown_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SourceUnsupported, match=r"'a' of table d\.t .*'wonder\(3\)'.*filter\.rules"
    ):
        column(monkeypatch, MARIADB, "wonder(3)")


def test_columns_and_keys_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [
        (name, "int", None, None, "NO", None, extra, None, "", place)
        for name, extra, place in (("c", "INVISIBLE", "10"), ("a", "auto_increment", "2"))
    ]
    keys = [
        ("z", "a", "0", None, "2"),
        ("z", "c", "0", None, "1"),
        ("m", "a", "1", None, "1"),
        ("b", "c", "0", "5", "1"),
        ("PRIMARY", "c", "0", "5", "1"),
        ("f", None, "0", None, "1"),
    ]
    found = read(monkeypatch, MYSQL, columns, keys)
    assert (found.table_id, found.charset, found.comment) == (5, "latin1", "note")
    assert found.collation == "latin1_swedish_ci"
    assert [(c.id, c.name, c.auto_increment, c.invisible) for c in found.columns] == [
        (1, "a", True, False),
        (2, "c", False, True),
    ]
    assert [(i.id, i.name, i.columns, i.unique, i.primary) for i in found.indexes] == [
        (1, "PRIMARY", ("c",), True, True),
        (2, "z", ("c", "a"), True, False),
        (3, "b", ("c",), False, False),
        (4, "f", (), False, False),
        (5, "m", ("a",), False, False),
    ]
