"""What the store refuses to encode, and with which words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import StoreError
from rowferry.refstore.rows.kv_encode import encode_keys, encode_rows

ID = Column(1, "id", SqlType("int"), False)
PRIMARY = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
NAMES = ("a", "b")


def table(*columns: Column) -> TableSchema:
    return TableSchema(TableId("d", "t"), 1, 1, (ID, *columns), (PRIMARY,))


def refused(column_type: SqlType, value: object) -> str:
    """Encode a row that fits and one that does not; return what was said."""
    definition = table(Column(2, "v", column_type))
    rows = [{"id": 1, "v": None}, {"id": 2, "v": value}]
    with pytest.raises(StoreError) as caught:
        encode_rows(definition, 1, pa.array(rows, definition.image))
    return caught.value.words


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        (SqlType("tinyint"), 128),
        (SqlType("tinyint"), -129),
        (SqlType("tinyint", unsigned=True), 256),
        (SqlType("mediumint"), 1 << 23),
        (SqlType("int"), -(1 << 31) - 1),
        (SqlType("int", unsigned=True), 1 << 32),
        (SqlType("year"), 1900),
        (SqlType("year"), 2156),
        (SqlType("bit"), 2),
        (SqlType("bit", length=9), 512),
        (SqlType("enum", elements=NAMES), 3),
        (SqlType("set", elements=NAMES), 4),
        (SqlType("float", unsigned=True), -1.0),
        (SqlType("double"), float("inf")),
        (SqlType("double"), float("nan")),
        (SqlType("decimal", length=4, scale=2), "100.00"),
        (SqlType("decimal", length=4, scale=2), "1.001"),
        (SqlType("decimal", length=4, scale=2), "1e1"),
        (SqlType("decimal", length=4, scale=2), "1."),
        (SqlType("decimal", length=4, scale=2), ".5"),
        (SqlType("decimal", length=4, scale=2), ""),
        (SqlType("decimal", length=4, scale=2), "-"),
        (SqlType("decimal", length=4, scale=2), "1.0.0"),
        (SqlType("decimal", length=4, scale=2, unsigned=True), "-0.01"),
        (SqlType("date"), "2020-13-01"),
        (SqlType("date"), "2021-02-29"),
        (SqlType("date"), "1900-02-29"),
        (SqlType("date"), "2020-04-31"),
        (SqlType("date"), "2020-1-1"),
        (SqlType("date"), "20-01-01"),
        (SqlType("date"), "2020-01-01 00:00:00"),
        (SqlType("date"), "today"),
        (SqlType("date"), ""),
        (SqlType("datetime"), "2020-01-01T00:00:00"),
        (SqlType("datetime"), "2020-01-01 24:00:00"),
        (SqlType("datetime"), "2020-01-01 00:60:00"),
        (SqlType("datetime"), "2020-01-01 00:00:60"),
        (SqlType("datetime"), "2020-01-01 00:00:00.1"),
        (SqlType("datetime", scale=3), "2020-01-01 00:00:00.1234"),
        (SqlType("datetime", scale=3), "2020-01-01 00:00:00."),
        (SqlType("timestamp"), "1970-01-01 00:00:00"),
        (SqlType("timestamp"), "2038-01-19 03:14:08"),
        (SqlType("time"), "838:59:60"),
        (SqlType("time"), "839:00:00"),
        (SqlType("time", scale=1), "-838:59:59.1"),
        (SqlType("time"), "1:00:00"),
        (SqlType("time"), "00:00"),
        (SqlType("time"), "-"),
        (SqlType("char", length=2), "abc"),
        (SqlType("varchar", length=2), "äöü"),
        (SqlType("tinytext"), "x" * 256),
        (SqlType("binary", length=2), b"abc"),
        (SqlType("tinyblob"), b"x" * 256),
        (SqlType("json"), "{"),
        (SqlType("json"), "NaN"),
        (SqlType("json"), "[" * 101 + "]" * 101),
        (SqlType("json"), "1" + "0" * 400),
        (SqlType("vector"), "[1,"),
        (SqlType("vector"), "1"),
        (SqlType("vector"), '["1"]'),
        (SqlType("vector"), "[true]"),
        (SqlType("vector"), "[1e39]"),
        (SqlType("vector", length=3), "[1,2]"),
    ],
)
def test_value_that_does_not_fit(column_type: SqlType, value: object) -> None:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    assert refused(column_type, value) == f"d.t: column 'v': {shown} is no {column_type.sql}"


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        (SqlType("varchar", length=3), "äöü"),
        (SqlType("datetime", scale=3), "2020-01-01 00:00:00"),
        (SqlType("datetime", scale=3), "2020-01-01"),
        (SqlType("decimal", length=4, scale=2), "0012.5"),
        (SqlType("decimal", length=4, scale=2), "1.500"),
        (SqlType("decimal", length=4, scale=2, unsigned=True), "-0.00"),
        (SqlType("json"), "[" * 100 + "]" * 100),
    ],
)
def test_value_that_just_fits(column_type: SqlType, value: object) -> None:
    definition = table(Column(2, "v", column_type))
    encode_rows(definition, 1, pa.array([{"id": 1, "v": value}], definition.image))


def test_types_that_cannot_be_cast() -> None:
    definition = table(Column(2, "v", SqlType("int", unsigned=True)))
    image = pa.array([{"id": 1, "v": -1}])
    with pytest.raises(StoreError, match=r"column 'v' \(int unsigned\)"):
        encode_rows(definition, 1, image)


def test_null_where_none_may_be() -> None:
    definition = table(Column(2, "v", SqlType("int"), nullable=False))
    with pytest.raises(StoreError, match="'v' is NOT NULL"):
        encode_rows(definition, 1, pa.array([{"id": 1, "v": None}], definition.image))
    with pytest.raises(StoreError, match="'id' is NOT NULL"):
        encode_keys(definition, 1, pa.array([{"id": None}], pa.struct({"id": pa.int64()})))
    with pytest.raises(StoreError, match="a row is null"):
        encode_rows(definition, 1, pa.array([None], definition.image))


def test_key_column_declared_nullable_is_refused_when_null() -> None:
    loose = TableSchema(TableId("d", "t"), 1, 1, (Column(1, "id", SqlType("int")),), (PRIMARY,))
    with pytest.raises(StoreError, match="'id' of the key is NULL"):
        encode_rows(loose, 1, pa.array([{"id": None}], loose.image))


def test_missing_column() -> None:
    definition = table(Column(2, "v", SqlType("int")))
    image = pa.array([{"id": 1}], pa.struct({"id": pa.int64()}))
    with pytest.raises(StoreError, match="column 'v' is missing"):
        encode_rows(definition, 1, image)
    assert len(encode_keys(definition, 1, image)) == 1


def test_virtual_columns_are_not_stored() -> None:
    definition = table(Column(2, "v", SqlType("int"), generated="virtual"))
    image = pa.array([{"id": 1, "v": 5}], definition.image)
    assert encode_rows(definition, 1, image)[1].to_pylist() == [bytes.fromhex("800000000000")]


def test_table_without_a_key_needs_row_ids() -> None:
    definition = TableSchema(TableId("d", "t"), 1, 1, (ID,))
    image = pa.array([{"id": 1}], definition.image)
    for row_ids in (None, pa.array([], pa.int64()), pa.array([None], pa.int64())):
        with pytest.raises(StoreError, match="row_ids"):
            encode_rows(definition, 1, image, row_ids)


def test_decimal_type_that_cannot_be() -> None:
    definition = table(Column(2, "v", SqlType("decimal", length=66)))
    with pytest.raises(StoreError, match="at most 65 digits"):
        encode_rows(definition, 1, pa.array([{"id": 1, "v": "1"}], definition.image))
