"""Schema changes that no statement of the log made: how readers are told of tables.

Both sources also remember what readers keep of tables that a feed has let go: a table that gets
such a name must not be added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.ddl.statement import create_sql
from rowferry.mysql.ddl.table import quoted_table


@dataclass(frozen=True, slots=True)
class Left:
    """What readers keep of a table that the feed has let go: its id, and what it looked like."""

    table_id: int
    looks: str

    @classmethod
    def of(cls, schema: TableSchema) -> Left:
        """Return what is left of a table of this version."""
        return cls(schema.table_id, sha256(create_sql(schema).encode()).hexdigest()[:16])


def created(schema: TableSchema) -> SchemaChange:
    """Return the CREATE of a table that joins, with its version as commit-ts."""
    return SchemaChange(schema.version, DdlKind.CREATE_TABLE, create_sql(schema), schema.id, schema)


def truncated(schema: TableSchema, old_id: int) -> SchemaChange:
    """Return the TRUNCATE of what was delivered of a table whose new version this is."""
    query = f"TRUNCATE TABLE {quoted_table(schema.id)}"
    change = SchemaChange(schema.version, DdlKind.TRUNCATE_TABLE, query, schema.id, schema)
    return replace(change, dropped_table_id=old_id)


def dropped(name: TableId, table_id: int, commit_ts: int, unsure: bool = False) -> SchemaChange:
    """Return the DROP of what was delivered of a table; `unsure`: it may be gone already."""
    query = f"DROP TABLE {'IF EXISTS ' * unsure}{quoted_table(name)}"
    change = SchemaChange(commit_ts, DdlKind.DROP_TABLE, query, name)
    return replace(change, dropped_table_id=table_id)


def forget_database(left: dict[TableId, Left], database: str, decision: Decision) -> None:
    """Forget what readers keep of a database that they are told to drop.

    Not where routing names tables: what stands beside other tables under the name of the routed
    database, or elsewhere, need not go with it. Whoever comes under such a name clears it.
    """
    if decision.renames:
        return
    for name in [n for n in left if n.database == database]:
        del left[name]
