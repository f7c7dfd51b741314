"""open-protocol, byte for byte: open_protocol/<case>/{change.json, messages.json, ORIGIN}.

`messages.json` has a list for each message: its rows as pairs of key and value text.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from change_file import rows_of, spec_of
from vector_cases import cases_of

from codec_kit import codec_for
from rowferry.change.chunk import Rows
from rowferry.change.plan import Topic
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.mysql.ddl.statement import parse_create

CASES = cases_of("open-protocol")


@pytest.fixture(params=CASES, ids=lambda p: p.name)
def case(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def load(case: Path) -> tuple[OpenProtocol, Rows, Topic]:
    change = json.loads((case / "change.json").read_text("utf-8"))
    codec = codec_for(
        OpenProtocol, spec_of(change.get("sink", "kafka://broker/topic"), change.get("config"))
    )
    rows = rows_of(parse_create(change["ddl"], "test"), change["changes"])
    return codec, rows, Topic("topic", 1, change.get("limit", 1 << 20))


def in_frames(texts: list[str]) -> bytes:
    return b"".join(struct.pack(">Q", len(t.encode())) + t.encode() for t in texts)


def wanted(case: Path) -> list[tuple[bytes, bytes]]:
    messages: list[list[list[str]]] = json.loads((case / "messages.json").read_text("utf-8"))
    return [
        (struct.pack(">Q", 1) + in_frames([k for k, _ in m]), in_frames([v for _, v in m]))
        for m in messages
    ]


def test_bytes(case: Path) -> None:
    codec, rows, topic = load(case)
    found = codec.batch(codec.encode_rows(rows, 0, topic), topic)
    assert found.keys is not None
    pairs = list(zip(found.keys.to_pylist(), found.values.to_pylist(), strict=True))
    assert pairs == wanted(case)


def test_values_come_back(case: Path) -> None:
    codec, rows, _ = load(case)
    found = [c for pair in wanted(case) for c in codec.decode_message(*pair)]
    assert all(isinstance(c, Rows) for c in found)
    chunks: list[Any] = found
    assert [int(o) for c in chunks for o in c.op] == rows.op.tolist()
    for which in ("before", "after"):
        images = [i for c in chunks for i in getattr(c, which).to_pylist()]
        for image, whole in zip(images, getattr(rows, which).to_pylist(), strict=True):
            assert image is None if whole is None else image.items() <= whole.items()
