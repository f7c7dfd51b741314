"""Codecs keep what they made for a table; what they write is as if they had not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from encode_cases import chunk, spec, table

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId
from rowferry.flow.encode import layout
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.csv.codec import Csv

WIDE = table(SqlType("int"), SqlType("varchar", length=20), SqlType("double"), SqlType("bit"))
OTHER = replace(WIDE, id=TableId("test", "another"))
SAME_NAME = replace(WIDE, columns=tuple(replace(c, name=f"n{c.name}") for c in WIDE.columns))
LESS = table(SqlType("int"), SqlType("varchar", length=20))


def row(schema: Any, number: int) -> dict[str, Any]:
    values = (number, None if number % 3 == 0 else f"text {number}", number / 7, number % 2)
    return {c.name: v for c, v in zip(schema.columns, values, strict=False)}


def changes(schema: Any, ops: str) -> Rows:
    made = []
    for number, op in enumerate(ops):
        before, after = row(schema, number), row(schema, number + 1)
        made.append(
            {
                "i": (Op.INSERT, None, after),
                "u": (Op.UPDATE, before, after),
                "n": (Op.UPDATE, None, after),  # the source does not tell the old row
                "d": (Op.DELETE, before, None),
            }[op]
        )
    return chunk(schema, *made)


@pytest.mark.parametrize(
    "make",
    [
        lambda: codec_for(Csv, spec()),
        lambda: codec_for(Csv, spec(csv={"include-commit-ts": True, "quote": ""})),
        lambda: codec_for(CanalJson, spec()),
        lambda: codec_for(CanalJson, spec("file:///data?enable-tidb-extension=true")),
        lambda: codec_for(CanalJson, spec(**{"only-output-updated-columns": True})),
    ],
)
def test_the_same_bytes_come_from_memory(make: Callable[[], Any]) -> None:
    codec = make()
    work = [
        (changes(schema, ops), at)
        for ops in ("iii", "uu", "nn", "nu", "d", "iud", "di", "i", "iii")
        for schema in (WIDE, OTHER, SAME_NAME, LESS)
        for at in (5, 1700000000000)
    ]
    for rows, at in work + work[::-1]:
        remembered, fresh = codec.encode_rows(rows, at), make().encode_rows(rows, at)
        assert remembered.values.equals(fresh.values)


@pytest.mark.parametrize(
    "make", [lambda: codec_for(Csv, spec()), lambda: codec_for(CanalJson, spec())]
)
def test_a_table_keeps_one_version_and_one_time(make: Callable[[], Any]) -> None:
    """A server goes on for months: neither versions of a table nor micro-batches may add up."""
    codec = make()
    for version in range(100):
        schema = replace(WIDE, version=version)
        for ops in ("i", "d", "iud"):
            codec.encode_rows(changes(schema, ops), 1700000000000 + version)
    assert len(codec._memory._kept) == 3
    assert {known.version for known, _, _ in codec._memory._kept.values()} == {99}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_REMEMBERED", 3)
    codec = codec_for(Csv, spec())
    schemas = [replace(WIDE, id=TableId("test", f"t{n}")) for n in range(5)]
    for schema in schemas * 2:
        codec.encode_rows(changes(schema, "i"), 1)
        assert len(codec._memory._kept) <= 3
