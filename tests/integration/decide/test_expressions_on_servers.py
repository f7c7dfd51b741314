"""Value expressions say what a real server says of the same rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa

from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.flow.decide.expression import Expression
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.mysql.ddl.statement import parse_create
from rowferry.testing.servers import Server

CREATE = (
    "CREATE TABLE t (id INT PRIMARY KEY, i INT, u BIGINT UNSIGNED, n DECIMAL(10,3), "
    "f DOUBLE, s VARCHAR(20), b VARBINARY(10), d DATE, dt DATETIME(3), ti TIME(1), "
    "e ENUM('red','Blue','x'), st SET('a','b','c'), bt BIT(8), y YEAR) "
    "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci"
)
NULLS = ", ".join(["NULL"] * 13)
ROWS = (
    "(1, 5, 18446744073709551615, 12.345, 1.5, 'Apple', 'Apple', '2024-02-29', "
    "'2024-02-29 12:30:45.500', '12:00:00.5', 'red', 'a,c', 5, 2024)",
    "(2, -7, 0, -0.500, -2.25, 'apple  ', 'apple', '1999-12-31', '1999-12-31 23:59:59.999', "
    "'-100:10:00', 'Blue', '', 0, 1999)",
    "(3, 0, 7, 0.000, 0, '12abc', '12', '2024-01-01', '2024-01-01 00:00:00.000', "
    "'00:00:00', 'x', 'b', 255, 2000)",
    "(4, 1, 1, 1.000, 1, '1', '1', '2000-01-01', '2000-01-01 00:00:00.001', '01:02:03', "
    "'red', 'a,b,c', 1, 1970)",
    "(5, 2147483647, 9007199254740993, 9999999.999, 1e10, 'Ünï_%', x'00ff', '2024-02-28', "
    "'2024-02-28 01:02:03.004', '838:59:59', 'Blue', 'c', 2, 2155)",
    "(6, -2147483648, 42, 2.500, 2.5, '', '', '2024-12-25', '2024-12-25 08:09:10.100', "
    "'08:09:10', NULL, NULL, NULL, NULL)",
    f"(7, {NULLS})",
    "(8, 3, 3, 3.333, 0.1, 'a\\\\b%c', 'a', '2010-10-10', '2010-10-10 10:10:10.010', "
    "'10:10:10.1', 'red', 'a', 3, 2010)",
    "(9, 10, 10, -2.500, -0.5, ' -3.5e1x', 'B', '2024-03-01', '2024-03-01 00:00:00.000', "
    "'-00:00:01', 'x', 'b,c', 64, 2024)",
)
FIXED = """
i = 5 | i <> 5 | i > -1 and i < 10 | i is null | i is not null | i <=> null | not i <=> 5
i in (1, 2, 5, null) | i not in (1, 2) | i in (1,2,3,4,5,6,7,8,9,10) | i between 0 and 5
i not between 0 and 5 | i = '5' | i = '5x' | s = 12 | s = 1 | s + 0 = -35 | s | i
u = 18446744073709551615 | u = '9007199254740993' | u > i | u = 9007199254740992 | u / 2 > 3
n = 12.345 | n > 0.5 | n = '12.345' | n * 2 = 5 | n - 1 < 0 | n / 3 = 0.8333 | n % 1 = 0.345
n div 2 = 6
i div 2 = -3 | i % 3 = -1 | mod(i, 4) = 1 | i / 2 = 2.5 | i / 0 is null
i / 3 = 1.666666666 | i / 3 = 1.6667 | n / 7 > 0.357 | n / 0.7 = 17.6357143
-i = 7 | -n > 0 | f = 1.5 | f * 2 = 3
f + 1 > 1.1 | f = i * i
f / 0 is null | f % 1 = 0.5 | f = '1.5' | f > n | i + n > 6 | i * i > 25 | 3 - i - 1 = -3
s = 'apple' | s = 'APPLE' | s <> 'apple' | s > 'b' | s >= 'apple' | s like 'a%' | s like 'A____'
s like '%\\_\\%' | s like 'a!%' escape '!' | s not like '%p%' | s like '' | s regexp '^a'
s rlike 'P{2}' | s not regexp '[0-9]' | binary s = 'apple' | s collate utf8mb4_bin = 'Apple'
s collate utf8mb4_bin like 'A%' | s = 'uni_%' | s in ('APPLE', 'x', '1')
s in ('q','w','r','t','y','p','APPLE','k','1') | b = 'Apple' | b = 'apple' | b = x'00ff'
b > 'a' | b = 0x3132 | i = 0x05 | length(b) = 2 | b like 'a%' | s = b
lower(s) = 'apple' | upper(s) = 'APPLE' | length(s) = 7 | char_length(s) = 5
concat(s, '-', i) = 'Apple-5' | concat(s, null) is null | left(s, 2) = 'ap' | right(s, 2) = 'le'
substring(s, 2, 3) = 'ppl' | substring(s, -3) = 'ple' | substr(s, 0) = '' | mid(s, -4, 2) = 'pp'
substring(s from 2) = 'pple' | trim(s) = 'apple' | char_length(rtrim(s)) = 5 | ltrim(s) like '-%'
right(s, 30) = 'apple' | left(s, -1) = '' | substring(s, -30) = ''
abs(i) = 7 | abs(n) = 0.5 | round(n) = 3 | round(n) = -3 | round(n, 1) = 12.3 | floor(n) = -1
ceil(n) = 13 | ceiling(f) = 2 | floor(f) = -3 | round(f) = 2 | round(i, -1) = 10
if(i > 0, s, 'neg') = 'neg' | ifnull(i, -1) = -1 | coalesce(null, i, 3) = 5 | nullif(i, 5) is null
isnull(n) | case when i > 3 then 1 when i < 0 then 0 end
case i when 5 then 'a' else 'b' end = 'a'
if(i is null, n, u) > 5 | coalesce(n, f) = 1.5 | if(n > 1, n, i) = 5 | ifnull(s, i) = 'apple'
d = '2024-02-29' | d > '2024-1-1' | d < 20240101 | d between '2024-01-01' and '2024-12-31'
d = date '2024-02-29' | dt > '2024-02-29' | dt = '2024-02-29 12:30:45.5'
dt < timestamp '2000-01-01 00:00:01'
dt >= d | date(dt) = d | year(d) = 2024 | month(dt) = 12 | day(d) = 29 | dayofmonth(dt) > 28
hour(dt) = 12 | minute(dt) = 30 | second(dt) = 45 | d in ('2024-02-29', '1999-12-31')
d is not null | dt like '2024%' | ifnull(d, '2000-01-01') > '2020' | d = dt
ti > '12:00:00' | ti < '-01:00:00' | ti = '08:09:10' | ti = time '00:00:00'
ti between '01:00:00' and '13:00:00'
e = 'RED' | e = 2 | e > 1 | e in ('blue', 'x') | e like 'b%' | st = 'a,c' | st = 5
st like '%b%' | e + 0 = 3
y > 5 | y > '12' | y < 99 | y = '70' | y = 0 | y > true | 10 < y | y > 200
bt = 5 | bt > 4 | bt = b'101' | bt + 1 = 256 | y = 2024 | y > 2000 | y between 1990 and 2020
i = 5 or i is null | not (i = 5) | !i | i xor n | i = 5 and null | i = 5 or null | i is true
i is not true | (i = 5) is false | i is unknown | not i is null | null | true | false | 1 | 2 - 1
i > 0 = 1 | i = 5 = 1 is true | i and s | i or s | n xor s | s = 'APPLE '
'1' = 1 | 1.0 | 0.9 = .9 | 1e0 = 1
f * 3 = 0.3 | f + 0.2 = 0.3 | f + 0.6 = 0.7 | f between 0.1 and 0.3
i & 1 = 1 | i ^ 3 = 6 | i << 2 = 20 | u >> 60 = 15 | ~i = 18446744073709551610 | i|2 = 7
-i & 255 = 7 | bt & 4 | st & 2 = 2 | n & 1 = 0 and n > 0 | i << bt = 160 | 1 + i << 1 = 12
greatest(i, n, 1) = 5 | least(i, n, 2) = 2 | greatest(i, null) is null | least(d, dt) = d
n between '0.5' and 3 | s between 1 and 12 | '5' between i and 'a' | b between s and 'b'
round(n, 1) = 10000000 | ceil(n) = 10000000 | not (round(n, 1)) | round(n, -7) = 10000000
sign(n) = -1 | sign(f) | hour(ti) = 838 | hour(ti) = 100 | minute(ti) = 10 | second(ti) = 1
"""


def fixed() -> list[str]:
    return [e.strip() for line in FIXED.strip().splitlines() for e in line.split(" | ")]


class Maker:
    """Makes expressions at random, all of which the servers take."""

    def __init__(
        self, dice: random.Random, brackets: str = "({})", columns: str = "i n f e bt"
    ) -> None:
        """`brackets` go around what an operator joins; `{}` leaves it to what binds closest."""
        self._dice = dice
        self._around = brackets.format
        self._numbers = [*columns.split(), "5", "-7", "2.5", "0", "0.1e1"]

    def truth(self, depth: int) -> str:
        dice = self._dice
        if depth == 0 or dice.random() < 0.3:
            return self._test(max(depth - 1, 0))
        kind = dice.choice(["and", "or", "xor", "not", "is", "if"])
        one = self.truth(depth - 1)
        if kind == "not":
            return f"not {self._around(one)}"
        if kind == "is":
            return f"({one}) is {dice.choice(['', 'not '])}{dice.choice(['true', 'false', 'null'])}"
        if kind == "if":
            return f"if({one}, {self.truth(depth - 1)}, {self.truth(depth - 1)})"
        return f"{self._around(one)} {kind} {self._around(self.truth(depth - 1))}"

    def _test(self, depth: int) -> str:
        dice = self._dice
        operator = dice.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        kind = dice.choice(["number", "number", "text", "date", "among"])
        if kind == "text":
            return f"{self._text(depth)} {operator} {self._text(depth)}"
        if kind == "date":
            literal = dice.choice(["'2024-02-29'", "'2000-01-01 00:00:00.001'", "20240101"])
            return f"{dice.choice(['d', 'dt', 'date(dt)'])} {operator} {literal}"
        if kind == "among":
            return f"{self._number(depth)} {dice.choice(['', 'not '])}in (1, 5, 2.5, null)"
        return f"{self._number(depth)} {operator} {self._number(depth)}"

    def _number(self, depth: int) -> str:
        dice = self._dice
        if depth <= 0 or dice.random() < 0.4:
            return dice.choice(self._numbers)
        kind = dice.choice(["+", "-", "*", "/", "div", "%", "abs", "floor", "ifnull", "length"])
        one = self._number(depth - 1)
        if kind == "length":
            return f"char_length({self._text(depth - 1)})"
        if kind in ("abs", "floor"):
            return f"{kind}({one})"
        if kind == "ifnull":
            return f"ifnull({one}, {self._number(depth - 1)})"
        return self._around(f"{one} {kind} {self._number(depth - 1)}")

    def _text(self, depth: int) -> str:
        dice = self._dice
        if depth <= 0 or dice.random() < 0.5:
            return dice.choice(["s", "e", "'apple'", "'B'", "''", "st"])
        kind = dice.choice(["lower", "upper", "left", "right", "concat", "trim"])
        one = self._text(depth - 1)
        if kind in ("left", "right"):
            return f"{kind}({one}, {dice.randint(0, 4)})"
        return f"concat({one}, 'x', i)" if kind == "concat" else f"{kind}({one})"


_AS_NUMBER = (Kind.BIT, Kind.ENUM, Kind.SET)
_WHOLE = (Kind.INTEGER, Kind.YEAR, *_AS_NUMBER)


def images(server: Server, schema: TableSchema) -> ImageColumns:
    columns = schema.columns
    listed = ", ".join(f"{c.name}+0" if c.type.kind in _AS_NUMBER else c.name for c in columns)
    texts = server.execute(f"SELECT {listed} FROM {schema.id} ORDER BY id")

    def value(text: Any, kind: Kind) -> Any:
        if text is None:
            return None
        if kind in _WHOLE:
            return int(text)
        if kind is Kind.DOUBLE:
            return float(text)
        if kind is Kind.BINARY:
            return text.encode("latin1") if isinstance(text, str) else text
        return text.decode() if isinstance(text, bytes) else text

    arrays = [
        pa.array([value(row[place], c.type.kind) for row in texts], c.type.arrow)
        for place, c in enumerate(columns)
    ]
    return ImageColumns(pa.StructArray.from_arrays(arrays, [c.name for c in columns]))


def test_same_as_the_server(source_server: Server) -> None:
    server = source_server
    server.script(
        "DROP DATABASE IF EXISTS expressions",
        "CREATE DATABASE expressions",
        CREATE.replace("TABLE t", "TABLE expressions.t"),
        f"INSERT INTO expressions.t VALUES {', '.join(ROWS)}",
    )
    schema = parse_create(CREATE, "expressions")
    rows = images(server, schema)
    dice = random.Random(20240229)
    makers = Maker(dice), Maker(dice, "{}", "i n f")
    texts = [*fixed(), *(maker.truth(3) for maker in makers for _ in range(150))]
    wrong = []
    listed = ", ".join(f"coalesce(({text}) = 1, 0)" for text in texts)
    answers = np.array(server.execute(f"SELECT {listed} FROM expressions.t ORDER BY id"))
    for text, answer in zip(texts, answers.T, strict=True):
        expected = [int(a) == 1 for a in answer]
        found = Expression(text, "key").fit(schema)(rows).tolist()
        if found != expected:
            wrong.append(f"{text}: {found}, the server says {expected}")
    assert not wrong, "\n".join(wrong)
