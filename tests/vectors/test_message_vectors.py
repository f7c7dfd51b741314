"""Protocols of messages: <protocol>/<case>/{change.json, messages.json, ORIGIN}.

`messages.json` has an object for each change: `key_hex` and `value_hex` are exact bytes, a text in
`value` exact text, and anything else in `key` and `value` is JSON whose spaces do not count. Where
there is a `schemas.json`, it has the Avro schemas of keys and values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_of

from codec_kit import codec_for
from rowferry.flow.encode.debezium_avro.codec import DebeziumAvro
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS

CASES = [
    case for name in ("canal", "debezium", "debezium-avro", "simple") for case in cases_of(name)
]


def shown(wanted: Any, found: bytes | None) -> Any:
    """A message's part in the form that the expectation has."""
    if isinstance(wanted, str) or found is None:
        return found and found.decode()
    return json.loads(found)


@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_messages(case: Path) -> None:
    change = json.loads((case / "change.json").read_text("utf-8"))
    spec = spec_of("kafka://broker/topic", change.get("config"))
    codec = codec_for(CODECS.load(case.parent.name.replace("_", "-")), spec)
    table = parse_create(change["ddl"], "test")
    rows = rows_of(table, change["changes"])
    if (case / "schemas.json").exists():
        assert isinstance(codec, DebeziumAvro)
        key, of_values = codec.schemas(table)
        assert {"key": key, "value": of_values} == json.loads((case / "schemas.json").read_text())
    encoded = codec.encode_rows(rows, change.get("planned_at_ms", 0))
    messages = json.loads((case / "messages.json").read_text("utf-8"))
    assert len(encoded.values) == len(messages)
    for place, wanted in enumerate(messages):
        value = encoded.values[place].as_py()
        if "key_hex" in wanted:
            assert encoded.keys is not None
            assert encoded.keys[place].as_py().hex() == wanted["key_hex"]
        if "value_hex" in wanted:
            assert value.hex() == wanted["value_hex"]
            continue
        assert shown(wanted["value"], value) == wanted["value"]
        if "key" in wanted:
            assert encoded.keys is not None
            assert shown(wanted["key"], encoded.keys[place].as_py()) == wanted["key"]
