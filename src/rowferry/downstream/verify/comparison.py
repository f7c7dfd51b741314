"""Two tables side by side: which columns are compared, by which key, and as which values.

Types may differ: values are compared as what they mean. A FLOAT is compared as a DOUBLE, a DECIMAL
or a time without the zeros at its end where the sides have other digits, an ENUM by its names, JSON
beside text as JSON. Text and bytes are compared byte by byte, whatever the collation says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.change.typed_columns import SRID_BYTES, in_calendar
from rowferry.columnar.fields import Field, element_text, numbers
from rowferry.downstream.verify import hash_kernels as kernels
from rowferry.errors import BadOption
from rowferry.flow.decide.table_filter import NameFilter

Hashes: TypeAlias = npt.NDArray[np.uint64]

A, B = 0, 1
_WHOLE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_NAMED: Final = frozenset({Kind.ENUM, Kind.SET})
_DIGITS: Final = frozenset({Kind.DECIMAL, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_TIMES: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_FRACTION: Final = r"(\.\d*?)0+$"


@dataclass(frozen=True)
class Comparison:
    """How the rows of a table on side A and of one on side B are compared.

    Attributes:
        columns: what is compared: A's column and B's of the same name, in A's order.
        key: A's names of the columns that name a row; empty: rows are counted.
        lone: columns that one side alone has, by side.
        lakes: which sides are tables of a lake; the other one's values are taken as a lake has
            them.
    """

    schemas: tuple[TableSchema, TableSchema]
    columns: tuple[tuple[Column, Column], ...]
    key: tuple[str, ...]
    lone: tuple[tuple[str, ...], tuple[str, ...]]
    lakes: tuple[bool, bool] = (False, False)

    @property
    def names(self) -> tuple[str, ...]:
        """The compared columns, as A names them."""
        return tuple(mine.name for mine, _ in self.columns)

    @property
    def same_types(self) -> bool:
        """Whether both sides define the compared columns alike, so that servers can compare."""
        return all(mine.type == other.type for mine, other in self.columns)

    def wanted(self, side: int) -> tuple[str, ...]:
        """Return what is read from a side: what is compared and what its own key needs."""
        schema = self.schemas[side]
        compared = {pair[side].name for pair in self.columns}
        return tuple(c.name for c in schema.columns if c.name in {*compared, *schema.handle_key})

    def hashes(self, side: int, rows: pa.Table) -> tuple[Hashes, Hashes]:
        """Return a hash of each row's key, and one of all its compared columns.

        Without a key both are the same.
        """
        whole = np.full(rows.num_rows, kernels.START, np.uint64)
        named = whole.copy()
        for pair in self.columns:
            values = self._comparable(side, pair, rows)
            add_values(values, whole)
            if pair[A].name in self.key:
                add_values(values, named)
        return (named if self.key else whole), whole

    def differing(self, a: pa.Table, b: pa.Table) -> dict[str, npt.NDArray[np.bool_]]:
        """Return in which rows each column differs, of rows that stand side by side."""
        masks = {}
        for pair in self.columns:
            states = []
            for side, rows in ((A, a), (B, b)):
                state = np.full(rows.num_rows, kernels.START, np.uint64)
                add_values(self._comparable(side, pair, rows), state)
                states.append(state)
            differs = states[A] != states[B]
            if differs.any():
                masks[pair[A].name] = differs
        return masks

    def _comparable(self, side: int, pair: tuple[Column, Column], rows: pa.Table) -> pa.Array:
        mine, other = pair[side], pair[1 - side]
        values = rows.column(mine.name)
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if self.lakes[1 - side] and not self.lakes[side]:
            whole = as_in_lake(whole, mine.type, other.type)
        return comparable(whole, self.schemas[side], mine, other.type)


def compare_tables(
    a: TableSchema,
    b: TableSchema,
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    ignored: Iterable[str] = (),
) -> Comparison:
    """Set two tables side by side.

    Columns that a server computes on reading (virtual ones) are left out, and those that `ignored`
    names (with wildcards). Rows are told apart by their key where both sides have the same one.

    Raises:
        BadOption: a rule of `ignored` is wrong, names a part of the key, or nothing is left.
    """
    try:
        ignore = NameFilter(ignored)
    except ValueError as err:
        raise BadOption(f"--ignore-columns: {err}") from None
    there = [{c.name.lower(): c for c in s.visible if not ignore.matches(c.name)} for s in (a, b)]
    lone = tuple(
        tuple(c.name for n, c in there[side].items() if n not in there[1 - side]) for side in (A, B)
    )
    columns = tuple((c, there[B][n]) for n, c in there[A].items() if n in there[B])
    if not columns:
        raise BadOption(f"{a.id} and {b.id} have no column to compare in common")
    own = [{name.lower() for name in key} for key in keys]
    if hidden := [name for key in keys for name in key if ignore.matches(name)]:
        raise BadOption(f"--ignore-columns: {hidden[0]!r} is a part of the key of {a.id}")
    named = tuple(c.name for c, _ in columns if c.name.lower() in own[A])
    usable = own[A] == own[B] and len(named) == len(own[A])
    return Comparison((a, b), columns, named if usable else (), (lone[A], lone[B]))


# --- values --------------------------------------------------------------------------------------


def comparable(values: pa.Array, table: TableSchema, mine: Column, other: SqlType) -> pa.Array:
    """Return a column's values in the form in which both sides can be compared."""
    kind, theirs = mine.type.kind, other.kind
    if kind in _FLOATS and theirs in _FLOATS:
        return pc.add(values.cast(pa.float64()), 0.0)  # -0 is 0
    if kind in _NAMED and (mine.type.name, mine.type.elements) != (other.name, other.elements):
        names = element_text(table, Field(mine, values))
        return pc.if_else(values.is_valid(), names, pa.scalar(None, names.type))
    if theirs in _NAMED and kind not in _NAMED:
        return values.cast(pa.large_utf8())
    if Kind.JSON in (kind, theirs) and kind is not theirs:
        return _json(values)
    if kind in _DIGITS and (kind, mine.type.scale) != (theirs, other.scale):
        return _without_zeros(values)
    if kind is Kind.TEXT and theirs in _DIGITS:
        return _without_zeros(values)
    if values.type == other.arrow or (kind in _WHOLE and theirs in _WHOLE):
        return values if values.type == other.arrow else values.cast(pa.large_utf8())
    return values if kind is Kind.BINARY else values.cast(pa.large_utf8())


