"""`[filter]` and `[sink] column-selectors`: lists of rules, as users write them.

This module reads their shape only; what the texts mean is the business of whoever decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rowferry.errors import BadColumnSelector, BadEventFilter
from rowferry.spec.option import OptionShape, Section, option, texts
from rowferry.spec.rules.matched import matched_rules


@dataclass(frozen=True, slots=True)
class EventRule:
    """One event filter; a text that was not given is empty.

    Attributes:
        place: its place in the list, from 0.
        matcher: which tables it is for, in the table filter's syntax.
    """

    place: int
    matcher: tuple[str, ...]
    ignore_event: tuple[str, ...] = ()
    ignore_sql: tuple[str, ...] = ()
    ignore_insert_value_expr: str = ""
    ignore_update_new_value_expr: str = ""
    ignore_update_old_value_expr: str = ""
    ignore_delete_value_expr: str = ""
    ignore_update_only_columns: tuple[str, ...] = ()

    def path(self, key: str) -> str:
        """Return a key as errors name it."""
        return f"filter.event-filters[{self.place}].{key}"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """One column selector: which columns of which tables are written."""

    place: int
    matcher: tuple[str, ...]
    columns: tuple[str, ...] = ()

    def path(self, key: str) -> str:
        """Return a key as errors name it."""
        return f"sink.column-selectors[{self.place}].{key}"


def _timestamps() -> OptionShape[tuple[int, ...]]:
    def parse(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not all(type(v) is int for v in value):
            raise ValueError("expected a list of whole numbers")
        return tuple(value)

    return OptionShape("a list of whole numbers", parse)


class FilterOptions(Section, section="filter"):
    """Which tables and changes are captured."""

    rules = option(
        texts(),
        ("*.*",),
        "Which tables are captured, in TiDB's table filter syntax; the last rule that matches "
        "decides. System databases never are. An empty list means all tables.",
    )
    event_filters = option(
        matched_rules("filter.event-filters", EventRule, BadEventFilter),
        (),
        "Changes that are left out although their tables are captured: by kind of event, by the "
        "text of a DDL, by what a row holds, or by which columns an update changes. All rules "
        "whose `matcher` fits are tried; one that says so is enough.",
    )
    ignore_txn_start_ts = option(
        _timestamps(),
        (),
        "Transactions that are left out, by their start-ts. No source here tells the start-ts of a "
        "transaction, so a list that is not empty is refused.",
    )


class ColumnOptions(Section, section="sink"):
    """Which columns are written."""

    column_selectors = option(
        matched_rules("sink.column-selectors", ColumnRule, BadColumnSelector),
        (),
        "Which columns are written: the first rule whose `matcher` fits a table counts. `columns` "
        "are patterns as in table filters (`*`, `?`, `!` to leave out), in any case; the last that "
        "fits decides, a column that none fits is left out. The primary key, or all columns of a "
        "unique index, must stay.",
        alterable=False,
    )
