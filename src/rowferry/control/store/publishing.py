"""Recording a plan, publishing it, and what is left to go on from: the rows that a plan moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, delete, exists, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session, aliased

from rowferry.change.plan import Plan
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.control.lease import Claim
from rowferry.control.store.captured import Captured, captured_by
from rowferry.control.store.fence import locked
from rowferry.control.store.rows import (
    from_progress,
    plan_text,
    read,
    to_ms,
    to_progress,
    to_spec,
    to_text,
)
from rowferry.control.store.tables import (
    FeedRow,
    PendingRow,
    ProgressRow,
    SpecRow,
    SubscribeRow,
    Table,
    TableVersionRow,
)
from rowferry.errors import PlanRefused

T = TypeVar("T")

# A changefeed may have thousands of ranges: read and written as plain rows, not as objects.
_PROGRESS = Table.metadata.tables["progress"]
_BLIND = {"synchronize_session": False}  # nothing that was loaded is looked at again
_AT_ONCE = 300  # values in one IN (…): databases limit the parameters of a statement


def record_plan(
    session: Session, claim: Claim, plan: Plan, versions: Sequence[TableSchema], now: float
) -> None:
    """Store the versions and the plan, unless the same plan is pending already."""
    feed = locked(session, claim)
    text, digest = plan_text(plan)
    pending = _pending_key(session, feed.id)
    if pending == (plan.micro_batch, digest):
        return
    if pending is not None:
        raise PlanRefused(
            f"changefeed {feed.id}: micro-batch {pending[0]} is pending; publish or discard it "
            f"before micro-batch {plan.micro_batch} is recorded"
        )
    if plan.micro_batch != feed.micro_batch + 1:
        raise PlanRefused(
            f"changefeed {feed.id}: micro-batch {plan.micro_batch} cannot follow {feed.micro_batch}"
        )
    if session.get(SpecRow, (feed.id, plan.spec_version)) is None:
        raise PlanRefused(f"changefeed {feed.id} has no spec version {plan.spec_version}")
    _add_versions(session, feed.id, plan.micro_batch, versions)
    session.add(
        PendingRow(
            changefeed=feed.id,
            micro_batch=plan.micro_batch,
            epoch=claim.epoch,
            digest=digest,
            plan=text,
            recorded_at=to_ms(now),
        )
    )


def publish_plan(
    session: Session, claim: Claim, plan: Plan, position: dict[str, Any] | None = None
) -> None:
    """Move everything to the plan's end, unless this plan was the last one published."""
    feed = locked(session, claim)
    _, digest = plan_text(plan)
    pending = _pending_key(session, feed.id)
    if pending is None and (feed.micro_batch, feed.published) == (plan.micro_batch, digest):
        return
    if pending != (plan.micro_batch, digest):
        found = f"micro-batch {pending[0]} is pending" if pending else "nothing is pending"
        what = " with other content" if pending and pending[0] == plan.micro_batch else ""
        raise PlanRefused(
            f"changefeed {feed.id}: micro-batch {plan.micro_batch} is not the recorded one: "
            f"{found}{what}, {feed.micro_batch} was published last"
        )
    lost = _move_progress(session, feed, plan.stretch.ranges, plan.stretch.gone_ranges)
    _move_subscriptions(session, feed, plan, lost, str(claim.holder))
    feed.position = to_text(plan.stretch.position if position is None else position)
    feed.watermark = max(feed.watermark, plan.stretch.watermark or 0)
    feed.micro_batch = plan.micro_batch
    feed.published = digest
    if plan.sink_state is not None:
        feed.sink_state = to_text(plan.sink_state)
    session.execute(delete(PendingRow).where(PendingRow.changefeed == feed.id))


def discard_plan(session: Session, claim: Claim, micro_batch: int) -> bool:
    """Forget the pending plan; returns whether there was one."""
    feed = locked(session, claim)
    pending = _pending_key(session, feed.id)
    if pending is None:
        return False
    if pending[0] != micro_batch:
        raise PlanRefused(
            f"changefeed {feed.id}: micro-batch {pending[0]} is pending, not {micro_batch}"
        )
    session.execute(delete(PendingRow).where(PendingRow.changefeed == feed.id))
    return True


