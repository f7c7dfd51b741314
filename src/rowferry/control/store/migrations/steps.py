"""Steps of migrations that can be taken again: MySQL keeps what a run made before it was cut off.

A released step is never edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def make_table(name: str, *parts: sa.schema.SchemaItem) -> None:
    """Make a table if it is not there."""
    if name not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(name, *parts, **_MYSQL)


def make_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column if it is not there."""
    if column.name not in {c["name"] for c in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def make_index(name: str, table: str, columns: Sequence[str]) -> None:
    """Make an index if it is not there."""
    if name not in {i["name"] for i in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
