"""Watching: when a checkpoint moved, counts of tables, schema changes, lines of the log."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_column, make_index, make_table

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _name(length: int) -> sa.types.TypeEngine[str]:
    in_bytes = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(in_bytes, "mysql", "mariadb")


FEED, NAME = _name(128), _name(255)
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the columns and the tables."""
    # Servers of the version before write none until they are restarted.
    make_column("changefeeds", sa.Column("moved_at", sa.BigInteger(), nullable=True))
    make_column("changefeeds", sa.Column("kept_until", sa.BigInteger(), nullable=True))
    make_column("leases", sa.Column("owner", sa.Text(), nullable=True))
    make_table(
        "table_counts",
        sa.Column("changefeed", FEED, primary_key=True, nullable=False),
        sa.Column("db_name", NAME, primary_key=True, nullable=False),
        sa.Column("table_name", NAME, primary_key=True, nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_ts", sa.BigInteger(), nullable=False),
    )
    make_table(
        "schema_changes",
        sa.Column("id", COUNTER, primary_key=True, nullable=False),
        sa.Column("changefeed", FEED, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("commit_ts", sa.BigInteger(), nullable=False),
        sa.Column("db_name", NAME, nullable=False),
        sa.Column("table_name", NAME, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("query", LONG, nullable=False),
    )
    make_index("schema_changes_by_changefeed", "schema_changes", ["changefeed", "id"])
    make_table(
        "log_lines",
        sa.Column("id", COUNTER, primary_key=True, nullable=False),
        sa.Column("changefeed", FEED, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("line", LONG, nullable=False),
    )
    make_index("log_lines_by_changefeed", "log_lines", ["changefeed", "id"])
