"""Resnapshots: tables of a changefeed that are read again beside its log."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_column

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Make the column."""
    make_column("changefeeds", sa.Column("resnapshots", LONG, nullable=True))
