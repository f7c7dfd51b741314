"""What a schema change does to the rows that are already there.

The test kit has rules of its own, `rowferry.testing.evolve`: who judges must not share these.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import DdlKind
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadInput

# These move rows in a way that the statement's text and the table versions do not tell.
UNMODELLED: Final = frozenset(
    {DdlKind.DROP_PARTITION, DdlKind.TRUNCATE_PARTITION, DdlKind.EXCHANGE_PARTITION}
)

_NAME = r"(?:`((?:[^`]|``)+)`|([^\s`,()]+))"
_RENAME = re.compile(rf"\bRENAME\s+COLUMN\s+{_NAME}\s+TO\s+{_NAME}", re.IGNORECASE)
_CHANGE = re.compile(rf"\bCHANGE\s+(?:COLUMN\s+)?{_NAME}\s+{_NAME}\s", re.IGNORECASE)

_DIGITS: Final = 400  # of any number that a column can hold, a DOUBLE of 309 digits among them

_ZERO: Final[dict[Kind, Any]] = {
    Kind.INTEGER: 0,
    Kind.FLOAT: 0.0,
    Kind.DOUBLE: 0.0,
    Kind.BIT: 0,
    Kind.TEXT: "",
    Kind.BINARY: b"",
    Kind.DATE: "0000-00-00",
    Kind.YEAR: 0,
    Kind.ENUM: 1,
    Kind.SET: 0,
    Kind.JSON: "null",
    Kind.VECTOR: "[]",
}


def refuse_unmodelled(kind: DdlKind, query: str) -> None:
    """Raise BadInput for a schema change whose effect on rows cannot be known here."""
    if kind in UNMODELLED:
        raise BadInput(f"{kind.name} cannot be followed by its text alone: {query}")


def renamed_columns(query: str) -> dict[str, str]:
    """Return lower-case new name → old name for every RENAME COLUMN and CHANGE in a DDL text."""
    old_names: dict[str, str] = {}
    for pattern in (_RENAME, _CHANGE):
        for match in pattern.finditer(query):
            old, new = (
                (match[i].replace("``", "`") if match[i] is not None else match[i + 1])
                for i in (1, 3)
            )
            old_names[new.lower()] = old
    return old_names


def column_origins(
    old: TableSchema, new: TableSchema, query: str = ""
) -> list[tuple[Column, Column | None]]:
    """Return each column of `new` with the column of `old` that its values come from, if any.

    Columns go by name, except where the DDL's text renames them; ids are not used, because files do
    not always carry them.
    """
    renamed = renamed_columns(query)
    return [(c, old.by_name.get(renamed.get(c.name.lower(), c.name).lower())) for c in new.columns]


def default_value(column: Column) -> Any:
    """Return what old rows get in a new column: its default, else NULL, else the type's zero."""
    kind = column.type.kind
    if column.default is None:
        return None if column.nullable else _zero(column.type)
    value = column.default
    if kind is Kind.ENUM and isinstance(value, str) and value in column.type.elements:
        return column.type.elements.index(value) + 1
    if kind is Kind.SET and isinstance(value, str):
        names = value.split(",") if value else []
        return sum(1 << column.type.elements.index(n) for n in names)
    return _plain(value, column.type)


def convert_value(value: Any, old: SqlType, new: SqlType) -> Any:
    """Return a canonical value of type `old` as MODIFY COLUMN to `new` would leave it."""
    if value is None or old == new:
        return value
    if old.kind is Kind.ENUM and new.kind is not Kind.ENUM:
        value = old.elements[value - 1] if value else ""
    elif old.kind is Kind.ENUM:
        return new.elements.index(old.elements[value - 1]) + 1 if value else 0
    elif old.kind is Kind.SET:
        names = [n for i, n in enumerate(old.elements) if value >> i & 1]
        if new.kind is Kind.SET:
            return sum(1 << new.elements.index(n) for n in names)
        value = ",".join(names)
    elif new.kind is Kind.ENUM:
        return new.elements.index(value) + 1
    return _plain(value, new)


def convert_array(values: pa.Array, old: SqlType, new: SqlType) -> pa.Array:
    """Return `convert_value` of every value; each distinct value is converted once."""
    if old == new:
        return values
    coded = values.dictionary_encode()
    changed = [convert_value(v, old, new) for v in coded.dictionary.to_pylist()]
    return pa.array(changed, new.arrow).take(coded.indices)


def _plain(value: Any, to: SqlType) -> Any:
    kind = to.kind
    if kind is Kind.DECIMAL:
        return f"{_rounded(value, to.fraction_digits):f}"
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return pa.scalar(float(value), to.arrow).as_py()
    if kind in (Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET):
        return int(_rounded(value, 0))
    if kind is Kind.BINARY:
        return value if isinstance(value, bytes) else str(value).encode()
    text = value.decode() if isinstance(value, bytes) else str(value)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and text[:1].isdigit():
        whole, _, fraction = text.partition(".")
        digits = to.fraction_digits
        return f"{whole}.{fraction[:digits].ljust(digits, '0')}" if digits else whole
    return text


def _rounded(value: Any, digits: int) -> Decimal:
    """Round as the servers do: half away from zero, but a floating number to an even whole one."""
    number = Decimal(str(value).strip() or "0")
    to_even = isinstance(value, float) and not digits
    with localcontext(prec=_DIGITS, rounding=ROUND_HALF_EVEN if to_even else ROUND_HALF_UP):
        return number.quantize(Decimal(1).scaleb(-digits))


def _zero(of: SqlType) -> Any:
    digits = of.fraction_digits
    fraction = "." + "0" * digits if digits else ""
    if of.kind is Kind.DECIMAL:
        return f"0{fraction}"
    if of.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return f"0000-00-00 00:00:00{fraction}"
    if of.kind is Kind.TIME:
        return f"00:00:00{fraction}"
    return _ZERO[of.kind]
