"""csv and canal-json against published expectations, where they are at hand."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from change_file import rows_of, spec_of
from outside import cases

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadOption
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.csv.codec import Csv
from rowferry.mysql.ddl.statement import parse_create

NAMES = {
    "tiny": "tinyint",
    "short": "smallint",
    "int24": "mediumint",
    "long": "int",
    "longlong": "bigint",
    "newdecimal": "decimal",
    "duration": "time",
    "string": "char",
    "varstring": "varchar",
    "bool": "tinyint",
}
WHOLE = (Kind.INTEGER, Kind.YEAR, Kind.BIT)
NOW = 1700000000000


def by_id(area: str) -> Any:
    """Parametrize over an area; without its vectors there is no test at all."""
    found = cases(area)
    if not found:
        return lambda _test: None
    return pytest.mark.parametrize("case", found, ids=lambda c: c["id"])


def dashed(config: dict[str, Any]) -> dict[str, Any]:
    return {k.replace("_", "-"): v for k, v in config.items()}


def csv_of(config: dict[str, Any]) -> Csv:
    section = dashed(config)
    ending = {"terminator": section.pop("terminator")} if "terminator" in section else {}
    return codec_for(Csv, spec_of(config={"sink": {**ending, "csv": section}}))


def one_column(kind: SqlType) -> TableSchema:
    return TableSchema(TableId("test", "t"), 1, 1, (Column(1, "a", kind),))


def held(kind: SqlType, value: Any) -> Any:
    """A value as chunks hold it; published ones may be spelt in other ways."""
    if kind.kind is Kind.BINARY and isinstance(value, str):
        return value.encode().hex()
    if kind.kind is Kind.ENUM and isinstance(value, str):
        return kind.elements.index(value) + 1
    if kind.kind is Kind.SET and isinstance(value, str):
        return sum(1 << kind.elements.index(name) for name in value.split(",") if name)
    if kind.kind in WHOLE and isinstance(value, str | bool):
        return int(value)
    if kind.arrow == pa.large_utf8() and isinstance(value, int | float):
        return str(value)
    return value


def one_value(codec: Csv | CanalJson, kind: SqlType, value: Any) -> str:
    value = held(kind, value)
    change = {"op": "insert", "commit_ts": 1, "after": [value]}
    encoded = codec.encode_rows(rows_of(one_column(kind), [change]), NOW)
    return bytes(encoded.value_bytes()).decode()


@by_id("csv-config")
def test_csv_config(case: dict[str, Any]) -> None:
    if case["expected"].get("ok"):
        csv_of(case["input"])
        return
    with pytest.raises(BadOption, match=re.escape(case["expected"]["error_contains"])):
        csv_of(case["input"])


@by_id("csv-escape")
def test_csv_escape(case: dict[str, Any]) -> None:
    codec = csv_of({"quote": "", "delimiter": case["input"]["delimiter"]})
    line = one_value(codec, SqlType("text"), case["input"]["value"])
    assert line.endswith(f"{case['input']['delimiter']}{case['expected']['text']}\r\n")


@by_id("csv-quote")
def test_csv_quote(case: dict[str, Any]) -> None:
    line = one_value(
        csv_of({"quote": case["input"]["quote"]}), SqlType("text"), case["input"]["value"]
    )
    assert line == f'"I","t","test",{case["expected"]["text"]}\r\n'


@by_id("csv-header")
def test_csv_header(case: dict[str, Any]) -> None:
    columns = tuple(Column(i, n, SqlType("int")) for i, n in enumerate(case["input"]["columns"]))
    table = TableSchema(TableId("test", "t"), 1, 1, columns)
    assert csv_of(case["input"]["config"]).file_head(table).decode() == case["expected"]["text"]


@by_id("csv-row")
def test_csv_row(case: dict[str, Any]) -> None:
    given = case["input"]
    kinds = {int: "bigint", float: "double"}
    columns = tuple(
        Column(i, f"c{i}", SqlType(kinds.get(type(v), "text")))
        for i, v in enumerate(given["columns"])
    )
    table = TableSchema(TableId(given["schema"], given["table"]), 1, 1, columns)
    op = {"I": "insert", "U": "update", "D": "delete"}[given["op"]]
    new, old = given["columns"], given["pre_columns"]
    before, after = (new, None) if op == "delete" else (old, new)
    change = {"op": op, "commit_ts": given["commit_ts"], "before": before, "after": after}
    encoded = csv_of(given["config"]).encode_rows(rows_of(table, [change]), NOW)
    assert bytes(encoded.value_bytes()).decode() == case["expected"]["text"]


@by_id("csv-type")
def test_csv_type(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]["value"]
    name = NAMES.get(given["mysql_type"], given["mysql_type"])
    elements = tuple(given.get("elements", ()))
    kind = SqlType(name, unsigned=given.get("unsigned", False), elements=elements)
    method = given.get("binary_encoding_method", "base64")
    quoted = str(expected).replace('"', '""')
    shown = f'"{quoted}"' if isinstance(expected, str) else quoted
    if kind.kind in (Kind.DATETIME, Kind.TIMESTAMP) and "." not in shown:
        shown = f'"{expected}.000000"'  # ours always have six digits
    line = one_value(csv_of({"binary-encoding-method": method}), kind, given["value"])
    assert line == f'"I","t","test",{shown}\r\n'


def canal_of(given: dict[str, Any]) -> CanalJson:
    keys = ("enable_tidb_extension", "only_output_updated_columns", "content_compatible")
    query = "&".join(f"{k.replace('_', '-')}=true" for k in keys if given.get(k))
    key = "delete_only_output_handle_key_columns"
    section = {key.replace("_", "-"): True} if given.get(key) else {}
    return codec_for(CanalJson, spec_of(f"kafka://broker/topic?{query}", {"sink": section}))


@by_id("canal-type")
def test_canal_type(case: dict[str, Any]) -> None:
    kind = (
        parse_create(f"create table t (a {case['input']['column_type']})", "test").columns[0].type
    )
    message = json.loads(one_value(canal_of({}), kind, case["input"]["value"]))
    assert message["sqlType"]["a"] == case["expected"]["sqlType"]
    assert message["data"][0]["a"] == case["expected"]["data"]


@by_id("canal-json")
def test_canal_json(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    codec = canal_of(given)
    if "json" in expected:  # a message to read
        columns = "id int primary key, FirstName varchar(9), HireDate date, LastName varchar(9)"
        ddl = f"create table test.employee ({columns}, OfficeLocation varchar(9))"
        (rows,) = codec.decode(json.dumps(expected["json"]).encode(), parse_create(ddl))
        data = expected["json"]["data"][0]
        image = rows.before if expected["json"]["type"] == "DELETE" else rows.after
        assert image.to_pylist() == [{**data, "id": int(data["id"])}]
        return
    if "watermark_ts" in given:
        encoded = codec.encode_watermark(Watermark(given["watermark_ts"]), NOW)
    elif "query" in given:
        named = "table" in given
        table = (
            TableId(given["schema"], given["table"]) if named else parse_create(given["query"]).id
        )
        kind = DdlKind(given["ddl_type"])
        change = SchemaChange(given["commit_ts"], kind, given["query"], table)
        encoded = codec.encode_schema_change(change, NOW)
    else:
        before, after = given.get("pre"), given.get("row")
        op = "insert" if before is None else "delete" if after is None else "update"
        change = {"op": op, "commit_ts": given["commit_ts"], "before": before, "after": after}
        encoded = codec.encode_rows(rows_of(parse_create(given["ddl"]), [change]), NOW)
    assert encoded is not None
    wanted = expected["text_template"].replace("<now>", str(NOW))
    assert bytes(encoded.value_bytes()).decode() == wanted
