"""Statements that exchange what names mean: run a second time, they exchange it back.

Of other statements an error tells that their work is done. These are carried out again as if they
never had been, and rows that follow go to the wrong table, partition or column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from rowferry.change.table import TableId
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.clauses import (
    accept_modifiers,
    accept_of_partitions,
    read_renames,
    renamed_column,
    split_clauses,
)
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import read_head

NameT = TypeVar("NameT")


class MovedNames:
    """Which tables have a name that another one had, as renames follow each other."""

    def __init__(self) -> None:
        self._first: dict[TableId, TableId] = {}  # of each name, that of its table at first
        self._written: dict[TableId, TableId] = {}

    def move(self, pairs: Iterable[tuple[TableId, TableId]]) -> None:
        """Follow renames in their order."""
        for old, new in pairs:
            self._first[new.folded] = self._first.pop(old.folded, old.folded)
            self._written[new.folded] = new

    def drop(self, name: TableId) -> None:
        """Forget a table."""
        self._first.pop(name.folded, None)

    def traded(self) -> frozenset[TableId]:
        """Return the names whose tables have each other's."""
        return frozenset(self._written[name] for name in _circles(self._first))


def traded_tables(sql: str, database: str) -> frozenset[TableId]:
    """Return the tables that a statement exchanges, wholly or in part.

    They are those that trade names, the two of EXCHANGE PARTITION, and one whose columns trade
    names. Nothing is returned where a second run is refused, or changes nothing.

    Args:
        sql: the statement.
        database: of names without one.
    """
    try:
        names = MovedNames()
        names.move(renamed_tables(sql, database))
        return names.traded() or _exchanged_within(sql, database)
    except BadStatement:
        return frozenset()


def renamed_tables(sql: str, database: str) -> list[tuple[TableId, TableId]]:
    """Return the old and the new name of each table that a statement renames, in order.

    Raises:
        BadStatement: the text is not one statement, or a name is missing.
    """
    return [(old.within(database), new.within(database)) for old, new in read_renames(sql)]


def _exchanged_within(sql: str, database: str) -> frozenset[TableId]:
    cursor = TokenCursor(sql, ansi_quotes=True)
    head = read_head(cursor, strict=False)
    if not head.alters_table:
        return frozenset()
    table = head.table.within(database)
    accept_modifiers(cursor)
    clauses = cursor.at_place(cursor.place)
    done = accept_of_partitions(cursor)
    if done is not None:
        if done.verb != "EXCHANGE" or done.other is None:
            return frozenset()
        return frozenset({table, done.other.within(database)})
    columns = (renamed_column(clause.tokens) for clause in split_clauses(clauses, strict=False))
    origins = {new: old for old, new in filter(None, columns)}
    return frozenset({table}) if _circles(origins) else frozenset()


def _circles(origins: Mapping[NameT, NameT]) -> frozenset[NameT]:
    """Return the names from which the way from origin to origin leads back to them."""
    circles: set[NameT] = set()
    for name in origins:
        at = origins[name]
        way = {name}
        while at in origins and at not in way:
            way.add(at)
            at = origins[at]
        if at == name and len(way) > 1:
            circles.add(name)
    return frozenset(circles)
