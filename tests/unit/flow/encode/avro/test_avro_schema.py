from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from avro_cases import table

from rowferry.change.table import TableId
from rowferry.errors import SchemaRefused, TableIneligible
from rowferry.flow.encode.avro.schema import (
    Modes,
    avro_name,
    field_of,
    go_number,
    json_text,
    key_schema,
    namespace_of,
    value_schema,
)
from rowferry.mysql.ddl.statement import parse_create

PRECISE = Modes()
TEXTS = Modes(decimal_text=True, bigint_text=True)

# column type, Avro type, tidb_type, further parameters
MAPPING = [
    ("tinyint", "int", "INT", {}),
    ("tinyint unsigned", "int", "INT UNSIGNED", {}),
    ("bool", "int", "INT", {}),
    ("smallint", "int", "INT", {}),
    ("smallint unsigned", "int", "INT UNSIGNED", {}),
    ("mediumint", "int", "INT", {}),
    ("mediumint unsigned", "int", "INT UNSIGNED", {}),
    ("int", "int", "INT", {}),
    ("int unsigned", "long", "INT UNSIGNED", {}),
    ("bigint", "long", "BIGINT", {}),
    ("bigint unsigned", "long", "BIGINT UNSIGNED", {}),
    *((t, "bytes", "BLOB", {}) for t in ("tinyblob", "blob", "mediumblob", "longblob")),
    *((t, "bytes", "BLOB", {}) for t in ("binary(4)", "varbinary(4)", "geometry")),
    *((t, "string", "TEXT", {}) for t in ("tinytext", "text", "mediumtext", "longtext")),
    *((t, "string", "TEXT", {}) for t in ("char(4)", "varchar(4)", "inet6", "uuid")),
    ("float", "double", "FLOAT", {}),
    ("double", "double", "DOUBLE", {}),
    ("date", "string", "DATE", {}),
    ("datetime(3)", "string", "DATETIME", {}),
    ("timestamp", "string", "TIMESTAMP", {}),
    ("time", "string", "TIME", {}),
    ("year", "int", "YEAR", {}),
    ("bit(10)", "bytes", "BIT", {"length": "10"}),
    ("bit", "bytes", "BIT", {"length": "1"}),
    ("json", "string", "JSON", {}),
    ("vector(3)", "string", "TiDBVECTORFloat32", {}),
    ("enum('a','b')", "string", "ENUM", {"allowed": "a,b"}),
    ("enum('a,b','it''s')", "string", "ENUM", {"allowed": "a\\,b,it's"}),
    ("set('x','y')", "string", "SET", {"allowed": "x,y"}),
]


def field(definition: str, modes: Modes = PRECISE) -> Any:
    return field_of(table(f"c {definition}").columns[1], modes)


@pytest.mark.parametrize(("column", "avro", "tidb", "more"), MAPPING, ids=lambda v: str(v))
def test_every_type_has_its_avro_type(
    column: str, avro: str, tidb: str, more: dict[str, str]
) -> None:
    wanted = {"type": avro, "connect.parameters": {**more, "tidb_type": tidb}}
    assert field(f"{column} not null") == {"name": "c", "type": wanted}


def test_a_precise_decimal_is_a_logical_type_with_its_digits() -> None:
    wanted = (
        '{"name":"c","type":{"type":"bytes","connect.parameters":{"tidb_type":"DECIMAL"},'
        '"logicalType":"decimal","precision":%d,"scale":%d}}'
    )
    assert json_text(field("decimal(12,3) not null")) == wanted % (12, 3)
    assert json_text(field("decimal not null")) == wanted % (10, 0)


def test_modes_make_texts_of_decimals_and_large_numbers() -> None:
    for column, tidb in (("decimal(12,3)", "DECIMAL"), ("bigint unsigned", "BIGINT UNSIGNED")):
        wanted = {"type": "string", "connect.parameters": {"tidb_type": tidb}}
        assert field(f"{column} not null", TEXTS)["type"] == wanted
    assert field("bigint not null", TEXTS)["type"]["type"] == "long"


@pytest.mark.parametrize(
    ("column", "default", "branches"),
    [
        ("int", "null", ["null", "int"]),
        ("int default 5", "5", ["int", "null"]),
        ("int not null default 5", "5", "int"),
        ("tinyint default -1", "-1", ["int", "null"]),
        ("year default 2020", "2020", ["int", "null"]),
        ("bigint unsigned default 18446744073709551615", "-1", ["long", "null"]),
        ("float default 3.14", "3.140000104904175", ["double", "null"]),
        ("double default 3.14", "3.14", ["double", "null"]),
        ("bit(10) default b'101'", '"BQ=="', ["bytes", "null"]),
        ("bit(10) default b'1000000001'", '"AgE="', ["bytes", "null"]),
        ("bit(10) default b'0'", '"AA=="', ["bytes", "null"]),
        ("binary(4) default 'ab'", '"YWIAAA=="', ["bytes", "null"]),
        ("varbinary(9) default 'ab'", '"YWI="', ["bytes", "null"]),
        ("binary(2) default 0x00ff", '"AP8="', ["bytes", "null"]),
        ("datetime default current_timestamp", '"CURRENT_TIMESTAMP"', ["string", "null"]),
        ("datetime(3) default now(3)", '"CURRENT_TIMESTAMP"', ["string", "null"]),
        ("varchar(9) not null default '<&>'", '"\\u003c\\u0026\\u003e"', "string"),
        ("enum('a','b') default 'b'", '"b"', ["string", "null"]),
        ("decimal(4,1) default 1.5", "null", ["null", "bytes"]),
    ],
)
def test_a_default_is_written_and_its_branch_stands_first(
    column: str, default: str, branches: Any
) -> None:
    found = field(column)
    assert json_text(found["default"]) == default
    shown = [b if b == "null" else b["type"] for b in _list(found["type"])]
    assert shown == _list(branches)
    assert list(found) == ["default", "name", "type"]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_defaults_in_the_modes_of_text() -> None:
    assert field("decimal(4,1) default 1.5", TEXTS)["default"] == "1.5"
    found = field("bigint unsigned default 18446744073709551615", TEXTS)
    assert found["default"] == "18446744073709551615"
    assert "default" not in field("decimal(4,1) not null default 1.5")


