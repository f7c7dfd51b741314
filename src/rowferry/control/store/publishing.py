"""Recording a plan, publishing it, and what is left to go on from: the rows that a plan moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session, aliased

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Claim
from rowferry.control.store import published, quarantine
from rowferry.control.store.captured import CapturedDifference, captured_by
from rowferry.control.store.fence import locked_columns
from rowferry.control.store.rows import (
    from_progress,
    plan_text,
    read,
    read_object,
    subscription_of,
    to_ms,
    to_progress,
    to_spec,
    to_text,
)
from rowferry.control.store.tables import (
    FeedRow,
    MetaTable,
    PendingRow,
    ProgressRow,
    SubscribeRow,
    TableVersionRow,
)
from rowferry.control.store.watching import add_schema_changes
from rowferry.errors import PlanRefused

T = TypeVar("T")

# A changefeed may have thousands of ranges: read and written as plain rows, not as objects.
_PROGRESS = MetaTable.metadata.tables["progress"]
_FEEDS, _PENDING, _VERSIONS, _TABLES = (
    MetaTable.metadata.tables[name]
    for name in ("changefeeds", "pending_plans", "table_versions", "subscribe")
)
# What every micro-batch runs, put together once.
_FEED: BindParameter[str] = bindparam("feed")
_PENDING_KEY = select(_PENDING.c.micro_batch, _PENDING.c.digest).where(
    _PENDING.c.changefeed == _FEED
)
_ADD_PENDING = insert(_PENDING)
_END_PENDING = delete(_PENDING).where(_PENDING.c.changefeed == _FEED)
_WATERMARK = bindparam("new_watermark", type_=BigInteger)
_MOVE = (
    update(_FEEDS)
    .where(_FEEDS.c.id == _FEED)
    .values(
        position=bindparam("new_position"),
        watermark=case((_FEEDS.c.watermark < _WATERMARK, _WATERMARK), else_=_FEEDS.c.watermark),
        micro_batch=bindparam("new_micro_batch"),
        published=bindparam("new_published"),
        moved_at=bindparam("new_moved_at", type_=BigInteger),
    )
)
_STAND = update(_FEEDS).where(_FEEDS.c.id == _FEED).values(position=bindparam("new_position"))
_MOVE_WITH_SINK = _MOVE.values(sink_state=bindparam("new_sink"))
_MET = select(_VERSIONS.c.db_name, _VERSIONS.c.table_name, _VERSIONS.c.table_id).where(
    _VERSIONS.c.changefeed == _FEED, _VERSIONS.c.micro_batch == bindparam("number")
)
_SUBSCRIBED = select(_TABLES.c.db_name, _TABLES.c.table_name, _TABLES.c.table_id).where(
    _TABLES.c.cluster_id == bindparam("cluster"),
    _TABLES.c.changefeed == _FEED,
    tuple_(_TABLES.c.db_name, _TABLES.c.table_name).in_(bindparam("names", expanding=True)),
)
_BLIND = {"synchronize_session": False}  # nothing that was loaded is looked at again
_AT_ONCE = 300  # values in one IN (…): databases limit the parameters of a statement


def record_plan(
    session: Session, claim: Claim, plan: Plan, versions: Sequence[TableSchema], now: float
) -> None:
    """Store the versions and the plan, unless the same plan is pending already."""
    connection = session.connection()
    feed = locked_columns(connection, claim)
    text, digest = plan_text(plan)
    pending = _pending_key(connection, claim.changefeed)
    if pending == (plan.micro_batch, digest):
        return
    if pending is not None:
        raise PlanRefused(
            f"changefeed {claim.changefeed}: micro-batch {pending[0]} is pending; publish or "
            f"discard it before micro-batch {plan.micro_batch} is recorded"
        )
    if plan.micro_batch != feed.micro_batch + 1:
        raise PlanRefused(
            f"changefeed {claim.changefeed}: micro-batch {plan.micro_batch} cannot follow "
            f"{feed.micro_batch}"
        )
    if not 1 <= plan.spec_version <= feed.spec_version:
        raise PlanRefused(f"changefeed {claim.changefeed} has no spec version {plan.spec_version}")
    if versions:
        _add_versions(session, claim.changefeed, plan.micro_batch, versions)
    row = {
        "changefeed": claim.changefeed,
        "micro_batch": plan.micro_batch,
        "epoch": claim.epoch,
        "digest": digest,
        "plan": text,
        "recorded_at": to_ms(now),
    }
    connection.execute(_ADD_PENDING, row)


def record_again(session: Session, claim: Claim, plan: Plan) -> None:
    """Store the pending plan with what its first run has found out."""
    connection = session.connection()
    locked_columns(connection, claim)
    text, digest = plan_text(plan)
    pending = _pending_key(connection, claim.changefeed)
    if pending is None or pending[0] != plan.micro_batch:
        raise PlanRefused(
            f"changefeed {claim.changefeed}: micro-batch {plan.micro_batch} is not pending"
        )
    mine = _PENDING.c.changefeed == claim.changefeed
    connection.execute(update(_PENDING).where(mine).values(plan=text, digest=digest))


def publish_plan(
    session: Session,
    claim: Claim,
    plan: Plan,
    position: dict[str, Any] | None,
    now: float,
) -> None:
    """Move everything to the plan's end, unless this plan was the last one published."""
    connection = session.connection()
    feed = locked_columns(connection, claim)
    _, digest = plan_text(plan)
    pending = _pending_key(connection, claim.changefeed)
    if pending is None and (feed.micro_batch, feed.published) == (plan.micro_batch, digest):
        return
    if pending != (plan.micro_batch, digest):
        pending_words = f"micro-batch {pending[0]} is pending" if pending else "nothing is pending"
        what = " with other content" if pending and pending[0] == plan.micro_batch else ""
        raise PlanRefused(
            f"changefeed {claim.changefeed}: micro-batch {plan.micro_batch} is not the recorded "
            f"one: {pending_words}{what}, {feed.micro_batch} was published last"
        )
    _move_tables(session, claim, plan, feed.cluster_id)
    mark = plan.stretch.watermark or 0
    moved = {
        "feed": claim.changefeed,
        "new_position": to_text(plan.stretch.position if position is None else position),
        "new_watermark": mark,
        "new_micro_batch": plan.micro_batch,
        "new_published": digest,
        "new_moved_at": to_ms(now) if mark > feed.watermark else feed.moved_at,
    }
    if plan.sink_state is None:
        connection.execute(_MOVE, moved)
    else:
        connection.execute(_MOVE_WITH_SINK, {**moved, "new_sink": to_text(plan.sink_state)})
    connection.execute(_END_PENDING, {"feed": claim.changefeed})
    published.add(connection, claim.changefeed, plan, now)
    if plan.quarantine is not None or plan.stretch.schema_changes:
        quarantine.publish(session, claim.changefeed, plan, now)
    if plan.stretch.schema_changes:
        _forget_versions(session, claim.changefeed, plan)
        add_schema_changes(session, claim.changefeed, plan.stretch.schema_changes, now)


