"""Tables downstream, and why a source's rows do not fit into one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import TargetUnfit

AT_ONCE: Final = 200  # tables that one question asks about
_NAMED: Final = 5


class ComparedColumn(Protocol):
    """A column downstream."""

    @property
    def type_text(self) -> str:
        """Its type in words."""

    @property
    def needed(self) -> bool:
        """Whether a row cannot leave it out."""


ColumnT = TypeVar("ColumnT", bound=ComparedColumn)


@dataclass(slots=True)
class TargetTable(Generic[ColumnT]):
    """A table downstream: its columns by name, and its unique keys as sets of names."""

    columns: dict[str, ColumnT] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)


def place_of(table: TableSchema) -> str:
    """Return how a table downstream is called in what is said about it."""
    return f"table {table.written_as} of the downstream"


def misfit_of_columns(
    table: TableSchema,
    written: Iterable[Column],
    target: TargetTable[ColumnT],
    fits: Callable[[SqlType, ColumnT], bool],
    known: Container[str],
    spelled: Callable[[str], str] = str,
    cure: Callable[[str], str] = lambda name: "add it there",
) -> str:
    """Return which column does not fit, and the cure; "": all do.

    Args:
        table: the source's.
        written: the columns that rows have.
        target: the table downstream.
        fits: whether a column there holds every value of a type.
        known: the names of all columns of the source, as `target` spells them.
        spelled: how `target` spells a name.
        cure: what to do about a column of this name that is missing there.
    """
    where = place_of(table)
    for column in written:
        there = target.columns.get(spelled(column.name))
        if there is None:
            add = cure(column.name)
            return f"{where} has no column {column.name!r} ({column.type.sql}); {add}"
        if not fits(column.type, there):
            return (
                f"{where} has column {column.name!r} as {there.type_text}, which cannot hold the "
                f"source's {column.type.sql}; change its type there"
            )
    for name, there in target.columns.items():
        if there.needed and name not in known:
            return (
                f"{where} needs a value for column {name!r}, which the source lacks; give it a "
                "default there"
            )
    return ""


def misfit_of_keys(
    table: TableSchema,
    ours: Sequence[Collection[str]],
    target: TargetTable[ColumnT],
    spelled: Callable[[str], str] = str,
) -> str:
    """Return which key does not fit, and the cure; "": all do. `ours` are the source's keys."""
    where = place_of(table)
    if {spelled(name) for name in table.handle_key} not in target.keys.values():
        return (
            f"{where} has no primary or unique key ({', '.join(table.handle_key)}), by which the "
            "source's rows are told apart; add it there"
        )
    for name, key in target.keys.items():
        # Rows that differ in every key of the source could be one row by this key.
        if not any(set(own) <= key for own in ours):
            return (
                f"{where} has the unique key {name!r} ({', '.join(sorted(key))}), which the source "
                "lacks: rows would overwrite each other; drop it there"
            )
    return ""


def refuse_missing(missing: Sequence[TableSchema], cure: str) -> None:
    """Raise TargetUnfit where tables are missing that nobody makes; `cure`: what to do."""
    if missing:
        names = ", ".join(str(t.written_as) for t in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise TargetUnfit(f"the downstream has no table {names}{more}; {cure}")


def names_once(tables: Iterable[TableSchema]) -> list[TableId]:
    """Return the names that tables have downstream, each once, in their order."""
    return list({table.written_as: None for table in tables})
