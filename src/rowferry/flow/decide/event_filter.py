"""Event filters: changes that are left out although their tables are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange
from rowferry.change.remembered import Remembered
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadFilterRule, BadIgnoredEvent, BadIgnoredStatement
from rowferry.flow.decide.expression import Expression, TrueRows
from rowferry.flow.decide.expression_values import ImageColumns
from rowferry.flow.decide.key_split import differs
from rowferry.flow.decide.table_filter import TableFilter, search_pattern
from rowferry.spec.rules.filter import EventRule

# Schema changes by the name under which `ignore-event` knows them.
_DDL_EVENTS: Final = {
    DdlKind.CREATE_DATABASE: "create database",
    DdlKind.DROP_DATABASE: "drop database",
    DdlKind.DATABASE_CHARSET: "modify schema charset and collate",
    DdlKind.CREATE_TABLE: "create table",
    DdlKind.DROP_TABLE: "drop table",
    DdlKind.TRUNCATE_TABLE: "truncate table",
    DdlKind.CREATE_VIEW: "create view",
    DdlKind.DROP_VIEW: "drop view",
}
_ALTER_EVENTS: Final = {
    DdlKind.RENAME_TABLE: "rename table",
    DdlKind.TABLE_COMMENT: "modify table comment",
    DdlKind.TABLE_CHARSET: "modify table charset and collate",
    DdlKind.ADD_PARTITION: "add table partition",
    DdlKind.DROP_PARTITION: "drop table partition",
    DdlKind.TRUNCATE_PARTITION: "truncate table partition",
    DdlKind.EXCHANGE_PARTITION: "exchange table partition",
    DdlKind.REORGANIZE_PARTITION: "reorganize table partition",
    DdlKind.ALTER_PARTITIONING: "alter table partitioning",
    DdlKind.REMOVE_PARTITIONING: "remove table partitioning",
    DdlKind.ADD_COLUMN: "add column",
    DdlKind.DROP_COLUMN: "drop column",
    DdlKind.MODIFY_COLUMN: "modify column",
    DdlKind.SET_DEFAULT: "set default value",
    DdlKind.REBASE_AUTO_ID: "rebase auto id",
    DdlKind.ADD_PRIMARY_KEY: "add primary key",
    DdlKind.DROP_PRIMARY_KEY: "drop primary key",
    DdlKind.ADD_INDEX: "create index",
    DdlKind.DROP_INDEX: "drop index",
    DdlKind.RENAME_INDEX: "rename index",
    DdlKind.INDEX_VISIBILITY: "alter index visibility",
    DdlKind.MULTI_SCHEMA_CHANGE: "multi schema change",
}
_ALIASES: Final = {"create schema": "create database", "drop schema": "drop database"}
_ROW_EVENTS: Final = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}
_ALL_ROWS, _ALL_DDL, _ALTER = "all dml", "all ddl", "alter table"
# The last three never happen here, but configurations list them.
EVENTS: Final = (
    _ALL_ROWS,
    _ALL_DDL,
    _ALTER,
    *_ROW_EVENTS,
    *_DDL_EVENTS.values(),
    *_ALTER_EVENTS.values(),
    *_ALIASES,
    "recover table",
    "alter ttl info",
    "alter ttl remove",
)


class EventFilters:
    """All event filters of a changefeed; a rule that says "ignore" is enough."""

    def __init__(self, rules: Sequence[EventRule], case_sensitive: bool) -> None:
        """Read the rules.

        Raises:
            BadEventFilter: an event, pattern or expression that cannot be used.
            BadFilterRule: a matcher with a syntax error.
        """
        self._rules = [_Rule(rule, case_sensitive) for rule in rules]
        self._policies: Remembered[TableId, tuple[TableSchema, _Policy]] = Remembered()

    def ignores(self, change: SchemaChange) -> bool:
        """Return whether a schema change is not sent."""
        table = change.previous or change.table
        return any(r.fits(table) and r.ignores(change) for r in self._rules)

    def fit(self, table: TableSchema) -> list[str]:
        """Make the rules ready for a table; return notices.

        Raises:
            BadEventFilter: an expression that does not fit the table.
        """
        return self._policy(table).notices

    def kept(self, rows: Rows) -> Rows:
        """Return the rows that no rule ignores, in their order; the chunk itself if all are kept.

        Raises:
            BadEventFilter: an expression that does not fit the table or its values.
        """
        if not self._rules:
            return rows
        policy = self._policy(rows.table)
        if policy.keeps_all:
            return rows
        keep = policy.keeps(rows)
        return rows if keep.all() else rows.take(np.flatnonzero(keep))

    def may_ignore(self, table: TableSchema, op: Op) -> bool:
        """Return whether a change of this kind may be left out."""
        policy = self._policy(table)
        return op in policy.ops or any(wanted is op for wanted, _, _ in policy.tests)

    def kept_halves(self, table: TableSchema, rows: Rows, halves: npt.NDArray[np.bool_]) -> Rows:
        """Return rows without those halves of split updates that are ignored by kind of event.

        To readers they are a delete and an insert, so that is what they count as here. `table` is
        theirs as the source gives it.
        """
        ignored = self._policy(table).ops
        gone = halves & np.isin(rows.op, [int(op) for op in ignored])
        return rows.take(np.flatnonzero(~gone)) if gone.any() else rows

    def _policy(self, table: TableSchema) -> _Policy:
        known = self._policies.get(table.id)
        # Not by its version: one that begins at the same commit-ts after a reset may be another.
        if known is not None and known[0] is table:
            return known[1]
        policy = _Policy()
        for rule in self._rules:
            rule.add_to(policy, table)
        self._policies[table.id] = (table, policy)
        return policy


@dataclass
class _Policy:
    """What all rules together say about the rows of one table version."""

    ops: set[Op] = field(default_factory=set)
    watched: list[list[str]] = field(default_factory=list)  # columns that an update must change
    tests: list[tuple[Op, str, TrueRows]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def keeps_all(self) -> bool:
        return not (self.ops or self.watched or self.tests)

    def keeps(self, rows: Rows) -> npt.NDArray[np.bool_]:
        op = rows.op
        keep = np.ones(len(rows), dtype=bool)
        for ignored in self.ops:
            keep &= op != ignored
        for columns in self.watched:
            keep[_idle_updates(rows, columns, keep)] = False
        for wanted, image, test in self.tests:
            source = rows.before if image == "before" else rows.after
            places = np.flatnonzero(keep & (op == wanted) & _valid(source))
            if len(places):
                where = None if len(places) == len(rows) else pa.array(places)
                keep[places[test(ImageColumns(source, where))]] = False
        return keep


def _idle_updates(
    rows: Rows, columns: list[str], keep: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return the updates that change none of these columns; what cannot be told is not one."""
    idle: npt.NDArray[np.bool_] = keep & (rows.op == Op.UPDATE)
    idle &= _valid(rows.before) & _valid(rows.after)
    before = {f.name for f in rows.before.type}
    after = {f.name for f in rows.after.type}
    for name in columns:
        if not idle.any():
            break
        if name in before and name in after:
            idle &= ~differs(rows.before.field(name), rows.after.field(name))
        elif name in after:
            idle[:] = False
    return idle