def discard_plan(
    session: Session, claim: Claim, micro_batch: int, position: dict[str, Any] | None = None
) -> bool:
    """Forget the pending plan; returns whether there was one."""
    connection = session.connection()
    locked_columns(connection, claim)
    pending = _pending_key(connection, claim.changefeed)
    if pending is None:
        return False
    if pending[0] != micro_batch:
        raise PlanRefused(
            f"changefeed {claim.changefeed}: micro-batch {pending[0]} is pending, not {micro_batch}"
        )
    connection.execute(_END_PENDING, {"feed": claim.changefeed})
    quarantine.discard(session, claim.changefeed, micro_batch)
    if position is not None:
        moved = {"feed": claim.changefeed, "new_position": to_text(position)}
        connection.execute(_STAND, moved)
    return True


def nothing_delivered(state: dict[str, Any]) -> dict[str, Any]:
    """Return a sink's state by which nothing need be at the target."""
    return {**state, "delivered": {}}


def forget_progress(session: Session, feed: FeedRow, snapshot: bool) -> None:
    """Bring a changefeed back to its beginning, where it knows no position and no table.

    Micro-batch numbers and the sink's state go on; a removal asked for by hand is not forgotten.
    With `snapshot`, nothing that was delivered need be at the target any more.
    """
    if snapshot and feed.sink_state is not None:
        state = read_object(feed.sink_state, f"sink state of changefeed {feed.id}")
        feed.sink_state = to_text(nothing_delivered(state))
    _delete_subscriptions(session, feed, SubscribeRow.changefeed == feed.id)
    session.execute(delete(_PROGRESS).where(ProgressRow.changefeed == feed.id))
    quarantine.forget_all(session, feed.id)
    for table in (PendingRow, TableVersionRow):
        session.execute(delete(table).where(table.changefeed == feed.id), execution_options=_BLIND)
    feed.position, feed.watermark, feed.published = "{}", 0, ""
    feed.moved_at = feed.kept_until = None


