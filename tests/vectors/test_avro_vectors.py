"""avro, byte for byte: our own cases, and published expectations where they are at hand.

Ours are avro/<case>/{change.json, ORIGIN}: a table, its changes, and each message in hexadecimal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from change_file import rows_of, spec_of
from outside import cases
from vector_cases import cases_of

from codec_kit import codec_for
from rowferry.change.chunk import Rows
from rowferry.change.plan import Topic
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.schema import (
    Modes,
    avro_name,
    field_of,
    json_text,
    key_schema,
    namespace_of,
    value_schema,
)
from rowferry.flow.encode.contract import Encoded
from rowferry.mysql.ddl.statement import parse_create
from rowferry.testing.registry_stub import RegistryStub, registry_stub

CASES = cases_of("avro")
TOPIC = Topic("topic", 1, 1 << 20)


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryStub]:
    with registry_stub() as stub:
        yield stub


def by_id(area: str) -> Any:
    """Parametrize over an area; without its vectors there is no test at all."""
    found = cases(area)
    if not found:
        return lambda _test: None
    return pytest.mark.parametrize("case", found, ids=lambda c: c["id"])


def codec_of(registry: RegistryStub, key_id: int, value_id: int, query: str = "") -> Avro:
    """A codec whose registry gives these ids."""
    address = f"schema-registry={registry.url}"
    codec = codec_for(
        Avro, spec_of(f"kafka://broker/topic?{address}{'&' + query if query else ''}")
    )
    ids = {"topic-key": key_id, "topic-value": value_id}

    def register(subject: str, schema: str) -> int:
        registry.schemas[ids[subject]] = schema
        return ids[subject]

    codec._registry.register = register  # type: ignore[method-assign]
    return codec


def hex_pairs(encoded: Encoded) -> list[tuple[str, str | None]]:
    assert encoded.keys is not None
    values = (v if v is None else v.hex() for v in encoded.values.to_pylist())
    return list(zip((k.hex() for k in encoded.keys.to_pylist()), values, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_our_messages(case: Path, registry: RegistryStub) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_of(registry, change["key_id"], change["value_id"], change.get("query", ""))
    rows = rows_of(parse_create(change["ddl"]), change["changes"])
    found = hex_pairs(codec.encode_rows(rows, 0, TOPIC))
    wanted = [tuple(m and m.replace(" ", "") for m in pair) for pair in change["messages"]]
    assert found == wanted


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_our_messages_come_back(case: Path, registry: RegistryStub) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_of(registry, change["key_id"], change["value_id"], change.get("query", ""))
    rows = rows_of(parse_create(change["ddl"]), change["changes"])
    codec.encode_rows(rows, 0, TOPIC)  # registers the schemas
    found = []
    for pair in change["messages"]:
        (part,) = codec.decode_message(*(m and bytes.fromhex(m) for m in pair))
        assert isinstance(part, Rows)
        found += part.after.to_pylist()
    assert found == rows.after.to_pylist()


# --- from outside ---------------------------------------------------------------------------------


@by_id("avro-name")
def test_avro_name(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    if "name" in expected:
        assert avro_name(given["name"]) == expected["name"]
    else:
        assert namespace_of(given["schema"], given["keyspace"]) == expected["namespace"]


@by_id("avro-type")
def test_avro_type(case: dict[str, Any]) -> None:
    null = "" if case["input"]["nullable"] else "not null"
    table = parse_create(f"create table test.t (c {case['input']['column_type']} {null})")
    wanted = case["expected"]["field"]
    assert json_text(field_of(table.columns[0], Modes(single_float=True))) == wanted
    doubles = wanted.replace('"type":"float"', '"type":"double"')
    assert json_text(field_of(table.columns[0], Modes())) == doubles


@by_id("avro-schema")
def test_avro_schema(case: dict[str, Any]) -> None:
    """One of the two has the key's columns alone: it is the key schema."""
    table = parse_create(case["input"]["ddl"])
    expected = case["expected"]["schema"]
    is_key = len(json.loads(expected)["fields"]) < len(table.columns)
    found = key_schema(table, Modes()) if is_key else value_schema(table, Modes(), False)
    assert found == expected


@by_id("avro-binary")
def test_avro_binary(case: dict[str, Any], registry: RegistryStub) -> None:
    given, expected = case["input"], case["expected"]
    number = given["schema_id"]
    codec = codec_of(registry, number, number)
    if "ddl" in given:
        change = {"op": "insert", "commit_ts": 1, "after": given["row"]}
        rows = rows_of(parse_create(given["ddl"]), [change])
        wanted = (expected["key_hex"], expected["value_hex"])
    else:  # one column, which has a default and is the key
        ddl = "create table testdb.avroenvelope (id int not null default 0 primary key)"
        change = {"op": "insert", "commit_ts": 1, "after": list(given["value"].values())}
        rows = rows_of(replace(parse_create(ddl), version=2), [change])
        wanted = (expected["hex"], expected["hex"])
    assert hex_pairs(codec.encode_rows(rows, 0, TOPIC)) == [wanted]
