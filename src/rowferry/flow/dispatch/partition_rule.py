"""Partition expressions: how the partition of a row inside its topic is found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rowferry.change.table import Column, Index, TableSchema
from rowferry.errors import BadDispatchRule
from rowferry.spec.rules.dispatch import DispatchRule


@dataclass(frozen=True, slots=True)
class ByTable:
    """All rows of a table go to one partition: the hash of its name."""


@dataclass(frozen=True, slots=True)
class ByCommitTs:
    """The commit-ts itself, so that a transaction's rows stay together."""


@dataclass(frozen=True, slots=True)
class ByIndex:
    """The hash of the values of an index, in index order; of the handle key where none is named."""

    index: str = ""


@dataclass(frozen=True, slots=True)
class ByColumns:
    """The hash of the values of these columns, those that the table has.

    Whether a table has them is known only when its rows come, and tables change: so columns that
    are missing are left out, and without any of them rows go to partition 0.
    """

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always this partition."""

    number: int


PartitionRule: TypeAlias = ByTable | ByCommitTs | ByIndex | ByColumns | Fixed

_WORDS: Final = ("default", "table", "ts", "rowid", "pk", "index-value", "columns")
_ALLOWED: Final = f"{', '.join(_WORDS)}, a list of columns such as [a, b], or a number from 0"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")


def parse_partition(rule: DispatchRule) -> PartitionRule:
    """Return what the rule's `partition`, `index` and `columns` say together.

    Raises:
        BadDispatchRule: an unknown expression, or keys that do not fit it; names the rule.
    """
    text = rule.partition.lower() or "default"
    by_index = text in ("index-value", "rowid", "pk")
    if rule.index and not by_index:
        raise _wrong(rule, "index", 'is read with partition = "index-value" only')
    if rule.columns and text != "columns":
        raise _wrong(rule, "columns", 'is read with partition = "columns" only')
    if text in ("default", "table"):
        return ByTable()
    if text == "ts":
        return ByCommitTs()
    if by_index:
        return ByIndex(rule.index)
    if text == "columns":
        if not rule.columns:
            raise _wrong(rule, "partition", 'needs columns = ["a", "b"] beside it')
        return _by_columns(rule, rule.columns)
    if _NUMBER.fullmatch(text):
        return Fixed(int(text))
    if (names := rule.listed_columns()) is not None:
        return _by_columns(rule, names)
    raise _wrong(rule, "partition", f"is not a partition expression; allowed: {_ALLOWED}")


def hashed_columns(rule: ByIndex | ByColumns, table: TableSchema) -> tuple[Column, ...] | None:
    """Return the columns whose values are hashed, in any order; None: the table has none of them.

    Virtual generated columns have no place in a row, so they count as missing.

    Raises:
        BadDispatchRule: the table has no index of that name.
    """
    if isinstance(rule, ByColumns):
        columns = [table.by_name[n.lower()] for n in rule.columns if n.lower() in table.by_name]
        return tuple(c for c in columns if c.generated != "virtual") or None
    names: Sequence[str] = table.handle_key
    if rule.index:
        names = named_index(table, rule.index).columns
    return tuple(table.column(name) for name in names)


def named_index(table: TableSchema, name: str) -> Index:
    """Return the index of that name, in any case.

    Raises:
        BadDispatchRule: there is none; lists those that there are.
    """
    for index in table.indexes:
        if index.name.lower() == name.lower():
            return index
    known = ", ".join(i.name for i in table.indexes if i.unique or i.primary) or "no unique one"
    raise BadDispatchRule(
        f"sink.dispatchers: table {table.id} has no index {name!r} to dispatch by; it has: {known}"
    )


def _by_columns(rule: DispatchRule, names: Sequence[str]) -> ByColumns:
    lowered = [name.lower() for name in names]
    key = "columns" if rule.columns else "partition"
    if twice := next((n for n in lowered if lowered.count(n) > 1), None):
        raise _wrong(rule, key, f"names the column {twice!r} twice, which would cancel it out")
    if "" in lowered:
        raise _wrong(rule, key, "holds a column without a name")
    return ByColumns(tuple(names))


def _wrong(rule: DispatchRule, key: str, words: str) -> BadDispatchRule:
    value = {"index": rule.index, "columns": list(rule.columns)}.get(key, rule.partition)
    return BadDispatchRule(f"{rule.path}.{key} = {value!r} {words}")
