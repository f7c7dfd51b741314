"""Partitions of rows are those that pyiceberg's own transforms give, value by value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from rowferry.errors import BadLayout
from rowferry.flow.sink.lake.partitioning import FileLayout, shares

DAYS = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1583, 10, 15), dt.date(2024, 2, 29)]
TIMES = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 1, 2, 3, 4),
    dt.datetime(1000, 1, 1, 0, 30),
]
VALUES: dict[str, tuple[pa.DataType, IcebergType, list[Any]]] = {
    "long": (pa.int64(), LongType(), [0, -1, 34, 2**62, -(2**62), None]),
    "decimal": (
        pa.decimal128(38, 2),
        DecimalType(38, 2),
        [Decimal("14.20"), Decimal("-0.01"), Decimal("1.28"), Decimal(10) ** 35, None, Decimal(0)],
    ),
    "string": (pa.string(), StringType(), ["iceberg", "", "ä€😀x", None, "abcd"]),
    "binary": (pa.binary(), BinaryType(), [b"", b"\x00\x01\x02\x03", None, b"abcde"]),
    "date": (pa.date32(), DateType(), [*DAYS, None]),
    "timestamp_ntz": (pa.timestamp("us"), TimestampType(), [*TIMES, None]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        TimestamptzType(),
        [t.replace(tzinfo=dt.UTC) for t in TIMES] + [None],
    ),
}
EVERY = [
    (kind, text)
    for kind in VALUES
    for text in ("c", "year(c)", "month(c)", "day(c)", "hour(c)", "bucket(16, c)", "truncate(3, c)")
]


def internal(value: Any) -> Any:
    """A value as Iceberg's transforms take it."""
    if isinstance(value, dt.datetime):
        delta = value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)
        return (delta.days * 86400 + delta.seconds) * 10**6 + delta.microseconds
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


@pytest.mark.parametrize(("kind", "text"), EVERY)
def test_values_are_those_of_iceberg(kind: str, text: str) -> None:
    arrow, iceberg, values = VALUES[kind]
    layout = FileLayout.read([text])
    name = layout.fields[0].transform
    try:
        layout.check({"c": f"{kind}(9,2)" if kind == "decimal" else kind}, "t")
    except BadLayout as err:
        allowed = name == "identity" or (name == "truncate" and kind in ("decimal", "binary"))
        assert allowed or not parse_transform(_spelled(layout)).can_transform(iceberg), err
        return
    judge = parse_transform(_spelled(layout)).transform(iceberg)
    rows = pa.table({"x": pa.array(values + values[:2], arrow)})  # behind an offset, too
    for part in (rows, rows.slice(1)):
        column = part.column("x").to_pylist()
        seen: dict[int, Any] = {}
        for share in shares(part, layout, {"c": "x"}):
            assert list(share.places) == sorted(share.places)
            seen |= dict.fromkeys(share.places.tolist(), share.values[0])
        expected = [judge(internal(value)) for value in column]
        plain = [f"{e:f}" if isinstance(e, Decimal) else e for e in expected]
        assert [seen[place] for place in range(len(column))] == plain


def _spelled(layout: FileLayout) -> str:
    field = layout.fields[0]
    return f"{field.transform}[{field.size}]" if field.size else field.transform


def test_several_fields_make_one_partition_each() -> None:
    rows = pa.table({"a": [1, 2, 1, None, 1], "b": ["x", "x", "y", "x", "x"]})
    made = {
        s.values: s.places.tolist()
        for s in shares(rows, FileLayout.read(["a", "b"]), {"a": "a", "b": "b"})
    }
    assert made == {(1, "x"): [0, 4], (2, "x"): [1], (1, "y"): [2], (None, "x"): [3]}


@pytest.mark.parametrize(
    "text",
    ["", "week(c)", "bucket(c)", "bucket(0, c)", "day(3, c)", "a, b", "truncate(x, c)", "day(c"],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadLayout, match="bucket"):
        FileLayout.read([text], "sink.lake.layouts[0].partition-by")


def test_texts_are_read_back() -> None:
    texts = ["region", "day(created at)", "bucket(16, id)", "truncate(3, name)"]
    assert FileLayout.read(texts).texts == texts
    assert FileLayout.read([" DAY( `x` ) "]).texts == ["day(x)"]
    with pytest.raises(BadLayout, match="twice"):
        FileLayout.read(["a", "A"])
