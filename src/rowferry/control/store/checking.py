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
from rowferry.control.store.settings import StoredSettings
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
from rowferry.errors import BadInput, MetaDamaged, RowferryError
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.sealing import SecretKeys, key_ids, refuse_locked


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


def check(url: str, keys: SecretKeys | None = None) -> tuple[Look, ...]:
    """Look at every row, as all of them are at one moment; nothing is changed or migrated.

    With `keys`, also whether the secrets of all settings can be opened.

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
                for faults in look(session, feeds):
                    rows += 1
                    findings += faults
                looks.append(Look(what, rows, tuple(findings)))
            looks.append(_secrets(session, keys))
    return tuple(looks)


Feeds = dict[str, FeedRow]
RowFaults = Iterator[list[str]]  # for each row what is wrong with it


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


def _changefeeds(session: Session, feeds: Feeds) -> RowFaults:
    stored = session.execute(select(SpecRow.changefeed, SpecRow.version))
    specs = {(changefeed, version) for changefeed, version in stored}
    for row in feeds.values():
        faults = [
            *_fault(to_spec, row),
            *_fault(to_state, row),
            *_fault(read_object, row.position, f"position of changefeed {row.id}"),
            *_fault(read_object, row.sink_state or "{}", f"sink state of changefeed {row.id}"),
        ]
        if (row.id, row.spec_version) not in specs:
            faults.append(f"changefeed {row.id}: its spec version {row.spec_version} is missing")
        yield faults


def _specs(session: Session, feeds: Feeds) -> RowFaults:
    for row in session.scalars(select(SpecRow)):
        what = f"settings {row.version} of changefeed {row.changefeed}"
        yield _fault(read, row.spec, ChangefeedSpec.from_json, what)


def _secrets(session: Session, keys: SecretKeys | None) -> Look:
    """Look whether encrypted secrets can be opened; without any key that is not asked."""
    rows = session.execute(select(SpecRow.changefeed, SpecRow.version, SpecRow.spec)).all()
    encrypted = [row for row in rows if key_ids(row.spec)]
    findings = []
    for name, version, text in encrypted if keys else ():
        try:
            refuse_locked(StoredSettings(keys).read(text, f"settings of changefeed {name}"))
        except RowferryError as err:
            findings.append(f"settings {version}: {err.words}")
    return Look("encrypted settings", len(encrypted), tuple(findings))


def _leases(session: Session, feeds: Feeds) -> RowFaults:
    leases = {row.changefeed: row for row in session.scalars(select(LeaseRow))}
    for name in feeds.keys() - leases.keys():
        yield [f"changefeed {name} has no lease row"]
    for name, row in leases.items():
        faults = _fault(to_lease, row)
        feed = feeds.get(name)
        if feed and feed.epoch != row.epoch:
            faults.append(f"changefeed {name} is at epoch {feed.epoch}, its lease at {row.epoch}")
        yield faults


def _pending(session: Session, feeds: Feeds) -> RowFaults:
    for row in session.scalars(select(PendingRow)):
        what = f"pending plan of changefeed {row.changefeed}"
        faults = _orphan(feeds, row.changefeed, "a pending plan")
        try:
            plan = read(row.plan, Plan.from_json, what)
        except MetaDamaged as err:
            yield [*faults, err.words]
            continue
        if (plan.micro_batch, plan_text(plan)[1]) != (row.micro_batch, row.digest):
            faults.append(f"the {what} is not the one that was recorded")
        feed = feeds.get(row.changefeed)
        if feed and row.micro_batch != feed.micro_batch + 1:
            faults.append(f"the {what} is number {row.micro_batch}, not {feed.micro_batch + 1}")
        if feed and row.epoch > feed.epoch:
            faults.append(f"the {what} has epoch {row.epoch}, above {feed.epoch} in force")
        yield faults


def _versions(session: Session, feeds: Feeds) -> RowFaults:
    row = TableVersionRow
    for stored in session.execute(
        select(row.changefeed, row.db_name, row.table_name, row.version, row.definition)
    ):
        changefeed, database, table, version, definition = stored
        what = f"version {version} of table {database}.{table} of changefeed {changefeed}"
        yield [
            *_orphan(feeds, changefeed, "a table version"),
            *_fault(read, definition, TableSchema.from_json, what),
        ]


def _subscribe(session: Session, feeds: Feeds) -> RowFaults:
    for row in session.scalars(select(SubscribeRow)):
        owner = row.changefeed or row.subscribe_name
        faults = _orphan(feeds, owner, f"subscribe {row.db_name}.{row.table_name}")
        feed = feeds.get(owner)
        faults += _misnamed(feed, row, f"subscribe {row.db_name}.{row.table_name}")
        if feed and row.cluster_id != feed.cluster_id:
            faults.append(
                f"subscribe {row.db_name}.{row.table_name} is of cluster {row.cluster_id}, its "
                f"changefeed {feed.id} of {feed.cluster_id}"
            )
        yield faults


def _progress(session: Session, feeds: Feeds) -> RowFaults:
    for row in session.execute(select(MetaTable.metadata.tables[ProgressRow.__tablename__])):
        owner = row.changefeed or row.subscribe_name
        yield [
            *_orphan(feeds, owner, f"progress of range {row.range_id}"),
            *_misnamed(feeds.get(owner), row, f"progress of range {row.range_id}"),
            *_fault(to_progress, row),
        ]


def _history(session: Session, feeds: Feeds) -> RowFaults:
    for row in session.scalars(select(HistoryRow)):
        yield _fault(to_note, row)


_LOOKS: dict[str, Callable[[Session, Feeds], RowFaults]] = {
    "changefeeds": _changefeeds,
    "settings": _specs,
    "leases and epochs": _leases,
    "pending plans": _pending,
    "table versions": _versions,
    "subscribe": _subscribe,
    "progress": _progress,
    "history": _history,
}
