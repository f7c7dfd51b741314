"""Rows survive being stored: decode(encode(rows)) is rows, and keys sort as their values do."""

from __future__ import annotations

import decimal
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowferry.change.sqltype import KINDS, Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.mysql.type_facts import TYPE_FACTS
from rowferry.refstore.rows.kv_encode import encode_keys, encode_rows

BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SLOW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decimals(column_type: SqlType) -> st.SearchStrategy[str]:
    precision, scale = column_type.size or 10, column_type.fraction_digits
    most = 10**precision - 1
    with decimal.localcontext(prec=100):
        unit = decimal.Decimal(1).scaleb(-scale)

    def text(number: int) -> str:
        with decimal.localcontext(prec=100):
            return format(number * unit, "f")

    least = 0 if column_type.unsigned else -most
    return (st.integers(least, most) | st.sampled_from((least, 0, most))).map(text)


def fraction(digits: int) -> st.SearchStrategy[str]:
    return st.integers(0, 10**digits - 1).map(lambda n: f".{n:0{digits}d}" if digits else "")


def clocks(digits: int) -> st.SearchStrategy[str]:
    return st.tuples(st.times(), fraction(digits)).map(lambda t: f"{t[0]:%H:%M:%S}{t[1]}")


def moments(column_type: SqlType) -> st.SearchStrategy[str]:
    """Dates, with or without a clock; years have four digits."""
    dates = st.dates().map(lambda d: f"{d.year:04d}-{d.month:02d}-{d.day:02d}")
    if column_type.kind is Kind.DATE:
        return dates | st.sampled_from(("0000-00-00", "2020-00-00", "9999-12-31", "2000-02-29"))
    digits = column_type.fraction_digits
    zeros, nines = ("." + c * digits if digits else "" for c in "09")
    if column_type.kind is Kind.TIMESTAMP:
        known = (f"0000-00-00 00:00:00{zeros}", f"1970-01-01 00:00:01{zeros}")
        dates = st.integers(1971, 2037).map(lambda y: f"{y}-06-30")
        known += (f"2038-01-19 03:14:07{nines}",)
    else:
        known = (f"0000-00-00 00:00:00{zeros}", f"9999-12-31 23:59:59{nines}")
    return st.tuples(dates, clocks(digits)).map(" ".join) | st.sampled_from(known)


def durations(column_type: SqlType) -> st.SearchStrategy[str]:
    digits = column_type.fraction_digits
    zeros = "." + "0" * digits if digits else ""

    def text(parts: tuple[int, str]) -> str:
        seconds, rest = parts
        sign = "-" if seconds < 0 else ""
        seconds = abs(seconds)
        return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{rest}"

    known = (f"838:59:59{zeros}", f"-838:59:59{zeros}", f"00:00:00{zeros}", f"-00:00:01{zeros}")
    return st.tuples(st.integers(-3020398, 3020398), fraction(digits)).map(text) | st.sampled_from(
        known
    )


def json_text(value: Any) -> str:
    """The store's text of a document: names in byte order, doubles as MySQL writes them."""
    match value:
        case dict():
            names = sorted(value, key=str.encode)
            return "{" + ", ".join(f"{json_text(n)}: {json_text(value[n])}" for n in names) + "}"
        case list():
            return "[" + ", ".join(map(json_text, value)) + "]"
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        case float():
            return double_text(value)
    return json.dumps(value)


