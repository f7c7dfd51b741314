"""Row images as codecs see them: the columns that are there, in table order, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.table import Column, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar.render import set_text
from rowferry.errors import EncodeError


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a row image. `values` is NULL also where the whole image is."""

    column: Column
    values: pa.Array


def fields(table: TableSchema, image: pa.StructArray) -> list[Field]:
    """Return the columns that codecs write and the image has, in table order.

    Raises:
        EncodeError: a column's values do not have the type that the table says.
    """
    names = {f.name: i for i, f in enumerate(image.type)}
    parts = image.flatten() if len(names) else []
    present = []
    for column in table.visible:
        if column.name not in names:
            continue
        values = parts[names[column.name]]
        if values.type != column.type.arrow:
            try:
                values = values.cast(column.type.arrow)
            except pa.ArrowInvalid as err:
                raise EncodeError(f"{table.id}.{column.name}: {err}") from err
        present.append(Field(column, values))
    return present


def numbers(values: pa.Array) -> npt.NDArray[np.generic]:
    """Return a fixed-width column as numpy, without a copy; NULL places hold anything."""
    if len(values) == 0:
        return np.zeros(0, values.type.to_pandas_dtype())
    kind = np.dtype(values.type.to_pandas_dtype())
    view = np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values)]
    if len(view) != len(values):
        raise EncodeError("a chunk's column is shorter than the chunk")
    return view


def float_text(values: pa.Array, style: int) -> pa.LargeStringArray:
    """Return the shortest text of a FLOAT or DOUBLE column."""
    return kernels_float.float_text(numbers(values), style)


def one_zero(values: pa.Array) -> pa.Array:
    """Return a FLOAT or DOUBLE column of a key: to databases, zeros of both signs are one key."""
    return pc.add(values, pa.scalar(0, values.type))


def element_text(table: TableSchema, field: Field) -> pa.LargeStringArray:
    """Return the element names of an ENUM (`""` for 0) or SET column.

    Raises:
        EncodeError: a value that the type has no element for.
    """
    names = field.column.type.elements
    is_set = field.column.type.name == "set"
    most = (1 << len(names)) - 1 if is_set else len(names)
    top = pc.max(field.values).as_py()
    if top is not None and top > most:
        what = f"{table.id}.{field.column.name}"
        raise EncodeError(f"{what}: value {top} has no element in {field.column.type.sql}")
    if is_set:
        return set_text(numbers(field.values).astype(np.uint64, copy=False), names)
    return pa.array(["", *names], pa.large_utf8()).take(field.values)


@dataclass(frozen=True, slots=True)
class ImagePresence:
    """Which images each row of a chunk has; every row has what its kind needs."""

    op: npt.NDArray[np.int8]
    has_before: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Rows) -> ImagePresence:
        """Look at a chunk.

        Raises:
            EncodeError: an insert or update without its new image, or a delete without its old one.
        """
        op = rows.op
        before, after = _present(rows.before), _present(rows.after)
        wrong = np.where(op == Op.DELETE, ~before, ~after) | (op < 0) | (op > 2)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise EncodeError(f"{rows.table.id}: row {row} of a chunk lacks the image its op needs")
        return cls(op, before)

    @staticmethod
    def is_whole(rows: Rows) -> bool:
        """Return whether both images have all columns of the table."""
        count = len(rows.table.columns)
        return bool(rows.before.type.num_fields == count == rows.after.type.num_fields)


def _present(image: pa.StructArray) -> npt.NDArray[np.bool_]:
    """Return which rows have the image."""
    nulls = image.null_count
    if nulls and nulls != len(image):
        present: npt.NDArray[np.bool_] = pc.is_valid(image).to_numpy(zero_copy_only=False)
        return present
    return np.full(len(image), not nulls)
