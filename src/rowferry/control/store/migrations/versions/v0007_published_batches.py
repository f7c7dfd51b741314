"""Published micro-batches: what each of the last ones has read, and where that went."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_table

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FEED = sa.String(128).with_variant(
    mysql.VARCHAR(128, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Make the table."""
    # Servers of the version before write none until they are restarted.
    make_table(
        "published_batches",
        sa.Column("changefeed", FEED, primary_key=True, nullable=False),
        sa.Column(
            "micro_batch", sa.BigInteger(), primary_key=True, autoincrement=False, nullable=False
        ),
        sa.Column("single", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("batch", LONG, nullable=False),
    )
