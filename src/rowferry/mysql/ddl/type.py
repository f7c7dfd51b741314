"""Column types and default values in DDL text."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.mysql.ddl.cursor import BITS, HEX, NUMBER, STRING, WORD, TokenCursor
from rowferry.mysql.type_facts import TYPE_FACTS

# Other spellings of the names in TYPE_FACTS; more words come first, so that the longest fits.
_ALIASES: Final[dict[str, str]] = {
    "NATIONAL CHARACTER VARYING": "varchar utf8",
    "NATIONAL CHAR VARYING": "varchar utf8",
    "LONG CHARACTER VARYING": "mediumtext",
    "LONG CHAR VARYING": "mediumtext",
    "NATIONAL CHARACTER": "char utf8",
    "NATIONAL VARCHAR": "varchar utf8",
    "NATIONAL CHAR": "char utf8",
    "NCHAR VARYING": "varchar utf8",
    "NCHAR VARCHAR": "varchar utf8",
    "CHARACTER VARYING": "varchar",
    "CHAR VARYING": "varchar",
    "DOUBLE PRECISION": "double",
    "LONG VARBINARY": "mediumblob",
    "LONG VARCHAR": "mediumtext",
    "LONG": "mediumtext",
    "NVARCHAR": "varchar utf8",
    "NCHAR": "char utf8",
    "CHARACTER": "char",
    "INTEGER": "int",
    "INT1": "tinyint",
    "INT2": "smallint",
    "INT3": "mediumint",
    "INT4": "int",
    "INT8": "bigint",
    "MIDDLEINT": "mediumint",
    "BOOLEAN": "bool",
    "BOOL": "bool",
    "SERIAL": "serial",
    "NUMERIC": "decimal",
    "DEC": "decimal",
    "FIXED": "decimal",
    "REAL": "double",
    "FLOAT4": "float",
    "FLOAT8": "double",
    "POINT": "geometry",
    "LINESTRING": "geometry",
    "POLYGON": "geometry",
    "MULTIPOINT": "geometry",
    "MULTILINESTRING": "geometry",
    "MULTIPOLYGON": "geometry",
    "GEOMETRYCOLLECTION": "geometry",
    "GEOMCOLLECTION": "geometry",
}
_SPELLINGS: Final = sorted(
    [(a.split(), n) for a, n in _ALIASES.items()] + [([n.upper()], n) for n in TYPE_FACTS],
    key=lambda s: -len(s[0]),
)
_BINARY_TWIN: Final = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_TIMES: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_SIGNED: Final = frozenset({Kind.INTEGER, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL})
_SIZES: Final = (("tiny", 2**8), ("", 2**16), ("medium", 2**24), ("long", 2**32))
# The most bytes that a character takes; a set that is not here takes one.
CHARSET_BYTES: Final = {
    **dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4),
    **dict.fromkeys(("utf8", "utf8mb3", "ujis", "eucjpms"), 3),
    **dict.fromkeys(("ucs2", "big5", "gbk", "gb2312", "sjis", "cp932", "euckr"), 2),
}
# DECIMAL has up to 65 digits; servers round it half up.
_WIDE: Final = Context(prec=100, rounding=ROUND_HALF_UP)
_NOW: Final = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


def charset_of_collation(collation: str) -> str:
    """Return the character set that a collation belongs to; a character set is its own."""
    return collation.lower().partition("_")[0]


def collation_of(named: str) -> str:
    """Return the collation where one is named; empty: a character set, by its default collation."""
    return named.lower() if "_" in named else ""


def has_charset(kind: SqlType) -> bool:
    """Return whether values of this type have a character set of their own."""
    return kind.name in _BINARY_TWIN or kind.kind in (Kind.ENUM, Kind.SET)


def with_charset(kind: SqlType, named: str) -> SqlType:
    """Return the type with a character set, or with a collation and the set that it belongs to.

    With `binary`, text types become binary ones.
    """
    if not has_charset(kind):
        return kind
    if named == "binary" and kind.name in _BINARY_TWIN:
        return replace(kind, name=_BINARY_TWIN[kind.name], charset="binary", collation="")
    return replace(kind, charset=charset_of_collation(named), collation=collation_of(named))


def accept_charset(cursor: TokenCursor) -> str:
    """Consume `CHARACTER SET [=] x` or one of its short forms, or `COLLATE [=] x`.

    Returns the character set, or the collation, in lower case; empty text: none came next.
    """
    if (
        cursor.accept("CHARACTER", "SET")
        or cursor.accept("CHAR", "SET")
        or cursor.accept("CHARSET")
    ):
        cursor.accept("=")
        return _word_or_text(cursor).lower()
    if cursor.accept("COLLATE"):
        cursor.accept("=")
        return _word_or_text(cursor).lower()
    return ""


def narrowed(before: str, named: str) -> str:
    """Return what holds after `named` was read, too: a collation is more than its set's name."""
    charset = charset_of_collation(before)
    if not collation_of(named):
        return before if charset == named else named
    if charset in ("", charset_of_collation(named)):
        return named
    return f"{charset}_{named}"  # MariaDB's short names, like uca1400_ai_ci


