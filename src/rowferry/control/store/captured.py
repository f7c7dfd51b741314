"""Which tables a changefeed captures: what a published plan adds to `subscribe` and takes away."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.table import TableId


@dataclass(slots=True)
class CapturedDifference:
    """How the set of captured tables differs after a plan.

    Attributes:
        present: tables that are captured after it, with their ids; others may be captured as well.
        gone: tables that are not captured any more.
        gone_databases: databases of which only `present` tables are left.
    """

    present: dict[TableId, int] = field(default_factory=dict)
    gone: set[TableId] = field(default_factory=set)
    gone_databases: set[str] = field(default_factory=set)

    def add(self, table: TableId, table_id: int) -> None:
        """Note a table that is captured from here on."""
        if table.table:
            self.present[table] = table_id
            self.gone.discard(table)

    def drop(self, table: TableId) -> None:
        """Note a table that ends here."""
        self.present.pop(table, None)
        self.gone.add(table)

    def drop_database(self, database: str) -> None:
        """Note a database that ends here."""
        self.gone_databases.add(database)
        for table in [t for t in self.present if t.database == database]:
            del self.present[table]

    def drop_renamed_away(self, changes: Iterable[SchemaChange], lost: Collection[int]) -> None:
        """Note that the new names of tables are not captured which have left by a rename.

        `lost` are the ids of tables that have no range any more.
        """
        for change in changes:
            if change.previous is None or change.schema is None:
                continue
            table_id = change.schema.table_id
            if table_id and table_id in lost and self.present.get(change.table) == table_id:
                self.drop(change.table)


def captured_by(plan: Plan, met: Iterable[tuple[TableId, int]]) -> CapturedDifference:
    """Follow a plan through: its rows, then its schema changes, then the ranges that are left.

    `met` are the tables whose versions were recorded with the plan.
    """
    difference = CapturedDifference()
    for table, table_id in met:
        difference.add(table, table_id)
    for segment in plan.stretch.segments:
        for part in segment.slices:
            difference.add(part.table, part.table_id)
    for change in plan.stretch.schema_changes:
        if change.kind is DdlKind.DROP_DATABASE:
            difference.drop_database(change.table.database)
            continue
        if change.previous is not None and change.previous != change.table:
            difference.drop(change.previous)
        if change.schema is None:
            difference.drop(change.table)
        else:
            difference.add(change.table, change.schema.table_id)
    for progress in plan.stretch.ranges:
        difference.add(TableId(progress.database, progress.table), progress.table_id)
    return difference
