"""Samples: what each changefeed did lately."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_index, make_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FEED = sa.String(128).with_variant(
    mysql.VARCHAR(128, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Make the table."""
    make_table(
        "samples",
        sa.Column("changefeed", FEED, primary_key=True, nullable=False),
        sa.Column("at", sa.BigInteger(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("sample", LONG, nullable=False),
    )
    make_index("samples_by_time", "samples", ["at"])
