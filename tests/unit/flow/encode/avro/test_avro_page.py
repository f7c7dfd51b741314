"""The page about Avro: its example runs, and its tables are those of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from page_examples import ROOT, all_blocks, table_rows
from rowferry.change.sqltype import SqlType
from rowferry.flow.encode.avro.options import AvroOptions, RecordOptions, RegistryOptions
from rowferry.flow.encode.avro.schema import Modes, avro_type
from rowferry.mysql.type_facts import TYPE_FACTS
from rowferry.spec.option import shown

PAGE = (ROOT / "docs" / "avro.md").read_text()
MAPPING = table_rows(PAGE, "column type|Avro type|`tidb_type`")
OPTIONS = table_rows(PAGE, "key|default|meaning")


def test_the_example_runs() -> None:
    (block,) = (b for b in all_blocks("python") if b.page == "avro.md")
    exec(compile(block.text, str(block), "exec"), {})


@pytest.mark.parametrize("row", MAPPING, ids=lambda row: row[2])
def test_the_mapping_is_the_codes(row: list[str]) -> None:
    columns, avro, tidb = row
    elements = ("a",) if columns in ("ENUM", "SET") else ()
    for name in columns.lower().replace("bool", "tinyint").split(", "):
        base, _, sign = name.partition(" ")
        kind = SqlType(base, unsigned=sign == "unsigned", elements=elements)
        words = re.findall(r"`(\w+)`", avro)
        found = avro_type(kind, Modes())
        assert found["type"] == words[0]
        assert found["connect.parameters"]["tidb_type"] == tidb.strip("`")
        assert set(found["connect.parameters"]) == {"tidb_type"} | (
            {*words[1:]} & {"length", "allowed"}
        )
        assert found.get("logicalType") == ("decimal" if "logical" in avro else None)
        assert (avro_type(kind, Modes(True, True))["type"] == "string") == ("`string`" in avro)
        single = avro_type(kind, Modes(single_float=True))["type"]
        assert (single == "float") == ("`float`" in avro)


def test_the_mapping_knows_every_type() -> None:
    told = {name.split(" ")[0] for row in MAPPING for name in row[0].lower().split(", ")}
    assert told - {"bool"} == set(TYPE_FACTS)


def test_every_option_is_on_the_page() -> None:
    told: dict[str, Any] = {}
    for keys, default, _ in OPTIONS:
        told |= dict.fromkeys(re.findall(r"`([\w-]+)`", keys), default.strip("`"))
    options = {
        o.key: o
        for t in (RecordOptions.TABLE, RegistryOptions.TABLE, AvroOptions.TABLE)
        for o in t.options
    }
    assert set(told) == set(options) - {"glue-schema-registry-config"}
    for key, default in told.items():
        assert default in (shown(options[key].default) or "none", "the system's"), key
        assert options[key].uri
