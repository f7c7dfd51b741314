"""Statements of definitions: what is converted, what is refused, how columns trade names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetUnfit
from rowferry.flow.sink.postgresql.column_types import condition, conversion
from rowferry.flow.sink.postgresql.definitions import (
    Making,
    Untranslatable,
    alter_statements,
    create_statements,
    index_renames,
)
from rowferry.flow.sink.postgresql.names import check_names, index_name
from rowferry.flow.sink.postgresql.schema_changes import same_columns
from rowferry.mysql.ddl.statement import parse_create, parse_type, plan_ddl

MAKING = Making("jsonb", zero_is_null=False)


@pytest.mark.parametrize(
    ("old", "new", "how"),
    [
        ("int", "bigint", "TYPE bigint"),
        ("int", "int unsigned", "TYPE bigint"),
        ("tinyint", "smallint", ""),
        ("varchar(5)", "varchar(9)", "TYPE varchar(9)"),
        ("varchar(5)", "char(5)", "TYPE varchar(5) USING rtrim(c, ' ')"),
        ("enum('a')", "enum('a','b')", ""),
        ("enum('a','b')", "enum('a')", None),
        ("enum('a','b')", "enum('b','a')", None),
        ("enum('a')", "set('a')", None),
        ("set('a','b')", "set('a','b','c')", ""),
        ("set('a','b')", "set('b','a')", None),
        ("varchar(5)", "enum('a')", None),
        ("int", "enum('a')", None),
        ("enum('a')", "varchar(5)", "TYPE varchar(5)"),
        ("decimal(5,2)", "decimal(9,4)", "TYPE numeric(9,4)"),
        ("float", "double", "TYPE double precision"),
        ("datetime", "datetime(3)", "TYPE timestamp(3)"),
        ("bit(3)", "bit(5)", "TYPE bit(5) USING lpad(c::text, 5, '0')::bit(5)"),
        ("text", "json", "TYPE jsonb USING c::jsonb"),
        ("varbinary(5)", "longblob", ""),
        ("varbinary(5)", "binary(5)", None),
        ("bit(5)", "bit(3)", None),
        ("double", "decimal(5,1)", None),
        ("datetime", "timestamp", None),
        ("datetime", "date", None),
        ("varchar(5)", "int", None),
        ("int", "year", None),
        ("json", "text", None),
        ("decimal(10,4)", "decimal(10,2)", "TYPE numeric(10,2)"),
        ("decimal(10,4)", "int", "TYPE integer"),
        ("time(6)", "time", None),
        ("time(6)", "time(3)", None),
        ("datetime(6)", "datetime(3)", None),
        ("timestamp(6)", "timestamp", None),
        ("timestamp(3)", "timestamp(3)", ""),
        ("time", "time(6)", "TYPE interval(6)"),
        ("double", "int", None),
        ("float", "decimal(10,2)", None),
        ("double", "float", "TYPE real"),
        ("double", "double(10,2)", None),
        ("double(10,4)", "double(10,2)", None),
        ("double(10,2)", "double(9,2)", None),
        ("double(10,2)", "double(12,4)", ""),
        ("double(10,2)", "float(10,2)", "TYPE real"),
        ("float(10,2)", "double(10,2)", None),
        ("float(10,4)", "float(10,2)", None),
        ("decimal(10,4)", "double(10,2)", None),
        ("decimal(10,2)", "double(10,2)", "TYPE double precision"),
        ("int", "double(12,2)", "TYPE double precision"),
        ("bigint", "double(12,2)", None),
        ("year", "char(4)", "TYPE varchar(4) USING lpad(c::text, 4, '0')"),
    ],
)
def test_values_are_converted_as_at_the_source_or_not_at_all(
    old: str, new: str, how: str | None
) -> None:
    assert conversion(parse_type(old), parse_type(new), "c", "jsonb") == how


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("int", "tinyint", "c BETWEEN -128 AND 127"),
        ("int", "mediumint", "c BETWEEN -8388608 AND 8388607"),
        ("int", "int unsigned", "c BETWEEN 0 AND 4294967295"),
        ("bigint", "bigint unsigned", "c BETWEEN 0 AND 18446744073709551615"),
        ("bigint", "int", ""),
        ("tinyint", "mediumint", ""),
        ("tinyint unsigned", "smallint unsigned", ""),
        ("year", "tinyint", "c BETWEEN -128 AND 127"),
        ("decimal(9,2)", "tinyint unsigned", "c BETWEEN 0 AND 255"),
        ("decimal(9,2)", "decimal(9,2) unsigned", "c >= 0"),
        ("decimal(9,2)", "decimal(5,2)", ""),
        ("double", "double unsigned", "c >= 0"),
        ("double unsigned", "float unsigned", ""),
        ("varbinary(5)", "varbinary(3)", "octet_length(c) <= 3"),
        ("longblob", "tinyblob", "octet_length(c) <= 255"),
        ("varbinary(5)", "blob", ""),
        ("longtext", "text", "octet_length(c::text) <= 65535"),
        ("text", "mediumtext", ""),
        ("varchar(9)", "varchar(5)", ""),
    ],
)
def test_what_a_lenient_source_has_bent_is_noticed(old: str, new: str, holds: str) -> None:
    """It took -5 for 0 in an unsigned column; here the types are as wide as before."""
    assert condition(parse_type(old), parse_type(new), "c") == holds


def test_a_narrower_column_is_tried_on_the_rows_that_are_there() -> None:
    old = parse_create("create table d.t (id int primary key, a int)")
    name = '"rowferry: rows fit the altered column"'
    assert altered(old, "alter table d.t modify a tinyint unsigned") == [
        'ALTER TABLE "d"."t" ALTER COLUMN "a" TYPE smallint',
        f'ALTER TABLE "d"."t" ADD CONSTRAINT {name} CHECK ("a" BETWEEN 0 AND 255)',
        f'ALTER TABLE "d"."t" DROP CONSTRAINT {name}',
    ]


def altered(old: TableSchema, statement: str) -> list[str]:
    (change,) = plan_ddl(statement, "d", {old.id: old}, lambda: 0)
    assert change.schema is not None
    return alter_statements(old, change.schema, same_columns(old, change.schema, change), MAKING)


@pytest.mark.parametrize(
    ("column", "filled"),
    [
        ("binary(4) default 'ab'", "E'\\\\x61620000'"),
        ("binary(4) default x'00ff'", "E'\\\\x00ff0000'"),
        ("binary(3) not null", "E'\\\\x000000'"),
        ("varbinary(4) default x'00ff'", "E'\\\\x00ff'"),
        ("varbinary(4) not null", "E'\\\\x'"),
        ("char(9) default 'a  '", "'a'"),
        ("varchar(9) default 'a  '", "'a  '"),
        ("enum('a','b') default 'B'", "'b'"),
        ("set('a','b') default 'B,a'", "'a,b'"),
        ("set('a','b') not null", "''"),
        ("date default '2024-01-02'", "'2024-01-02'"),
        ("datetime default '2024-01-02 03:04:05'", "'2024-01-02 03:04:05'"),
        ("time default '-10:20:30'", "'-10:20:30'"),
        ("year default 2024", "'2024'"),
    ],
)
def test_a_new_column_is_filled_as_at_the_source(column: str, filled: str) -> None:
    old = parse_create("create table d.t (id int primary key)")
    first, *_ = altered(old, f"alter table d.t add column x {column}")
    assert first.partition(" DEFAULT ")[2] == filled


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("timestamp default '2024-01-02 03:04:05'", "a time in an unknown zone"),
        ("varchar(9) default x'00ff'", "a default of unknown form"),
        ("varchar(9) default 'a\\0b'", "a default of unknown form"),
        ("time default 1020", "a default of unknown form"),
        ("time default '1 10:00:00'", "a default of unknown form"),
        ("year default 24", "a default of unknown form"),
        ("datetime default '2024-01-02 03:04:05+02:00'", "a default of unknown form"),
    ],
)
def test_what_a_new_column_is_filled_with_must_be_certain(column: str, words: str) -> None:
    old = parse_create("create table d.t (id int primary key)")
    with pytest.raises(Untranslatable, match=words):
        altered(old, f"alter table d.t add column x {column}")


def test_columns_that_trade_names_keep_their_values() -> None:
    old = parse_create("create table d.t (id int primary key, a int, b int)")
    change = "alter table d.t change a b int, change b a int"
    table = 'ALTER TABLE "d"."t" RENAME COLUMN'
    assert altered(old, change) == [
        f'{table} "a" TO "rowferry_was_a"',
        f'{table} "b" TO "rowferry_was_b"',
        f'{table} "rowferry_was_a" TO "b"',
        f'{table} "rowferry_was_b" TO "a"',
    ]


def test_a_column_gets_the_name_that_another_had() -> None:
    old = parse_create("create table d.t (id int primary key, a int, b int, x int)")
    change = "alter table d.t rename column b to c, rename column a to b, rename column x to a"
    table = 'ALTER TABLE "d"."t" RENAME COLUMN'
    assert altered(old, change) == [
        f'{table} "a" TO "rowferry_was_a"',
        f'{table} "x" TO "rowferry_was_x"',
        f'{table} "b" TO "c"',
        f'{table} "rowferry_was_a" TO "b"',
        f'{table} "rowferry_was_x" TO "a"',
    ]


def test_a_virtual_column_is_renamed_at_the_source_only() -> None:
    old = parse_create(
        "create table d.t (id int primary key, a int, v int as (a) virtual, unique key (v))"
    )
    assert altered(old, "alter table d.t rename column v to w") == []
    (rename,) = altered(old, "alter table d.t rename column v to w, rename column a to v")
    assert rename == 'ALTER TABLE "d"."t" RENAME COLUMN "a" TO "v"'


def test_an_index_is_dropped_by_the_name_that_the_table_has() -> None:
    old = parse_create("create table d.post (id int primary key, tag int, key tag (tag))")
    new = replace(old, indexes=())
    same = {c.name: c.name for c in old.columns}
    now = [index_name("post", name) for name in ("PRIMARY", "tag")]
    for key, index in (now, ("post_pkey", "post_tag")):  # also one from before there were digests
        assert alter_statements(old, new, same, MAKING, {key, index, "mine"}) == [
            f'DROP INDEX "d"."{index}"',
            f'ALTER TABLE "d"."post" DROP CONSTRAINT "{key}"',
        ]
        moved = index_renames(old, old.id, TableId("d", "u"), {key, index, "mine"})
        assert moved == {key: index_name("u", "PRIMARY"), index: index_name("u", "tag")}
    assert alter_statements(old, new, same, MAKING, {"mine"}) == []


def test_a_rename_that_cannot_be_told_is_refused() -> None:
    old = parse_create("create table d.t (id int primary key, a int)")
    new = parse_create("create table d.t (id int primary key, b int)")
    change = SchemaChange(1, DdlKind.MULTI_SCHEMA_CHANGE, "ALTER TABLE t CHEER", old.id, new)
    with pytest.raises(Untranslatable, match="whether b is a new column or a by another name"):
        same_columns(old, new, change)
    added = replace(new, columns=(*old.columns, replace(new.columns[1], id=9)))
    assert same_columns(old, added, change) == {"id": "id", "a": "a"}


def test_names_are_quoted_and_long_ones_refused() -> None:
    table = parse_create('create table d.`a"b` (`i d` int primary key)')
    assert create_statements(table, MAKING)[1] == (
        'CREATE TABLE "d"."a""b" ("i d" integer NOT NULL, CONSTRAINT '
        f'"a""b_PRIMARY_{index_name(table.id.table, "PRIMARY")[-10:]}" PRIMARY KEY ("i d"))'
    )
    long = parse_create(f"create table d.t (`{'é' * 32}` int primary key)")
    with pytest.raises(TargetUnfit, match="more than 63 bytes"):
        check_names(long)
    one, other = (index_name("t" * 60, f"key{n}") for n in "12")
    assert one != other and len(one.encode()) <= 63
    assert index_name("a", "b_c") != index_name("a_b", "c")
