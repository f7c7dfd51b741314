"""The words of SQL statements about changefeeds, each with its place in the text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class TokenKind(Enum):
    """What a token is."""

    WORD = auto()
    NUMBER = auto()
    TEXT = auto()  # '…' or "…"
    QUOTED = auto()  # `…`
    SYMBOL = auto()
    UNFINISHED = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class StatementToken:
    """One word; `start` and `end` are its place."""

    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def shown(self) -> str:
        """The token as an error names it. Texts are not repeated: they may hold a password."""
        match self.kind:
            case TokenKind.END:
                return "the end"
            case TokenKind.TEXT:
                return "a text in quotes"
            case TokenKind.UNFINISHED:
                return "quotes or a comment without an end"
        return repr(self.text if len(self.text) <= 40 else self.text[:40] + "…")


_TOKEN: Final = re.compile(
    r"""
      (?P<space>  \s+ | --(?=\s|$)[^\n]* | \#[^\n]* | /\*.*?\*/ )
    | (?P<TEXT>   '(?:[^']|'')*' | "(?:[^"\\]|\\.)*" )
    | (?P<QUOTED> `(?:[^`]|``)+` )
    | (?P<UNFINISHED> ['"`] | /\* )
    | (?P<NUMBER> -?[0-9]{1,40}(?:\.[0-9]{1,40})?(?![\w$-]) )
    | (?P<WORD>   [\w$]+(?:-[\w$]+)* )
    | (?P<SYMBOL> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> Iterator[StatementToken]:
    """Yield the tokens of a text; what follows quotes without an end is part of them."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "UNFINISHED":
            yield StatementToken(TokenKind.UNFINISHED, match[0], match.start(), len(text))
            break
        if kind != "space":
            yield StatementToken(TokenKind[kind], match[0], match.start(), match.end())
    yield StatementToken(TokenKind.END, "", len(text), len(text))


def split(text: str) -> tuple[tuple[str, ...], str]:
    """Return the statements that end with a semicolon, without it, and the rest of the text.

    Semicolons in quotes and comments do not count, and empty statements are left out. The rest is
    empty where nothing but blanks and comments follows.
    """
    complete: list[str] = []
    begin: int | None = None
    for token in tokens(text):
        if token.kind is TokenKind.SYMBOL and token.text == ";":
            if begin is not None:
                complete.append(text[begin : token.start].strip())
            begin = None
        elif begin is None and token.kind is not TokenKind.END:
            begin = token.start
    return tuple(complete), text[begin:] if begin is not None else ""
