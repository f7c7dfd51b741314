"""Protocols of bytes: <protocol>/<case>/{change.json, *.bin, ORIGIN}; by the registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_with_bytes

from codec_kit import codec_for
from rowferry.change.chunk import Rows
from rowferry.mysql.ddl.statement import parse_create
from rowferry.registry import CODECS

CASES = cases_with_bytes()


@pytest.fixture(params=CASES, ids=lambda p: f"{p.parent.name}-{p.name}")
def case(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def load(case: Path) -> tuple[Any, Rows, dict[str, Any]]:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_for(
        CODECS.load(case.parent.name.replace("_", "-")),
        spec_of(change.get("sink", "file:///data"), change.get("config")),
    )
    return codec, rows_of(parse_create(change["ddl"], "test"), change["changes"]), change


def test_bytes(case: Path) -> None:
    codec, rows, change = load(case)
    encoded = codec.encode_rows(rows, change.get("planned_at_ms", 0))
    assert bytes(encoded.value_bytes()) == (case / "value.bin").read_bytes()
    assert len(encoded.values) == len(rows)


def test_file_head(case: Path) -> None:
    codec, rows, _ = load(case)
    head = case / "head.bin"
    assert codec.file_head(rows.table) == (head.read_bytes() if head.exists() else b"")


def test_reading_and_writing_again_gives_the_same_bytes(case: Path) -> None:
    codec, rows, change = load(case)
    content = (case / "value.bin").read_bytes()
    again = b"".join(
        bytes(codec.encode_rows(part, change.get("planned_at_ms", 0)).value_bytes())
        for part in codec.decode(codec.file_head(rows.table) + content, rows.table)
    )
    assert again == content


def test_values_come_back(case: Path) -> None:
    codec, rows, _ = load(case)
    parts = list(codec.decode((case / "value.bin").read_bytes(), rows.table))
    written = [c.name for c in rows.table.visible]
    found = pa.concat_arrays([p.after for p in parts if p.after.type.num_fields == len(written)])
    wanted = [{k: v for k, v in a.items() if k in written} for a in rows.after.to_pylist() if a]
    assert [a for a in found.to_pylist() if a] == wanted
