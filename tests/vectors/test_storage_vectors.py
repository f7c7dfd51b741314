"""Paths, checksums, column objects and metadata of the storage sink, against published ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from outside import cases

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column
from rowferry.errors import BadOption, UnknownName
from rowferry.flow.sink.storage.index_file import metadata_content
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.paths import METADATA, is_schema_file
from rowferry.flow.sink.storage.schema_file import SchemaDocument, column_form
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

NAMES = {
    "Tiny": "tinyint",
    "Short": "smallint",
    "Int24": "mediumint",
    "Long": "int",
    "Longlong": "bigint",
    "Float": "float",
    "Double": "double",
    "NewDecimal": "decimal",
    "Bit": "bit",
    "Year": "year",
    "Date": "date",
    "Datetime": "datetime",
    "Timestamp": "timestamp",
    "Duration": "time",
    "Enum": "enum",
    "Set": "set",
    "JSON": "json",
    "String": "char",
    "Varchar": "varchar",
    "TinyBlob": "tinyblob",
    "Blob": "blob",
    "MediumBlob": "mediumblob",
    "LongBlob": "longblob",
}


def vectors(area: str, folder: str = "storage") -> list[Any]:
    kept = Path(__file__).parent / folder / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    assert rows
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


def known_columns() -> list[Any]:
    # A type that no source here can have (such as VAR_STRING) is nobody's column.
    return [v for v in vectors("storage-column") if v.values[0]["mysql_type"] in NAMES]


def sql_type(given: dict[str, Any]) -> SqlType:
    name, charset = NAMES[given["mysql_type"]], given.get("charset") or ""
    if name.endswith("blob") and charset not in ("", "binary"):
        name = name.replace("blob", "text")
    if name.endswith("char") and charset == "binary":
        name = name.replace("char", "binary")
    scale = given["decimal"] if (given["decimal"] or 0) >= 0 else None
    unsigned = "UnsignedFlag" in (given["flag"] or "")
    return SqlType(name, unsigned=unsigned, length=given["flen"], scale=scale)


@pytest.mark.parametrize(("given", "expected"), known_columns())
def test_column(given: dict[str, Any], expected: dict[str, Any]) -> None:
    flag = given["flag"] or ""
    column = Column(1, "", sql_type(given), nullable="NotNullFlag" not in flag)
    form = column_form(column, in_primary_key="PriKeyFlag" in flag)
    length = form.pop("ColumnLength", None)
    assert length in (None, form.get("ColumnPrecision"))
    assert form == expected["json"]


@pytest.mark.parametrize(("given", "expected"), vectors("storage-checksum"))
def test_checksum(given: dict[str, Any], expected: dict[str, Any]) -> None:
    form = given["schema_file"]
    document = SchemaDocument(
        form["Schema"],
        form["Table"],
        form["TableVersion"],
        form["Query"],
        form["Type"],
        tuple(form["TableColumns"] or ()),
    )
    assert document.checksum == expected["checksum"]
    assert json.loads(document.content()) == form
    if not given.get("use_table_id_as_path"):
        assert document.path == expected["path"]


@pytest.mark.parametrize(("given", "expected"), vectors("storage-path"))
def test_path(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert is_schema_file(given["path"]) is expected["is_schema_file"]


@pytest.mark.parametrize(("given", "expected"), vectors("storage-metadata"))
def test_metadata(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert METADATA == expected["file"]
    assert metadata_content(given["checkpoint_ts"]).decode() == expected["text"]


@pytest.mark.parametrize(("given", "expected"), vectors("storage-uri", "spec"))
def test_uri(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """The options of a URI; a scheme that nobody has is refused in our own words."""
    uri = Uri.parse(given["sink_uri"], "sink")
    spec = ChangefeedSpec("feed", Uri.parse("range://127.0.0.1:1", "source"), uri)
    wanted = expected.get("error_contains")
    if wanted is None:
        read_settings(spec)
    elif "unsupported scheme" in wanted:
        with pytest.raises(UnknownName, match=uri.scheme):
            SINKS.load(uri.scheme)
    else:
        with pytest.raises(BadOption, match=re.escape(wanted)):
            read_settings(spec)
