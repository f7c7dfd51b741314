"""Subscribers: names of their own, and one changefeed for each table that they subscribe to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_column, make_index

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FEED = sa.String(128).with_variant(
    mysql.VARCHAR(128, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
SUBSCRIBER = sa.String(255).with_variant(
    mysql.VARCHAR(255, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)
_BY_RANGE = "progress_by_range"
_COLUMNS = ("changefeed", "cluster_id", "range_id")


def upgrade() -> None:
    """Make the columns, fill them, and let names be longer."""
    make_column("changefeeds", sa.Column("subscriber", SUBSCRIBER, nullable=True))
    for name in ("subscribe", "progress"):
        # Servers of the version before write none until they are restarted.
        make_column(name, sa.Column("changefeed", FEED, nullable=True))
        rows = sa.table(name, sa.column("changefeed"), sa.column("subscribe_name"))
        unowned = rows.c.changefeed.is_(None)
        op.execute(rows.update().where(unowned).values(changefeed=rows.c.subscribe_name))
        columns = _by_range()
        with op.batch_alter_table(name) as table:  # SQLite makes the table anew
            table.alter_column(
                "subscribe_name", type_=SUBSCRIBER, existing_type=FEED, existing_nullable=False
            )
            if name == "progress" and columns != _COLUMNS:
                if columns:
                    table.drop_constraint(_BY_RANGE, type_="unique")
                table.create_unique_constraint(_BY_RANGE, list(_COLUMNS))
    make_index("subscribe_by_changefeed", "subscribe", ["changefeed"])


def _by_range() -> tuple[str, ...]:
    """Return the columns by which a range is found now; none: a run was cut off between two."""
    constraints = sa.inspect(op.get_bind()).get_unique_constraints("progress")
    return next((tuple(c["column_names"]) for c in constraints if c["name"] == _BY_RANGE), ())
