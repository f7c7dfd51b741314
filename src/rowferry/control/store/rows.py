"""Rows of the meta database as plain values, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Row

from rowferry.change.plan import Plan
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.resnapshot import Resnapshot
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import FeedRecord, FleetServer, Hold, Lease, Note, Sample
from rowferry.control.store.tables import FeedRow, HistoryRow, LeaseRow, SampleRow, ServerRow
from rowferry.errors import BadInput, MetaDamaged
from rowferry.spec.changefeed import ChangefeedSpec

T = TypeVar("T")


def to_ms(seconds: float) -> int:
    """Return a time as the tables hold it."""
    return round(seconds * 1000)


def to_text(form: Any) -> str:
    """Return JSON as compact ASCII text, which every database keeps as it is."""
    return json.dumps(form, separators=(",", ":"))


def storable(words: str) -> str:
    """Return words of others as every database takes them.

    PostgreSQL's texts have no NUL, and none has bytes that are no text, as names of files may.
    """
    return words.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def read(text: str, reader: Callable[[Any], T], what: str) -> T:
    """Read a JSON column.

    Raises:
        MetaDamaged: the text is not what was written there; `what` names it.
    """
    try:
        return reader(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, BadInput) as err:
        raise MetaDamaged(f"the meta database's {what} cannot be read: {err!r}") from err


def read_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON column that holds an object."""
    return read(text, _as_object, what)


def _as_object(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise TypeError(f"not an object but {type(form).__name__}")
    return form


def plan_text(plan: Plan) -> tuple[str, str]:
    """Return a plan as text, and the digest by which two plans are compared."""
    text = to_text(plan.to_json())
    return text, hashlib.sha256(text.encode()).hexdigest()


def to_spec(row: FeedRow | Row[Any]) -> ChangefeedSpec:
    """Return the settings in force of a changefeed as they are stored, with encrypted secrets."""
    return _spec(row.spec, row.id)


@lru_cache(maxsize=1024)  # a server looks at all changefeeds once a second
def _spec(text: str, changefeed: str) -> ChangefeedSpec:
    return read(text, ChangefeedSpec.from_json, f"settings of changefeed {changefeed}")


def to_lease(row: LeaseRow | Row[Any] | None) -> Lease | None:
    """Return the lease, or None when nobody holds it."""
    if row is None or row.holder is None:
        return None
    holder = _holder(row.holder, row.changefeed)
    times = row.claimed_at / 1000, row.expires_at / 1000
    return Lease(holder, *times, owner=row.owner or str(holder))


@lru_cache(maxsize=1024)
def _holder(text: str, changefeed: str) -> Holder:
    return read(text, Holder.from_json, f"lease of changefeed {changefeed}")


def to_state(row: FeedRow | Row[Any]) -> FeedState:
    """Return the state of a changefeed."""
    try:
        return FeedState(row.state)
    except ValueError:
        raise MetaDamaged(f"changefeed {row.id} is in an unknown state {row.state!r}") from None


def to_feed(
    row: FeedRow | Row[Any],
    lease: LeaseRow | Row[Any] | None,
    cancel: bool,
    spec: ChangefeedSpec,
    parked: int = 0,
) -> FeedRecord:
    """Return a changefeed as lists show it."""
    return FeedRecord(
        id=row.id,
        state=to_state(row),
        spec=spec,
        spec_version=row.spec_version,
        created_at=row.created_at / 1000,
        epoch=row.epoch,
        micro_batch=row.micro_batch,
        watermark=row.watermark,
        error=row.error,
        error_code=row.error_code,
        cancel=cancel,
        lease=to_lease(lease),
        hold=to_hold(row),
        subscriber=row.subscriber or "",
        moved_at=None if row.moved_at is None else row.moved_at / 1000,
        kept_until=None if row.kept_until is None else row.kept_until / 1000,
        resnapshots=resnapshots_of(row),
        parked=parked,
    )


def to_hold(row: FeedRow | Row[Any]) -> Hold | None:
    """Return the hold of a changefeed; it may be over."""
    if row.hold is None:
        return None
    return read(row.hold, Hold.from_json, f"hold of changefeed {row.id}")


def resnapshots_of(row: FeedRow | Row[Any]) -> tuple[Resnapshot, ...]:
    """Return what the row of a changefeed has of them, oldest first."""
    if not row.resnapshots:
        return ()
    return read(
        row.resnapshots,
        lambda forms: tuple(Resnapshot.from_json(form) for form in forms),
        f"resnapshots of changefeed {row.id}",
    )


# Columns of `progress` that have another name than the field of RangeProgress.
_PROGRESS_NAMES = {
    "database": "db_name",
    "table": "table_name",
    "stage": "progress_stage",
    "init_snapshot_version": "progress_init_snapshot_version",
    "current_snapshot_version": "progress_current_snapshot_version",
    "last_snapshot_key": "progress_last_snapshot_key",
    "last_log_index": "progress_last_log_index",
}
_PROGRESS_COLUMNS = {name: _PROGRESS_NAMES.get(name, name) for name in RangeProgress.__slots__}


def from_progress(progress: RangeProgress, feed: FeedRow) -> dict[str, Any]:
    """Return the row of `progress`."""
    row = {column: getattr(progress, name) for name, column in _PROGRESS_COLUMNS.items()}
    row["progress_stage"] = int(progress.stage)
    return {**row, **subscription_of(feed), "cluster_id": feed.cluster_id}


def subscription_of(feed: FeedRow) -> dict[str, str]:
    """Return what rows of `subscribe` and `progress` say about whose they are."""
    return {"subscribe_name": feed.subscriber or feed.id, "changefeed": feed.id}


def to_progress(row: Row[Any]) -> RangeProgress:
    """Return the progress of one range, from a whole row of `progress`."""
    values = {name: getattr(row, column) for name, column in _PROGRESS_COLUMNS.items()}
    try:
        return RangeProgress(**{**values, "stage": Stage(values["stage"])})
    except ValueError:
        raise MetaDamaged(
            f"range {row.range_id} of changefeed {row.subscribe_name} is in an unknown stage "
            f"{row.progress_stage}"
        ) from None


def to_note(row: HistoryRow) -> Note:
    """Return a line of history."""
    return Note(row.at / 1000, row.what, read_object(row.details, "history"))


def to_server(row: ServerRow) -> FleetServer:
    """Return a server."""
    return FleetServer(
        read(row.holder, Holder.from_json, "servers"), row.address, row.seen_at / 1000
    )


def from_sample(changefeed: str, sample: Sample) -> dict[str, Any]:
    """Return the row of `samples`."""
    form = {name: getattr(sample, name) for name in Sample.__slots__ if name != "at"}
    return {"changefeed": changefeed, "at": to_ms(sample.at), "sample": to_text(form)}


def to_sample(row: SampleRow) -> Sample:
    """Return a sample."""

    def build(form: dict[str, Any]) -> Sample:
        snapshots = tuple((name, done, all_) for name, done, all_ in form.pop("snapshots"))
        tables_done, tables, done, all_ = form.pop("totals", (0, 0, 0, 0))
        totals = (tables_done, tables, done, all_)
        return Sample(at=row.at / 1000, snapshots=snapshots, totals=totals, **form)

    return read(row.sample, build, f"samples of changefeed {row.changefeed}")