def _pending_key(connection: Connection, changefeed: str) -> tuple[int, str] | None:
    """Return number and digest of the pending plan, without its text, which may be long."""
    row = connection.execute(_PENDING_KEY, {"feed": changefeed}).one_or_none()
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
        stored = session.execute(wanted.where(row.changefeed == changefeed, key.in_(some)))
        for table_id, database, table, version, definition in stored:
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
    row, table = TableVersionRow, SubscribeRow
    wanted = select(
        row.table_id, row.db_name, row.table_name, row.micro_batch, row.definition
    ).where(row.changefeed == feed.id, ~_overtaken(feed.watermark))
    subscribed = select(table.table_id, table.db_name, table.table_name).where(
        table.changefeed == feed.id
    )
    captured = {_identity(*row) for row in session.execute(subscribed)}
    what = f"table versions of changefeed {feed.id}"
    versions = [
        read(definition, TableSchema.from_json, what)
        for table_id, database, name, recorded, definition in session.execute(wanted)
        if recorded > feed.micro_batch or _identity(table_id, database, name) in captured
    ]
    return tuple(sorted(versions, key=lambda v: (v.id, v.version, v.table_id)))


def _overtaken(watermark: int) -> ColumnElement[bool]:
    """Return the condition that a version was replaced at or below a watermark."""
    row, newer = TableVersionRow, aliased(TableVersionRow)
    same_name = and_(newer.db_name == row.db_name, newer.table_name == row.table_name)
    return exists().where(
        newer.changefeed == row.changefeed,
        newer.table_id == row.table_id,
        or_(row.table_id != 0, same_name),  # an id survives a rename; without one the name counts
        newer.version > row.version,
        newer.version <= watermark,
    )


def _forget_versions(session: Session, changefeed: str, plan: Plan) -> None:
    """Delete the versions that no run can need after a plan that is published, with its DDLs.

    These are the ones that `versions_to_go_on` leaves out. Only tables of the schema changes are
    looked at: a changefeed may have very many others.
    """
    row, table = TableVersionRow, SubscribeRow
    key = (row.table_id, row.db_name, row.table_name, row.version)
    same_name = and_(table.db_name == row.db_name, table.table_name == row.table_name)
    captured = exists().where(
        table.changefeed == row.changefeed,
        table.table_id == row.table_id,
        or_(row.table_id != 0, same_name),
    )
    watermark = session.scalars(select(FeedRow.watermark).where(FeedRow.id == changefeed)).one()
    for some in _chunks(plan.stretch.schema_changes):
        old = select(*key).where(
            row.changefeed == changefeed, _touched(some), or_(_overtaken(watermark), ~captured)
        )
        # Read first: MySQL does not delete from a table that the same statement looks at.
        for old_keys in _chunks([tuple(one) for one in session.execute(old)]):
            gone = delete(row).where(row.changefeed == changefeed, tuple_(*key).in_(old_keys))
            session.execute(gone, execution_options=_BLIND)


def _touched(changes: Sequence[SchemaChange]) -> ColumnElement[bool]:
    """Return the condition that a version is of a table which one of the changes concerns."""
    row = TableVersionRow
    ids = {c.dropped_table_id for c in changes} | {c.schema.table_id for c in changes if c.schema}
    names = {c.table for c in changes} | {c.previous for c in changes if c.previous}
    databases = {c.table.database for c in changes if c.kind is DdlKind.DROP_DATABASE}
    return or_(
        row.table_id.in_(sorted(ids - {0})),
        and_(row.table_id == 0, tuple_(row.db_name, row.table_name).in_(sorted(names))),
        row.db_name.in_(sorted(databases)),
    )


def _identity(table_id: int, database: str, table: str) -> int | TableId:
    return table_id or TableId(database, table)


# --- progress and subscribe ----------------------------------------------------------------------


def progress_of(session: Session, feed: FeedRow) -> tuple[RangeProgress, ...]:
    """Return the progress of every range, by table and start key."""
    wanted = select(_PROGRESS).where(_progress_of(feed))
    ranges = [to_progress(row) for row in session.execute(wanted)]
    ranges.sort(key=lambda r: (r.database, r.table, r.physical_id, r.start_key, r.range_id))
    return tuple(ranges)


