"""Statements of schema changes, for tables whose columns readers see in another way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement, BadTransform
from rowferry.mysql.ddl.cursor import QUOTED, WORD, tokenize
from rowferry.mysql.ddl.difference import alter_sql
from rowferry.mysql.ddl.table import create_sql

# Their statements name columns at most; no type and no value of one stands in them.
_NAMES_ONLY: Final = frozenset(
    {
        DdlKind.DROP_COLUMN,
        DdlKind.ADD_INDEX,
        DdlKind.DROP_INDEX,
        DdlKind.RENAME_INDEX,
        DdlKind.INDEX_VISIBILITY,
        DdlKind.ADD_PRIMARY_KEY,
        DdlKind.DROP_PRIMARY_KEY,
        DdlKind.ADD_FOREIGN_KEY,
        DdlKind.DROP_FOREIGN_KEY,
        DdlKind.RENAME_TABLE,
        DdlKind.TRUNCATE_TABLE,
        DdlKind.TRUNCATE_PARTITION,
        DdlKind.DROP_PARTITION,
        DdlKind.EXCHANGE_PARTITION,
        DdlKind.REBASE_AUTO_ID,
        DdlKind.TABLE_COMMENT,
    }
)
_OF_OTHERS: Final = ("LIKE", "SELECT", "VALUES")  # behind the name: columns come from there


def statement_for_readers(
    change: SchemaChange,
    made: Iterable[str],
    old: TableSchema | None,
    new: TableSchema,
) -> str:
    """Return a statement that does to the table of readers what the user's did to the source's.

    Args:
        change: the user's, with the names that are written.
        made: names of columns that are not what the source has, before or after the change.
        old: the table as readers see it before the change; None: not known.
        new: as they see it after the change.

    Raises:
        BadTransform: the statement would have to be written anew, and cannot be.
    """
    names = {name.lower() for name in made}
    if not change.query:
        return ""
    if change.kind is DdlKind.CREATE_TABLE:
        if not names and not _takes_columns_from_elsewhere(change.query):
            return change.query
        return create_sql(replace(new, id=change.written_as))
    if not names or change.kind in _NAMES_ONLY or not _mentions(change.query, names):
        return change.query
    if old is None:
        raise BadTransform(
            f"table {change.table}: a statement at commit-ts {change.commit_ts} changes columns "
            "that are masked or computed, and what they were before is not known"
        )
    if old.partitioning != new.partitioning:
        raise BadTransform(
            f"table {change.table}: a statement at commit-ts {change.commit_ts} changes partitions "
            "and columns that are masked or computed, and cannot be written anew"
        )
    return alter_sql(_name_before(change), old, new)


def _name_before(change: SchemaChange) -> TableId:
    return change.previous_target or change.previous or change.written_as


def _mentions(query: str, names: set[str]) -> bool:
    """Return whether a statement names one of these columns; what cannot be read does."""
    try:
        return any(t.text.lower() in names for t in tokenize(query) if t.kind in (WORD, QUOTED))
    except BadStatement:
        return True


def _takes_columns_from_elsewhere(query: str) -> bool:
    try:
        words = [t.word for t in tokenize(query)]
    except BadStatement:
        return True
    return any(word in _OF_OTHERS for word in words[3:])
