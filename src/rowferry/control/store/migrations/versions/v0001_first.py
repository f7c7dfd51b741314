"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowferry.control.store.migrations.steps import make_index, make_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The types are written out here, so that a later change of `tables` cannot change this version.
FEED = sa.String(128).with_variant(
    mysql.VARCHAR(128, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
NAME = sa.String(255).with_variant(
    mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _number(name: str, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger(), primary_key=primary_key, autoincrement=False, nullable=False
    )


def _small(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _text(name: str, kind: sa.types.TypeEngine[str] | None = None) -> sa.Column[str]:
    return sa.Column(name, kind if kind is not None else sa.Text(), nullable=False)


def _key(name: str, kind: sa.types.TypeEngine[str]) -> sa.Column[str]:
    return sa.Column(name, kind, primary_key=True, nullable=False)


def _of_changefeed() -> sa.Column[str]:
    return sa.Column(
        "changefeed", FEED, sa.ForeignKey("changefeeds.id"), primary_key=True, nullable=False
    )


def upgrade() -> None:
    """Make all tables."""
    _changefeeds()
    _captured_tables()
    make_table(
        "leases",
        _key("changefeed", FEED),
        _number("epoch"),
        sa.Column("holder", sa.Text()),
        _number("claimed_at"),
        _number("expires_at"),
    )
    make_table(
        "history",
        sa.Column("id", COUNTER, primary_key=True, autoincrement=True, nullable=False),
        _text("changefeed", FEED),
        _number("at"),
        _text("what", sa.String(64)),
        _text("details", LONG),
    )
    make_index("history_by_changefeed", "history", ["changefeed", "id"])
    make_table(
        "servers",
        _key("instance", sa.String(32)),
        _text("holder"),
        _text("address"),
        _number("seen_at"),
    )


def _changefeeds() -> None:
    make_table(
        "changefeeds",
        _key("id", FEED),
        _text("state", sa.String(16)),
        _text("spec", LONG),
        _number("spec_version"),
        _number("cluster_id"),
        _number("created_at"),
        _number("epoch"),
        _number("micro_batch"),
        _text("published", sa.String(64)),
        _text("position", LONG),
        sa.Column("sink_state", LONG),
        _number("watermark"),
        _small("cancel"),
        _text("error_code", sa.String(16)),
        _text("error", LONG),
    )
    make_table(
        "spec_versions",
        _of_changefeed(),
        _number("version", primary_key=True),
        _text("spec", LONG),
        _number("stored_at"),
    )
    make_table(
        "table_versions",
        _of_changefeed(),
        _number("table_id", primary_key=True),
        _key("db_name", NAME),
        _key("table_name", NAME),
        _number("version", primary_key=True),
        _number("micro_batch"),
        _text("definition", LONG),
    )
    make_table(
        "pending_plans",
        _of_changefeed(),
        _number("micro_batch"),
        _number("epoch"),
        _text("digest", sa.String(64)),
        _text("plan", LONG),
        _number("recorded_at"),
    )


def _captured_tables() -> None:
    make_table(
        "subscribe",
        _number("cluster_id", primary_key=True),
        _key("db_name", NAME),
        _key("table_name", NAME),
        _key("subscribe_name", FEED),
        sa.Column("db_id", sa.BigInteger()),
        _number("table_id"),
        _text("master_addrs"),
        _text("sink"),
        _small("cancel"),
        _text("owner"),
    )
    make_index("subscribe_by_name", "subscribe", ["subscribe_name"])
    make_table(
        "progress",
        _number("cluster_id", primary_key=True),
        _key("db_name", NAME),
        _key("table_name", NAME),
        _key("subscribe_name", FEED),
        _number("range_id", primary_key=True),
        _small("progress_stage"),
        _number("progress_init_snapshot_version"),
        _number("progress_current_snapshot_version"),
        _text("progress_last_snapshot_key"),
        _number("progress_last_log_index"),
        _number("table_id"),
        _number("physical_id"),
        _text("start_key"),
        _text("end_key"),
        _number("init_snapshot_ts"),
        _number("current_snapshot_ts"),
        sa.UniqueConstraint("subscribe_name", "cluster_id", "range_id", name="progress_by_range"),
    )
