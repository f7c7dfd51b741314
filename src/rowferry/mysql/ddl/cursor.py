"""DDL text as a row of tokens, and the reader that walks over them.

sqlglot's MySQL tokenizer knows the quoting, comments and literals; the grammar of table definitions
is ours, because every column type, key and partition must arrive exactly or be refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from sqlglot import TokenType
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import TokenError

from rowferry.errors import BadStatement
from rowferry.mysql.ddl.text import opened_text

WORD, QUOTED, STRING, NUMBER, HEX, BITS, SYMBOL, END = range(8)

_KINDS: Final = {
    TokenType.IDENTIFIER: QUOTED,
    TokenType.STRING: STRING,
    TokenType.NATIONAL_STRING: STRING,
    TokenType.NUMBER: NUMBER,
    TokenType.HEX_STRING: HEX,
    TokenType.BIT_STRING: BITS,
}
_LEADING_WORD = re.compile(r"\s*(RENAME)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SqlToken:
    """One piece of the text; `start` and `end` are its place there."""

    kind: int
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The upper-case keyword or symbol; empty for quoted names and literals."""
        return self.text.upper() if self.kind in (WORD, SYMBOL) else ""


def tokenize(sql: str) -> list[SqlToken]:
    """Return the tokens of one statement, without comments and the final semicolon.

    `/*!…*/` and `/*M!…*/` are code, as in MySQL and MariaDB; `/*T!…*/` is a comment.

    Raises:
        BadStatement: unfinished quotes or comment, or a bad literals, or more than one statement.
    """
    plain, is_closed = opened_text(sql)
    tokens: list[SqlToken] = []
    # sqlglot hands over everything after a leading RENAME as one piece of text.
    if leading := _LEADING_WORD.match(plain):
        tokens.append(SqlToken(WORD, "RENAME", leading.start(1), leading.end(1)))
        plain = " " * leading.end() + plain[leading.end() :]
    try:
        raw = MySQL().tokenize(plain)
        if not is_closed:
            raise TokenError("a comment is not closed")
    except TokenError as err:
        raise BadStatement(
            f"{_short(sql)}: unfinished quotes or comment, or a bad literal"
        ) from err
    for token in raw:
        start, end = token.start, token.end + 1
        kind = _KINDS.get(token.token_type)
        if kind is not None:
            tokens.append(SqlToken(kind, token.text, start, end))
            continue
        for piece in re.finditer(r"\S+", plain[start:end]):  # "PRIMARY KEY" is one token there
            word = piece[0][0].isalnum() or piece[0][0] in "_$" or piece[0][0] >= "\x80"
            place = start + piece.start()
            tokens.append(SqlToken(WORD if word else SYMBOL, piece[0], place, start + piece.end()))
    while tokens and tokens[-1].word == ";":
        tokens.pop()
    if any(t.word == ";" for t in tokens):
        raise BadStatement(f"{_short(sql)}: more than one statement; send them one by one")
    return tokens