def forget_progress(session: Session, feed: FeedRow) -> None:
    """Bring a changefeed back to its beginning, where it knows no position and no table.

    Micro-batch numbers and the sink's state go on; a removal asked for by hand is not forgotten.
    """
    _delete_subscriptions(session, feed, SubscribeRow.subscribe_name == feed.id)
    session.execute(delete(_PROGRESS).where(ProgressRow.subscribe_name == feed.id))
    for table in (PendingRow, TableVersionRow):
        session.execute(delete(table).where(table.changefeed == feed.id), execution_options=_BLIND)
    feed.position, feed.watermark, feed.published = "{}", 0, ""


def _pending_key(session: Session, changefeed: str) -> tuple[int, str] | None:
    """Return number and digest of the pending plan, without its text, which may be long."""
    wanted = select(PendingRow.micro_batch, PendingRow.digest)
    row = session.execute(wanted.where(PendingRow.changefeed == changefeed)).one_or_none()
    return (row[0], row[1]) if row else None


# --- table versions ------------------------------------------------------------------------------


def _add_versions(
    session: Session, changefeed: str, micro_batch: int, versions: Sequence[TableSchema]
) -> None:
    """Store the versions that are new; one stored already must say the same."""
    rows = {
        (v.table_id, v.id.database, v.id.table, v.version): to_text(v.to_json()) for v in versions
    }
    row = TableVersionRow
    key = tuple_(row.table_id, row.db_name, row.table_name, row.version)
    wanted = select(row.table_id, row.db_name, row.table_name, row.version, row.definition)
    for some in _chunks(list(rows)):
        found = session.execute(wanted.where(row.changefeed == changefeed, key.in_(some)))
        for table_id, database, table, version, definition in found:
            if rows.pop((table_id, database, table, version)) != definition:
                raise PlanRefused(
                    f"changefeed {changefeed}: version {version} of table {database}.{table} is "
                    "stored with another definition"
                )
    new = [
        {
            "changefeed": changefeed,
            "table_id": table_id,
            "db_name": database,
            "table_name": table,
            "version": version,
            "micro_batch": micro_batch,
            "definition": definition,
        }
        for (table_id, database, table, version), definition in rows.items()
    ]
    if new:
        session.execute(insert(TableVersionRow), new)


def versions_to_go_on(session: Session, feed: FeedRow) -> tuple[TableSchema, ...]:
    """Return the versions that rows after the watermark can have.

    No row at or below the watermark comes again, so of each captured table these are the version
    in force at the watermark and all later ones. Versions recorded with a plan that is not yet
    published count as captured.
    """
    row, newer, table = TableVersionRow, aliased(TableVersionRow), SubscribeRow
    same_name = and_(newer.db_name == row.db_name, newer.table_name == row.table_name)
    overtaken = exists().where(
        newer.changefeed == row.changefeed,
        newer.table_id == row.table_id,
        or_(row.table_id != 0, same_name),  # an id survives a rename; without one the name counts
        newer.version > row.version,
        newer.version <= feed.watermark,
    )
    wanted = select(
        row.table_id, row.db_name, row.table_name, row.micro_batch, row.definition
    ).where(row.changefeed == feed.id, ~overtaken)
    subscribed = select(table.table_id, table.db_name, table.table_name).where(
        table.subscribe_name == feed.id
    )
    captured = {_identity(*found) for found in session.execute(subscribed)}
    what = f"table versions of changefeed {feed.id}"
    found = [
        read(definition, TableSchema.from_json, what)
        for table_id, database, name, recorded, definition in session.execute(wanted)
        if recorded > feed.micro_batch or _identity(table_id, database, name) in captured
    ]
    return tuple(sorted(found, key=lambda v: (v.id, v.version, v.table_id)))


def _identity(table_id: int, database: str, table: str) -> int | TableId:
    return table_id or TableId(database, table)


# --- progress and subscribe ----------------------------------------------------------------------


def progress_of(session: Session, feed: FeedRow) -> tuple[RangeProgress, ...]:
    """Return the progress of every range, by table and start key."""
    wanted = select(_PROGRESS).where(_progress_of(feed))
    found = [to_progress(row) for row in session.execute(wanted)]
    found.sort(key=lambda r: (r.database, r.table, r.physical_id, r.start_key, r.range_id))
    return tuple(found)


