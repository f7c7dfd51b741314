"""What ALTER TABLE says behind its head, clause by clause, whatever the clauses are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rowferry.errors import BadStatement
from rowferry.mysql.ddl.cursor import SqlToken, TokenCursor
from rowferry.mysql.ddl.head import WrittenName, read_altered, read_head, written_name

# What can be done to single partitions; the last two, with another table.
_OF_PARTITIONS: Final = frozenset(
    "ADD DROP TRUNCATE REORGANIZE COALESCE REBUILD OPTIMIZE ANALYZE CHECK REPAIR DISCARD IMPORT "
    "EXCHANGE CONVERT".split()
)
_WITH_ANOTHER: Final = ("EXCHANGE", "CONVERT")
# What ALTER TABLE can rename beside itself.
_OTHER_RENAMES: Final = ("COLUMN", "INDEX", "KEY", "PARTITION")


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of ALTER TABLE between commas; its tokens are those from `first` to before `last`."""

    tokens: Sequence[SqlToken]
    first: int
    last: int


def split_clauses(cursor: TokenCursor, strict: bool = True) -> Iterator[Clause]:
    """Consume clauses and the commas between them; the last one may have partitions at its end.

    Args:
        cursor: stands behind the head.
        strict: refuse parentheses that do not fit; else commas inside of such count as well.

    Raises:
        BadStatement: see `strict`.
    """
    while True:
        first = cursor.place
        try:
            cursor.skip_to_comma()
            if not (cursor.done() or cursor.at(",")):
                cursor.fail("not understood from here")
        except BadStatement:
            if strict:
                raise
            cursor.place = first
            while not (cursor.done() or cursor.at(",")):
                cursor.take()
        yield Clause(cursor.tokens[first : cursor.place], first, cursor.place)
        if not cursor.accept(","):
            break


def accept_new_name(cursor: TokenCursor) -> WrittenName | None:
    """Consume `RENAME [TO] table`, if that comes next."""
    if not cursor.at("RENAME") or cursor.peek(1).word in _OTHER_RENAMES:
        return None
    cursor.take()
    cursor.accept_any("TO", "AS", "=")
    return written_name(cursor)


def renamed_column(clause: Sequence[SqlToken]) -> tuple[str, str] | None:
    """Return the old name and the new one of a column, in lower case; None: none gets another."""
    words = [token.word for token in clause]
    of_column = words[1:2] == ["COLUMN"]
    if words[:1] == ["CHANGE"]:
        at = 2 if of_column else 1
        if words[at : at + 2] == ["IF", "EXISTS"]:
            at += 2
        places = (at, at + 1)
    elif words[:1] == ["RENAME"] and of_column:
        at = 4 if words[2:4] == ["IF", "EXISTS"] else 2
        places = (at, at + 2)
    else:
        return None
    if places[1] >= len(clause):
        return None
    old, new = (clause[place].text.lower() for place in places)
    return (old, new) if old != new else None


def accept_modifiers(cursor: TokenCursor) -> None:
    """Consume words on how to carry a statement out, where more follows them.

    MySQL lets them stand first, also before what is done to partitions and to files of rows.
    """
    while (
        cursor.at_any("ALGORITHM", "LOCK")
        or cursor.at("WITH", "VALIDATION")
        or cursor.at("WITHOUT", "VALIDATION")
    ):
        begin = cursor.place
        cursor.skip_to_comma()
        if not cursor.accept(","):
            cursor.place = begin
            return


@dataclass(frozen=True, slots=True)
class OfPartitions:
    """What a clause does to single partitions.

    Attributes:
        verb: its first word.
        other: the table that rows are exchanged with, come from or go to.
        takes: that table becomes a partition.
    """

    verb: str
    other: WrittenName | None = None
    takes: bool = False


def accept_of_partitions(cursor: TokenCursor) -> OfPartitions | None:
    """Consume `verb PARTITION` and the name of another table behind it, if that comes next.

    Raises:
        BadStatement: a name is missing.
    """
    if cursor.accept("CONVERT", "TABLE"):
        return OfPartitions("CONVERT", written_name(cursor), takes=True)
    verb = cursor.peek().word
    if verb not in _OF_PARTITIONS or cursor.peek(1).word != "PARTITION":
        return None
    cursor.place += 2
    if verb not in _WITH_ANOTHER:
        return OfPartitions(verb)
    while not cursor.accept("TABLE"):
        cursor.take()
    return OfPartitions(verb, written_name(cursor))


def partitions_start(cursor: TokenCursor) -> int:
    """Return where the clauses about partitions begin, which say nothing about columns."""
    depth = 0
    for place in range(cursor.place, len(cursor.tokens)):
        pair = tuple(t.word for t in cursor.tokens[place : place + 2])
        depth += {"(": 1, ")": -1}.get(pair[0], 0)
        if not depth and pair in (("PARTITION", "BY"), ("REMOVE", "PARTITIONING")):
            return place
    return len(cursor.tokens)


def read_renames(sql: str) -> list[tuple[WrittenName, WrittenName]]:
    """Return the old and the new name of each table that a statement renames, in order.

    Raises:
        BadStatement: the text is not one statement, or a name is missing.
    """
    cursor = TokenCursor(sql, ansi_quotes=True)
    if (old := read_altered(cursor)) is not None:
        return [(old, new) for new in new_names(cursor)]
    return read_head(cursor, strict=False).pairs if cursor.at("RENAME") else []


def new_names(cursor: TokenCursor) -> Iterator[WrittenName]:
    """Yield the names that the clauses of an ALTER TABLE give to its table."""
    for clause in split_clauses(cursor, strict=False):
        new = accept_new_name(cursor.at_place(clause.first))
        if new is not None:
            yield new
