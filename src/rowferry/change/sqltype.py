"""Column types, as all databases can say them: their names, what their values are in Arrow.

Canonical values inside a chunk: integers and YEAR int64/uint64, FLOAT float32, DOUBLE float64,
BIT/ENUM/SET uint64 (element names live in the type), character data utf8, binary data binary, and
DATE/DATETIME/TIMESTAMP/TIME/DECIMAL/NUMERIC/JSON/VECTOR/INET4/INET6/UUID as canonical text, which
is MySQL's, so that zero dates, 838-hour times and 65-digit decimals survive. TIMESTAMP is in UTC.
Strings and bytes use 64-bit offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pyarrow as pa

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.errors import BadInput


class Kind(Enum):
    """What a column type is, as far as reading and writing values goes."""

    INTEGER = "integer"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    YEAR = "year"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    VECTOR = "vector"
    NUMERIC = "numeric"  # a decimal number of any length: its digits are not limited beforehand


# Neutral type -> kind. Of a type that only one database has, its source names the one whose values
# are the same, and puts the type's own text beside it (`SqlType.source`).
KINDS: Final[dict[str, Kind]] = {
    "tinyint": Kind.INTEGER,
    "smallint": Kind.INTEGER,
    "mediumint": Kind.INTEGER,
    "int": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal": Kind.DECIMAL,
    "bit": Kind.BIT,
    "char": Kind.TEXT,
    "varchar": Kind.TEXT,
    "tinytext": Kind.TEXT,
    "text": Kind.TEXT,
    "mediumtext": Kind.TEXT,
    "longtext": Kind.TEXT,
    "binary": Kind.BINARY,
    "varbinary": Kind.BINARY,
    "tinyblob": Kind.BINARY,
    "blob": Kind.BINARY,
    "mediumblob": Kind.BINARY,
    "longblob": Kind.BINARY,
    "date": Kind.DATE,
    "datetime": Kind.DATETIME,
    "timestamp": Kind.TIMESTAMP,
    "time": Kind.TIME,
    "year": Kind.YEAR,
    "enum": Kind.ENUM,
    "set": Kind.SET,
    "json": Kind.JSON,
    "vector": Kind.VECTOR,
    "geometry": Kind.BINARY,
    "inet4": Kind.TEXT,
    "inet6": Kind.TEXT,
    "uuid": Kind.TEXT,
    "numeric": Kind.NUMERIC,
}
# What values are sized by where the definition says nothing: digits, bits, characters, bytes.
_SIZES: Final = {"decimal": 10, "bit": 1, "char": 1, "binary": 1}

_TEXT_FORM: Final = frozenset(
    {
        Kind.DECIMAL,
        Kind.TEXT,
        Kind.DATE,
        Kind.DATETIME,
        Kind.TIMESTAMP,
        Kind.TIME,
        Kind.JSON,
        Kind.VECTOR,
        Kind.NUMERIC,
    }
)
COMMON_KINDS: Final = frozenset(Kind) - {Kind.NUMERIC}  # those that every format has a form for
_CHARSET_KINDS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})


def _quoted(element: str) -> str:
    return "'" + element.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class SqlType(JsonForm):
    """One column type as the table defines it.

    Attributes:
        name: lower-case base name, a key of `KINDS`.
        length: display width, character or byte length, or total digits; None: not given.
        scale: digits after the point (DECIMAL, FLOAT, DOUBLE) or fraction digits of seconds; None:
            not given.
        elements: the names of ENUM and SET, in order.
        charset: of character data ("utf8mb4"); "binary" for everything else.
        collation: of character data, where it is known ("utf8mb4_bin"); empty: the character set's
            default. It says how values compare, not what they are: types that differ in nothing
            else are equal.
        source: the type in the words of the source's dialect, where those are not `written`, e.g.
            "timestamp with time zone". It is shown; nothing is decided by it.
    """

    FORM = FormRules(("name", "charset"), brief=True, kept=("charset",), late=("charset",))

    name: str
    unsigned: bool = False
    zerofill: bool = False
    length: int | None = None
    scale: int | None = None
    elements: tuple[str, ...] = ()
    charset: str = ""
    collation: str = field(default="", compare=False)
    source: str = ""

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise BadInput(f"unknown column type {self.name!r}; known: {', '.join(KINDS)}")
        if not self.charset:
            charset = "utf8mb4" if self.kind in _CHARSET_KINDS else "binary"
            object.__setattr__(self, "charset", charset)

    @property
    def kind(self) -> Kind:
        """How values are read and written."""
        return KINDS[self.name]

    @property
    def size(self) -> int | None:
        """What values are sized by: digits, bits, characters or bytes; None: not limited here."""
        return _SIZES.get(self.name) if self.length is None else self.length

    @property
    def fraction_digits(self) -> int:
        """Digits after the point: of seconds for times, of the number for DECIMAL."""
        return self.scale or 0

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of this column's values inside a chunk."""
        kind = self.kind
        if kind in _TEXT_FORM:
            return pa.large_utf8()
        if kind is Kind.BINARY:
            return pa.large_binary()
        if kind in (Kind.BIT, Kind.ENUM, Kind.SET):
            return pa.uint64()
        if kind is Kind.INTEGER:
            return pa.uint64() if self.unsigned else pa.int64()
        if kind is Kind.YEAR:
            return pa.int64()
        return pa.float32() if kind is Kind.FLOAT else pa.float64()

    @property
    def sql(self) -> str:
        """The type in words: the source's own, else `written`."""
        return self.source or self.written()

    def written(self, quoted: Callable[[str], str] = _quoted) -> str:
        """Return the neutral type as a DDL writes it, e.g. `decimal(10,2) unsigned`."""
        text = self.name
        if self.elements:
            text += f"({','.join(map(quoted, self.elements))})"
        elif self.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
            text += f"({self.scale})" if self.scale else ""
        elif self.length is not None and self.kind is not Kind.DATE:
            text += (
                f"({self.length},{self.scale})" if self.scale is not None else f"({self.length})"
            )
        text += " unsigned" if self.unsigned else ""
        return text + (" zerofill" if self.zerofill else "")