def as_in_lake(values: pa.Array, mine: SqlType, other: SqlType) -> pa.Array:
    """Return a column's values as far as a lake's column of another type can hold them.

    A day that no calendar has is NULL where the lake has dates, and a geometry is without the
    number of its reference system.
    """
    if mine.kind in _TIMES and other.kind in _TIMES:
        return pc.if_else(in_calendar(values), values, pa.scalar(None, values.type))
    if mine.name == "geometry":
        return pc.binary_replace_slice(values, 0, SRID_BYTES, b"").cast(values.type)
    return values


def _without_zeros(values: pa.Array) -> pa.Array:
    short = pc.replace_substring_regex(values.cast(pa.large_utf8()), _FRACTION, r"\1")
    return pc.utf8_rtrim(short, ".")


def _json(values: pa.Array) -> pa.Array:
    """Return documents in one form. Servers write them differently; each text is read once."""
    coded = values.cast(pa.large_utf8()).dictionary_encode()
    texts = [_json_text(text) for text in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.large_utf8()).take(coded.indices)


def _json_text(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def add_values(values: pa.Array, states: Hashes) -> None:
    """Mix a column into the states of its rows."""
    if not len(values):
        return
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
        _, ends, data = values.buffers()
        stops = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        kernels.add_texts(raw, stops, valid, states)
        return
    kernels.add_words(numbers(values).view(np.uint64), valid, states)
