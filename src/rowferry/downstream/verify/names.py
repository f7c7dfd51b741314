"""Which table of side A is compared with which one of side B."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule, BadRoute
from rowferry.flow.decide.table_filter import TableFilter

_ARROW: Final = "->"


@dataclass(frozen=True)
class NameRoute:
    """A rule: tables that match have another name on side B; `*` keeps a part of the name."""

    matches: TableFilter
    database: str
    table: str

    def target(self, name: TableId) -> TableId:
        """Return the name on side B."""
        return TableId(
            name.database if self.database == "*" else self.database,
            name.table if self.table == "*" else self.table,
        )


def parse_route(text: str) -> NameRoute:
    """Read `DATABASE.TABLE -> DATABASE.TABLE`; the left is a filter rule.

    Raises:
        BadRoute: it is something else.
    """
    left, arrow, right = text.partition(_ARROW)
    database, dot, table = right.strip().partition(".")
    if not arrow or not dot or not database or not table or not left.strip():
        raise BadRoute(f"--route {text!r}: write it as 'a.* -> b.*'")
    for part in (database, table):
        if part != "*" and any(c in part for c in "*?[]"):
            raise BadRoute(f"--route {text!r}: on the right a part is a name, or * alone")
    try:
        return NameRoute(TableFilter([left.strip()]), database, table)
    except BadFilterRule as err:
        raise BadRoute(f"--route {text!r}: {err.words}") from None


@dataclass(frozen=True)
class Names:
    """Which tables are compared, and where side B has them."""

    keeps: Callable[[TableId], bool]
    routes: tuple[NameRoute, ...]

    @classmethod
    def of(cls, tables: Sequence[str], routes: Sequence[str]) -> Names:
        """Read filter rules (none: all tables) and routes; the first route that fits counts.

        Raises:
            BadFilterRule, BadRoute: one of them is wrong.
        """
        rules = TableFilter(tables or ["*.*"])
        return cls(lambda name: rules.matches_table(*name), tuple(map(parse_route, routes)))

    def target(self, name: TableId) -> TableId:
        """Return the name that a table of A has on side B."""
        route = next((r for r in self.routes if r.matches.matches_table(*name)), None)
        return route.target(name) if route else name

    def pairs(
        self, a: Iterable[TableId], b: Iterable[TableId]
    ) -> tuple[list[tuple[TableId, TableId]], list[TableId], list[TableId]]:
        """Return the tables to compare, those that A alone has, and those that B alone has.

        What B alone has is told only of databases that a table of A belongs to, and only of names
        that are kept.

        Raises:
            BadRoute: two tables of A would be one table of B.
        """
        there = set(b)
        wanted: dict[TableId, TableId] = {}
        for name in sorted(a):
            target = self.target(name)
            if target in wanted:
                raise BadRoute(f"{wanted[target]} and {name} are both {target} on side B")
            wanted[target] = name
        databases = {target.database for target in wanted}
        extra = sorted(
            n for n in there - set(wanted) if n.database in databases and self._is_kept(n)
        )
        both = [(name, target) for target, name in wanted.items() if target in there]
        lone = [name for target, name in wanted.items() if target not in there]
        return both, lone, extra

    def _is_kept(self, name: TableId) -> bool:
        return bool(self.routes) or self.keeps(name)
