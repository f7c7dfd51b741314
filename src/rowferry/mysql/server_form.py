"""Definitions in the form that the server itself would print, so that two can be compared.

Comes in: a table as DDL text gives it. Goes out: the same table as information_schema shows it, or
nothing where the text alone cannot tell, because settings or older facts decide. Nothing is
guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.type import CHARSET_BYTES, has_charset, read_default
from rowferry.mysql.session import Flavour, ServerFacts

UNTOLD: Final = "?"  # the collation of what inherits one that is not known

_CHARSETS: Final = frozenset(
    "armscii8 ascii big5 binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms "
    "euckr gb18030 gb2312 gbk geostd8 greek hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 "
    "latin7 macce macroman sjis swe7 tis620 ucs2 ujis utf16 utf16le utf32 utf8mb3 utf8mb4".split()
)
_WIDTHS: Final = {  # of signed and unsigned integers
    "tinyint": (4, 3),
    "smallint": (6, 5),
    "mediumint": (9, 8),
    "int": (11, 10),
    "bigint": (20, 20),
}
_ONE: Final = frozenset({"char", "binary", "bit"})  # without a length: one
_WITHOUT_LITERAL: Final = frozenset(
    "tinytext text mediumtext longtext tinyblob blob mediumblob longblob json geometry "
    "vector".split()
)
_WIDTHLESS: Final = (8, 0, 19)  # from here on MySQL prints no display widths
_NO_GENERATED: Final = (11, 0, 0)  # MariaDB, from here on
_MOST_BYTES: Final = 65532  # a longer one may not fit a row: then it becomes a text
_DATE: Final = r"\d{4}-\d\d-\d\d"
_CLOCK: Final = r"\d\d:\d\d:\d\d"
_TIME_FORMS: Final = {
    Kind.DATE: _DATE,
    Kind.DATETIME: f"{_DATE} {_CLOCK}",
    Kind.TIMESTAMP: f"{_DATE} {_CLOCK}",
    Kind.TIME: r"-?\d{2,3}:\d\d:\d\d",
}
_NOW: Final = "CURRENT_TIMESTAMP"
_MOMENTS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server that change what a statement means.

    Attributes:
        lower_case: `lower_case_table_names`: 0: names are told apart by case; 1: all are kept in
            lower case; 2: kept as written, compared in lower case.
        explicit_timestamps: whether `explicit_defaults_for_timestamp` is known to be on.
        collations: default collations of databases, those that are known.
    """

    lower_case: int = 0
    explicit_timestamps: bool = False
    collations: Mapping[str, str] = field(default_factory=dict)

    def collation_of(self, database: str) -> str:
        """Return a database's default collation; `UNTOLD` where it is not known."""
        return self.collations.get(database, UNTOLD)

    def kept(self, name: TableId) -> TableId:
        """Return a name as the server keeps it."""
        if self.lower_case == 1:
            return TableId(name.database.lower(), name.table.lower())
        return name


class Untold(Exception):
    """The text alone does not tell what the server made of it. It never leaves this package."""


def server_form(
    table: TableSchema, before: TableSchema | None, facts: ServerFacts, settings: ServerSettings
) -> TableSchema:
    """Return a table as information_schema shows it after a statement.

    Columns that the statement left alone stay as they are.

    Args:
        table: as the statement's text gives it.
        before: the definition before the statement, in server form; None: a new table.
        facts: whose form, and of which version.
        settings: what the server is set to.

    Raises:
        Untold: settings, or facts that the text lacks, decide what the server made of it.
    """
    old = {c.id: c for c in before.columns} if before else {}
    columns = tuple(_column(c, old.get(c.id), facts, settings) for c in table.columns)
    table_shown = replace(
        table,
        charset=_charset(table.charset),
        columns=columns,
        indexes=in_order(table.indexes),
        partitioning=None,
    )
    return as_logged(table_shown, facts)


def as_logged(table: TableSchema, facts: ServerFacts) -> TableSchema:
    """Return a table whose stored columns count as virtual where the log does not hold them.

    Changed rows of newer MariaDB servers lack all generated columns. Readers make them from the
    others; no key has one there, as a server that can leave them out lets none of them be NOT NULL.
    """
    if facts.flavour is not Flavour.MARIADB or facts.version < _NO_GENERATED:
        return table
    columns = tuple(
        replace(c, generated="virtual") if c.generated == "stored" else c for c in table.columns
    )
    return replace(table, columns=columns) if columns != table.columns else table


def in_order(indexes: Iterable[Index]) -> tuple[Index, ...]:
    """Return indexes in the one order that every way of reading a table gives, numbered anew.

    PRIMARY is first, then the unique ones, then the others, by name in each group: MySQL does not
    show in which order they were made.
    """
    ordered = sorted(indexes, key=lambda i: (not i.primary, not i.unique, i.name.lower(), i.name))
    return tuple(replace(index, id=number) for number, index in enumerate(ordered, 1))


