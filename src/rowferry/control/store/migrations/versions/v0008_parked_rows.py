"""Parked rows: what targets refused, until somebody sends it again or drops it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_table

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    in_bytes = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(in_bytes, "mysql", "mariadb")


def upgrade() -> None:
    """Make the table."""
    make_table(
        "parked_rows",
        sa.Column("changefeed", _name(128), sa.ForeignKey("changefeeds.id"), primary_key=True),
        sa.Column("micro_batch", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("ordinal", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("db_name", _name(255), nullable=False),
        sa.Column("table_name", _name(255), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("physical_id", sa.BigInteger(), nullable=True),
        sa.Column("row_key", LONG, nullable=False),
        sa.Column("op", sa.Integer(), nullable=False),
        sa.Column("commit_ts", sa.BigInteger(), nullable=False),
        sa.Column("shape", sa.String(64), nullable=False),
        sa.Column("cause", LONG, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("parked_at", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("image", LONG, nullable=False),
    )
