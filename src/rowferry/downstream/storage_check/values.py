"""Whether a column's values are what its type allows, as each protocol writes them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.schema import (
    BINARIES,
    DECIMALS,
    FLOATS,
    INTEGERS,
    TEXTS,
    TIMES,
    ColumnForm,
)

Mask = npt.NDArray[np.bool_]

_FLOAT = r"-?\d+(\.\d+)?([eE][-+]?\d+)?"
_DAY = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"\d{2}:\d{2}:\d{2}"
_BASE64 = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_BARE = frozenset({*INTEGERS, *FLOATS, "YEAR", "BIT"})


def first_wrong(
    column: ColumnForm,
    values: pa.LargeBinaryArray,
    quoted: Mask | None,
    kind: FileKind,
    packing: str,
) -> tuple[int, str] | None:
    """Return place and reason of the first value that does not fit, or None.

    Args:
        column: what the schema file says.
        values: as they stand in the file, without quotes and escapes; null for NULL.
        quoted: which of them were quoted; None where the protocol does not tell.
        kind: `CSV` or `CANAL_JSON`, whose values are texts.
        packing: how csv writes binary values.
    """
    nulls: Mask = values.is_null().to_numpy(zero_copy_only=False)
    if nulls.any() and not column.nullable:
        return int(np.argmax(nulls)), "NULL in a NOT NULL column"
    if quoted is not None:
        wrong = ~nulls & (quoted if column.type in _BARE else ~quoted)
        if wrong.any():
            bare = "without" if column.type in _BARE else "with"
            return int(np.argmax(wrong)), f"{column.type} stands {bare} quotes"
    try:
        texts = values.cast(pa.large_utf8())
    except pa.ArrowInvalid:
        return _first_not_utf8(values), "not UTF-8"
    is_csv = kind is FileKind.CSV
    fits = pc.match_substring_regex(texts, f"^(?s:{_pattern(column, is_csv, packing)})$")
    for more in (_in_range(column, texts, fits), _in_length(column, texts)):
        if more is not None:
            fits = pc.and_(fits, more)
    if is_csv and column.type in ("ENUM", "SET") and column.elements:
        fits = pc.and_(fits, _named(column, texts))
    bad: Mask = pc.equal(fits, False).fill_null(False).to_numpy(zero_copy_only=False)
    if not bad.any():
        return None
    place = int(np.argmax(bad))
    return place, f"{texts[place].as_py()[:40]!r} is no {column.type}"


def _pattern(column: ColumnForm, is_csv: bool, packing: str) -> str:
    kind = column.type
    if kind in INTEGERS:
        return r"\d+" if column.unsigned else r"-?\d+"
    if kind in FLOATS:
        return _FLOAT
    if kind in DECIMALS:
        whole = max((column.size or 65) - column.scale, 1)
        fraction = rf"\.\d{{{column.scale}}}" if column.scale else ""
        return rf"-?\d{{1,{whole}}}{fraction}"
    if kind in ("YEAR", "BIT"):
        return r"\d+"
    if kind == "DATE":
        return _DAY
    if kind in TIMES:
        digits = rf"\.\d{{{column.scale}}}" if column.scale else ""
        if kind == "TIME":
            return rf"-?\d{{2,3}}:\d{{2}}:\d{{2}}{digits}"
        return rf"{_DAY} {_CLOCK}" + (r"\.\d{6}" if is_csv else digits)
    if kind in BINARIES:
        if not is_csv:
            return r"[\x{00}-\x{FF}]*"
        return _BASE64 if packing == "base64" else r"([0-9a-f]{2})*"
    if kind in ("ENUM", "SET") and not is_csv:
        return r"\d+"
    if kind == "VECTOR":
        return r"\[.*\]"
    if kind == "JSON":
        return r"[\[{\"tfn0-9-].*"
    return ".*"


def _in_range(column: ColumnForm, texts: pa.Array, fits: pa.Array) -> pa.Array | None:
    """Return which whole numbers their type can hold."""
    bits = INTEGERS.get(column.type) or (column.size or 1 if column.type == "BIT" else 0)
    if not bits:
        return None
    # Longer than any 64-bit number: no need to read it.
    short = pc.and_(fits, pc.less_equal(pc.binary_length(texts), 20))
    numbers = pc.if_else(short, texts, "0")
    unsigned = column.unsigned or column.type == "BIT"
    top = (1 << bits) - 1 if unsigned else (1 << bits - 1) - 1
    low = 0 if unsigned else -(1 << bits - 1)
    wide = numbers.cast(pa.decimal128(20, 0)) if bits == 64 else numbers.cast(pa.int64(), safe=True)
    kind = wide.type
    within = pc.and_(
        pc.less_equal(wide, pa.scalar(top).cast(kind) if bits < 64 else _decimal(top)),
        pc.greater_equal(wide, pa.scalar(low).cast(kind) if bits < 64 else _decimal(low)),
    )
    return pc.and_(short, within)


def _decimal(number: int) -> pa.Scalar:
    return pa.scalar(str(number)).cast(pa.decimal128(20, 0))


def _in_length(column: ColumnForm, texts: pa.Array) -> pa.Array | None:
    if column.type not in TEXTS or column.size is None:
        return None
    if column.type in ("CHAR", "VARCHAR"):
        return pc.less_equal(pc.utf8_length(texts), column.size)
    return None


def _named(column: ColumnForm, texts: pa.Array) -> pa.Array:
    """Return which texts are elements' names; the empty one stands for a wrong value, or none."""
    names = "|".join(re.escape(e).replace("\\ ", " ") for e in column.elements)
    form = f"({names})?" if column.type == "ENUM" else f"(({names})(,({names}))*)?"
    return pc.match_substring_regex(texts, f"^(?s:{form})$")


def _first_not_utf8(values: pa.LargeBinaryArray) -> int:
    for place, value in enumerate(values.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return place
    return 0