def _word_or_text(cursor: TokenCursor) -> str:
    return cursor.text() if cursor.peek().kind == STRING else cursor.name()


def read_type(cursor: TokenCursor, charset: str) -> tuple[SqlType, bool]:
    """Consume a column type with its attributes.

    Args:
        cursor: stands at the type's first word.
        charset: the table's, or its collation, for character types that name none.

    Returns:
        The type, and whether it was SERIAL (which also means NOT NULL AUTO_INCREMENT UNIQUE).
    """
    base = next((n for words, n in _SPELLINGS if cursor.accept(*words)), "")
    if not base:
        cursor.fail(f"unknown column type {cursor.peek().text!r}")
    if base == "bool":
        return SqlType("tinyint", length=1), False
    if base == "serial":
        return SqlType("bigint", unsigned=True), True
    name, _, national = base.partition(" ")
    sql_type = _sized(cursor, SqlType(name), national or charset)
    return _attributes(cursor, sql_type, national or charset), False


def _sized(cursor: TokenCursor, sql_type: SqlType, charset: str) -> SqlType:
    """Consume what stands in parentheses after the type's name."""
    if sql_type.kind in (Kind.ENUM, Kind.SET):
        return replace(sql_type, elements=_elements(cursor))
    if not cursor.accept("("):
        return sql_type
    length = cursor.whole()
    scale = cursor.whole() if cursor.accept(",") else None
    cursor.expect(")")
    if sql_type.kind in _TIMES:
        return replace(sql_type, scale=length or None)
    if sql_type.name == "float" and scale is None:  # FLOAT(p) only chooses between FLOAT and DOUBLE
        return SqlType("float" if length <= 24 else "double")
    if sql_type.name in ("text", "blob"):  # TEXT(n) means the smallest type that holds n
        longest = CHARSET_BYTES.get(charset_of_collation(charset), 1)
        need = length * (longest if sql_type.name == "text" else 1)
        prefix = next((p for p, limit in _SIZES if need < limit), "long")
        return SqlType(prefix + sql_type.name)
    return replace(sql_type, length=length, scale=scale)


def _elements(cursor: TokenCursor) -> tuple[str, ...]:
    cursor.expect("(")
    elements: list[str] = []
    while True:
        if cursor.peek().kind == HEX:
            elements.append(_bytes(cursor).decode("utf-8", "surrogateescape"))
        else:
            if cursor.peek().text.startswith("_") and cursor.peek(1).kind == STRING:
                cursor.take()  # a character set introducer
            elements.append(cursor.text().rstrip(" "))  # MySQL drops the blanks at the end
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(elements)


def _attributes(cursor: TokenCursor, sql_type: SqlType, charset: str) -> SqlType:
    """Consume UNSIGNED, ZEROFILL, CHARACTER SET and their like."""
    explicit, binary = "", False
    while True:
        if sql_type.kind in _SIGNED and (
            word := cursor.accept_any("UNSIGNED", "SIGNED", "ZEROFILL")
        ):
            zerofill = sql_type.zerofill or word == "ZEROFILL"
            unsigned = sql_type.unsigned or zerofill or word == "UNSIGNED"
            sql_type = replace(sql_type, unsigned=unsigned, zerofill=zerofill)
        elif has_charset(sql_type) and cursor.accept_any("BINARY"):
            binary = True  # the _bin collation of whatever the character set is
        elif has_charset(sql_type) and (word := cursor.accept_any("ASCII", "UNICODE", "BYTE")):
            explicit = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}[word]
        elif named := accept_charset(cursor):
            explicit = narrowed(explicit, named)
        else:
            chosen = explicit or charset
            if binary and chosen != "binary":
                chosen = f"{charset_of_collation(chosen)}_bin"
            return with_charset(sql_type, chosen)