def double_text(value: float) -> str:
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, scale = "".join(map(str, digits)), len(digits) + exponent
    prefix = "-" if sign else ""
    if value and not 1e-15 <= abs(value) < 1e15:
        rest = "." + text[1:] if text[1:] else ""
        return f"{prefix}{text[0]}{rest}e{scale - 1}"
    plain = format(decimal.Decimal(repr(value)), "f")
    return plain if "." in plain else plain + ".0"


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def vector_text(numbers: list[float]) -> str:
    def plain(number: float) -> str:
        text = format(decimal.Decimal(str(np.float32(number))), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text

    return f"[{','.join(map(plain, numbers))}]"


def values_of(column_type: SqlType) -> st.SearchStrategy[Any]:
    """Every value that the column can hold, its limits often."""
    match column_type.kind:
        case Kind.INTEGER:
            bits = BITS[column_type.name]
            low, high = (
                (0, 2**bits - 1)
                if column_type.unsigned
                else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            )
            return st.integers(low, high) | st.sampled_from((low, 0, high))
        case Kind.FLOAT | Kind.DOUBLE:
            width = 32 if column_type.kind is Kind.FLOAT else 64
            # There is no negative zero in the store.
            return st.floats(width=width, allow_nan=False, allow_infinity=False).map(
                lambda x: x + 0.0
            )
        case Kind.DECIMAL:
            return decimals(column_type)
        case Kind.BIT:
            most = 2 ** (column_type.size or 1) - 1
            return st.integers(0, most) | st.sampled_from((0, most))
        case Kind.ENUM:
            return st.integers(0, len(column_type.elements))
        case Kind.SET:
            return st.integers(0, 2 ** len(column_type.elements) - 1)
        case Kind.YEAR:
            return st.sampled_from((0, 1901, 2155)) | st.integers(1901, 2155)
        case Kind.TEXT:
            if column_type.name == "tinytext":
                return TEXT.filter(lambda text: len(text.encode()) <= 255)
            return TEXT
        case Kind.BINARY:
            return st.binary(max_size=40)
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return moments(column_type)
        case Kind.TIME:
            return durations(column_type)
        case Kind.JSON:
            return DOCUMENTS.map(json_text)
        case Kind.VECTOR:
            numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
            return st.lists(numbers.map(lambda x: x + 0.0), max_size=5).map(vector_text)


def types() -> list[SqlType]:
    found = []
    for name in TYPE_FACTS:
        kind = KINDS[name]
        match kind:
            case Kind.INTEGER:
                found += [SqlType(name), SqlType(name, unsigned=True)]
            case Kind.DECIMAL:
                sizes = ((65, 30), (65, 0), (30, 30), (10, 0), (1, 0), (1, 1), (18, 9), (20, 1))
                found += [SqlType(name, length=p, scale=s) for p, s in sizes]
                found.append(SqlType(name, length=10, scale=2, unsigned=True))
            case Kind.BIT:
                found += [SqlType(name), SqlType(name, length=64)]
            case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
                found += [SqlType(name), SqlType(name, scale=3), SqlType(name, scale=6)]
            case Kind.ENUM:
                found.append(SqlType(name, elements=tuple(f"e{i}" for i in range(300))))
            case Kind.SET:
                found.append(SqlType(name, elements=tuple(f"e{i}" for i in range(64))))
            case _:
                found.append(SqlType(name))
    return found


TYPES = types()
KEY_TYPES = [t for t in TYPES if t.kind not in (Kind.JSON, Kind.VECTOR)]


def table(*columns: SqlType, key: tuple[str, ...] = (), first_id: int = 1) -> TableSchema:
    made = tuple(
        Column(first_id + i, f"c{i}", t, f"c{i}" not in key) for i, t in enumerate(columns)
    )
    index = (Index(1, "PRIMARY", key, unique=True, primary=True),) if key else ()
    return TableSchema(TableId("d", "t"), 5, 1, made, index)


def round_trip(definition: TableSchema, image: pa.StructArray) -> pa.StructArray:
    row_ids = None if definition.primary_key else pa.array(range(len(image)), pa.int64())
    keys, values = encode_rows(definition, 5, image, row_ids)
    keys.validate(full=True)
    values.validate(full=True)
    places, raw = [], b""
    for array in (keys, values):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)
        places += [ends[:-1] + len(raw), np.diff(ends)]
        raw += bytes(data)
    found = RowDecoder(definition).decode(np.frombuffer(raw, np.uint8), *places)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("column_type", TYPES, ids=lambda t: t.sql[:24])
