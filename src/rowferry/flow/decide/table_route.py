"""Table routing: the name under which a table is written, where it is not its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.dialect import SourceDialect
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadFilterRule, BadRoute, BadStatement
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.spec.rules.dispatch import DispatchRule

_EXPRESSION: Final = re.compile(r"(?:[^{}]|\{schema\}|\{table\})*")


@dataclass(frozen=True, slots=True)
class _Route:
    rule: DispatchRule
    tables: TableFilter


class TableRoutes:
    """`target-schema` and `target-table` of the dispatch rules; the first with one that fits."""

    def __init__(
        self, rules: Sequence[DispatchRule], case_sensitive: bool, dialect: SourceDialect
    ) -> None:
        """Read the rules; `dialect` is that of the statements whose names are replaced.

        Raises:
            BadRoute: an expression with other braces than {schema} and {table}.
            BadFilterRule: a matcher with a syntax error.
        """
        routed = [r for r in rules if r.target_schema or r.target_table]
        self.any = bool(routed)
        self._dialect = dialect
        self._routes = [_read(r, case_sensitive) for r in routed]

    def target(self, table: TableId) -> TableId:
        """Return the name under which a table (or, without a table's name, a database) is written.

        A database follows the first rule that is for all its tables; where there is none, the
        rules that are for some of them, which must agree.

        Raises:
            BadRoute: a database whose tables go to several.
        """
        if not table.table:
            return self._database_target(table)
        for route in self._routes:
            if route.tables.matches_table(*table):
                return _target(route.rule, table)
        return table

    def _database_target(self, database: TableId) -> TableId:
        for route in self._routes:
            if route.tables.matches_table(*database):
                return _target(route.rule, database)
        fit = (r for r in self._routes if r.tables.matches_database(database.database))
        targets = {_target(r.rule, database).database: None for r in fit}
        if len(targets) > 1:
            raise BadRoute(
                f"ambiguous schema routing for schema {database.database}: its tables go to "
                f"{' and to '.join(targets)}; give them one target-schema, or leave changes of the "
                "schema out by filter.event-filters"
            )
        return TableId(next(iter(targets), database.database), "")

    def seen(self, change: SchemaChange, names: WrittenNames) -> SchemaChange:
        """Return a schema change with the names that are written, also in its statement.

        `names` are those in force before it.

        Raises:
            BadRoute: the statement cannot be read.
        """
        if not self.any:
            return change
        target = self.target(change.table)
        previous = self.target(change.previous) if change.previous else None
        try:
            home = (change.previous or change.table).database
            query = self._dialect.rename_tables(change.query, home, self.target)
        except BadStatement as err:
            raise BadRoute(f"names in a statement cannot be replaced: {err.words}") from None
        if change.kind is DdlKind.RENAME_TABLE and previous == target:
            # Readers see one table under one name: it has a new version, and no other columns.
            change, previous, query = replace(change, kind=DdlKind.NONE, previous=None), None, ""
        if change.kind is DdlKind.DROP_DATABASE and names.are_in_home_of(change.table):
            query = ""  # its own tables were dropped one by one before
        return replace(
            change,
            query=query,
            target=target if target != change.table else None,
            previous_target=previous if previous != change.previous else None,
        )


class WrittenNames:
    """The captured tables that are there at one place of the log, by the names that are written.

    It is made from the table versions that are known, and follows the schema changes behind them:
    whoever carries a plan out again comes to the same names.
    """

    def __init__(
        self,
        routes: TableRoutes,
        captures: Callable[[TableSchema], bool],
        tables: Iterable[TableSchema] = (),
    ) -> None:
        """Begin with the newest versions of some tables; `captures` tells which of them count."""
        self._routes, self._captures = routes, captures
        self._tables: dict[TableId, set[TableId]] = {}  # by the name that is written
        for table in tables if routes.any else ():
            self._add(table)

    def check(self) -> None:
        """Raise BadRoute where several tables have one name."""
        for target, tables in self._tables.items():
            if len(tables) > 1:
                raise _two_of_one_name(target, *sorted(tables)[:2])

    def check_change(self, change: SchemaChange) -> None:
        """Raise BadRoute where a schema change brings a table to the name of another one."""
        if not self._routes.any or change.schema is None:
            return
        target = self._routes.target(change.table)
        others = self._tables.get(target, set()) - {change.table, change.previous}
        if others:
            raise _two_of_one_name(target, min(others), change.table)

    def follow(self, change: SchemaChange) -> None:
        """Be where a schema change has been made."""
        if not self._routes.any:
            return
        if change.kind is DdlKind.DROP_DATABASE:
            for tables in self._tables.values():
                tables -= {t for t in tables if t.database == change.table.database}
            return
        self._remove(change.previous or change.table)
        if change.schema is not None:
            self._add(change.schema)

    def are_in_home_of(self, database: TableId) -> bool:
        """Return whether tables of other databases are written to where this one is."""
        home = self._routes.target(database).database
        return any(
            target.database == home and any(t.database != database.database for t in tables)
            for target, tables in self._tables.items()
        )

    def _add(self, table: TableSchema) -> None:
        if self._captures(table):
            self._tables.setdefault(self._routes.target(table.id), set()).add(table.id)

    def _remove(self, table: TableId) -> None:
        self._tables.get(self._routes.target(table), set()).discard(table)


def _two_of_one_name(target: TableId, one: TableId, other: TableId) -> BadRoute:
    return BadRoute(
        f"{one} and {other} would both be written as {target}; give one of them another "
        "target-schema or target-table in sink.dispatchers, or leave it out by filter.rules"
    )


def _read(rule: DispatchRule, case_sensitive: bool) -> _Route:
    check_route(rule.target_schema, f"{rule.path}.target-schema")
    check_route(rule.target_table, f"{rule.path}.target-table")
    try:
        return _Route(rule, TableFilter(rule.matcher, case_sensitive))
    except BadFilterRule as err:
        raise BadFilterRule(f"{rule.path}.matcher: {err.words}") from None


def check_route(expression: str, path: str) -> None:
    """Raise BadRoute unless all braces of an expression are {schema} or {table}."""
    if not _EXPRESSION.fullmatch(expression):
        raise BadRoute(
            f"{path} = {expression!r}: braces are only for {{schema}} and {{table}}, in lower case"
        )


def _target(rule: DispatchRule, table: TableId) -> TableId:
    def filled(expression: str, own: str) -> str:
        if not expression:
            return own
        pieces = {"{schema}": table.database, "{table}": table.table}
        return re.sub(r"\{schema\}|\{table\}", lambda m: pieces[m[0]], expression)

    if not table.table:
        split = "{table}" in rule.target_schema
        return table if split else TableId(filled(rule.target_schema, table.database), "")
    database = filled(rule.target_schema, table.database)
    return TableId(database, filled(rule.target_table, table.table))
