"""The catalog: a range of its own, in which the store keeps its tables and every DDL.

Its keys lie in [b"m", b"n"); values are JSON. A row's version is not inside the JSON: it is the
commit-ts of the row itself, so that the store can write it before it knows the commit-ts.

    m:db:<name>              {"name": ...}
    m:table:<table id>       a TableSchema (version 0: take the row's commit-ts)
    m:ddl:<job number>       a list of SchemaChange (commit_ts and version 0, likewise)
"""

from __future__ import annotations

import json
from dataclasses import replace

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog

START = b"m"
END = b"n"
_DATABASE = b"m:db:"
_TABLE = b"m:table:"
_DDL = b"m:ddl:"


def database_key(name: str) -> bytes:
    """Return the key of a database's row."""
    return _DATABASE + name.encode()


def table_key(table_id: int) -> bytes:
    """Return the key of a table's row."""
    return _TABLE + b"%020d" % table_id


def ddl_key(job: int) -> bytes:
    """Return the key of a DDL's row; jobs are numbered in commit order."""
    return _DDL + b"%020d" % job


def database_value(name: str) -> bytes:
    """Return a database's row."""
    return json.dumps({"name": name}).encode()


def table_value(table: TableSchema) -> bytes:
    """Return a table's row."""
    return json.dumps(table.at(0).to_json()).encode()


def ddl_value(changes: list[SchemaChange]) -> bytes:
    """Return a DDL's row: one statement may change several tables."""
    stored_changes = [
        replace(c, commit_ts=0, schema=c.schema.at(0) if c.schema else None) for c in changes
    ]
    return json.dumps([c.to_json() for c in stored_changes]).encode()


def read_table(key: bytes, value: bytes, commit_ts: int) -> TableSchema | None:
    """Return the table that a catalog row holds, or None for other kinds of rows."""
    if not key.startswith(_TABLE):
        return None
    try:
        return TableSchema.from_json(json.loads(value)).at(commit_ts)
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise CorruptLog(f"catalog row {key.hex()} cannot be read: {err!r}") from err


def read_ddl(key: bytes, value: bytes, commit_ts: int) -> list[SchemaChange]:
    """Return the schema changes that a catalog row holds (none for other kinds of rows)."""
    if not key.startswith(_DDL):
        return []
    try:
        changes = [SchemaChange.from_json(c) for c in json.loads(value)]
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise CorruptLog(f"catalog row {key.hex()} cannot be read: {err!r}") from err
    return [
        replace(c, commit_ts=commit_ts, schema=c.schema.at(commit_ts) if c.schema else None)
        for c in changes
    ]
