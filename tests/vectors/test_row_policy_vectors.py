"""What becomes of rows of soft-delete and active-active tables, against ours and published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from outside import cases

from rowferry.change.chunk import Op, make_rows
from rowferry.errors import TableNotActiveActive
from rowferry.flow.decide.row_policy import by_policy
from rowferry.mysql.ddl.statement import parse_create

TYPES = {"id": "INT PRIMARY KEY", "_tidb_softdelete_time": "TIMESTAMP NULL"}


def vectors() -> list[Any]:
    found = json.loads((Path(__file__).parent / "decide" / "row-policy.json").read_text("utf-8"))
    rows = [*found, *cases("row-policy")]
    return [pytest.param(r["input"], r["expected"], id=r["id"]) for r in rows]


@pytest.mark.parametrize(("given", "expected"), vectors())
def test_row_policy(given: dict[str, Any], expected: dict[str, Any]) -> None:
    names = given["columns"]
    columns = ", ".join(f"{name} {TYPES[name]}" for name in names)
    table = replace(
        parse_create(f"CREATE TABLE t ({columns})", "test"),
        is_active_active_table=given["active_active_table"],
        is_soft_delete_table=given["soft_delete_table"],
    )

    def images(key: str) -> pa.StructArray:
        rows = [r.get(key) for r in given["rows"]]
        return pa.array([r and dict(zip(names, r, strict=True)) for r in rows], table.image)

    count = len(given["rows"])
    rows = make_rows(
        table,
        pa.array([int(Op[r["op"].upper()]) for r in given["rows"]], pa.int8()),
        pa.array([1] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        images("pre"),
        images("row"),
    )
    if "error_contains" in expected:
        with pytest.raises(TableNotActiveActive, match=expected["error_contains"]):
            by_policy(rows, given["enable_active_active"])
        return
    found = by_policy(rows, given["enable_active_active"])
    columns_found = (found.op.tolist(), found.before.to_pylist(), found.after.to_pylist())
    assert [
        {
            "op": Op(op).name.lower(),
            **({"pre": list(before.values())} if before else {}),
            **({"row": list(after.values())} if after else {}),
        }
        for op, before, after in zip(*columns_found, strict=True)
    ] == expected["rows"]