@SLOW
@given(data=st.data())
def test_every_type_round_trips(column_type: SqlType, data: st.DataObject) -> None:
    definition = table(column_type, first_id=data.draw(st.sampled_from((1, 256))))
    rows = data.draw(st.lists(st.none() | values_of(column_type), max_size=12))
    image = pa.array([{"c0": v} for v in rows], definition.image)
    assert round_trip(definition, image).to_pylist() == image.to_pylist()


@pytest.mark.parametrize("column_type", KEY_TYPES, ids=lambda t: t.sql[:24])
@SLOW
@given(data=st.data())
def test_every_key_type_round_trips(column_type: SqlType, data: st.DataObject) -> None:
    definition = table(column_type, SqlType("int"), key=("c0",))
    rows = data.draw(st.lists(values_of(column_type), max_size=12))
    image = pa.array([{"c0": v, "c1": i} for i, v in enumerate(rows)], definition.image)
    assert round_trip(definition, image).to_pylist() == image.to_pylist()
    keys = encode_keys(definition, 5, image)
    _, offsets, raw = keys.buffers()
    ends = np.frombuffer(offsets, np.int64)
    found = RowDecoder(definition).decode_keys(
        np.frombuffer(raw, np.uint8), ends[:-1], np.diff(ends)
    )
    assert found.to_pylist() == [{"c0": v} for v in image.field(0).to_pylist()]


def rank(column_type: SqlType, value: Any) -> Any:
    """What a value sorts by."""
    match column_type.kind:
        case Kind.DECIMAL:
            return decimal.Decimal(value)
        case Kind.TEXT:
            return value.encode()
        case Kind.TIME:
            hours, minutes, seconds = value.lstrip("-").split(":")
            size = decimal.Decimal(seconds) + int(minutes) * 60 + int(hours) * 3600
            return -size if value.startswith("-") else size
    return value


@pytest.mark.parametrize("column_type", KEY_TYPES, ids=lambda t: t.sql[:24])
@SLOW
@given(data=st.data())
def test_keys_sort_as_their_values(column_type: SqlType, data: st.DataObject) -> None:
    # With a second column the handle is never a plain integer, where unsigned ones keep their bits.
    definition = table(column_type, SqlType("int"), key=("c0", "c1"))
    rows = data.draw(
        st.lists(st.tuples(values_of(column_type), st.integers(-(2**31), 2**31 - 1)), max_size=8)
    )
    image = pa.array([{"c0": v, "c1": n} for v, n in rows], definition.image)
    keys = encode_keys(definition, 5, image).to_pylist()
    exact = [(rank(column_type, row["c0"]), row["c1"]) for row in image.to_pylist()]
    by_value = sorted(range(len(rows)), key=lambda i: exact[i])
    assert sorted(keys) == [keys[i] for i in by_value]


@SLOW
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integer_handles_sort_as_their_values(numbers: list[int]) -> None:
    definition = table(SqlType("bigint"), key=("c0",))
    image = pa.array([{"c0": n} for n in numbers], definition.image)
    keys = encode_keys(definition, 5, image).to_pylist()
    by_value = sorted(range(len(numbers)), key=lambda i: numbers[i])
    assert sorted(keys) == [keys[i] for i in by_value]


@SLOW
@given(data=st.data())
def test_rows_of_all_types_round_trip(data: st.DataObject) -> None:
    definition = table(*TYPES, key=("c3", "c1"))
    row = st.fixed_dictionaries(
        {
            c.name: values_of(c.type) if not c.nullable else st.none() | values_of(c.type)
            for c in definition.columns
        }
    )
    image = pa.array(data.draw(st.lists(row, max_size=3)), definition.image)
    assert round_trip(definition, image).to_pylist() == image.to_pylist()


def test_slices_encode_as_their_rows() -> None:
    definition = table(SqlType("int"), SqlType("varchar"), SqlType("date"), SqlType("double"))
    rows = [
        {"c0": i, "c1": f"text {i}" if i % 3 else None, "c2": f"2020-01-{i + 1:02d}", "c3": i / 3}
        for i in range(20)
    ]
    image = pa.array(rows, definition.image)[5:12]
    assert round_trip(definition, image).to_pylist() == rows[5:12]
