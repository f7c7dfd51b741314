"""Value expressions are read as a real server reads them: how close each operator binds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from rowferry.flow.decide.expression_syntax import Node, parse_expression
from rowferry.testing.servers import MySql

CREATE = "CREATE TABLE readings.t (a INT, b DECIMAL(9,2), c VARCHAR(10), d DATE)"
FIXED = """
a between 1 and 2 between 3 and 4; a not between 1 and b in (2, 3); a between 1 and c like 'x'
a = 1 = b <> 2 < 3 <=> 4; a <> b is null; a is null = 1; not a is null; not a in (1, 2)
not a = 1; !a = 1; !a is null; - a ^ 2; ~a ^ 2; ~~a; 2 ^ 3 ^ 4; a --1; a - - 1; -+- a
-c collate utf8mb4_bin; !c collate utf8mb4_bin; 'a' 'b' collate utf8mb4_bin = c
a or b xor a and b; a and b xor a or b; a || b && a; a xor b xor a; not a and b; not a xor b
a | b & 1 << 2 + 3 * 4 ^ 5; a ^ 2 * 3 + 4 << 5 & 6 | 7; a div b mod 2 * 3 / 4 % 5; a - b - 1
a in (1, b or 2, not a); case a when 1 then b when a = 2 then 3 end; isnull(a) = b
case when a or b then 1 else 2 end; if(a or b, a = 1, not b); mod(a, 2) = a mod 2
x'41' = 0x41; b'101' = 0b101; 'a''b\\'c\\n\\q' = "a""b'c"; n'x' = N'y'; 1.0 + .5 + 1.5e1 + 1e-2
date'2024-01-31' <= d; c like 'a' 'b' escape '!'; a /* b */ + 1 # c
a /*!50000 + 1 */ * 2; a and b is true; a = b is not false; not a is unknown
"""
OTHER_WAY = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class Writer:
    """Writes expressions by MySQL's grammar, mostly without parentheses."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def expression(self, depth: int) -> str:
        kind = self._dice.choice(["or", "||", "xor", "and", "&&", "not", "", ""])
        if depth <= 0 or not kind:
            return self._comparison(depth)
        if kind == "not":
            return f"not {self._comparison(depth - 1)}"
        return self._joined(kind, self.expression, depth)

    def _joined(self, operator: str, part: Callable[[int], str], depth: int) -> str:
        return f"{part(depth - 1)} {operator} {part(depth - 1)}"

    def _comparison(self, depth: int) -> str:
        dice = self._dice
        if depth <= 0 or dice.random() < 0.4:
            return self._predicate(depth)
        if dice.random() < 0.2:
            return f"{self._comparison(depth - 1)} is {dice.choice(['', 'not '])}null"
        operator = dice.choice(["=", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
        return f"{self._comparison(depth - 1)} {operator} {self._predicate(depth - 1)}"

    def _predicate(self, depth: int) -> str:
        kind = self._dice.choice(["in", "between", "like", "", ""])
        if depth <= 0 or not kind:
            return self._number(depth)
        left = f"{self._number(depth - 1)} {self._dice.choice(['', 'not '])}{kind} "
        if kind == "in":
            return f"{left}({self.expression(depth - 2)}, {self.expression(depth - 2)})"
        if kind == "between":
            return f"{left}{self._number(depth - 1)} and {self._predicate(depth - 1)}"
        return left + self._dice.choice(["'a%'", "'_a' escape '!'", "'a' 'b'"])

    def _number(self, depth: int) -> str:
        if depth <= 0 or self._dice.random() < 0.4:
            return self._operand(depth)
        operators = "| & << >> + - * / % div mod ^"
        return self._joined(self._dice.choice(operators.split()), self._number, depth)

    def _operand(self, depth: int) -> str:
        dice = self._dice
        if dice.random() < 0.25:
            return dice.choice(["-", "! ", "~", "+"]) + self._operand(depth - 1)
        if depth > 0 and dice.random() < 0.4:
            inner = [self.expression(depth - 2) for _ in range(3)]
            form = dice.choice(["({})", "if({}, {}, {})", "case when {} then {} else {} end"])
            return form.format(*inner)
        return dice.choice(
            ["a", "b", "t.a", "`b`", "1", "2.5", ".5", "3e1", "'x'", "x'41'", "null"]
        )


def meaning(node: Node, negated: bool = False) -> tuple[object, ...]:
    """Return a tree in one form for all that a server writes anew when it keeps an expression.

    It moves NOT inwards, compares with 0 what it takes for true, and knows some functions as
    operators. Nothing here has another 0.
    """
    kind, args = node.kind, node.args
    if kind == "not":
        return meaning(args[0], not negated)
    if kind in ("=", "<>") and (args[0].kind, args[0].value) == ("literal", 0):
        return meaning(args[1], negated ^ (kind == "="))
    if kind in ("and", "or"):
        kind = {"and": "or", "or": "and"}[kind] if negated else kind
        parts = [meaning(arg, negated) for arg in args]
        flat = [one for part in parts for one in (part[1:] if part[0] == kind else (part,))]
        return (kind, *flat)
    if kind == "between" and (low := meaning(args[1])) == meaning(args[2]) and low[0] == "literal":
        return meaning(Node("=", 0, args=args[:2]), negated)
    if kind == "xor":
        return ("xor", meaning(args[0], negated), meaning(args[1]))
    if negated and kind in OTHER_WAY:
        kind, negated = OTHER_WAY[kind], False
    value = repr(node.value)
    if kind == "call":
        kind, value = {"'mod'": ("%", "None"), "'isnull'": ("is null", "None")}.get(
            value, (kind, value)
        )
    base = (kind, value, *(meaning(arg) for arg in args))
    return ("not", base) if negated else base


def kept_by(server: MySql, texts: list[str]) -> Iterator[str]:
    """Yield the expressions with all parentheses, as a view keeps them."""
    for start in range(0, len(texts), 50):
        some = texts[start : start + 50]
        listed = ", ".join(f"({text}\n) AS `column {place}`" for place, text in enumerate(some))
        server.script(
            "DROP VIEW IF EXISTS readings.v",
            f"CREATE VIEW readings.v AS SELECT {listed} FROM readings.t",
        )
        ((written,),) = server.execute(
            "SELECT VIEW_DEFINITION FROM information_schema.VIEWS WHERE TABLE_SCHEMA = 'readings'"
        )
        yield from re.split(r" AS `column \d+`(?:,| from .*)", str(written)[len("select ") :])[:-1]


def test_reads_as_the_server_does(mysql_server: MySql) -> None:
    server = mysql_server
    server.script("DROP DATABASE IF EXISTS readings", "CREATE DATABASE readings", CREATE)
    writer = Writer(random.Random(20240229))
    fixed = re.split(r"; |\n", FIXED.strip())
    texts = [*fixed, *(writer.expression(4) for _ in range(600))]
    wrong = []
    for text, kept in zip(texts, kept_by(server, texts), strict=True):
        if meaning(parse_expression(text)) != meaning(parse_expression(kept)):
            wrong.append(f"{text}\n    is for the server {kept}")
    assert not wrong, "\n".join(wrong)
