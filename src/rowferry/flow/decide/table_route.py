"""Table routing: the name under which a table is written, where it is not its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.dialect import SourceDialect
from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule, BadRoute, BadStatement
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.spec.rules.dispatch import DispatchRule

_EXPRESSION: Final = re.compile(r"(?:[^{}]|\{schema\}|\{table\})*")


@dataclass(frozen=True, slots=True)
class _Route:
    rule: DispatchRule
    tables: TableFilter


class TableRoutes:
    """`target-schema` and `target-table` of the dispatch rules; the first with one that fits.

    Remembers, for one run, which table has which name, so that no two come to share one.
    """

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
        self._holders: dict[TableId, TableId] = {}  # by the name that is written

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

    def claim(self, table: TableId) -> None:
        """Note that a table is written.

        Raises:
            BadRoute: another table has the same name there.
        """
        if not self.any:
            return
        target = self.target(table)
        holder = self._holders.setdefault(target, table)
        if holder != table:
            raise BadRoute(
                f"{holder} and {table} would both be written as {target}; give one of them another "
                "target-schema or target-table in sink.dispatchers, or leave it out by filter.rules"
            )

    def seen(self, change: SchemaChange) -> SchemaChange:
        """Return a schema change with the names that are written, also in its statement.

        Raises:
            BadRoute: the statement cannot be read, or brings a second table to a name.
        """
        if not self.any:
            return change
        self._follow(change)
        target = self.target(change.table)
        previous = self.target(change.previous) if change.previous else None
        try:
            home = (change.previous or change.table).database
            query = self._dialect.rename_tables(change.query, home, self.target)
        except BadStatement as err:
            raise BadRoute(f"names in a statement cannot be replaced: {err.words}") from None
        if change.kind is DdlKind.DROP_DATABASE and self._is_shared(change.table):
            query = ""  # its own tables were dropped one by one before
        return replace(
            change,
            query=query,
            target=target if target != change.table else None,
            previous_target=previous if previous != change.previous else None,
        )

    def _is_shared(self, database: TableId) -> bool:
        """Return whether tables of others are written to the database of this one."""
        home = self.target(database).database
        return any(
            written.database == home and table.database != database.database
            for written, table in self._holders.items()
        )

    def _follow(self, change: SchemaChange) -> None:
        """Keep account of which tables are there. On repeat nothing changes."""
        if change.kind is DdlKind.DROP_DATABASE:
            gone = change.table.database
            self._holders = {t: h for t, h in self._holders.items() if h.database != gone}
        elif change.kind is DdlKind.DROP_TABLE:
            self._release(change.table)
        elif change.schema is not None:
            if change.previous is not None:
                self._release(change.previous)
            self.claim(change.table)

    def _release(self, table: TableId) -> None:
        target = self.target(table)
        if self._holders.get(target) == table:
            del self._holders[target]


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
