"""The tables downstream that got something: they must be there, and are never made again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE, Owner

_KEY: Final = "delivered"
_NAMED: Final = 5


class DeliveredTables:
    """What of the downstream's tables is known by what was published; kept in the sink's state."""

    def __init__(self, replaced_ddl: Collection[int]) -> None:
        """Know none yet; `replaced_ddl` are commit-ts of DDLs that are not run as they are."""
        self._replaced = replaced_ddl
        self.known: frozenset[TableId] = frozenset()

    def resume(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Know what the last published plan knew, of the tables that are still captured."""
        known = _tables_in(state or {})
        # After a reset to a place in the log it is not told which those are.
        self.known = known & owner.captured if owner.continues else known

    def foresee(
        self, written: Iterable[TableId], changes: Iterable[SchemaChange]
    ) -> dict[str, Any] | None:
        """Return the state once a plan is published that writes these tables; None: as before."""
        tables = {*self.known, *written}
        for change in changes:
            self._follow(tables, change)
        return None if tables == self.known else {_KEY: _form(tables)}

    def state(self) -> dict[str, Any]:
        """Return the state as it is."""
        return {_KEY: _form(self.known)}

    def publish(self, state: dict[str, Any] | None) -> None:
        """Take over what a plan foresaw."""
        if state is not None and _KEY in state:
            self.known = _tables_in(state)

    def _follow(self, tables: set[TableId], change: SchemaChange) -> None:
        name, old = change.written_as, change.previous_target or change.previous
        if change.takes_tables:
            tables -= {t for t in tables if t.database == name.database}
        elif change.commit_ts in self._replaced:
            tables -= {name, old or name}  # whatever it became
        elif change.kind is DdlKind.DROP_TABLE:
            tables.discard(name)
        elif change.kind is DdlKind.CREATE_TABLE:
            tables.add(name)
        elif old is not None and old != name:
            if old in tables:
                tables.add(name)
            tables.discard(old)


def lost(tables: Collection[TableId], databases: Collection[str], at: object) -> TargetLost:
    """Return the error for tables that are gone; `databases` are those of them that are there."""
    first = sorted(tables)[:_NAMED]
    gone = sorted({t.database for t in tables} - set(databases))
    words = f"{at}: database {gone[0]} is gone, with" if gone else f"{at}:"
    more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return TargetLost(
        f"{words} table {', '.join(map(str, first))}{more}{'' if gone else ' is gone'}, to which "
        f"this changefeed has delivered; {RESTORE}"
    )


def _form(tables: Iterable[TableId]) -> dict[str, list[str]]:
    """Return tables by database, each name once."""
    by_database: dict[str, list[str]] = {}
    for database, table in sorted(tables):
        by_database.setdefault(database, []).append(table)
    return by_database


def _tables_in(state: dict[str, Any]) -> frozenset[TableId]:
    by_database = state.get(_KEY, {})
    return frozenset(
        TableId(database, table) for database in by_database for table in by_database[database]
    )
