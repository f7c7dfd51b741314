"""All decisions of a changefeed, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from rowferry.change.chunk import DdlKind, Rows, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import NoSuchTable, TableIneligible
from rowferry.flow.decide.key_split import split_key_changes
from rowferry.flow.decide.table_filter import TableFilter, is_system_database
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import (
    CASE_SENSITIVE,
    FILTER,
    FORCE_REPLICATE,
    IGNORE_INELIGIBLE,
    RAW_CHANGES,
    RULES,
    TOP,
    raw_changes_table,
)
from rowferry.spec.option import Option, OptionTable, Shape
from rowferry.spec.sink_family import family_of

_VIEWS: Final = frozenset({DdlKind.CREATE_VIEW, DdlKind.DROP_VIEW})


def _parsable(value: Any) -> tuple[str, ...]:
    rules = RULES.shape.parse(value)
    TableFilter(rules)
    return rules


class Decisions:
    """Which tables and schema changes pass, and as what their rows go on.

    Rows pass in this order: table filter, eligibility, key split. A table is eligible when it has a
    primary key, or a unique key whose columns are all NOT NULL, or when `force-replicate` is set.
    Both the filter and the eligibility of a table version are decided once per chunk, not per row.
    """

    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        # The same key as spec's own, with a shape that also reads each rule.
        OptionTable(
            FILTER.section,
            (Option(RULES.key, Shape(RULES.shape.words, _parsable), RULES.default, RULES.doc),),
        ),
    )

    def __init__(self, spec: ChangefeedSpec) -> None:
        """Read the rules.

        Raises:
            BadFilterRule: a rule with a syntax error.
        """
        top = spec.options(TOP)
        rules = spec.options(FILTER)[RULES] or RULES.default
        self._filter = TableFilter(rules, top[CASE_SENSITIVE])
        self._force = top[FORCE_REPLICATE]
        self._leave_out = top[IGNORE_INELIGIBLE]
        raw = raw_changes_table(family_of(spec.sink.scheme))
        self._splits = raw is None or not spec.options(raw)[RAW_CHANGES]

    def keeps_table(self, table: TableId) -> bool:
        """Return whether rows of this table can pass at all: by its name alone."""
        return not is_system_database(table.database) and self._filter.matches_table(*table)

    def captures(self, table: TableSchema) -> bool:
        """Return whether rows of this table version pass: by its name and its keys."""
        return self.keeps_table(table.id) and self._eligible(table)

    def check_tables(self, tables: Iterable[TableSchema]) -> list[str]:
        """Judge the tables that exist when a changefeed is created; return notices.

        Raises:
            NoSuchTable: a rule names a table without a wildcard, and there is none.
            TableIneligible: some of the captured ones have no usable key, and the user has not said
                that they may be left out (`ignore-ineligible-table`).
        """
        kept = [t for t in tables if self.keeps_table(t.id)]
        if missing := self._filter.missing(t.id for t in kept):
            raise NoSuchTable(
                f"filter.rules name {', '.join(missing)}, which the source does not have; correct "
                "the name, create it first, or use a wildcard to capture it once it exists"
            )
        keyless = [t for t in kept if not self._eligible(t)]
        if not keyless:
            return []
        names = ", ".join(sorted(str(t.id) for t in keyless))
        words = f"without a primary key or a unique key of NOT NULL columns: {names}"
        if not self._leave_out:
            raise TableIneligible(
                f"tables {words}; give them a key, or set ignore-ineligible-table = true to leave "
                "them out, or force-replicate = true to capture them all the same"
            )
        return [f"left out: tables {words}"]

    def keeps_schema_change(self, change: SchemaChange) -> bool:
        """Return whether this schema change goes downstream.

        One of a database passes when some table of that database could be captured. One of a table
        passes when the table is captured and, after the change, eligible (views always are). A
        rename passes when the old name is captured, wherever the table goes; a table that comes
        into the feed by a rename is new to it, and the source says so.
        """
        if not change.table.table:
            name = change.table.database
            return not is_system_database(name) and self._filter.matches_database(name)
        return self.keeps_table(change.previous or change.table) and self._eligible_after(change)

    def rows(self, rows: Rows) -> Iterator[Rows]:
        """Yield what becomes of a chunk: itself, one with split updates, or nothing."""
        if len(rows) and self.captures(rows.table):
            yield split_key_changes(rows) if self._splits else rows

    def _eligible_after(self, change: SchemaChange) -> bool:
        if change.schema is None or change.kind in _VIEWS:
            return True
        return self._eligible(change.schema)

    def _eligible(self, table: TableSchema) -> bool:
        return self._force or table.handle_index is not None
