"""What schema changes do to rows: by the kit, by the product, each written for itself."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.change.chunk import DdlKind
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column
from rowferry.downstream.rebuild import convert
from rowferry.downstream.rebuild import evolve as product
from rowferry.errors import BadInput
from rowferry.mysql.ddl.statement import parse_create
from rowferry.testing import evolve as kit

BOTH = pytest.mark.parametrize("rules", [kit, product], ids=["kit", "product"])


def of(text: str) -> SqlType:
    return parse_create(f"CREATE TABLE d.t (c {text})").columns[0].type


@BOTH
@pytest.mark.parametrize(
    ("value", "old", "new", "wanted"),
    [
        (7, "int", "bigint unsigned", 7),
        (7, "int", "varchar(9)", "7"),
        ("7", "varchar(9)", "int", 7),
        ("2.5", "decimal(9,2)", "int", 3),
        ("-2.5", "decimal(9,2)", "int", -3),
        ("3.50", "decimal(9,2)", "decimal(9,0)", "4"),
        ("2.345", "decimal(9,3)", "decimal(9,2)", "2.35"),
        ("-2.345", "decimal(9,3)", "decimal(9,2)", "-2.35"),
        (2.5, "double", "int", 2),
        (3.5, "double", "int", 4),
        (0.1, "double", "decimal(9,3)", "0.100"),
        (0.5, "double", "float", 0.5),
        (
            "9" * 35 + "." + "9" * 30,
            "decimal(65,30)",
            "decimal(65,29)",
            "1" + "0" * 35 + "." + "0" * 29,
        ),
        (2, "enum('a','b')", "varchar(9)", "b"),
        (2, "enum('a','b')", "enum('b','a')", 1),
        (0, "enum('a','b')", "enum('b','a')", 0),
        ("b", "varchar(9)", "enum('a','b')", 2),
        (5, "set('x','y','z')", "varchar(9)", "x,z"),
        (5, "set('x','y','z')", "set('z','x')", 3),
        (b"ab", "varbinary(9)", "varchar(9)", "ab"),
        ("2023-05-09 12:34:56", "datetime", "datetime(3)", "2023-05-09 12:34:56.000"),
        ("12:34:56.120", "time(3)", "time", "12:34:56"),
        (None, "int", "varchar(9)", None),
    ],
)
def test_values_after_a_change_of_type(
    rules: Any, value: Any, old: str, new: str, wanted: Any
) -> None:
    convert_value = convert.convert_value if rules is product else rules.convert_value
    found = convert_value(value, of(old), of(new))
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("value", "old", "new", "wanted"),
    [
        (" 7 ", "varchar(9)", "int", 7),
        ("2.6", "varchar(9)", "int", 3),
        ("ß", "varchar(9)", "varbinary(9)", "ß".encode()),
    ],
)
def test_what_servers_or_their_settings_differ_in(
    value: Any, old: str, new: str, wanted: Any
) -> None:
    """The kit knows the servers of its tests; the product refuses to guess."""
    assert kit.convert_value(value, of(old), of(new)) == wanted
    with pytest.raises(ValueError):
        convert.convert_value(value, of(old), of(new))


@BOTH
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("int", None),
        ("int NOT NULL", 0),
        ("int DEFAULT 7", 7),
        ("double NOT NULL", 0.0),
        ("decimal(9,2) NOT NULL", "0.00"),
        ("varchar(9) NOT NULL", ""),
        ("varbinary(9) NOT NULL", b""),
        ("date NOT NULL", "0000-00-00"),
        ("datetime(3) NOT NULL", "0000-00-00 00:00:00.000"),
        ("time NOT NULL", "00:00:00"),
        ("year NOT NULL", 0),
        ("enum('a','b') NOT NULL", 1),
        ("enum('a','b') DEFAULT 'b'", 2),
        ("set('x','y') NOT NULL", 0),
        ("set('x','y') DEFAULT 'x,y'", 3),
        ("set('x','y') DEFAULT ''", 0),
        ("decimal(9,2) DEFAULT 1.5", "1.50"),
    ],
)
def test_values_of_a_new_column(rules: Any, text: str, wanted: Any) -> None:
    column: Column = parse_create(f"CREATE TABLE d.t (c {text})").columns[0]
    found = rules.default_value(column)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    "renamed_columns",
    [kit.renamed_columns, lambda query: product._moved_columns(query)[0]],
    ids=["kit", "product"],
)
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("ALTER TABLE t RENAME COLUMN a TO b", {"b": "a"}),
        ("alter table t rename column `a``x` to `B y`", {"b y": "a`x"}),
        ("ALTER TABLE t CHANGE a b int", {"b": "a"}),
        ("ALTER TABLE t CHANGE COLUMN `a` `b` int, RENAME COLUMN c TO d", {"b": "a", "d": "c"}),
        ("ALTER TABLE t ADD COLUMN c int", {}),
    ],
)
def test_columns_that_are_renamed(renamed_columns: Any, query: str, wanted: dict[str, str]) -> None:
    assert renamed_columns(query) == wanted


def test_a_comment_renames_nothing() -> None:
    query = "ALTER TABLE t ADD COLUMN c int COMMENT 'rename column a to b'"
    assert kit.renamed_columns(query) == {}


@BOTH
def test_what_the_text_does_not_tell_is_refused(rules: Any) -> None:
    with pytest.raises(BadInput, match="DROP_PARTITION cannot be followed"):
        rules.refuse_unmodelled(DdlKind.DROP_PARTITION, "ALTER TABLE t DROP PARTITION p")
    rules.refuse_unmodelled(DdlKind.ADD_COLUMN, "ALTER TABLE t ADD COLUMN c int")