def _move_progress(
    session: Session, feed: FeedRow, ranges: Sequence[RangeProgress], gone: Sequence[int]
) -> tuple[set[TableId], set[int]]:
    """Write the ranges that differ from what is stored, and delete those that are gone.

    Returns the names, and the ids, that have lost their last range: a changed filter or a rename
    may have let these tables go.
    """
    mine, range_id, row = _progress_of(feed), ProgressRow.range_id, ProgressRow
    ended = set(gone)
    lost: set[TableId] = set()
    lost_ids: set[int] = set()
    for some in _chunks(sorted(ended)):
        wanted = select(row.db_name, row.table_name, row.table_id).where(mine, range_id.in_(some))
        for database, table, table_id in session.execute(wanted.distinct()):
            lost.add(TableId(database, table))
            lost_ids.add(table_id)
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
    for some_ids in _chunks(sorted(lost_ids)):
        kept = select(row.table_id).where(mine, row.table_id.in_(some_ids))
        lost_ids -= set(session.scalars(kept.distinct()))
    return lost, lost_ids


def _progress_of(feed: FeedRow) -> ColumnElement[bool]:
    row = ProgressRow
    return and_(row.changefeed == feed.id, row.cluster_id == feed.cluster_id)


def _move_tables(session: Session, claim: Claim, plan: Plan, cluster_id: int) -> None:
    """Bring `progress` and `subscribe` in line with what is captured after the plan.

    Mostly they are: then nothing is written, and the changefeed's own row is not even read.
    """
    connection, stretch, changefeed = session.connection(), plan.stretch, claim.changefeed
    met = connection.execute(_MET, {"feed": changefeed, "number": plan.micro_batch})
    tables = captured_by(plan, [(TableId(d, t), i) for d, t, i in met])
    if stretch.ranges or stretch.gone_ranges or stretch.schema_changes:
        feed = session.get_one(FeedRow, changefeed)
        lost, lost_ids = _move_progress(session, feed, stretch.ranges, stretch.gone_ranges)
        tables.drop_renamed_away(stretch.schema_changes, lost_ids)
        tables.gone |= lost - tables.present.keys()
        _end_subscriptions(session, feed, tables)
    missing, moved = dict(tables.present), set()
    for some in _chunks(list(missing)):
        names = [(t.database, t.table) for t in some]
        wanted = {"feed": changefeed, "cluster": cluster_id, "names": names}
        for database, table, table_id in connection.execute(_SUBSCRIBED, wanted):
            if missing.pop(TableId(database, table)) != table_id:
                moved.add(TableId(database, table))
    if missing or moved:
        feed = session.get_one(FeedRow, changefeed)
        for name in moved:
            named = update(SubscribeRow).where(_named(feed, [name]))
            session.execute(named.values(table_id=tables.present[name]))
        subscribe(session, feed, missing, str(claim.holder))


def subscribe(session: Session, feed: FeedRow, tables: Mapping[TableId, int], owner: str) -> None:
    """Add the rows of tables, given with their ids."""
    spec = to_spec(feed)
    shared = {
        "cluster_id": feed.cluster_id,
        **subscription_of(feed),
        "master_addrs": spec.source.address,
        "sink": str(spec.sink),  # without its secrets
        "cancel": 0,
        "owner": owner,
    }
    rows = [
        {**shared, "db_name": t.database, "table_name": t.table, "table_id": i}
        for t, i in tables.items()
    ]
    if rows:
        session.execute(insert(SubscribeRow), rows)


def _end_subscriptions(session: Session, feed: FeedRow, tables: CapturedDifference) -> None:
    """Delete the rows of tables that ended; a removal asked for in one of them is not forgotten."""
    row = SubscribeRow
    ended = [_named(feed, some) for some in _chunks(sorted(tables.gone))]
    for some in _chunks(sorted(tables.gone_databases)):
        ended.append(and_(row.changefeed == feed.id, row.db_name.in_(some)))
    for those in ended:
        _delete_subscriptions(session, feed, those)


def _delete_subscriptions(session: Session, feed: FeedRow, those: ColumnElement[bool]) -> None:
    if feed.subscriber is not None:
        # It is there until it is cancelled: a table that is gone may come again.
        session.execute(update(SubscribeRow).where(those).values(table_id=0))
        return
    # Locked, so that a cancel set by hand comes before this look or finds no row to set it in.
    if 1 in session.scalars(select(SubscribeRow.cancel).where(those).with_for_update()).all():
        feed.cancel = 1
    session.execute(delete(SubscribeRow).where(those), execution_options=_BLIND)


def _named(feed: FeedRow, tables: Sequence[TableId]) -> ColumnElement[bool]:
    row = SubscribeRow
    names = [(t.database, t.table) for t in tables]
    return and_(
        row.cluster_id == feed.cluster_id,
        row.changefeed == feed.id,
        tuple_(row.db_name, row.table_name).in_(names),
    )


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
