"""Parquet files: operation, commit-ts and place, then the table's columns or two images of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.layout import TableFiles
from rowferry.downstream.storage_check.lines import Lines, RowFault
from rowferry.downstream.storage_check.rules import Rule
from rowferry.downstream.storage_check.schema import (
    BINARIES,
    DECIMALS,
    INTEGERS,
    ColumnForm,
    TableForm,
)

_BLOCK_ROWS: Final = 65_536
_OP, _COMMIT_TS, _SEQ = "_op", "_commit_ts", "_seq"
_BEFORE, _AFTER = "_before", "_after"
_OPS: Final = pa.array(["insert", "update", "delete"])
_OWN: Final = ((_OP, pa.string()), (_COMMIT_TS, pa.int64()), (_SEQ, pa.int64()))
_WIDE: Final = pa.decimal128(20, 0)  # holds every unsigned 64-bit number
_MOST_DIGITS: Final = 38
_TIMES: Final = {
    "DATE": pa.date32(),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
_Note = Callable[[pa.Array, str], None]
_PLAIN: Final = {"FLOAT": pa.float32(), "DOUBLE": pa.float64(), "YEAR": pa.int64()}


def parquet_lines(
    data: bytes, table: TableFiles, form: TableForm, expected: ExpectedLayout
) -> Iterator[Lines]:
    """Yield the rows of a file in blocks, with what is wrong with them."""
    row = 1
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
        images, fault = _images(file.schema_arrow, form)
        if fault:
            yield Lines(1, 0, faults=[RowFault(Rule.ROW_FIT, 1, fault)])
            return
        for batch in file.iter_batches(_BLOCK_ROWS):
            yield _block(batch, row, images, form)
            row += batch.num_rows
    except (pa.ArrowException, OSError) as err:
        words = f"not a whole parquet file: {str(err).splitlines()[0]}"
        yield Lines(row, 0, faults=[RowFault(Rule.ROW_FIT, row, words)])


def _images(schema: pa.Schema, form: TableForm) -> tuple[bool, str]:
    """Return whether rows have two images, and what is wrong with the columns."""
    own = [(field.name, field.type) for field in schema][: len(_OWN)]
    if own != list(_OWN):
        shown = ", ".join(f"{name} {kind}" for name, kind in own)
        wanted = ", ".join(f"{name} {kind}" for name, kind in _OWN)
        return False, f"the first columns are {shown or 'none'}; {wanted} expected"
    rest = list(schema)[len(_OWN) :]
    if [f.name for f in rest] == [_BEFORE, _AFTER] and all(
        pa.types.is_struct(f.type) for f in rest
    ):
        faults = [_wrong_columns(list(field.type), form) for field in rest]
        return True, next((f"{n.name}: {f}" for n, f in zip(rest, faults, strict=True) if f), "")
    return False, _wrong_columns(rest, form)


def _wrong_columns(fields: list[pa.Field], form: TableForm) -> str:
    names, wanted = [f.name for f in fields], [c.name for c in form.columns]
    if names != wanted:
        return f"the columns are {', '.join(names)}; the schema file has {', '.join(wanted)}"
    for field, column in zip(fields, form.columns, strict=True):
        allowed = _types(column)
        if field.type not in allowed:
            words = " or ".join(map(str, allowed))
            return f"column {column.name!r} is {field.type}; {column.type} is {words}"
    return ""


def _types(column: ColumnForm) -> tuple[pa.DataType, ...]:
    """Return the types that a column of this form may have."""
    kind = column.type
    if kind in INTEGERS:
        return (_WIDE if column.unsigned and kind == "BIGINT" else pa.int64(),)
    if kind == "BIT":
        return (_WIDE if (column.size or 1) > 63 else pa.int64(),)
    if kind in DECIMALS:
        digits = column.size or 0
        return (pa.string() if digits > _MOST_DIGITS else pa.decimal128(digits, column.scale),)
    if kind in BINARIES:
        return (pa.binary(),)
    if kind in _TIMES:
        return _TIMES[kind], pa.string()
    return (_PLAIN.get(kind, pa.string()),)


def _block(batch: pa.RecordBatch, row: int, images: bool, form: TableForm) -> Lines:
    lines = Lines(row, batch.num_rows)

    def note(wrong: pa.Array, words: str) -> None:
        odd = wrong.fill_null(False).to_numpy(zero_copy_only=False)
        if odd.any():
            lines.faults.append(RowFault(Rule.ROW_FIT, row + int(np.argmax(odd)), words))

    op, stamps = batch.column(_OP), batch.column(_COMMIT_TS)
    note(pc.invert(pc.is_in(op, value_set=_OPS)), f"{_OP} is none of {', '.join(_OPS.to_pylist())}")
    note(pc.or_(stamps.is_null(), pc.less(stamps, 0)), f"{_COMMIT_TS} is no commit-ts")
    if not lines.faults:
        lines.commit_ts = stamps.cast(pa.uint64()).to_numpy()
        lines.inserts = pc.equal(op, "insert").to_numpy(zero_copy_only=False)
    if not images:
        for column in form.columns:
            _judge(column, batch.column(column.name), note)
        return lines
    for name, absent in ((_BEFORE, "insert"), (_AFTER, "delete")):
        values, without = batch.column(name), pc.equal(op, absent)
        note(pc.xor(values.is_null(), without), f"{name} is there in all but {absent}s")
        there = values.is_valid()
        for column, inner in zip(form.columns, values.flatten(), strict=True):
            _judge(column, inner, note, there)
    return lines


def _judge(
    column: ColumnForm, values: pa.Array, note: _Note, there: pa.Array | None = None
) -> None:
    """Note the first value that the column cannot have; `there` tells which images there are."""
    lead = f"column {column.name!r}"
    if not column.nullable and column.type not in _TIMES:  # a zero date may be written as NULL
        lost = values.is_null()
        note(lost if there is None else pc.and_(lost, there), f"{lead}: NULL in a NOT NULL column")
    if column.type in INTEGERS and pa.types.is_integer(values.type):
        bits = INTEGERS[column.type]
        low = 0 if column.unsigned else -(1 << bits - 1)
        top = (1 << bits) - 1 if column.unsigned else (1 << bits - 1) - 1
        wrong = pc.or_(pc.less(values, low), pc.greater(values, top))
        note(wrong, f"{lead}: out of the range of {column.type}")
    if column.type == "ENUM":
        known = pa.array(["", *column.elements], pa.string())
        odd = pc.invert(pc.is_in(values, value_set=known))
        note(pc.and_(values.is_valid(), odd), f"{lead}: no element of the ENUM")