def _valid(images: pa.StructArray) -> npt.NDArray[np.bool_]:
    if not images.null_count:
        return np.ones(len(images), dtype=bool)
    flags: npt.NDArray[np.bool_] = images.is_valid().to_numpy(zero_copy_only=False)
    return flags


class _Rule:
    """One rule, read."""

    def __init__(self, rule: EventRule, case_sensitive: bool) -> None:
        self._rule = rule
        self._case_sensitive = case_sensitive
        try:
            self._tables = TableFilter(rule.matcher, case_sensitive)
            # Expressions go by names as they are, whatever `case-sensitive` says.
            self._exact = TableFilter(rule.matcher, case_sensitive=True)
        except BadFilterRule as err:
            raise BadFilterRule(f"{rule.path('matcher')}: {err.words}") from None
        for event in rule.ignore_event:
            if event not in EVENTS:
                known = ", ".join(sorted(EVENTS))
                raise BadIgnoredEvent(
                    f"{rule.path('ignore-event')}: event type {event!r} is not valid; "
                    f"known: {known}"
                )
        self._events = frozenset(_ALIASES.get(e, e) for e in rule.ignore_event)
        self._searches = [*self._patterns()]
        self._expressions = [*self._read_expressions()]

    def _patterns(self) -> Iterator[Callable[[str], bool]]:
        if not self._rule.ignore_sql:
            return
        try:
            yield search_pattern("|".join(self._rule.ignore_sql))
        except ValueError as err:
            raise BadIgnoredStatement(f"{self._rule.path('ignore-sql')}: {err}") from None

    def _read_expressions(self) -> Iterator[tuple[Op, str, Expression]]:
        rule = self._rule
        for op, image, key, text in (
            (Op.INSERT, "after", "insert", rule.ignore_insert_value_expr),
            (Op.UPDATE, "before", "update-old", rule.ignore_update_old_value_expr),
            (Op.UPDATE, "after", "update-new", rule.ignore_update_new_value_expr),
            (Op.DELETE, "before", "delete", rule.ignore_delete_value_expr),
        ):
            if text:
                yield op, image, Expression(text, rule.path(f"ignore-{key}-value-expr"))

    def fits(self, table: TableId) -> bool:
        """Return whether the rule is for a table; without a table's name, for a database."""
        if not table.table:
            return self._tables.matches_database(table.database)
        return self._tables.matches_table(*table)

    def ignores(self, change: SchemaChange) -> bool:
        event = _DDL_EVENTS.get(change.kind) or _ALTER_EVENTS.get(change.kind, "")
        if _ALL_DDL in self._events or event in self._events:
            return True
        if _ALTER in self._events and change.kind in _ALTER_EVENTS:
            return True
        return any(search(change.query) for search in self._searches)

    def add_to(self, policy: _Policy, table: TableSchema) -> None:
        if self.fits(table.id):
            everything = _ALL_ROWS in self._events
            policy.ops |= {op for e, op in _ROW_EVENTS.items() if everything or e in self._events}
            columns = self._watched(policy, table)
            if columns is not None:
                policy.watched.append(columns)
        if self._exact.matches_table(*table.id):
            policy.tests += [(op, image, e.fit(table)) for op, image, e in self._expressions]

    def _watched(self, policy: _Policy, table: TableSchema) -> list[str] | None:
        """Return the columns whose change keeps an update; None: the rule says nothing here.

        Virtual generated columns change with others, are never written, and not all sources tell
        them: they count as columns of keys only.
        """
        listed: set[str] = set()
        for name in self._rule.ignore_update_only_columns:
            column = table.by_name.get(name.lower())
            if column is None or (self._case_sensitive and column.name != name):
                key = self._rule.path("ignore-update-only-columns")
                policy.notices.append(f"{key}: table {table.id} has no column {name!r}")
            else:
                listed.add(column.name)
        keys = {c.lower() for i in table.indexes if i.primary or i.unique for c in i.columns}
        if not listed:
            return None
        others = [c.name for c in table.visible if c.name not in listed]
        return [c.name for c in table.columns if c.name in others or c.name.lower() in keys]
