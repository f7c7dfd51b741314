"""All decisions of a changefeed, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange
from rowferry.change.dialect import SourceDialect
from rowferry.change.event_counts import EventCounts
from rowferry.change.own_tables import OWN_TABLES
from rowferry.change.remembered import Remembered
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import (
    BadColumnSelector,
    BadEventFilter,
    BadOption,
    NoSuchTable,
    NotSupported,
    TableIneligible,
)
from rowferry.flow.decide.column_select import ColumnSelectors, as_seen
from rowferry.flow.decide.event_filter import EventFilters
from rowferry.flow.decide.expression import Expression
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.flow.decide.key_split import split_in_halves
from rowferry.flow.decide.row_policy import Stamps, by_policy, without_old_rows
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.flow.decide.table_flags import COMMIT_TS, TableFlags
from rowferry.flow.decide.table_route import TableRoutes, WrittenNames
from rowferry.flow.decide.transformed_ddl import statement_for_readers
from rowferry.flow.decide.transforms import TransformedTable, Transforms
from rowferry.spec.active_active import read_active_active
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions, wants_raw_changes
from rowferry.spec.option import OptionShape, OptionTable
from rowferry.spec.rules.dispatch import dispatch_rules
from rowferry.spec.rules.filter import ColumnOptions, FilterOptions
from rowferry.spec.rules.transform import TransformOptions
from rowferry.spec.sink_traits import SinkTraits

_VIEWS: Final = frozenset({DdlKind.CREATE_VIEW, DdlKind.DROP_VIEW})


def _parsable(value: Any) -> tuple[str, ...]:
    rules = FilterOptions.rules.shape.parse(value)
    TableFilter(rules)
    return rules


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table version as the source gives it, with its flags, and as readers of the sink see it."""

    table: TableSchema
    flagged: TableSchema
    made: TransformedTable | None
    narrowed: TableSchema


@dataclass(frozen=True, slots=True)
class WritableKinds:
    """What the types of columns may be, for a format to have a form for them."""

    format: str
    kinds: frozenset[Kind]

    def check(self, table: TableSchema) -> None:
        """Raise NotSupported for a table with a column of another type."""
        for column in table.visible:
            if column.type.kind not in self.kinds:
                raise NotSupported(
                    f"table {table.id}, column {column.name!r}: protocol {self.format} has no form "
                    f"for the type {column.type.sql}; leave the column out by "
                    "sink.column-selectors, or the table by filter.rules, or use another protocol"
                )