def _move_progress(
    session: Session, feed: FeedRow, ranges: Sequence[RangeProgress], gone: Sequence[int]
) -> set[TableId]:
    """Write the ranges that differ from what is stored, and delete those that are gone.

    Returns the tables that have lost their last range: a changed filter may have let them go.
    """
    mine, range_id = _progress_of(feed), ProgressRow.range_id
    ended = set(gone)
    lost: set[TableId] = set()
    for some in _chunks(sorted(ended)):
        names = select(ProgressRow.db_name, ProgressRow.table_name).where(mine, range_id.in_(some))
        lost |= {TableId(d, t) for d, t in session.execute(names.distinct())}
    changed = {r.range_id: r for r in ranges if r.range_id not in ended}
    for some in _chunks(list(changed)):
        for stored in session.execute(select(_PROGRESS).where(mine, range_id.in_(some))):
            if to_progress(stored) == changed[stored.range_id]:
                del changed[stored.range_id]
    # A range may have moved to another table name, which is part of the key: the old row goes.
    for some in _chunks([*changed, *ended]):
        session.execute(delete(_PROGRESS).where(mine, range_id.in_(some)))
    if changed:
        session.execute(insert(_PROGRESS), [from_progress(r, feed) for r in changed.values()])
    for some_names in _chunks(sorted(lost)):
        pairs = tuple_(ProgressRow.db_name, ProgressRow.table_name).in_(
            [tuple(n) for n in some_names]
        )
        left = select(ProgressRow.db_name, ProgressRow.table_name).where(mine, pairs)
        lost -= {TableId(d, t) for d, t in session.execute(left.distinct())}
    return lost


def _progress_of(feed: FeedRow) -> ColumnElement[bool]:
    row = ProgressRow
    return and_(row.subscribe_name == feed.id, row.cluster_id == feed.cluster_id)


def _move_subscriptions(
    session: Session, feed: FeedRow, plan: Plan, lost: set[TableId], owner: str
) -> None:
    """Bring the rows of `subscribe` in line with the tables that are captured after the plan."""
    row = TableVersionRow
    met = select(row.db_name, row.table_name, row.table_id).where(
        row.changefeed == feed.id, row.micro_batch == plan.micro_batch
    )
    tables = captured_by(plan, [(TableId(d, t), i) for d, t, i in session.execute(met)])
    tables.gone |= lost - tables.present.keys()
    _end_subscriptions(session, feed, tables)
    missing = dict(tables.present)
    for database, table, table_id in _subscribed(session, feed, list(missing)):
        if missing.pop(TableId(database, table)) != table_id:
            named = _named(feed, [TableId(database, table)])
            new_id = tables.present[TableId(database, table)]
            session.execute(update(SubscribeRow).where(named).values(table_id=new_id))
    if missing:
        spec = to_spec(feed)
        shared = {
            "cluster_id": feed.cluster_id,
            "subscribe_name": feed.id,
            "master_addrs": spec.source.address,
            "sink": str(spec.sink),  # without its secrets
            "cancel": 0,
            "owner": owner,
        }
        rows = [
            {**shared, "db_name": t.database, "table_name": t.table, "table_id": i}
            for t, i in missing.items()
        ]
        session.execute(insert(SubscribeRow), rows)


def _end_subscriptions(session: Session, feed: FeedRow, tables: Captured) -> None:
    """Delete the rows of tables that ended; a removal asked for in one of them is not forgotten."""
    row = SubscribeRow
    ended = [_named(feed, some) for some in _chunks(sorted(tables.gone))]
    for some in _chunks(sorted(tables.gone_databases)):
        ended.append(and_(row.subscribe_name == feed.id, row.db_name.in_(some)))
    for those in ended:
        _delete_subscriptions(session, feed, those)


def _delete_subscriptions(session: Session, feed: FeedRow, those: ColumnElement[bool]) -> None:
    # Locked, so that a cancel set by hand comes before this look or finds no row to set it in.
    if 1 in session.scalars(select(SubscribeRow.cancel).where(those).with_for_update()).all():
        feed.cancel = 1
    session.execute(delete(SubscribeRow).where(those), execution_options=_BLIND)


def _subscribed(
    session: Session, feed: FeedRow, tables: Sequence[TableId]
) -> Iterator[tuple[str, str, int]]:
    row = SubscribeRow
    for some in _chunks(tables):
        found = select(row.db_name, row.table_name, row.table_id).where(_named(feed, some))
        yield from ((r[0], r[1], r[2]) for r in session.execute(found).all())


def _named(feed: FeedRow, tables: Sequence[TableId]) -> ColumnElement[bool]:
    row = SubscribeRow
    names = [(t.database, t.table) for t in tables]
    return and_(
        row.cluster_id == feed.cluster_id,
        row.subscribe_name == feed.id,
        tuple_(row.db_name, row.table_name).in_(names),
    )


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