def _short(sql: str) -> str:
    """Return the beginning of a statement, for error texts."""
    text = " ".join(sql.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _is_word(token: SqlToken, word: str) -> bool:
    return token.word == word


class TokenCursor:
    """Reads tokens one after the other; every refusal quotes the place."""

    def __init__(
        self,
        sql: str,
        tokens: list[SqlToken] | None = None,
        place: int = 0,
        ansi_quotes: bool = False,
    ) -> None:
        """Read a text from its beginning.

        Args:
            sql: the text.
            tokens: what it consists of, if that is known.
            place: of the token to begin with.
            ansi_quotes: double quotes may enclose names.
        """
        self.sql = sql
        self.tokens = tokenize(sql) if tokens is None else tokens
        self.place = place
        self._ansi_quotes = ansi_quotes

    def at_place(self, place: int) -> TokenCursor:
        """Return another reader of the same tokens, to look ahead or to begin anew."""
        return TokenCursor(self.sql, self.tokens, place, self._ansi_quotes)

    def peek(self, ahead: int = 0) -> SqlToken:
        """Return a coming token without consuming it; after the last one, an END token."""
        at = self.place + ahead
        if at < len(self.tokens):
            return self.tokens[at]
        return SqlToken(END, "", len(self.sql), len(self.sql))

    def at(self, *words: str) -> bool:
        """Return whether these keywords or symbols come next."""
        here = self.tokens[self.place : self.place + len(words)]
        return len(here) == len(words) and all(map(_is_word, here, words))

    def at_any(self, *words: str) -> bool:
        """Return whether one of these keywords or symbols comes next."""
        word = self.peek().word
        return word != "" and word in words

    def accept(self, *words: str) -> bool:
        """Consume these keywords or symbols if they come next; return whether they did."""
        if not self.at(*words):
            return False
        self.place += len(words)
        return True

    def accept_any(self, *words: str) -> str:
        """Consume one of these keywords if it comes next; return it, else empty text."""
        word = self.peek().word
        if not word or word not in words:
            return ""
        self.place += 1
        return word

    def expect(self, *words: str) -> None:
        """Consume these keywords or symbols, or refuse the statement."""
        if not self.accept(*words):
            self.fail(f"expected {' '.join(words)}")

    def take(self) -> SqlToken:
        """Consume and return the next token."""
        token = self.peek()
        if token.kind == END:
            self.fail("the statement ends too early")
        self.place += 1
        return token

    def done(self) -> bool:
        """Return whether everything was consumed."""
        return self.peek().kind == END

    def finish(self) -> None:
        """Refuse the statement unless everything was consumed."""
        if not self.done():
            self.fail("not understood from here")

    def fail(self, why: str) -> NoReturn:
        """Raise BadStatement with the place where reading stopped."""
        rest = self.sql[self.peek().start :]
        near = f" near {_short(rest)!r}" if rest.strip() else " at its end"
        raise BadStatement(f"{_short(self.sql)}: {why}{near}")

    # --- pieces ----------------------------------------------------------------------------------

    def at_name(self) -> bool:
        """Return whether a name comes next, quoted or not."""
        token = self.peek()
        if token.kind == STRING:
            return self._ansi_quotes and self.sql[token.start] == '"'
        return token.kind in (WORD, QUOTED)

    def name(self) -> str:
        """Consume a name, quoted or not."""
        if not self.at_name():
            self.fail("expected a name")
        return self.take().text

    def qualified_name(self) -> tuple[str, str]:
        """Consume `name` or `database.name`; the database is empty where not given."""
        first = self.name()
        if self.accept("."):
            return first, self.name()
        return "", first

    def names(self) -> list[str]:
        """Consume one or more names with commas between."""
        names = [self.name()]
        while self.accept(","):
            names.append(self.name())
        return names

    def text(self) -> str:
        """Consume a string literal; neighbours join, as in MySQL."""
        if self.peek().kind != STRING:
            self.fail("expected a quoted text")
        text = self.take().text
        while self.peek().kind == STRING:
            text += self.take().text
        return text

    def whole(self) -> int:
        """Consume a whole number, with a sign if there is one."""
        sign = -1 if self.accept("-") else 1
        token = self.peek()
        if token.kind != NUMBER or not token.text.isdecimal():
            self.fail("expected a whole number")
        return sign * int(self.take().text)

    def parenthesised(self) -> str:
        """Consume a balanced `( … )` and return the source text inside."""
        self.expect("(")
        start, depth = self.peek().start, 1
        while depth:
            token = self.take()
            depth += {"(": 1, ")": -1}.get(token.word, 0)
        return self.sql[start : token.start].strip()

    def skip_to_comma(self) -> None:
        """Consume up to the next comma or closing parenthesis of this level, or the end."""
        while self.place < len(self.tokens):
            word = self.tokens[self.place].word
            if word in (",", ")"):
                return
            if word == "(":
                self.parenthesised()
            else:
                self.place += 1
