"""Value expressions as users write them: MySQL's boolean expressions, read into a tree.

Precedence is MySQL's. What is not known here is refused with its place; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isinf
from typing import Any, Final, NoReturn, TypeAlias

from rowferry.errors import BadEventFilter, BadStatement
from rowferry.mysql.ddl.cursor import (
    BITS,
    END,
    HEX,
    NUMBER,
    QUOTED,
    STRING,
    WORD,
    SqlToken,
    tokenize,
)

# Functions by name: how many arguments they take at least and at most (None: any number).
FUNCTIONS: Final[dict[str, tuple[int, int | None]]] = {
    "abs": (1, 1),
    "ceil": (1, 1),
    "char_length": (1, 1),
    "coalesce": (1, None),
    "concat": (1, None),
    "date": (1, 1),
    "day": (1, 1),
    "floor": (1, 1),
    "greatest": (2, None),
    "hour": (1, 1),
    "if": (3, 3),
    "ifnull": (2, 2),
    "isnull": (1, 1),
    "least": (2, None),
    "left": (2, 2),
    "length": (1, 1),
    "lower": (1, 1),
    "ltrim": (1, 1),
    "minute": (1, 1),
    "mod": (2, 2),
    "month": (1, 1),
    "nullif": (2, 2),
    "right": (2, 2),
    "round": (1, 2),
    "rtrim": (1, 1),
    "second": (1, 1),
    "sign": (1, 1),
    "substring": (2, 3),
    "trim": (1, 1),
    "upper": (1, 1),
    "year": (1, 1),
}
_OTHER_NAMES: Final = {
    "ceiling": "ceil",
    "character_length": "char_length",
    "dayofmonth": "day",
    "lcase": "lower",
    "mid": "substring",
    "octet_length": "length",
    "substr": "substring",
    "ucase": "upper",
}
_CHANGING: Final = frozenset(
    "now current_timestamp localtime localtimestamp sysdate curdate current_date curtime "
    "current_time utc_date utc_time utc_timestamp unix_timestamp rand uuid uuid_short user "
    "current_user session_user system_user database schema connection_id version sleep "
    "last_insert_id found_rows row_count".split()
)
_COMPARISONS: Final = {"=": "=", "<=>": "<=>", "<": "<", "<=": "<=", ">": ">", ">=": ">="} | {
    "!=": "<>",
    "<>": "<>",
}
_Operators: TypeAlias = dict[str, tuple[int, str]]  # by symbol: how close they bind, and their kind
_LOGIC: Final[_Operators] = {"OR": (0, "or"), "||": (0, "or"), "XOR": (1, "xor")} | {
    "AND": (2, "and"),
    "&&": (2, "and"),
}
_ARITHMETIC: Final[_Operators] = {
    symbol: (level, {"MOD": "%", "DIV": "div"}.get(symbol, symbol))
    for level, symbols in enumerate(("|", "&", "<< >>", "+ -", "* / % DIV MOD", "^"))
    for symbol in symbols.split()
}
_REFUSED_OPERATORS: Final = frozenset({"->", "->>", ":="})
# Words that begin or join expressions and so are no column names unless quoted.
_RESERVED: Final = frozenset(
    "AND OR XOR NOT IN IS LIKE REGEXP RLIKE BETWEEN CASE WHEN THEN ELSE DIV MOD NULL TRUE "
    "FALSE BINARY COLLATE INTERVAL EXISTS SELECT FROM WHERE".split()
)
# Both are far from where Python's stack ends, so that a task does not refuse what was accepted.
_MOST_NESTED, _DEEPEST, _TOO_DEEP = 50, 100, "the expression is nested too deeply"
_MOST_WRITTEN: Final = 1000  # digits of a whole number: Python refuses to read some thousands
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


@dataclass(frozen=True, slots=True)
class Node:
    """One piece of an expression.

    Attributes:
        kind: "column", "literal", "date", "datetime", "time" (literals with their type), "hex",
            "call", "case" or an operator.
        value: the column's or function's name, the literal, or what an operator needs besides.
        args: what it is made of.
        at: where it begins in the text, from 0.
    """

    kind: str
    at: int
    value: Any = None
    args: tuple[Node, ...] = ()


def parse_expression(text: str) -> Node:
    """Read one expression.

    Raises:
        BadEventFilter: what is wrong, and at which character; without the key at fault.
    """
    try:
        tokens = tokenize(text)
    except BadStatement as err:
        raise BadEventFilter(f"the expression cannot be read: {err.words}") from None
    try:
        node = _Reader(text, tokens).whole()
    except RecursionError:
        raise BadEventFilter(_TOO_DEEP) from None
    if _is_deep(node):
        raise BadEventFilter(_TOO_DEEP)
    return node


def _is_deep(node: Node) -> bool:
    level = [node]
    for _ in range(_DEEPEST + 1):
        level = list({id(arg): arg for one in level for arg in one.args}.values())
    return bool(level)


def _single(tokens: Iterable[SqlToken]) -> Iterator[SqlToken]:
    """Yield the tokens with `~~`, which another dialect has as one operator, in its pieces."""
    for token in tokens:
        if set(token.word) == {"~"}:
            yield from (SqlToken(token.kind, "~", i, i + 1) for i in range(token.start, token.end))
        else:
            yield token


def refuse(why: str, at: int, text: str, kind: type[BadEventFilter] = BadEventFilter) -> NoReturn:
    """Raise an error that names the place."""
    raise kind(f"{why}, at character {at + 1} of {text!r}")


class _Reader:
    """Walks over the tokens; a method for each level of MySQL's grammar, the loosest first."""

    def __init__(self, text: str, tokens: list[SqlToken]) -> None:
        self.text = text
        self.tokens = [*_single(tokens), SqlToken(END, "", len(text), len(text))]
        self.place = 0
        self.nested = -1  # the whole is in nothing

    @property
    def next(self) -> SqlToken:
        return self.tokens[self.place]

    def whole(self) -> Node:
        if self.next.kind == END:
            self.fail("the expression is empty")
        node = self.expression()
        if self.next.kind != END:
            self.fail(f"{self.next.text!r} does not fit here")
        return node

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        if self.next.word in _REFUSED_OPERATORS:
            why = f"the operator {self.next.text} is not supported"
        refuse(why, self.next.start if at is None else at, self.text)

    def accept(self, *words: str) -> str:
        """Consume one of these words or symbols; return it, else empty text."""
        word = self.next.word
        if word and word in words:
            self.place += 1
            return word
        return ""

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail(f"expected {word}")

    # --- operators -------------------------------------------------------------------------------

    def expression(self) -> Node:
        self.nested += 1
        if self.nested > _MOST_NESTED:
            raise BadEventFilter(_TOO_DEEP)
        node = self.joined(_LOGIC, self.negation)
        self.nested -= 1
        return node

    def joined(self, operators: _Operators, inner: Callable[[], Node], loosest: int = 0) -> Node:
        """Read what these operators join, of which those of a higher level bind closer."""
        left = inner()
        while binding := self.operator(operators, loosest):
            level, kind = binding
            right = self.joined(operators, inner, level + 1)
            # Long rows of OR or AND are one node, however many there are.
            whole = left.args if kind == left.kind in ("or", "and") else (left,)
            left = Node(kind, left.at, args=(*whole, right))
        return left

    def operator(self, operators: _Operators, loosest: int) -> tuple[int, str] | None:
        """Consume an operator that binds at least so close; else return None."""
        word, size = self.next.word, 1
        if word in ("<", ">"):  # `<<` and `>>` come as two tokens side by side
            other = self.tokens[min(self.place + 1, len(self.tokens) - 1)]
            if word == other.word and self.next.end == other.start:
                word, size = word * 2, 2
        binding = operators.get(word)
        if binding is None or binding[0] < loosest:
            return None
        self.place += size
        return binding

    def negation(self) -> Node:
        at = self.next.start
        if self.next.text.upper() == "NOT" and self.accept("NOT"):
            return Node("not", at, args=(self.negation(),))
        return self.comparison()

    def comparison(self) -> Node:
        left = self.predicate()
        while True:
            if operator := self.accept(*_COMPARISONS):
                if self.next.word in ("ALL", "ANY", "SOME"):
                    self.fail("subqueries are not supported")
                left = Node(_COMPARISONS[operator], left.at, args=(left, self.predicate()))
            elif self.accept("IS"):
                left = self.is_what(left)
            else:
                return left

    def is_what(self, left: Node) -> Node:
        negated = bool(self.accept("NOT"))
        what = self.accept("NULL", "UNKNOWN", "TRUE", "FALSE")
        if not what:
            self.fail("expected NULL, TRUE, FALSE or UNKNOWN")
        kind = {"TRUE": "is true", "FALSE": "is false"}.get(what, "is null")
        node = Node(kind, left.at, args=(left,))
        return Node("not", left.at, args=(node,)) if negated else node

    def predicate(self) -> Node:
        left = self.bits()
        negated = self.next.text.upper() == "NOT" and bool(self.accept("NOT"))
        if self.accept("IN"):
            node = Node("in", left.at, args=(left, *self.listed()))
        elif self.accept("BETWEEN"):
            low = self.bits()
            self.expect("AND")
            node = Node("between", left.at, args=(left, low, self.predicate()))
        elif self.accept("LIKE"):
            pattern = self.bits()
            escape = "\\"
            if self.accept("ESCAPE"):
                escape = self.one_character()
            node = Node("like", left.at, escape, (left, pattern))
        elif self.accept("REGEXP", "RLIKE"):
            node = Node("regexp", left.at, args=(left, self.bits()))
        elif negated:
            self.fail("expected IN, BETWEEN, LIKE or REGEXP after NOT")
        else:
            return left
        return Node("not", left.at, args=(node,)) if negated else node

    def one_character(self) -> str:
        at, token = self.next.start, self.next
        if token.kind != STRING or len(character := self.string()) > 1:
            self.fail("ESCAPE needs one character in quotes", at)
        return character

    def bits(self) -> Node:
        return self.joined(_ARITHMETIC, self.sign)

    def sign(self) -> Node:
        at = self.next.start
        if self.accept("-"):
            inner = self.sign()
            if inner.kind == "literal" and isinstance(inner.value, int | float | Decimal):
                if not isinstance(inner.value, bool):
                    return Node("literal", at, -inner.value)
            return Node("minus", at, args=(inner,))
        if self.accept("+"):
            return self.sign()
        if self.accept("!"):
            if self.next.word == "!" and self.next.start == at + 1:
                self.fail("MySQL takes !! for one NOT, MariaDB for two; write NOT instead", at)
            return Node("not", at, args=(self.sign(),))
        if self.accept("~"):
            return Node("~", at, args=(self.sign(),))
        if self.accept("BINARY"):
            return Node("binary", at, args=(self.sign(),))
        node = self.primary()
        while self.accept("COLLATE"):
            name = self.string() if self.next.kind == STRING else self.word("a collation")
            node = Node("collate", node.at, name.lower(), (node,))
        return node

    # --- what operators join ---------------------------------------------------------------------

    def primary(self) -> Node:
        token = self.next
        if token.kind == STRING:
            return Node("literal", token.start, self.string())
        if token.kind == NUMBER:
            return self.number()
        if token.kind in (HEX, BITS):
            return self.hexadecimal()
        if token.kind == QUOTED:
            return self.column()
        if token.word == "(":
            return self.parenthesised()
        following = self.tokens[min(self.place + 1, len(self.tokens) - 1)]
        if token.word == "." and following.kind == NUMBER and following.start == token.end:
            self.place += 1
            return self.number("0.", token.start)
        if token.kind != WORD:
            self.fail("expected a value" if token.kind == END else f"{token.text!r} is unexpected")
        if self.accept("NULL"):
            return Node("literal", token.start, None)
        if word := self.accept("TRUE", "FALSE"):
            return Node("literal", token.start, word == "TRUE")
        if self.accept("CASE"):
            return self.case(token.start)
        if token.word in ("DATE", "TIME", "TIMESTAMP") and following.kind == STRING:
            self.place += 1
            kind = {"TIMESTAMP": "datetime"}.get(token.word, token.word.lower())
            return Node(kind, token.start, self.string())
        if following.word == "(":
            return self.call()
        if token.text.lower() in ("current_timestamp", "current_date", "current_time"):
            self.changing(token)
        if token.word in _RESERVED:
            self.fail(f"{token.text!r} is unexpected; quote it with ` if it is a column")
        return self.column()

    def parenthesised(self) -> Node:
        self.expect("(")
        if self.next.word == "SELECT":
            self.fail("subqueries are not supported")
        node = self.expression()
        if self.next.word == ",":
            self.fail("rows of several values are not supported")
        self.expect(")")
        return node

    def listed(self) -> list[Node]:
        self.expect("(")
        if self.next.word == "SELECT":
            self.fail("subqueries are not supported")
        nodes = [self.expression()]
        while self.accept(","):
            nodes.append(self.expression())
        self.expect(")")
        return nodes

    def case(self, at: int) -> Node:
        """Read CASE; a simple one (CASE x WHEN 1 …) becomes comparisons."""
        subject = None if self.next.word == "WHEN" else self.expression()
        args: list[Node] = []
        while self.accept("WHEN"):
            when = self.expression()
            args.append(Node("=", when.at, args=(subject, when)) if subject else when)
            self.expect("THEN")
            args.append(self.expression())
        if not args:
            self.fail("expected WHEN")
        args.append(self.expression() if self.accept("ELSE") else Node("literal", at, None))
        self.expect("END")
        return Node("case", at, args=tuple(args))

    def call(self) -> Node:
        token = self.next
        written = token.text.lower()
        name = _OTHER_NAMES.get(written, written)
        if written in _CHANGING:
            self.changing(token)
        if name not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            self.fail(f"the function {written}() is not supported (known: {known})")
        self.place += 1
        args = () if self.tokens[self.place + 1].word == ")" else tuple(self.arguments(name))
        if not args:
            self.expect("(")
            self.expect(")")
        least, most = FUNCTIONS[name]
        if len(args) < least or (most is not None and len(args) > most):
            wanted = str(least) if least == most else f"{least} to {most or 'many'}"
            self.fail(f"{written}() takes {wanted} arguments, not {len(args)}", token.start)
        return Node("call", token.start, name, args)

    def arguments(self, name: str) -> list[Node]:
        """Read `(a, b)`; `SUBSTRING(a FROM b FOR c)` is the same with other words."""
        self.expect("(")
        nodes = [self.expression()]
        joints = (",", "FROM", "FOR") if name == "substring" else (",",)
        while self.accept(*joints):
            nodes.append(self.expression())
        self.expect(")")
        return nodes

    def changing(self, token: SqlToken) -> NoReturn:
        self.fail(f"{token.text.lower()}() is not the same on every replay and is refused")

    def column(self) -> Node:
        at = self.next.start
        name = self.word("a column")
        while self.accept("."):
            name = self.word("a column")  # the table's name in front says nothing new
        return Node("column", at, name)

    def word(self, what: str) -> str:
        if self.next.kind not in (WORD, QUOTED):
            self.fail(f"expected {what}")
        self.place += 1
        return self.tokens[self.place - 1].text

    # --- literals --------------------------------------------------------------------------------

    def string(self) -> str:
        """Consume a text in quotes; neighbours join, as in MySQL."""
        text = ""
        while self.next.kind == STRING:
            token = self.next
            text += _unquoted(self.text[token.start : token.end])
            self.place += 1
        return text

    def number(self, lead: str = "", at: int | None = None) -> Node:
        token = self.next
        self.place += 1
        text, at = lead + token.text, token.start if at is None else at
        if re.fullmatch(r"\d+", text) and len(text) <= _MOST_WRITTEN:
            return Node("literal", at, int(text))
        if re.fullmatch(r"\d*\.\d*", text):
            return Node("literal", at, Decimal(text))
        try:
            number = float(text)
        except ValueError:
            self.place -= 1
            self.fail(f"{text!r} is not a number")
        if isinf(number) or text.isdecimal():
            self.fail("the number is too large", at)
        return Node("literal", at, number)

    def hexadecimal(self) -> Node:
        token = self.next
        self.place += 1
        base = 16 if token.kind == HEX else 2
        if base == 16 and len(token.text) % 2 and self.text[token.start] in "xX":
            self.fail("x'…' needs an even number of digits", token.start)
        try:
            number = int(token.text or "0", base)
        except ValueError:
            self.place -= 1
            self.fail(f"{token.text!r} is not a number")
        digits = len(token.text) * (4 if base == 16 else 1)
        return Node("hex", token.start, number.to_bytes((digits + 7) // 8, "big"))


def _unquoted(literal: str) -> str:
    r"""Return the text of a literal in quotes; `\%` and `\_` stay as they are, for LIKE."""
    start = literal[:1] not in ("'", '"')  # N'…'
    quote, inner = literal[start], literal[start + 1 : -1]

    def plain(match: re.Match[str]) -> str:
        if match[0] == quote * 2:
            return quote
        char = match[0][1]
        return match[0] if char in "%_" else _ESCAPES.get(char, char)

    return re.sub(rf"\\(?s:.)|{quote}{quote}", plain, inner)


__all__ = ["FUNCTIONS", "Node", "parse_expression", "refuse"]
