"""Answers in TiCDC's shapes, made from what the control plane knows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from rowferry.change.position import RangeProgress, physical_ms
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import Created, Seen, Synced
from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.control.operator.ticdc_codes import ticdc_code
from rowferry.control.store.contract import FeedRecord, FleetServer, Note
from rowferry.errors import BY_CODE, RowferryError
from rowferry.face.json_log import redacted
from rowferry.face.rest.replica_config import to_replica

KEYSPACE: Final = "default"
CLUSTER: Final = "default"


class Nothing(BaseModel):
    """An empty object."""


class RunningError(BaseModel):
    """The last error of a changefeed."""

    time: str
    addr: str
    code: str
    message: str


class ChangefeedItem(BaseModel):
    """A changefeed as lists show it."""

    upstream_id: int
    id: str
    keyspace: str
    state: FeedState
    checkpoint_tso: int
    checkpoint_time: str
    error: RunningError | None


class ChangefeedList(BaseModel):
    """Changefeeds, by id."""

    total: int
    items: list[ChangefeedItem]


class TaskStatus(BaseModel):
    """What one server does for a changefeed."""

    capture_id: str
    table_ids: list[int]
    table_operations: dict[str, Any] | None = None


class Gid(BaseModel):
    """A number that no other changefeed has or had."""

    low: int
    high: int


class ChangefeedDetail(BaseModel):
    """All about one changefeed. Secrets are hidden."""

    upstream_id: int
    id: str
    keyspace: str
    source_uri: str
    sink_uri: str
    create_time: str
    start_ts: int
    target_ts: int
    admin_job_type: int
    config: dict[str, Any]
    state: FeedState
    error: RunningError | None
    creator_version: str
    resolved_ts: int
    checkpoint_ts: int
    checkpoint_time: str
    task_status: list[TaskStatus]
    gid: Gid
    maintainer_addr: str


class ChangefeedStatus(BaseModel):
    """Where a changefeed stands."""

    state: FeedState
    resolved_ts: int
    checkpoint_ts: int
    last_error: RunningError | None
    last_warning: RunningError | None


class SyncedStatus(BaseModel):
    """Whether a changefeed has caught up. What ends in `_ts` is a time in words here."""

    synced: bool
    sink_checkpoint_ts: str
    puller_resolved_ts: str
    last_synced_ts: str
    now_ts: str
    info: str


class TableName(BaseModel):
    """A table of the source."""

    database_name: str
    table_name: str
    table_id: int
    is_partition: bool


class TableNames(BaseModel):
    """Tables of the source, by whether they can be captured."""

    ineligible_tables: list[TableName]
    eligible_tables: list[TableName]
    all_tables: list[TableName]


def local_time(ms: int) -> str:
    """Return a time as TiCDC writes it: `2026-01-31 23:59:59.999`, in the server's time zone."""
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"


def rfc3339(seconds: float) -> str:
    """Return a time with its zone, as TiCDC writes the few that it does not write in words."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def start_ts(feed: FeedRecord) -> int:
    """Return the commit-ts behind which a changefeed began; 0: with a snapshot."""
    written = feed.spec.source.parameter("start-ts")
    return int(written) if written.isdecimal() else 0


def checkpoint(feed: FeedRecord) -> int:
    """Return the commit-ts up to which everything was delivered."""
    return feed.watermark or start_ts(feed)


def running_error(feed: FeedRecord, history: Sequence[Note], addr: str = "") -> RunningError | None:
    """Return a changefeed's error, dated by its history."""
    if not feed.error:
        return None
    error = BY_CODE.get(feed.error_code, RowferryError)(feed.error)
    dated = [n.at for n in history if n.what == "state" and n.details.get("error")]
    return RunningError(
        time=rfc3339(dated[0] if dated else feed.created_at),
        addr=addr,
        code=ticdc_code(error)[1],
        message=redacted(f"[{feed.error_code}] {feed.error}" if feed.error_code else feed.error),
    )


def item(feed: FeedRecord, history: Sequence[Note]) -> ChangefeedItem:
    """Return a changefeed as lists show it; `history` matters only where it has an error."""
    return ChangefeedItem(
        upstream_id=0,
        id=feed.id,
        keyspace=KEYSPACE,
        state=feed.state,
        checkpoint_tso=checkpoint(feed),
        checkpoint_time=local_time(physical_ms(checkpoint(feed))),
        error=running_error(feed, history),
    )


def detail(
    feed: FeedRecord,
    version: str,
    ranges: Sequence[RangeProgress] = (),
    history: Sequence[Note] = (),
    server: FleetServer | None = None,
) -> ChangefeedDetail:
    """Return a changefeed with its settings."""
    address = server.address if server else ""
    tasks = (
        [TaskStatus(capture_id=server.holder.instance, table_ids=table_ids(ranges))]
        if server
        else []
    )
    return ChangefeedDetail(
        upstream_id=0,
        id=feed.id,
        keyspace=KEYSPACE,
        source_uri=str(feed.spec.source),
        sink_uri=str(feed.spec.sink),
        create_time=rfc3339(feed.created_at),
        start_ts=start_ts(feed),
        target_ts=feed.spec.target_ts,
        admin_job_type=0,
        config=to_replica(redacted_config(feed.spec)),
        state=feed.state,
        error=running_error(feed, history, address),
        creator_version=version,
        resolved_ts=checkpoint(feed),
        checkpoint_ts=checkpoint(feed),
        checkpoint_time=local_time(physical_ms(checkpoint(feed))),
        task_status=tasks,
        gid=_gid(feed),
        maintainer_addr=address,
    )


def seen_detail(seen: Seen, version: str) -> ChangefeedDetail:
    """Return a changefeed with its settings and who runs it."""
    return detail(seen.feed, version, seen.ranges, seen.history, seen.server)


def status(seen: Seen) -> ChangefeedStatus:
    """Return where a changefeed stands."""
    address = seen.server.address if seen.server else ""
    error = running_error(seen.feed, seen.history, address)
    failed = seen.feed.state is FeedState.FAILED
    return ChangefeedStatus(
        state=seen.feed.state,
        resolved_ts=checkpoint(seen.feed),
        checkpoint_ts=checkpoint(seen.feed),
        last_error=error if failed else None,
        last_warning=None if failed else error,
    )


def synced_status(synced: Synced) -> SyncedStatus:
    """Return whether a changefeed has caught up."""
    return SyncedStatus(
        synced=synced.synced,
        sink_checkpoint_ts=local_time(synced.sink_checkpoint_ts),
        puller_resolved_ts=local_time(synced.puller_resolved_ts),
        last_synced_ts=local_time(synced.last_synced_ts),
        now_ts=local_time(synced.now_ts),
        info=synced.words,
    )


def table_names(created: Created) -> TableNames:
    """Return what a changefeed would capture, and what it could not."""

    def rows(tables: Sequence[Any]) -> list[TableName]:
        return [
            TableName(database_name=t.database, table_name=t.table, table_id=0, is_partition=False)
            for t in tables
        ]

    good, bad = rows(created.eligible), rows(created.ineligible)
    return TableNames(ineligible_tables=bad, eligible_tables=good, all_tables=good + bad)


def table_ids(ranges: Sequence[RangeProgress]) -> list[int]:
    """Return the ids of the tables that ranges belong to, ascending."""
    return sorted({r.table_id for r in ranges})


def _gid(feed: FeedRecord) -> Gid:
    digest = hashlib.sha256(f"{feed.id}\0{feed.created_at}".encode()).digest()
    return Gid(low=int.from_bytes(digest[:8]), high=int.from_bytes(digest[8:16]))
