"""SQL column types: their names, MySQL type codes, Arrow forms and default widths.

Canonical values inside a chunk: integers and YEAR int64/uint64, FLOAT float32, DOUBLE float64,
BIT/ENUM/SET uint64 (element names live in the type), character data utf8, binary data binary, and
DATE/DATETIME/TIMESTAMP/TIME/DECIMAL/JSON/VECTOR/INET4/INET6/UUID as MySQL's canonical text, so that
zero dates, 838-hour times and 65-digit decimals survive. Strings and bytes use 64-bit offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import pyarrow as pa

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


@dataclass(frozen=True, slots=True)
class _Facts:
    kind: Kind
    code: int
    width: int | None = None  # MySQL's length when the DDL gives none


_LONG = 4294967295
# name -> facts; GEOMETRY is handled as BLOB and INET4/INET6/UUID as TEXT in every codec.
FACTS: Final[dict[str, _Facts]] = {
    "tinyint": _Facts(Kind.INTEGER, 1, 4),
    "smallint": _Facts(Kind.INTEGER, 2, 6),
    "mediumint": _Facts(Kind.INTEGER, 9, 9),
    "int": _Facts(Kind.INTEGER, 3, 11),
    "bigint": _Facts(Kind.INTEGER, 8, 20),
    "float": _Facts(Kind.FLOAT, 4, 12),
    "double": _Facts(Kind.DOUBLE, 5, 22),
    "decimal": _Facts(Kind.DECIMAL, 246, 10),
    "bit": _Facts(Kind.BIT, 16, 1),
    "char": _Facts(Kind.TEXT, 254, 1),
    "varchar": _Facts(Kind.TEXT, 15, 5),
    "tinytext": _Facts(Kind.TEXT, 249, 255),
    "text": _Facts(Kind.TEXT, 252, 65535),
    "mediumtext": _Facts(Kind.TEXT, 250, 16777215),
    "longtext": _Facts(Kind.TEXT, 251, _LONG),
    "binary": _Facts(Kind.BINARY, 254, 1),
    "varbinary": _Facts(Kind.BINARY, 15, 5),
    "tinyblob": _Facts(Kind.BINARY, 249, 255),
    "blob": _Facts(Kind.BINARY, 252, 65535),
    "mediumblob": _Facts(Kind.BINARY, 250, 16777215),
    "longblob": _Facts(Kind.BINARY, 251, _LONG),
    "date": _Facts(Kind.DATE, 10),
    "datetime": _Facts(Kind.DATETIME, 12),
    "timestamp": _Facts(Kind.TIMESTAMP, 7),
    "time": _Facts(Kind.TIME, 11),
    "year": _Facts(Kind.YEAR, 13, 4),
    "enum": _Facts(Kind.ENUM, 247),
    "set": _Facts(Kind.SET, 248),
    "json": _Facts(Kind.JSON, 245),
    "vector": _Facts(Kind.VECTOR, 225),
    "geometry": _Facts(Kind.BINARY, 255, _LONG),
    "inet4": _Facts(Kind.TEXT, 254, 15),
    "inet6": _Facts(Kind.TEXT, 254, 39),
    "uuid": _Facts(Kind.TEXT, 254, 36),
}

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
    }
)
_CHARSET_KINDS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})


def keeps_case(collation: str) -> bool:
    """Return whether texts that differ in case are different ones to a collation."""
    return not {"bin", "cs"}.isdisjoint(collation.split("_"))


@dataclass(frozen=True, slots=True)
class SqlType:
    """One column type as the table defines it.

    Attributes:
        name: lower-case base name, a key of `FACTS`.
        length: display width, character or byte length, or total digits; None: not given.
        scale: digits after the point (DECIMAL, FLOAT, DOUBLE) or fraction digits of seconds; None:
            not given.
        elements: the names of ENUM and SET, in order.
        charset: of character data ("utf8mb4"); "binary" for everything else.
        collation: of character data, where it is known ("utf8mb4_bin"); empty: the character set's
            default. It says how values compare, not what they are: types that differ in nothing
            else are equal.
    """

    name: str
    unsigned: bool = False
    zerofill: bool = False
    length: int | None = None
    scale: int | None = None
    elements: tuple[str, ...] = ()
    charset: str = ""
    collation: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.name not in FACTS:
            raise BadInput(f"unknown column type {self.name!r}; known: {', '.join(FACTS)}")
        if not self.charset:
            charset = "utf8mb4" if self.kind in _CHARSET_KINDS else "binary"
            object.__setattr__(self, "charset", charset)

    @property
    def kind(self) -> Kind:
        """How values are read and written."""
        return FACTS[self.name].kind

    @property
    def mysql_code(self) -> int:
        """MySQL's type code."""
        return FACTS[self.name].code

    @property
    def width(self) -> int | None:
        """The length as given, else the default of MySQL and TiDB for the type."""
        width = FACTS[self.name].width
        if self.length is not None or width is None:
            return self.length
        # A sign takes one place, except in BIGINT, where it is counted always.
        signless = self.unsigned and self.kind is Kind.INTEGER and self.name != "bigint"
        return width - signless

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
        """The type as a DDL would write it, e.g. `decimal(10,2) unsigned`."""
        text = self.name
        if self.elements:
            quoted = ("'" + e.replace("\\", "\\\\").replace("'", "''") + "'" for e in self.elements)
            text += f"({','.join(quoted)})"
        elif self.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
            text += f"({self.scale})" if self.scale else ""
        elif self.length is not None and self.kind is not Kind.DATE:
            text += (
                f"({self.length},{self.scale})" if self.scale is not None else f"({self.length})"
            )
        text += " unsigned" if self.unsigned else ""
        return text + (" zerofill" if self.zerofill else "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        found: dict[str, Any] = {"name": self.name, "charset": self.charset}
        if self.unsigned:
            found["unsigned"] = True
        if self.zerofill:
            found["zerofill"] = True
        if self.length is not None:
            found["length"] = self.length
        if self.scale is not None:
            found["scale"] = self.scale
        if self.elements:
            found["elements"] = list(self.elements)
        if self.collation:
            found["collation"] = self.collation
        return found

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> SqlType:
        """Read what `to_json` wrote."""
        return cls(**{**form, "elements": tuple(form.get("elements", ()))})
