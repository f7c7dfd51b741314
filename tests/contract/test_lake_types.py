"""Every column type has one image in a lake's tables, as delta-rs and pyiceberg read it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from codec_harness import TYPE_CASES

from iceberg_kit import IcebergLake
from lake_kit import Lake, ordered, table
from rowferry.change.chunk import Op
from rowferry.change.sqltype import SqlType
from rowferry.flow.sink.lake.columns import LakeColumns, lake_kind

DAY, MOMENT = datetime.date(2023, 5, 9), datetime.datetime(2023, 5, 9, 12, 34, 56)
FOUND = {
    "date": DAY,
    "datetime": MOMENT,
    "datetime(3)": MOMENT.replace(microsecond=120000),
    "datetime(6)": MOMENT.replace(microsecond=1),
    "timestamp": MOMENT.replace(tzinfo=datetime.UTC),
    "timestamp(3)": MOMENT.replace(microsecond=120000, tzinfo=datetime.UTC),
    "timestamp(6)": MOMENT.replace(microsecond=1, tzinfo=datetime.UTC),
    "decimal(10,2)": Decimal("1.50"),
    "bigint unsigned": Decimal(7),
    "bit(64)": Decimal(5),
}


@pytest.mark.parametrize("made", [Lake, IcebergLake], ids=["delta", "iceberg"])
def test_every_type_has_its_image(made: type[Lake], tmp_path: Path) -> None:
    """One row of ordinary values, one of the least, one of the most, one of NULLs."""
    kinds = [case.type for case in TYPE_CASES]
    schema = table(("id", SqlType("bigint")), *((f"c{i}", k) for i, k in enumerate(kinds)))
    lake = made(tmp_path)
    lake.open()
    values = [
        {f"c{i}": getattr(c, name) for i, c in enumerate(TYPE_CASES)}
        for name in ("value", "least", "most")
    ]
    images = [
        {"id": n, **v} for n, v in enumerate([*values, {f"c{i}": None for i in range(len(kinds))}])
    ]
    lake.step(schema, [(Op.INSERT, None, image) for image in images])
    ordinary, least, most, nulls = ordered(lake.rows(), ["id"])
    assert set(nulls.values()) == {3, None}
    types = lake.column_kinds()
    columns = LakeColumns("upsert", "null")
    for number, case in enumerate(TYPE_CASES):
        name, kind = f"c{number}", case.type
        assert types[name] == lake_kind(columns.type_of(kind)), kind.sql
        if kind.name == "geometry":
            assert ordinary[name] == case.value[4:]
        elif kind.name not in ("enum", "set"):
            assert ordinary[name] == FOUND.get(kind.sql, case.value), kind.sql
        zero = isinstance(case.least, str) and case.least.startswith("0000-00-00")
        assert (least[name] is None) == zero, kind.sql
        assert most[name] is not None, kind.sql
    enum = next(i for i, k in enumerate(kinds) if k.name == "enum")
    assert ordinary[f"c{enum}"] == "b,c"