def test_the_text_is_exact() -> None:
    person = parse_create("create table test.person(id int not null primary key, age int)")
    head = '{"type":"record","name":"person","namespace":"default.test","fields":['
    key = '{"name":"id","type":{"type":"int","connect.parameters":{"tidb_type":"INT"}}}'
    age = '{"default":null,"name":"age","type":["null",{"type":"int","connect.parameters":'
    age += '{"tidb_type":"INT"}}]}'
    own = '{"default":"","name":"_tidb_op","type":"string"},'
    own += '{"default":0,"name":"_tidb_commit_ts","type":"long"},'
    own += '{"default":0,"name":"_tidb_commit_physical_time","type":"long"}'
    assert key_schema(person, Modes()) == f"{head}{key}]}}"
    assert value_schema(person, Modes(), False) == f"{head}{key},{age}]}}"
    assert value_schema(person, Modes(), True) == f"{head}{key},{age},{own}]}}"


@pytest.mark.parametrize("modes", [Modes(), TEXTS])
def test_every_schema_is_one_for_others_too(modes: Modes) -> None:
    columns = ", ".join(f"c{i} {m[0]}, d{i} {m[0]} not null" for i, m in enumerate(MAPPING))
    wide = table(f"{columns}, x decimal(65,30), y decimal(9,0) not null")
    for text in (key_schema(wide, modes), value_schema(wide, modes, True)):
        fastavro.parse_schema(json.loads(text))


def test_the_key_is_the_handle_key() -> None:
    def names(ddl: str) -> list[str]:
        form = json.loads(key_schema(parse_create(ddl), Modes()))
        return [f["name"] for f in form["fields"]]

    both = "create table t.t (a int not null, b int not null, c int not null, unique key u (c), "
    assert names(both + "primary key (b, a))") == ["a", "b"]
    assert names(both + "key k (a))") == ["c"]


def test_a_table_without_a_key_is_refused_by_name() -> None:
    with pytest.raises(TableIneligible, match=r"t\.keyless.*primary key"):
        key_schema(parse_create("create table t.keyless (a int, unique key (a))"), Modes())
    virtual = "create table t.v (a int, b int as (a + 1) virtual not null, unique key (b))"
    with pytest.raises(TableIneligible, match=r"t\.v.*virtual"):
        key_schema(parse_create(virtual), Modes())


def test_of_two_keys_the_one_without_virtual_columns_is_taken() -> None:
    both = parse_create(
        "create table t.v (a int not null, b int not null, "
        "v int as (a + 1) virtual not null, unique key (v), unique key (a, b))"
    )
    assert both.handle_key == both.written_key == ("a", "b")
    assert [f["name"] for f in json.loads(key_schema(both, Modes()))["fields"]] == ["a", "b"]


def test_virtual_columns_are_left_out() -> None:
    form = json.loads(value_schema(table("b int as (id + 1) virtual, c int"), Modes(), False))
    assert [f["name"] for f in form["fields"]] == ["id", "c"]


def test_routed_tables_have_their_written_name() -> None:
    routed = replace(table("c int"), target=TableId("other-db", "1st"))
    form = json.loads(value_schema(routed, Modes(), False))
    assert (form["name"], form["namespace"]) == ("_1st", "default.other_db")


def test_two_columns_of_one_avro_name_are_refused() -> None:
    with pytest.raises(SchemaRefused, match=r"shop\.orders: 'a-b' and 'a b'.*'a_b'"):
        value_schema(table("`a-b` int, `a b` int"), Modes(), False)
    own = table("_tidb_op int")
    value_schema(own, Modes(), False)
    with pytest.raises(SchemaRefused, match="_tidb_op"):
        value_schema(own, Modes(), True)


def test_names_are_made_fit() -> None:
    names = {"ok_1": "ok_1", "1a": "_1a", "a.b-c": "a_b_c", "": "", "_": "_", "é": "_", "-1": "_1"}
    assert {n: avro_name(n) for n in names} == names
    assert namespace_of("2nd", "key.space") == "key_space._2nd"
    assert namespace_of("") == "default"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (5.0, "5"), (1e16, "10000000000000000"), (1e21, "1e+21"), (1e-6, "0.000001")]
    + [(1e-7, "1e-7"), (-2.5e-10, "-2.5e-10"), (0.1, "0.1"), (1.5e300, "1.5e+300")],
)
def test_numbers_are_written_as_go_does(value: float, text: str) -> None:
    assert go_number(value) == text
    assert float(text) == value