# --- defaults ------------------------------------------------------------------------------------


def read_default(cursor: TokenCursor, kind: SqlType, column: str) -> tuple[Any, str]:
    """Consume the value after DEFAULT.

    Returns:
        The value as `Column.default` keeps it, or None and the text of an expression.
    """
    if cursor.at("("):
        return None, cursor.parenthesised()
    if cursor.accept("NULL"):
        return None, ""
    token = cursor.peek()
    if token.kind == WORD and (token.text.startswith("_") or token.word in ("DATE", "TIME")):
        if cursor.peek(1).kind in (STRING, HEX, BITS):
            cursor.take()
    if token.word == "TIMESTAMP" and cursor.peek(1).kind == STRING:
        cursor.take()
    if cursor.peek().kind == WORD and not cursor.at_any("TRUE", "FALSE"):
        return _function(cursor, kind)
    return _typed(cursor, kind, column), ""


def _function(cursor: TokenCursor, kind: SqlType) -> tuple[str | None, str]:
    word = cursor.peek().word
    if word not in _NOW and cursor.peek(1).word != "(":
        cursor.fail("expected a default value")
    name = cursor.take().text
    arguments = cursor.parenthesised() if cursor.at("(") else ""
    if word not in _NOW:
        return None, f"{name}({arguments})"
    text = "CURRENT_TIMESTAMP" + (f"({arguments})" if arguments not in ("", "0") else "")
    return (text, "") if kind.kind in _TIMES else (None, text)


def typed_default(text: str, kind: SqlType) -> Any:
    """Return a default that a server prints without quotes as the column's type keeps it.

    Raises:
        ArithmeticError, ValueError, IndexError: the text is no value of that type.
    """
    return _convert(text, kind)


def _typed(cursor: TokenCursor, kind: SqlType, column: str) -> Any:
    """Consume a literal and return it as the column's type keeps it."""
    start = cursor.place
    try:
        return _convert(_literal(cursor), kind)
    except (ArithmeticError, ValueError, IndexError):
        cursor.place = start
        cursor.fail(f"column {column!r}: the default does not fit {kind.sql}")


def _literal(cursor: TokenCursor) -> Decimal | str | bytes:
    if cursor.peek().kind == STRING:
        return cursor.text()
    if cursor.peek().kind in (HEX, BITS):
        return _bytes(cursor)
    if word := cursor.accept_any("TRUE", "FALSE"):
        return Decimal(int(word == "TRUE"))
    text = "-" if cursor.accept_any("-", "+") == "-" else ""
    text += "0." if cursor.accept(".") else ""
    if cursor.peek().kind != NUMBER:
        cursor.fail("expected a default value")
    return _number(text + cursor.take().text)


def _bytes(cursor: TokenCursor) -> bytes:
    token = cursor.take()
    if token.kind == HEX:
        return bytes.fromhex("0" * (len(token.text) % 2) + token.text)
    return int(token.text or "0", 2).to_bytes((len(token.text) + 7) // 8, "big")


def _number(value: str | bytes | Decimal) -> Decimal:
    """Return a number that some column could hold; others would not even fit the memory."""
    number = Decimal(int.from_bytes(value, "big") if isinstance(value, bytes) else value)
    if not number.is_finite() or abs(number.adjusted()) > 400:
        raise OverflowError
    return number


def _convert(value: Decimal | str | bytes, kind: SqlType) -> Any:
    match kind.kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT:
            if kind.kind is Kind.BIT and isinstance(value, str):
                return int.from_bytes(value.encode(), "big")
            return int(_number(value).to_integral_value("ROUND_HALF_UP"))
        case Kind.FLOAT | Kind.DOUBLE:
            number = float(_number(value))
            if number in (float("inf"), float("-inf")):
                raise OverflowError
            return number
        case Kind.DECIMAL:
            unit = Decimal(1).scaleb(-kind.fraction_digits)
            return f"{_number(value).quantize(unit, context=_WIDE):f}"
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP if value == 0:
            return "0000-00-00" if kind.kind is Kind.DATE else "0000-00-00 00:00:00"
        case Kind.ENUM if isinstance(value, Decimal):
            if value < 1:
                raise ValueError
            return kind.elements[int(value) - 1]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return f"{value:f}" if isinstance(value, Decimal) else value
