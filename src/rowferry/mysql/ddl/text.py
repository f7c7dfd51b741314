"""The text of one statement, whatever it is: comments taken out, and what words occur in it.

Nothing is refused here. Who needs tokens takes `rowferry.mysql.ddl.cursor`, which begins with this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rowferry.change.table import TableId
from rowferry.mysql.flavour import Flavour

if TYPE_CHECKING:
    from rowferry.mysql.session import ServerFacts

_STRING: Final = r"""'(?:[^'\\]++|\\.|'')*+'"""
_DOUBLE: Final = r'''"(?:[^"\\]++|\\.|"")*+"'''
_BACKED: Final = r"`(?:[^`]++|``)*+`"
_PIECE: Final = re.compile(
    rf"(?P<text>{_STRING})|(?P<double>{_DOUBLE})|{_BACKED}"
    r"|(?P<opens>/\*(?P<maria>M?)!(?P<version>\d{5,6})?)"
    r"|(?P<comment>/\*.*?(?:\*/|\Z)|(?:\#|--(?=\s|\Z))[^\n]*)|(?P<closes>\*/)",
    re.DOTALL,
)
# What may stand before and between words; the first two, behind MariaDB's settings for a statement.
_GAP: Final = r"(?:\s++|/\*M?!\d*+|/\*.*?\*/|\*/|\#[^\n]*+|--(?=\s)[^\n]*+)*+"
_FIRST_WORDS: Final = re.compile(
    rf"{_GAP}(?:SET{_GAP}STATEMENT\b(?:{_STRING}|{_DOUBLE}|{_BACKED}|[^'\"`])*?\bFOR\b{_GAP})?"
    rf"(?P<first>\w*+){_GAP}(?P<second>\w*+)",
    re.IGNORECASE | re.DOTALL,
)
# A name, and the names that follow it after points.
_NAME: Final = rf"(?:{_BACKED}|{_DOUBLE}|[\w$]+)"
_NAMES: Final = re.compile(rf"{_STRING}|(?P<names>{_NAME}(?:\s*\.\s*{_NAME})*)", re.DOTALL)
_ONE_NAME: Final = re.compile(_NAME, re.DOTALL)
_WORD: Final = re.compile(rf"{_STRING}|{_DOUBLE}|{_BACKED}|(?P<word>[\w$]+)", re.DOTALL)
# Words after which a bare word is the name of a table.
_BEFORE_NAMES: Final = frozenset("TABLE TABLES EXISTS INTO FROM JOIN UPDATE LIKE TO ON".split())
_COMMENT_SIGNS: Final = ("/*", "--", "#")
_COMMENT_END: Final = "*/"
_CLOSED: Final = re.compile(r"/\*.*\*/", re.DOTALL)
# MariaDB takes comments for MySQL 5.7 up to 9.99 as mere comments.
_NOT_MARIADB: Final = range(50700, 100000)


def plain_text(sql: str, facts: ServerFacts, ansi_quotes: bool = False) -> str:
    """Return the statement without comments, each place as it was; any text will do.

    What stands in `/*!50100 … */` and `/*M!100100 … */` counts if this server runs it.

    Args:
        sql: the statement.
        facts: the server that ran it.
        ansi_quotes: double quotes enclose names, which get back quotes here.
    """
    return _without_comments(sql, facts, ansi_quotes)[0]


def opened_text(sql: str) -> tuple[str, bool]:
    """Return the statement without comments, each place as it was, for no server in particular.

    What stands in `/*!50100 … */` and `/*M!100100 … */` counts.

    Returns:
        The text, and whether each comment is closed.
    """
    if not any(sign in sql for sign in _COMMENT_SIGNS):
        return sql, True
    plain, is_open = _without_comments(sql, None, ansi_quotes=False)
    return plain, not is_open


def _without_comments(sql: str, facts: ServerFacts | None, ansi_quotes: bool) -> tuple[str, bool]:
    """Return the text, and whether a comment is open at its end."""
    pieces: list[str] = []
    done, depth, is_open = 0, 0, False
    while match := _PIECE.search(sql, done):
        pieces.append(sql[done : match.start()])
        piece, done = match[0], match.end()
        if match["opens"] and facts is not None and not _runs(match, facts):
            end = sql.find(_COMMENT_END, done)
            done = end + len(_COMMENT_END) if end >= 0 else len(sql)
            piece = " " * (done - match.start())
        elif match["opens"]:
            depth += 1
            piece = " " * len(piece)
        elif match["comment"] or (match["closes"] and depth):
            depth -= bool(match["closes"])
            is_open = piece.startswith("/*") and not _CLOSED.match(piece)
            piece = " " * len(piece)
        elif match["double"] and ansi_quotes and "`" not in piece:
            piece = f"`{piece[1:-1].replace(chr(34) * 2, chr(34))}`".ljust(len(piece))
        pieces.append(piece)
    return "".join(pieces) + sql[done:], is_open or depth > 0


def first_words(sql: str) -> tuple[str, str]:
    """Return the first two words of a statement in upper case, whatever comments are there."""
    match = _FIRST_WORDS.match(sql)
    assert match is not None  # it takes any text
    return match["first"].upper(), match["second"].upper()


def _runs(opening: re.Match[str], facts: ServerFacts) -> bool:
    maria = facts.flavour is Flavour.MARIADB
    if opening["maria"] and not maria:
        return False
    if not opening["version"]:
        return True
    wanted = int(opening["version"])
    if maria and not opening["maria"] and wanted in _NOT_MARIADB:
        return False
    major, minor, patch = facts.version
    return wanted <= major * 10000 + minor * 100 + patch


def words_of(plain: str) -> Iterator[tuple[str, int]]:
    """Yield the bare words of a text in upper case, each with the place after it."""
    for match in _WORD.finditer(plain):
        if match["word"] is not None:
            yield match["word"].upper(), match.end()


def mentioned(plain: str, database: str) -> Iterator[tuple[TableId, bool]]:
    """Yield the tables that the words of a text could mean, in order, some of them twice.

    Args:
        plain: what `plain_text` returned.
        database: the current one, for names without one; may be empty.

    Yields:
        A table, and whether it is surely written as a name; a bare word may be anything.
    """
    before = ""
    for match in _NAMES.finditer(plain):
        if match["names"] is None:
            continue
        written = _ONE_NAME.findall(match["names"])
        parts = [_unquoted(part) for part in written]
        if database:
            alone = len(parts) == 1
            named = before in _BEFORE_NAMES or written[0] != parts[0]
            yield TableId(database, parts[0]), alone and named
        for first, second in zip(parts, parts[1:], strict=False):
            yield TableId(first, second), True
        before = written[-1].upper()


def _unquoted(name: str) -> str:
    quote = name[0]
    if quote not in '`"':
        return name
    return name[1:-1].replace(quote * 2, quote)
