"""All decisions of a changefeed, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from rowferry.change.chunk import DdlKind, Rows, SchemaChange
from rowferry.change.remembered import Remembered
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadColumnSelector, BadOption, NoSuchTable, TableIneligible
from rowferry.flow.decide.column_select import ColumnSelectors, as_seen
from rowferry.flow.decide.event_filter import EventFilters
from rowferry.flow.decide.key_split import split_in_halves
from rowferry.flow.decide.row_policy import Stamps, by_policy
from rowferry.flow.decide.table_filter import TableFilter, is_system_database
from rowferry.flow.decide.table_flags import COMMIT_TS, TableFlags
from rowferry.flow.decide.table_route import TableRoutes
from rowferry.spec.active_active import read_active_active
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.dispatch_rules import dispatch_rules
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
from rowferry.spec.filter_rules import (
    COLUMN_RULES,
    COLUMN_SELECTORS,
    EVENT_FILTERS,
    IGNORE_TXN_START_TS,
)
from rowferry.spec.option import Option, OptionShape, OptionTable
from rowferry.spec.sink_traits import SinkTraits

_VIEWS: Final = frozenset({DdlKind.CREATE_VIEW, DdlKind.DROP_VIEW})


def _parsable(value: Any) -> tuple[str, ...]:
    rules = RULES.shape.parse(value)
    TableFilter(rules)
    return rules


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table version as the source gives it, with its flags, and as readers of the sink see it."""

    table: TableSchema
    flagged: TableSchema
    narrowed: TableSchema


