"""Schema changes that no statement of the log made: how readers are told of tables.

Both sources also remember what readers keep of tables that a feed has let go: a table that gets
such a name must not be added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
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


def dropped(name: TableId, table_id: int, commit_ts: int) -> SchemaChange:
    """Return the DROP of what was delivered of a table."""
    query = f"DROP TABLE {quoted_table(name)}"
    change = SchemaChange(commit_ts, DdlKind.DROP_TABLE, query, name)
    return replace(change, dropped_table_id=table_id)