def _column(
    column: Column, old: Column | None, facts: ServerFacts, settings: ServerSettings
) -> Column:
    if old is not None and replace(column, name=old.name, nullable=old.nullable) == old:
        return column  # at most renamed, or NOT NULL by a new primary key
    if column.type.kind is Kind.TIMESTAMP and not settings.explicit_timestamps:
        raise Untold
    kind = _type(column.type, facts)
    column = replace(column, type=kind)
    if column.generated:
        return column
    if facts.flavour is Flavour.MARIADB and column.expression:
        column = _simplified(column)
    return replace(column, default=_default(column, facts))


# --- types ---------------------------------------------------------------------------------------


def _charset(name: str) -> str:
    charset = plain_charset(name)
    if charset not in _CHARSETS:
        raise Untold
    return charset


def plain_charset(name: str) -> str:
    """Return a character set's present name: `utf8` is an old one."""
    return "utf8mb3" if name == "utf8" else name


def _type(kind: SqlType, facts: ServerFacts) -> SqlType:
    kind = _plain_type(kind, facts)
    if has_charset(kind):
        kind = replace(kind, charset=_charset(kind.charset))
    per_character = CHARSET_BYTES.get(kind.charset, 1)
    if kind.name in ("varchar", "varbinary") and (kind.length or 0) * per_character > _MOST_BYTES:
        raise Untold
    if kind.name in ("char", "binary") and (kind.length or 0) > 255:
        raise Untold
    if any(map(_is_torn, kind.elements)):
        raise Untold
    return kind


def _is_torn(text: str) -> bool:
    """Return whether a text was written as bytes that are none in UTF-8."""
    return any("\udc80" <= c <= "\udcff" for c in text)


def _plain_type(kind: SqlType, facts: ServerFacts) -> SqlType:
    """Return the type with the lengths that the server adds or leaves out."""
    maria = facts.flavour is Flavour.MARIADB
    name = kind.name
    if name in _WIDTHS:
        return _integer(kind, maria or facts.version < _WIDTHLESS)
    if name == "year":
        return replace(kind, length=(2 if kind.length == 2 else 4) if maria else None)
    if name == "decimal":
        return replace(kind, length=kind.length or 10, scale=kind.scale or 0)
    if name in _ONE and (kind.length is None or (name == "bit" and kind.length == 0)):
        return replace(kind, length=1)
    if name == "vector" and kind.length is None:
        return replace(kind, length=2048)
    if name == "json" and maria:
        return SqlType("longtext", charset="utf8mb4")
    return kind


def _integer(kind: SqlType, shows_width: bool) -> SqlType:
    if not (shows_width or kind.zerofill):
        signed_bool = kind.name == "tinyint" and kind.length == 1 and not kind.unsigned
        return kind if signed_bool else replace(kind, length=None)
    return replace(kind, length=kind.length or _WIDTHS[kind.name][kind.unsigned])


# --- defaults ------------------------------------------------------------------------------------


def _simplified(column: Column) -> Column:
    """Return the column with a plain default where the expression is no more than one."""
    expression, inside = column.expression, True
    while inside:
        try:
            cursor = TokenCursor(expression)
            inside = cursor.at("(")
            value, expression = read_default(cursor, column.type, column.name)
        except BadStatement:
            return column
        if not cursor.done():
            return column
    return replace(column, default=value, expression=expression)


def _default(column: Column, facts: ServerFacts) -> Any:
    """Return a default as the server keeps it."""
    value, kind = column.default, column.type
    if value is None:
        return None
    if facts.flavour is Flavour.MYSQL and kind.name in _WITHOUT_LITERAL:
        raise Untold  # without strict mode it is ignored
    if not _kept_as_is(value, kind):
        raise Untold
    if kind.name == "binary" and isinstance(value, str):
        return value.rstrip("\0")
    if facts.flavour is Flavour.MARIADB and kind.kind in _MOMENTS and value.startswith(_NOW):
        return _NOW + (f"({kind.fraction_digits})" if kind.fraction_digits else "")
    return value


def _kept_as_is(value: Any, kind: SqlType) -> bool:
    """Return whether a default is written as the server would print it."""
    match kind.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            digits = 6 if kind.kind is Kind.FLOAT else 15
            rounded = value if kind.scale is None else round(value, kind.scale)
            return math.isfinite(value) and float(f"{rounded:.{digits}g}") == value
        case Kind.YEAR:
            return 1901 <= int(value) <= 2155  # others have two digits, or are a zero of some kind
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return _is_time(str(value), kind)
        case Kind.ENUM:
            return value in kind.elements
        case Kind.SET:
            chosen = [e for e in kind.elements if e in str(value).split(",")]
            return str(value) == ",".join(chosen)
        case Kind.TEXT if _is_torn(str(value)):
            return False
    return not (kind.name == "char" and str(value).endswith(" "))


def _is_time(value: str, kind: SqlType) -> bool:
    if value.startswith(_NOW):
        return True
    fraction = rf"\.\d{{{kind.fraction_digits}}}" if kind.fraction_digits else ""
    return re.fullmatch(_TIME_FORMS[kind.kind] + fraction, value) is not None