class Decisions:
    """Which tables and schema changes pass, and as what their rows go on.

    Rows pass in this order: table filter, eligibility, event filters, row policy, key split, column
    selectors, table routing. A table is eligible when it has a primary key, or a unique key whose
    columns are all NOT NULL, or when `force-replicate` is set. Whatever depends on the table
    version alone is decided once for it, not for each row.
    """

    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        # The same key as spec's own, with a shape that also reads each rule.
        OptionTable(
            FILTER.section,
            (
                Option(
                    RULES.key, OptionShape(RULES.shape.words, _parsable), RULES.default, RULES.doc
                ),
            ),
        ),
        COLUMN_RULES,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits, stamped_by_rows: bool) -> None:
        """Read the rules.

        Args:
            spec: the settings.
            sink: what the sink can take.
            stamped_by_rows: whether only a row itself tells when it was written; see `Source`.

        Raises:
            BadFilterRule: a rule with a syntax error.
            BadEventFilter, BadColumnSelector, BadRoute: one that cannot be used.
            BadOption: transactions are named by a start-ts, which no source tells.
        """
        top, filters = spec.options(TOP), spec.options(FILTER)
        rules = filters[RULES] or RULES.default
        if filters[IGNORE_TXN_START_TS]:
            raise BadOption(
                f"filter.ignore-txn-start-ts: the {spec.source.scheme} source does not tell the "
                "start-ts of a transaction; leave it out"
            )
        self._filter = TableFilter(rules, top[CASE_SENSITIVE])
        self._force = top[FORCE_REPLICATE]
        self._leave_out = top[IGNORE_INELIGIBLE]
        cased = top[CASE_SENSITIVE]
        events = filters[EVENT_FILTERS]
        self._events = EventFilters(events, cased)
        dispatch = dispatch_rules(spec)
        self._routes = TableRoutes(dispatch, cased)
        selectors = spec.options(COLUMN_RULES)[COLUMN_SELECTORS]
        self._columns = ColumnSelectors(selectors, cased, dispatch if sink.has_topics else ())
        self._takes_partial_rows = sink.takes_partial_rows
        self._sink_scheme = spec.sink.scheme
        self._seen: Remembered[TableId, _Seen] = Remembered()
        mode = read_active_active(spec)
        self._flags = TableFlags(spec, mode.enabled, cased)
        self._active_active, self._cluster_index = mode.enabled, mode.cluster_index
        self._stamps = Stamps.BY_ROWS if stamped_by_rows else Stamps.BY_TRANSACTIONS
        raw = raw_changes_table(sink)
        split = raw is None or not spec.options(raw)[RAW_CHANGES]
        self._splits = split and not mode.enabled  # no row is removed there

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
            BadEventFilter, BadColumnSelector: a rule does not fit one of the tables.
            TableNotActiveActive: one of them cannot do what its flags, or the mode, ask for.
        """
        kept = [t for t in tables if self.keeps_table(t.id)]
        if missing := self._filter.missing(t.id for t in kept):
            raise NoSuchTable(
                f"filter.rules name {', '.join(missing)}, which the source does not have; correct "
                "the name, create it first, or use a wildcard to capture it once it exists"
            )
        notices = self._check_keys(kept)
        for table in kept:
            if self._eligible(table):
                notices += self._events.fit(table)
                self.seen_as(table)
        return notices

    def _check_keys(self, kept: list[TableSchema]) -> list[str]:
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

    def claim_names(self, tables: Iterable[TableSchema]) -> None:
        """Note under which names the captured tables are written, at the beginning of a run.

        Raises:
            BadRoute: two of them would be written under one name.
        """
        for table in tables:
            if self.captures(table):
                self._routes.claim(table.id)

    def keeps_schema_change(self, change: SchemaChange) -> bool:
        """Return whether this schema change goes downstream.

        One of a database passes when some table of that database could be captured. One of a table
        passes when the table is captured and, after the change, eligible (views always are). A
        rename passes when the old name is captured, wherever the table goes; a table that comes
        into the feed by a rename is new to it, and the source says so. What an event filter ignores
        does not pass; the source still follows it.
        """
        if not change.table.table:
            name = change.table.database
            known = not is_system_database(name) and self._filter.matches_database(name)
        else:
            old = change.previous or change.table
            known = self.keeps_table(old) and self._eligible_after(change)
        return known and not self._events.ignores(change)

    def rows(self, rows: Rows, snapshot: bool = False) -> Iterator[Rows]:
        """Yield what becomes of a chunk: itself, a part, one with split updates, or nothing.

        Raises:
            BadEventFilter, BadColumnSelector: a rule does not fit this version of the table.
            TableNotActiveActive: the table cannot do what its flags, or the mode, ask for.
        """
        if not len(rows) or not self.captures(rows.table):
            return
        kept = self._events.kept(rows)
        if len(kept):
            seen = self._look(rows.table)
            flagged = as_seen(kept, seen.flagged)
            stamps = Stamps.NEVER_WIN if snapshot else self._stamps
            kept = by_policy(flagged, self._active_active, self._cluster_index, stamps)
        if len(kept):
            # Keys are compared before columns go: a unique index need not stay whole.
            whole, halves = split_in_halves(kept) if self._splits else (kept, None)
            if halves is not None:
                whole = self._events.kept_halves(whole, halves)
            if len(whole):
                yield as_seen(whole, seen.narrowed)

    def seen_as(self, table: TableSchema) -> TableSchema:
        """Return a table as readers of the sink see it: its columns, its name, its flags.

        Raises:
            BadColumnSelector: it would lose its key, or columns that the sink cannot do without.
            TableNotActiveActive: it cannot do what its flags, or the mode, ask for.
        """
        return self._look(table).narrowed

    def _look(self, table: TableSchema) -> _Seen:
        known = self._seen.get(table.id)
        if known is not None and known.table is table:
            return known
        captured = self.captures(table)
        flagged = self._flags.flagged(table) if captured else table
        found = self._columns.narrowed(flagged)
        if captured and not self._takes_partial_rows:
            self._refuse_partial(flagged, found)
        if self._active_active and flagged.is_active_active_table:
            # The downstream makes it for itself, and nobody writes it.
            kept = tuple(c for c in found.columns if c.name.lower() != COMMIT_TS)
            found = replace(found, columns=kept)
        target = self._routes.target(table.id)
        if target != table.id:
            found = replace(found, target=target)
        self._seen[table.id] = seen = _Seen(table, flagged, found)
        return seen

    def _refuse_partial(self, whole: TableSchema, narrowed: TableSchema) -> None:
        """Refuse to send a column that was to stay, or a row without one where none may lack."""
        if left := [c.name for c in whole.columns if c.name.lower() not in narrowed.by_name]:
            raise BadColumnSelector(
                f"sink.column-selectors leave out {', '.join(left)} of table {whole.id}, and a "
                f"{self._sink_scheme} sink takes whole rows only; remove the rule, or leave the "
                "table out by filter.rules"
            )

    def change_seen_as(self, change: SchemaChange) -> SchemaChange:
        """Return a schema change as readers of the sink see it: names, and the statement's text.

        Raises:
            BadRoute: it brings a second table to a name, or its names cannot be replaced.
            BadColumnSelector: the table would lose its key.
        """
        seen = self._routes.seen(change)
        return replace(
            seen,
            schema=self.seen_as(seen.schema) if seen.schema else None,
            last_schema=self.seen_as(seen.last_schema) if seen.last_schema else None,
        )

    def _eligible_after(self, change: SchemaChange) -> bool:
        if change.schema is None or change.kind in _VIEWS:
            return True
        return self._eligible(change.schema)

    def _eligible(self, table: TableSchema) -> bool:
        return self._force or table.handle_index is not None
