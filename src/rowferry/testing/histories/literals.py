"""Values as SQL, the extreme ones among them."""

from __future__ import annotations

import random
from typing import Final

from rowferry.testing.histories.facts import ColumnFacts, literal

_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_WORDS: Final = (
    "",
    " ",
    "a",
    "A",
    "ä",
    "straße",
    "trailing   ",
    "  leading",
    "NULL",
    "\\N",
    'quo"te',
    "it's",
    "back`tick",
    "comma,semi;colon",
    "line\nbreak\r\n",
    "tab\there",
    "back\\slash\\",
    "\x00zero",
    "<b>&amp;</b>",
    "\u2028\u2029",
    "日本語",
    "Ω≈ç",
    "😀🎉",
    "e\u0301",
    "%_",
    "true",
    "0",
    "-0",
    "1e9",
    "\x7f\x1b",
)
_DATES: Final = ("0000-00-00", "1000-01-01", "9999-12-31", "2024-02-29", "1970-01-01", "2024-00-00")
_CLOCKS: Final = ("00:00:00", "23:59:59", "12:30:15.999999", "01:02:03.5", "00:00:00.000001")
_TIMES: Final = (
    "838:59:59",
    "-838:59:59",
    "00:00:00",
    "-00:00:01",
    "-00:00:00.000001",
    "100:00:00.25",
    "12:34:56.789012",
)
_JSON: Final = (
    "null",
    "true",
    "0",
    "-0.0",
    "18446744073709551615",
    "-9223372036854775808",
    "1.5e300",
    '""',
    '"\\u0000 \\" \\\\ 😀"',
    "[]",
    "{}",
    '{"b": 1, "a": [1, 2, {"c": null}], "": "x", "long key of an object": 0.1}',
    '[1, 2.5, "three", null, true, {"k": "v"}]',
    '{"name": "ink", "price": 12.50, "tags": ["x", "y"], "n": {"m": 1}}',
    "[[[[[[1]]]]]]",
)
_SHAPES: Final = (
    "POINT(1 2)",
    "LINESTRING(0 0,1 1,2 2)",
    "POLYGON((0 0,10 0,10 10,0 10,0 0))",
    "MULTIPOINT(1 1,2 2)",
    "GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))",
)


def value(dice: random.Random, column: ColumnFacts, small: bool = False) -> str:
    """Return a random value for a column; `small` makes collisions of keys likely."""
    if column.nullable and dice.random() < 0.15:
        return "NULL"
    if column.default is not None and dice.random() < 0.03:
        return "DEFAULT"
    return _of(dice, column, small)


def _of(dice: random.Random, column: ColumnFacts, small: bool) -> str:
    match column.type:
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint":
            return _integer(dice, column, small)
        case "year":
            return dice.choice(("0", "1901", "2155", "2024", "1970"))
        case "bit":
            return _bits(dice, column.length or 1, small)
        case "float":
            return dice.choice(
                ("0", "-0e0", "0.1", "-1.5", "3.4028234e38", "1.17549e-38", "16777217", "1e-45")
                + (str(dice.uniform(-1000, 1000)),)
            )
        case "double":
            return dice.choice(
                ("0", "-0e0", "0.1", "1.7976931348623157e308", "5e-324", "-1e21", "1e-7", "1e15")
                + (str(dice.uniform(-1e6, 1e6)), str(dice.randrange(10)))
            )
        case "decimal":
            return _decimal(dice, column)
        case "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext":
            return _text(dice, column, small)
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            return _bytes(dice, column, small)
        case "date":
            return f"'{dice.choice(_DATES)}'"
        case "datetime":
            return f"'{dice.choice(_DATES)} {dice.choice(_CLOCKS)}'"
        case "timestamp":
            days = ("1970-01-02", "2038-01-18", "2024-02-29", "2001-09-09")
            day = f"{dice.choice(days)} {dice.choice(_CLOCKS)}"
            return f"'{day}'" if dice.random() < 0.85 else "'0000-00-00 00:00:00'"
        case "time":
            return f"'{dice.choice(_TIMES)}'"
        case "enum":
            low = 0 if column.nullable and dice.random() < 0.1 else 1
            return str(dice.randrange(low, _elements(column) + 1))
        case "set":
            return str(dice.randrange(1 << min(_elements(column), 62)))
        case "json":
            return literal(dice.choice(_JSON))
        case "vector":
            numbers = [dice.choice((0.0, -1.5, 3.25, 1e-7, 123456.0)) for _ in range(column.length)]
            raw = "[" + ",".join(map(str, numbers)) + "]"
            return f"STRING_TO_VECTOR('{raw}')"
        case "uuid":
            return f"'{dice.getrandbits(128):032x}'"
        case "inet6":
            return dice.choice(
                ("'::'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.1'", "'ff::1'")
            )
        case "inet4":
            return dice.choice(("'0.0.0.0'", "'255.255.255.255'", "'192.0.2.7'", "'10.1.2.3'"))
    return _shape(dice, column)


