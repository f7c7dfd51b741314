"""Chunks of tables of the same layout, encoded together: the same bytes as each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from encode_cases import chunk, spec, table, text

from codec_kit import codec_for
from rowferry.change.chunk import Cut, Op, Rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import EncodeError
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.csv.codec import Csv
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.flow.encode.same_layout import encoded_rows

SHAPE = table(
    SqlType("int"),
    SqlType("varchar", length=20),
    SqlType("double"),
    SqlType("enum", elements=("x", "y")),
    SqlType("varbinary", length=9),
    SqlType("datetime"),
)
AT_MS = 1_700_000_000_000
CODECS: list[Callable[[], Any]] = [
    lambda: codec_for(Csv, spec()),
    lambda: codec_for(
        Csv, spec(csv={"include-commit-ts": True, "output-old-value": True, "quote": ""})
    ),
    lambda: codec_for(Csv, spec(csv={"delimiter": "||", "quote": "'"})),
    lambda: codec_for(CanalJson, spec("file:///data?enable-tidb-extension=true")),
    lambda: codec_for(CanalJson, spec(**{"only-output-updated-columns": True})),
    lambda: codec_for(
        OpenProtocol, spec("kafka://broker/topic?protocol=open-protocol")
    ),  # joins nothing
]


def made(name: str) -> TableSchema:
    return replace(SHAPE, id=TableId("te\"st'|", name), target=None)


def row(number: int) -> dict[str, Any]:
    values = (
        number,
        None if number % 3 == 0 else f"text, \"'||\\ {number}",
        number / 7,
        1 + number % 2,
        b"\xff\0" * (number % 4),
        "2024-01-02 03:04:05",
    )
    return {c.name: v for c, v in zip(SHAPE.columns, values, strict=True)}


def parts_of(*wanted: tuple[TableSchema, str]) -> list[tuple[int, Rows]]:
    """Rows of tables in one batch: i, u and d for each."""
    ops = "".join(ops for _, ops in wanted)
    kinds = {
        "i": lambda n: (Op.INSERT, None, row(n)),
        "u": lambda n: (Op.UPDATE, row(n), row(n + 1)),
        "d": lambda n: (Op.DELETE, row(n), None),
    }
    whole = chunk(SHAPE, *(kinds[op](n) for n, op in enumerate(ops))).batch
    found, first = [], 0
    for place, (schema, own) in enumerate(wanted):
        batch = whole.slice(first, len(own))
        found.append((place, Rows(schema, batch, cut=Cut(whole, first))))
        first += len(own)
    return found


@pytest.mark.parametrize("make", CODECS)
def test_the_bytes_are_those_of_each_chunk_by_itself(make: Callable[[], Any]) -> None:
    chunks = parts_of(
        (made("one"), "iiu"), (made("a much longer name"), "d"), (made("one"), "iud"), (SHAPE, "i")
    )
    alone = make()
    wanted = [(place, text(alone.encode_rows(rows, AT_MS))) for place, rows in chunks]
    codec = make()
    for _ in range(2):  # the second time from the codec's memory
        found = list(encoded_rows(codec, chunks, AT_MS))
        assert [(place, text(one)) for place, one in found] == wanted
        assert [one.row_count for _, one in found] == [len(rows) for _, rows in chunks]


@pytest.mark.parametrize("make", CODECS[:5])
def test_neighbours_take_one_call(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make()
    calls: list[int] = []
    real = codec.encode_same_layout

    def counted(whole: Rows, parts: list[Rows], at_ms: int) -> Any:
        calls.append(len(parts))
        return real(whole, parts, at_ms)

    monkeypatch.setattr(codec, "encode_same_layout", counted)
    chunks = parts_of(*((made(f"t{n}"), "iu") for n in range(5)))
    list(encoded_rows(codec, chunks, AT_MS))
    assert calls == [5]
    # A chunk that a filter replaced is no part of the batch any more, and one that was dropped
    # leaves a gap.
    place, changed = chunks[1]
    chunks[1] = place, Rows(changed.table, changed.batch.slice(0, 1))
    calls.clear()
    found = list(encoded_rows(codec, chunks, AT_MS))
    assert calls == [3]
    assert [one.row_count for _, one in found] == [2, 1, 2, 2, 2]
    calls.clear()
    found = list(encoded_rows(codec, [c for c in chunks if c[0] not in (1, 3)], AT_MS))
    assert calls == []
    assert [place for place, _ in found] == [0, 2, 4]


def test_an_error_names_the_table_of_the_row() -> None:
    whole = chunk(SHAPE, *((Op.INSERT, None, row(n)) for n in range(4))).batch
    op = pa.array([0, 0, 2, 0], pa.int8())  # the third row lacks the image that its op needs
    broken = whole.set_column(0, "op", op)
    chunks = [(n, Rows(made(f"t{n}"), broken.slice(n, 1), cut=Cut(broken, n))) for n in range(4)]
    with pytest.raises(EncodeError, match=r"t2: row 0 of a chunk"):
        list(encoded_rows(codec_for(Csv, spec()), chunks, AT_MS))