class Decisions:
    """Which tables and schema changes pass, and as what their rows go on.

    Rows pass in this order: table filter, eligibility, event filters, row policy, key split, masks
    and computed columns, column selectors, table routing. A table is eligible when it has a primary
    key, or a unique key whose columns are all NOT NULL, or when `force-replicate` is set. Whatever
    depends on the table version alone is decided once for it, not for each row.
    """

    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        # The same key as spec's own, with a shape that also reads each rule.
        OptionTable(
            FilterOptions.TABLE.section,
            (
                replace(
                    FilterOptions.rules,
                    shape=OptionShape(FilterOptions.rules.shape.words, _parsable, kind="texts"),
                ),
            ),
        ),
        ColumnOptions.TABLE,
        TransformOptions.TABLE,
    )

    def __init__(
        self,
        spec: ChangefeedSpec,
        sink: SinkTraits,
        stamped_by_rows: bool,
        dialect: SourceDialect,
        writable: WritableKinds,
        keeps_keys: bool = False,
    ) -> None:
        """Read the rules.

        Args:
            spec: the settings.
            sink: what the sink can take.
            stamped_by_rows: whether only a row itself tells when it was written; see `Source`.
            dialect: the source's.
            writable: the column types that the format has a form for.
            keeps_keys: whether keys of rows are stored with the source's progress; see `Source`.

        Raises:
            BadFilterRule: a rule with a syntax error.
            BadEventFilter, BadColumnSelector, BadRoute, BadTransform: one that cannot be used.
            BadOption: transactions are named by a start-ts, which no source tells.
        """
        self.counts = EventCounts()
        top, filters = spec.options(FeedOptions), spec.options(FilterOptions)
        rules = filters.rules or FilterOptions.rules.default
        if filters.ignore_txn_start_ts:
            raise BadOption(
                f"filter.ignore-txn-start-ts: the {spec.source.scheme} source does not tell the "
                "start-ts of a transaction; leave it out"
            )
        self._filter = TableFilter(rules, top.case_sensitive)
        self._dialect, self._writable = dialect, writable
        self._force = top.force_replicate
        self._leave_out = top.ignore_ineligible_table
        self._cased = cased = top.case_sensitive
        events = filters.event_filters
        self._events = EventFilters(events, cased)
        dispatch = dispatch_rules(spec)
        self._routes = TableRoutes(dispatch, cased, dialect)
        selectors = spec.options(ColumnOptions).column_selectors
        self._columns = ColumnSelectors(selectors, cased, dispatch if sink.has_topics else ())
        self._transforms = Transforms(spec.options(TransformOptions), cased, keeps_keys)
        self._takes_partial_rows = sink.takes_partial_rows
        self._sink_scheme = spec.sink.scheme
        self._seen: Remembered[TableId, _Seen] = Remembered()
        mode = read_active_active(spec)
        self._flags = TableFlags(spec, mode.enabled, cased)
        self._active_active, self._cluster_index = mode.enabled, mode.cluster_index
        self._stamps = Stamps.BY_ROWS if stamped_by_rows else Stamps.BY_TRANSACTIONS
        whole = wants_raw_changes(spec, sink)
        self._splits = not whole and not mode.enabled  # no row is removed there

    def keeps_table(self, table: TableId) -> bool:
        """Return whether rows of this table can pass at all: by its name alone."""
        system = self._dialect.is_system_database(table.database)
        ours = table.table.lower() in OWN_TABLES
        return not system and not ours and self._filter.matches_table(*table)

    def captures(self, table: TableSchema) -> bool:
        """Return whether rows of this table version pass: by its name and its keys."""
        return self.keeps_table(table.id) and self._eligible(table)

    def check_tables(self, tables: Iterable[TableSchema]) -> list[str]:
        """Judge the tables that exist when a changefeed is created; return notices.

        Raises:
            NoSuchTable: a rule names a table without a wildcard, and there is none.
            TableIneligible: some of the captured ones have no usable key, and the user has not said
                that they may be left out (`ignore-ineligible-table`).
            BadEventFilter, BadColumnSelector, BadTransform: a rule does not fit one of the tables,
                or a mask none.
            NotSupported: one has a column of a type that the format has no form for.
            TableNotActiveActive: one of them cannot do what its flags, or the mode, ask for.
        """
        kept = [t for t in tables if self.keeps_table(t.id)]
        notices = self._judged(kept, self._filter)
        return notices + self._transforms.check([t for t in kept if self._eligible(t)])

    def check_added(self, tables: Iterable[TableSchema], rules: Iterable[str]) -> None:
        """Judge the tables that some of the filter rules bring, as those of a new changefeed.

        Rules about columns need not be for one of them.

        Raises:
            RowferryError: as `check_tables` does.
        """
        added = TableFilter(rules, self._cased)
        kept = [t for t in tables if self.keeps_table(t.id) and added.matches_table(*t.id)]
        self._judged(kept, added)

    def _judged(self, kept: list[TableSchema], rules: TableFilter) -> list[str]:
        if missing := rules.missing(t.id for t in kept):
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

    def check_salt(self) -> None:
        """Refuse another salt of hashes than the changefeed began with.

        Raises:
            BadTransform: it is another one.
        """
        self._transforms.check_salt()

    def with_masks_of(self, other: Decisions) -> Decisions:
        """Let this have the masks and computed columns of another; returns it."""
        self._transforms = other._transforms
        return self

    @property
    def renames(self) -> bool:
        """Whether tables are written under other names than their own."""
        return self._routes.any

    def names(self, tables: Iterable[TableSchema] = ()) -> WrittenNames:
        """Return the names under which these tables are written, as far as they are captured."""
        return WrittenNames(self._routes, self.captures, tables)

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
            system = self._dialect.is_system_database(name)
            known = not system and self._filter.matches_database(name)
        else:
            old = change.previous or change.table
            known = self.keeps_table(old) and self._eligible_after(change)
        return known and not self._events.ignores(change)

    def rows(self, rows: Rows, snapshot: bool = False) -> Iterator[Rows]:
        """Yield what becomes of a chunk: itself, a part, one with split updates, or nothing.

        Raises:
            BadEventFilter, BadColumnSelector, BadTransform: a rule does not fit this version of the
                table, or one of its values.
            MaskLost: a mask names the table, and no column that it has any more.
            TableNotActiveActive: the table cannot do what its flags, or the mode, ask for.
        """
        if not len(rows) or not self.captures(rows.table):
            return
        seen = self._look(rows.table)
        with self._unshown(rows.table, "an expression of filter.event-filters"):
            kept = self._events.kept(rows)
        if len(kept):
            flagged = as_seen(kept, seen.flagged)
            stamps = Stamps.NEVER_WIN if snapshot else self._stamps
            mode = self._active_active, self._cluster_index
            kept = by_policy(flagged, *mode, stamps, self.counts)
        if len(kept):
            # Keys are compared before columns go: a unique index need not stay whole.
            whole, halves = split_in_halves(kept) if self._splits else (kept, None)
            if halves is not None:
                whole = self._events.kept_halves(rows.table, whole, halves)
            if len(whole) and seen.made is not None:
                yield self._transforms.rows(whole, seen.made, seen.narrowed)
            elif len(whole):
                yield as_seen(whole, seen.narrowed)

    def matching(self, rows: Rows, where: str) -> Rows:
        """Return the rows whose new image makes an expression true.

        Raises:
            BadEventFilter: it cannot be read, or does not fit the table.
        """
        if not where:
            return rows
        keep = self.is_true(rows.table, rows.after, where)
        return rows if keep.all() else rows.take(np.flatnonzero(keep))

    def is_true(
        self, table: TableSchema, images: pa.StructArray, where: str
    ) -> npt.NDArray[np.bool_]:
        """Return for which images of a table an expression is true; see `matching`."""
        true_rows = Expression(where, "where").fit(table)
        with self._unshown(table, f"where = {where!r}"):
            return true_rows(ImageColumns(images))

    @contextmanager
    def _unshown(self, table: TableSchema, what: str) -> Iterator[None]:
        """Let no value of a table with masks stand in an error: kernels tell what they refuse."""
        try:
            yield
        except BadEventFilter as err:
            if self._look(table).made is None:
                raise
            raise type(err)(
                f"{what} cannot be computed for a row of table {table.id}, whose values are not "
                "shown because some are masked"
            ) from None

    def check_where(self, table: TableSchema, where: str) -> None:
        """Make sure that `matching` can use an expression for rows of this table.

        Raises:
            BadEventFilter: it cannot be read, or does not fit the table.
        """
        if where:
            Expression(where, "where").fit(table)

    def removes_rows(self, table: TableSchema) -> bool:
        """Return whether a row that goes from the source goes from the target, too, in any case.

        Where deletes are left out, or are no deletes to readers, the target keeps rows that the
        source does not have.
        """
        flagged = self._look(table).flagged
        marked = flagged.is_active_active_table or flagged.is_soft_delete_table
        marked = marked or self._active_active
        return not marked and not self._events.may_ignore(table, Op.DELETE)

    def require_old_rows(self, tables: Iterable[TableSchema]) -> None:
        """Refuse tables of which only old rows show a delete, for a source that gives none.

        Raises:
            TableNotActiveActive: one of the captured ones is such a table.
        """
        for table in tables:
            flagged = self._look(table).flagged
            marked = flagged.is_active_active_table or flagged.is_soft_delete_table
            if marked and not self._active_active:
                raise without_old_rows(table)

    def seen_as(self, table: TableSchema) -> TableSchema:
        """Return a table as readers of the sink see it: its columns, its name, its flags.

        Raises:
            BadColumnSelector: it would lose its key, or columns that the sink cannot do without.
            NotSupported: it has a column of a type that the format has no form for.
            BadTransform, MaskLost: a mask or a computed column does not fit it.
            TableNotActiveActive: it cannot do what its flags, or the mode, ask for.
        """
        return self._look(table).narrowed

    def _look(self, table: TableSchema) -> _Seen:
        known = self._seen.get(table.id)
        if known is not None and known.table is table:
            return known
        captured = self.captures(table)
        flagged = self._flags.flagged(table) if captured else table
        made = self._transforms.look(flagged) if captured else None
        whole = made.schema if made else flagged
        written = self._columns.narrowed(whole)
        if captured and not self._takes_partial_rows:
            self._refuse_partial(whole, written)
        if captured:
            self._writable.check(written)
        if self._active_active and flagged.is_active_active_table:
            # The downstream makes it for itself, and nobody writes it.
            kept = tuple(c for c in written.columns if c.name.lower() != COMMIT_TS)
            written = replace(written, columns=kept)
        target = self._routes.target(table.id)
        if target != table.id:
            written = replace(written, target=target)
        self._seen[table.id] = seen = _Seen(table, flagged, made, written)
        return seen

    def _refuse_partial(self, whole: TableSchema, narrowed: TableSchema) -> None:
        """Refuse to send a column that was to stay, or a row without one where none may lack."""
        if left := [c.name for c in whole.columns if c.name.lower() not in narrowed.by_name]:
            raise BadColumnSelector(
                f"sink.column-selectors leave out {', '.join(left)} of table {whole.id}, and a "
                f"{self._sink_scheme} sink takes whole rows only; remove the rule, or leave the "
                "table out by filter.rules"
            )

    @property
    def hides_rows(self) -> bool:
        """Whether values are masked: then no row is stored, or logged, as the source has it."""
        return self._transforms.hides

    def hides_key(self, table: TableSchema) -> bool:
        """Return whether a column of the key is masked: then no key of the table is stored."""
        return self.captures(table) and self._transforms.hides_key(table)

    def makes_the_same_of(self, table: TableSchema, former: TableId) -> bool:
        """Return whether masks and computed columns of a table were the same under another name."""
        return self._transforms.makes_the_same_of(table, former)

    def salt_check(self) -> str:
        """Return by what a changed salt of hashes is noticed; empty: nothing is hashed."""
        return self._transforms.salt_check()

    def follow(self, old: TableSchema, new: TableSchema) -> None:
        """Judge a new version of a captured table by the one before it.

        Raises:
            MaskLost: something that was masked would go out as it is.
        """
        if self.captures(old) and self.captures(new):
            self._transforms.follow(old, new)

    def change_seen_as(
        self,
        change: SchemaChange,
        old: TableSchema | None = None,
        names: WrittenNames | None = None,
    ) -> SchemaChange:
        """Return a schema change as readers of the sink see it: names, and the statement's text.

        `old` is the table's version before it, where there is one; `names` are those of all
        captured tables before it.

        Raises:
            BadTransform: its statement would have to be written anew, and cannot be.
            BadRoute: its names cannot be replaced.
            BadColumnSelector: the table would lose its key.
        """
        seen = self._routes.seen(change, names or self.names())
        if self._transforms.any and seen.schema is not None and seen.kind not in _VIEWS:
            before = self._look(old) if old is not None else None
            after = self._look(seen.schema)
            made = {n for one in (before, after) if one and one.made for n in one.made.made}
            last = before.narrowed if before else None
            query = statement_for_readers(seen, made, last, after.narrowed)
            seen = replace(seen, query=query)
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