def _integer(dice: random.Random, column: ColumnFacts, small: bool) -> str:
    if small:
        return str(dice.randrange(1, 40))
    bits = _BITS[column.type]
    low, high = (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return str(dice.choice((low, high, 0, 1, low + 1, high // 2 + 1, dice.randint(low, high))))


def _bits(dice: random.Random, length: int, small: bool) -> str:
    top = (1 << length) - 1
    return str(
        min(top, dice.randrange(40)) if small else dice.choice((0, top, dice.randint(0, top)))
    )


def _decimal(dice: random.Random, column: ColumnFacts) -> str:
    inside = column.full.partition("(")[2].partition(")")[0].split(",")
    digits, scale = int(inside[0]), int(inside[1]) if len(inside) > 1 else 0
    number = dice.choice((0, 1, 10**digits - 1, dice.randrange(10**digits)))
    text = str(number).rjust(scale + 1, "0")
    sign = "-" if number and not column.unsigned and dice.random() < 0.4 else ""
    whole = text[: len(text) - scale]
    return f"{sign}{whole}.{text[len(text) - scale :]}" if scale else f"{sign}{whole}"


def _text(dice: random.Random, column: ColumnFacts, small: bool) -> str:
    if small:
        return f"'{dice.choice('abcdefghijABCD')}{dice.choice('xyz')}'"
    word = dice.choice(_WORDS)
    if column.type in ("text", "mediumtext", "longtext") and dice.random() < 0.06:
        word = word * dice.choice((30, 3000 if column.type != "text" else 300)) + "end"
    elif dice.random() < 0.3:
        word = "".join(dice.choice(_WORDS) for _ in range(3))
    if "json_valid" in (column.default or ""):
        return literal(dice.choice(_JSON))
    return literal(word[: column.length] if column.length else word)


def _bytes(dice: random.Random, column: ColumnFacts, small: bool) -> str:
    if small:
        return f"0x{dice.randrange(40):02x}"
    raw = dice.choice(
        (b"", b"\x00", b"\xff\xfe", b"a\x00b\x00", b"\x80\x81", b"plain", b"\\x41 \"'")
    )
    if column.type in ("mediumblob", "longblob") and dice.random() < 0.1:
        raw = dice.randbytes(dice.choice((300, 70_000, 130_000)))
    elif column.length:
        raw = (raw + dice.randbytes(dice.randrange(4)))[: column.length]
    return f"0x{raw.hex()}" if raw else "''"


def _elements(column: ColumnFacts) -> int:
    return column.full.count("','") + 1


def _shape(dice: random.Random, column: ColumnFacts) -> str:
    fitting = [s for s in _SHAPES if s.lower().startswith(column.type[:6])]
    return f"ST_GeomFromText('{dice.choice(fitting or _SHAPES[:1])}')"
