"""Whether a meta database is as Rowferry leaves it: a look at every row, which changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from rowferry.change.plan import Plan
from rowferry.change.table import TableSchema
from rowferry.control.store.connection import Database, has_database
from rowferry.control.store.rows import (
    plan_text,
    read,
    read_object,
    subscription_of,
    to_lease,
    to_note,
    to_progress,
    to_spec,
    to_state,
)
from rowferry.control.store.tables import (
    REVISIONS,
    FeedRow,
    HistoryRow,
    LeaseRow,
    MetaTable,
    PendingRow,
    ProgressRow,
    SpecRow,
    SubscribeRow,
    TableVersionRow,
)
from rowferry.errors import BadInput, MetaDamaged
from rowferry.spec.changefeed import ChangefeedSpec


@dataclass(frozen=True, slots=True)
class Look:
    """One thing that was looked at.

    Attributes:
        rows: how many rows it took.
        findings: what is wrong, a line each; empty: nothing.
    """

    what: str
    rows: int
    findings: tuple[str, ...]


def check(url: str) -> tuple[Look, ...]:
    """Look at every row, as all of them are at one moment; nothing is changed or migrated.

    Raises:
        BadInput: there is no meta database at this URL.
        MetaDamaged: it is one that this version cannot look into at all.
    """
    if not has_database(url):
        raise BadInput("there is no meta database at this URL; check it")
    with closing(Database(url, migrate=False)) as database:
        version = database.version()
        if version != REVISIONS[-1]:
            words = f"it has version {version}, the newest is {REVISIONS[-1]}; run `meta migrate`"
            return (Look("schema version", 1, (words,)),)
        with database.reading("check") as session:
            feeds = {row.id: row for row in session.scalars(select(FeedRow))}
            looks = [Look("schema version", 1, ())]
            for what, look in _LOOKS.items():
                findings: list[str] = []
                rows = 0
                for found in look(session, feeds):
                    rows += 1
                    findings += found
                looks.append(Look(what, rows, tuple(findings)))
    return tuple(looks)


Feeds = dict[str, FeedRow]
Found = Iterator[list[str]]  # for each row what is wrong with it


def _fault(reader: Callable[..., object], *values: object) -> list[str]:
    """Return the words of a reader that cannot read what it is given."""
    try:
        reader(*values)
    except MetaDamaged as err:
        return [err.words]
    return []


def _orphan(feeds: Feeds, changefeed: str, what: str) -> list[str]:
    return [] if changefeed in feeds else [f"{what} belongs to no changefeed: {changefeed!r}"]


def _misnamed(feed: FeedRow | None, row: SubscribeRow | Row[Any], what: str) -> list[str]:
    if feed is None or row.subscribe_name == subscription_of(feed)["subscribe_name"]:
        return []
    return [f"{what} of changefeed {feed.id} has another name: {row.subscribe_name!r}"]


def _changefeeds(session: Session, feeds: Feeds) -> Found:
    stored = session.execute(select(SpecRow.changefeed, SpecRow.version))
    specs = {(changefeed, version) for changefeed, version in stored}
    for row in feeds.values():
        found = [
            *_fault(to_spec, row),
            *_fault(to_state, row),
            *_fault(read_object, row.position, f"position of changefeed {row.id}"),
            *_fault(read_object, row.sink_state or "{}", f"sink state of changefeed {row.id}"),
        ]
        if (row.id, row.spec_version) not in specs:
            found.append(f"changefeed {row.id}: its spec version {row.spec_version} is missing")
        yield found


def _specs(session: Session, feeds: Feeds) -> Found:
    for row in session.scalars(select(SpecRow)):
        what = f"settings {row.version} of changefeed {row.changefeed}"
        yield _fault(read, row.spec, ChangefeedSpec.from_json, what)


def _leases(session: Session, feeds: Feeds) -> Found:
    leases = {row.changefeed: row for row in session.scalars(select(LeaseRow))}
    for name in feeds.keys() - leases.keys():
        yield [f"changefeed {name} has no lease row"]
    for name, row in leases.items():
        found = _fault(to_lease, row)
        feed = feeds.get(name)
        if feed and feed.epoch != row.epoch:
            found.append(f"changefeed {name} is at epoch {feed.epoch}, its lease at {row.epoch}")
        yield found


def _pending(session: Session, feeds: Feeds) -> Found:
    for row in session.scalars(select(PendingRow)):
        what = f"pending plan of changefeed {row.changefeed}"
        found = _orphan(feeds, row.changefeed, "a pending plan")
        try:
            plan = read(row.plan, Plan.from_json, what)
        except MetaDamaged as err:
            yield [*found, err.words]
            continue
        if (plan.micro_batch, plan_text(plan)[1]) != (row.micro_batch, row.digest):
            found.append(f"the {what} is not the one that was recorded")
        feed = feeds.get(row.changefeed)
        if feed and row.micro_batch != feed.micro_batch + 1:
            found.append(f"the {what} is number {row.micro_batch}, not {feed.micro_batch + 1}")
        if feed and row.epoch > feed.epoch:
            found.append(f"the {what} has epoch {row.epoch}, above {feed.epoch} in force")
        yield found


def _versions(session: Session, feeds: Feeds) -> Found:
    row = TableVersionRow
    for found in session.execute(
        select(row.changefeed, row.db_name, row.table_name, row.version, row.definition)
    ):
        changefeed, database, table, version, definition = found
        what = f"version {version} of table {database}.{table} of changefeed {changefeed}"
        yield [
            *_orphan(feeds, changefeed, "a table version"),
            *_fault(read, definition, TableSchema.from_json, what),
        ]


def _subscribe(session: Session, feeds: Feeds) -> Found:
    for row in session.scalars(select(SubscribeRow)):
        owner = row.changefeed or row.subscribe_name
        found = _orphan(feeds, owner, f"subscribe {row.db_name}.{row.table_name}")
        feed = feeds.get(owner)
        found += _misnamed(feed, row, f"subscribe {row.db_name}.{row.table_name}")
        if feed and row.cluster_id != feed.cluster_id:
            found.append(
                f"subscribe {row.db_name}.{row.table_name} is of cluster {row.cluster_id}, its "
                f"changefeed {feed.id} of {feed.cluster_id}"
            )
        yield found


def _progress(session: Session, feeds: Feeds) -> Found:
    for row in session.execute(select(MetaTable.metadata.tables[ProgressRow.__tablename__])):
        owner = row.changefeed or row.subscribe_name
        yield [
            *_orphan(feeds, owner, f"progress of range {row.range_id}"),
            *_misnamed(feeds.get(owner), row, f"progress of range {row.range_id}"),
            *_fault(to_progress, row),
        ]


def _history(session: Session, feeds: Feeds) -> Found:
    for row in session.scalars(select(HistoryRow)):
        yield _fault(to_note, row)


_LOOKS: dict[str, Callable[[Session, Feeds], Found]] = {
    "changefeeds": _changefeeds,
    "settings": _specs,
    "leases and epochs": _leases,
    "pending plans": _pending,
    "table versions": _versions,
    "subscribe": _subscribe,
    "progress": _progress,
    "history": _history,
}
