"""Changes into Delta tables of several sizes, beside delta-rs `merge` of the same changes.

    make bench-lake ARGS="--rows 100000 1000000 --changes 1000 100000"

A table is filled through the sink; then micro-batches of random updates are committed, half of them
measured after the first ones have warmed what is kept in memory. The rival gets the same changes as
an Arrow table and merges them into a table that it has written itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.sink.contract import Owner
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

_FILLED_AT_ONCE = 500_000
_NOON = 1_683_633_600_000 << 18


def table(text_key: bool) -> TableSchema:
    """A table of three columns whose key is a number or a text."""
    key = SqlType("varchar", length=36) if text_key else SqlType("bigint")
    columns = (
        Column(1, "id", key, nullable=False),
        Column(2, "k", SqlType("int")),
        Column(3, "c", SqlType("varchar", length=60)),
    )
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("bench", "t"), 1, 100, columns, (primary,))


def images(schema: TableSchema, numbers: Any, turn: int) -> pa.StructArray:
    """Rows of these numbers, as the log has them."""
    ids = pa.array(numbers)
    if schema.columns[0].type.name != "bigint":
        ids = pa.array(np.char.add("order-", numbers.astype(str)), pa.large_utf8())
    texts = pa.array(np.char.add(f"turn {turn} row ", numbers.astype(str)), pa.large_utf8())
    arrays = [ids, pa.array(np.full(len(numbers), turn)), texts]
    return pa.StructArray.from_arrays(arrays, fields=list(schema.image))


class Bench:
    """One table of a lake."""

    def __init__(self, folder: Path, schema: TableSchema) -> None:
        uri = Uri.parse(f"delta+file://{folder}?optimize-after=0", "sink")
        spec = ChangefeedSpec("bench", Uri.parse("range://127.0.0.1:1", "source"), uri)
        loaded: Any = SINKS.load(uri.scheme)
        self.sink = loaded(spec, None)
        self.sink.open(Owner("bench", 1), None)
        self.schema = schema
        self.slice = TableSlice(schema.id, 1, schema.version)
        self.number = 0

    def step(self, rows: Rows) -> float:
        """Carry a micro-batch out; return how long it took."""
        self.number += 1
        part = Segment(0, {}, (self.slice,), _NOON, _NOON, 100)
        stretch = Stretch((part,), (), {}, watermark=_NOON + self.number)
        began = time.perf_counter()
        outputs, state = self.sink.allocate(stretch, {self.slice: self.schema})
        plan = Plan(self.number, 1, int(time.time() * 1000), stretch, outputs, state)
        receipts = list(self.sink.write_rows(part, outputs, [self.schema], iter([(0, rows)])))
        self.sink.publish(plan, receipts, {self.slice: self.schema})
        return time.perf_counter() - began

    def changes(self, numbers: Any, op: Op, turn: int) -> Rows:
        """Inserts or updates of these rows."""
        count = len(numbers)
        new = images(self.schema, numbers, turn)
        old = pa.nulls(count, self.schema.image) if op is Op.INSERT else new
        return make_rows(
            self.schema,
            pa.array(np.full(count, int(op), np.int8)),
            pa.array(np.full(count, _NOON, np.uint64)),
            pa.array(np.arange(count)),
            old,
            new,
        )


def ours(folder: Path, schema: TableSchema, size: int, changes: int, turns: int) -> float:
    """Return the median time of a commit."""
    bench, dice = Bench(folder, schema), np.random.default_rng(7)
    for first in range(0, size, _FILLED_AT_ONCE):
        numbers = np.arange(first, min(first + _FILLED_AT_ONCE, size))
        bench.step(bench.changes(numbers, Op.INSERT, 0))
    times = []
    for turn in range(1, 2 * turns + 1):
        numbers = dice.choice(size, changes, replace=False)
        times.append(bench.step(bench.changes(numbers, Op.UPDATE, turn)))
    return median(times[turns:])


def theirs(folder: Path, schema: TableSchema, size: int, changes: int, turns: int) -> float:
    """Return the median time of delta-rs' merge."""
    dice = np.random.default_rng(7)

    def rows(numbers: Any, turn: int) -> pa.Table:
        made = images(schema, numbers, turn)
        return pa.Table.from_arrays(made.flatten(), names=["id", "k", "c"])

    write_deltalake(str(folder), rows(np.arange(size), 0))
    times = []
    for turn in range(1, turns + 1):
        new = rows(dice.choice(size, changes, replace=False), turn)
        began = time.perf_counter()
        merge = DeltaTable(str(folder)).merge(new, "t.id = s.id", "s", "t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        times.append(time.perf_counter() - began)
    return median(times)


def main() -> None:
    """Measure all sizes; a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--text-key", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the rival")
    given = parser.parse_args()
    schema = table(given.text_key)
    for size in given.rows:
        for changes in given.changes:
            found: dict[str, Any] = {"rows": size, "changes": changes}
            for name, run in (("rowferry_s", ours), ("delta_rs_merge_s", theirs)):
                if given.alone and run is theirs:
                    continue
                folder = Path(tempfile.mkdtemp(prefix="bench-lake"))
                try:
                    found[name] = round(run(folder, schema, size, changes, given.turns), 4)
                finally:
                    shutil.rmtree(folder)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
