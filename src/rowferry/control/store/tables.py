"""The tables of the meta database.

`subscribe` and `progress` are documented for users, who may read them and set `cancel = 1` by hand:
their column names never change. Everything else is ours. Times are milliseconds since 1970, JSON is
text, and names compare by bytes on every database.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

VERSION_TABLE = "rowferry_version"
REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
)  # every schema version that this code can open, oldest first


def _name(length: int) -> TypeEngine[str]:
    in_bytes = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(in_bytes, "mysql", "mariadb")


FEED = _name(128)  # the longest changefeed id
NAME = _name(255)
# The longest name of a subscriber. Keys with three names of four bytes a character are too long.
SUBSCRIBER = String(255).with_variant(
    mysql.VARCHAR(255, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)
LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
# SQLite numbers rows by itself only in a column that is called INTEGER.
COUNTER = BigInteger().with_variant(Integer(), "sqlite")


class MetaTable(DeclarativeBase):
    """Holds the metadata of all tables."""


class FeedRow(MetaTable):
    """A changefeed: what was asked, and where it stands."""

    __tablename__ = "changefeeds"

    id: Mapped[str] = mapped_column(FEED, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    spec: Mapped[str] = mapped_column(LONG)
    spec_version: Mapped[int] = mapped_column(BigInteger)
    cluster_id: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int] = mapped_column(BigInteger)
    micro_batch: Mapped[int] = mapped_column(BigInteger)
    published: Mapped[str] = mapped_column(String(64))  # digest of the plan published last
    position: Mapped[str] = mapped_column(LONG)
    sink_state: Mapped[str | None] = mapped_column(LONG)
    watermark: Mapped[int] = mapped_column(BigInteger)
    cancel: Mapped[int] = mapped_column(Integer)
    error_code: Mapped[str] = mapped_column(String(16))
    error: Mapped[str] = mapped_column(LONG)
    hold: Mapped[str | None] = mapped_column(LONG)
    subscriber: Mapped[str | None] = mapped_column(SUBSCRIBER)  # whose one table it captures
    moved_at: Mapped[int | None] = mapped_column(BigInteger)  # when the watermark last moved
    kept_until: Mapped[int | None] = mapped_column(BigInteger)  # how long the source keeps its log
    resnapshots: Mapped[str | None] = mapped_column(LONG)  # the open ones, and the last that ended


class SpecRow(MetaTable):
    """The settings of a changefeed as they were at one version."""

    __tablename__ = "spec_versions"

    changefeed: Mapped[str] = mapped_column(FEED, ForeignKey("changefeeds.id"), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    spec: Mapped[str] = mapped_column(LONG)
    stored_at: Mapped[int] = mapped_column(BigInteger)


class TableVersionRow(MetaTable):
    """One version of one captured table; never changes."""

    __tablename__ = "table_versions"

    changefeed: Mapped[str] = mapped_column(FEED, ForeignKey("changefeeds.id"), primary_key=True)
    table_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    db_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    table_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    micro_batch: Mapped[int] = mapped_column(BigInteger)  # the plan that first referred to it
    definition: Mapped[str] = mapped_column(LONG)


class SubscribeRow(MetaTable):
    """One captured table of a changefeed; or one that somebody subscribed to, captured or not."""

    __tablename__ = "subscribe"
    __table_args__ = (
        Index("subscribe_by_name", "subscribe_name"),
        Index("subscribe_by_changefeed", "changefeed"),
    )

    cluster_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    db_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    table_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    subscribe_name: Mapped[str] = mapped_column(SUBSCRIBER, primary_key=True)
    db_id: Mapped[int | None] = mapped_column(BigInteger)
    table_id: Mapped[int] = mapped_column(BigInteger)
    master_addrs: Mapped[str] = mapped_column(Text)
    sink: Mapped[str] = mapped_column(Text)
    cancel: Mapped[int] = mapped_column(Integer)
    owner: Mapped[str] = mapped_column(Text)
    changefeed: Mapped[str | None] = mapped_column(FEED)  # None: an older version wrote the row


class ProgressRow(MetaTable):
    """How far one range was delivered. Range ids are unique inside a changefeed."""

    __tablename__ = "progress"
    __table_args__ = (
        UniqueConstraint("changefeed", "cluster_id", "range_id", name="progress_by_range"),
    )

    cluster_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    db_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    table_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    subscribe_name: Mapped[str] = mapped_column(SUBSCRIBER, primary_key=True)
    range_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    progress_stage: Mapped[int] = mapped_column(Integer)
    progress_init_snapshot_version: Mapped[int] = mapped_column(BigInteger)
    progress_current_snapshot_version: Mapped[int] = mapped_column(BigInteger)
    progress_last_snapshot_key: Mapped[str] = mapped_column(Text)
    progress_last_log_index: Mapped[int] = mapped_column(BigInteger)
    table_id: Mapped[int] = mapped_column(BigInteger)
    physical_id: Mapped[int] = mapped_column(BigInteger)
    start_key: Mapped[str] = mapped_column(Text)
    end_key: Mapped[str] = mapped_column(Text)
    init_snapshot_ts: Mapped[int] = mapped_column(BigInteger)
    current_snapshot_ts: Mapped[int] = mapped_column(BigInteger)
    changefeed: Mapped[str | None] = mapped_column(FEED)  # None: an older version wrote the row


class LeaseRow(MetaTable):
    """The lease of a changefeed. The row outlives the changefeed, so that epochs never repeat."""

    __tablename__ = "leases"

    changefeed: Mapped[str] = mapped_column(FEED, primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)
    holder: Mapped[str | None] = mapped_column(Text)
    claimed_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger)
    owner: Mapped[str | None] = mapped_column(Text)  # the holder's name, as it is shown


class PendingRow(MetaTable):
    """The plan that is recorded and not yet published."""

    __tablename__ = "pending_plans"

    changefeed: Mapped[str] = mapped_column(FEED, ForeignKey("changefeeds.id"), primary_key=True)
    micro_batch: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(64))
    plan: Mapped[str] = mapped_column(LONG)
    recorded_at: Mapped[int] = mapped_column(BigInteger)


class ParkedRowRow(MetaTable):
    """A row change that a target refused, or that waits behind one; see `change.quarantine`."""

    __tablename__ = "parked_rows"

    changefeed: Mapped[str] = mapped_column(FEED, ForeignKey("changefeeds.id"), primary_key=True)
    micro_batch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    ordinal: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    table_id: Mapped[int] = mapped_column(BigInteger)
    db_name: Mapped[str] = mapped_column(NAME)
    table_name: Mapped[str] = mapped_column(NAME)
    version: Mapped[int] = mapped_column(BigInteger)
    physical_id: Mapped[int | None] = mapped_column(BigInteger)
    row_key: Mapped[str] = mapped_column(LONG)
    op: Mapped[int] = mapped_column(Integer)
    commit_ts: Mapped[int] = mapped_column(BigInteger)
    shape: Mapped[str] = mapped_column(String(64))
    cause: Mapped[str] = mapped_column(LONG)
    size: Mapped[int] = mapped_column(BigInteger)
    parked_at: Mapped[int] = mapped_column(BigInteger)
    wanted: Mapped[int] = mapped_column(Integer)
    image: Mapped[str] = mapped_column(LONG)


class HistoryRow(MetaTable):
    """What happened to a changefeed."""

    __tablename__ = "history"
    __table_args__ = (Index("history_by_changefeed", "changefeed", "id"),)

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    changefeed: Mapped[str] = mapped_column(FEED)
    at: Mapped[int] = mapped_column(BigInteger)
    what: Mapped[str] = mapped_column(String(64))
    details: Mapped[str] = mapped_column(LONG)


class ServerRow(MetaTable):
    """A server, as it last announced itself."""

    __tablename__ = "servers"

    instance: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(Text)
    address: Mapped[str] = mapped_column(Text)
    seen_at: Mapped[int] = mapped_column(BigInteger)


class SampleRow(MetaTable):
    """What a changefeed did up to a moment. May outlive the changefeed until its time is over."""

    __tablename__ = "samples"
    __table_args__ = (Index("samples_by_time", "at"),)

    changefeed: Mapped[str] = mapped_column(FEED, primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    sample: Mapped[str] = mapped_column(LONG)


class TableCountRow(MetaTable):
    """What was delivered of one table since the changefeed captures it."""

    __tablename__ = "table_counts"

    changefeed: Mapped[str] = mapped_column(FEED, primary_key=True)
    db_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    table_name: Mapped[str] = mapped_column(NAME, primary_key=True)
    rows: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    last_ts: Mapped[int] = mapped_column(BigInteger)  # commit-ts of the last change; 0: not known


class SchemaChangeRow(MetaTable):
    """A schema change that was delivered."""

    __tablename__ = "schema_changes"
    __table_args__ = (Index("schema_changes_by_changefeed", "changefeed", "id"),)

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    changefeed: Mapped[str] = mapped_column(FEED)
    at: Mapped[int] = mapped_column(BigInteger)
    commit_ts: Mapped[int] = mapped_column(BigInteger)
    db_name: Mapped[str] = mapped_column(NAME)
    table_name: Mapped[str] = mapped_column(NAME)
    kind: Mapped[str] = mapped_column(String(32))
    query: Mapped[str] = mapped_column(LONG)


class LogLineRow(MetaTable):
    """A line that a server logged about a changefeed, without secrets."""

    __tablename__ = "log_lines"
    __table_args__ = (Index("log_lines_by_changefeed", "changefeed", "id"),)

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    changefeed: Mapped[str] = mapped_column(FEED)
    at: Mapped[int] = mapped_column(BigInteger)
    level: Mapped[str] = mapped_column(String(16))
    server: Mapped[str] = mapped_column(Text)
    line: Mapped[str] = mapped_column(LONG)


class PublishedBatchRow(MetaTable):
    """A published micro-batch (`single` is 1), or several older ones that follow each other."""

    __tablename__ = "published_batches"

    changefeed: Mapped[str] = mapped_column(FEED, primary_key=True)
    micro_batch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    single: Mapped[int] = mapped_column(Integer)
    at: Mapped[int] = mapped_column(BigInteger)
    batch: Mapped[str] = mapped_column(LONG)
