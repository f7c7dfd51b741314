"""Changefeeds as rows: made, read, given new settings, moved to other states, reset, removed."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from rowferry.control import lifecycle
from rowferry.control.feed.lease import Claim
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store import fence, published, publishing, quarantine, watching
from rowferry.control.store.contract import FeedRecord, Subscribing
from rowferry.control.store.rows import storable, to_feed, to_ms, to_state
from rowferry.control.store.settings import StoredSettings
from rowferry.control.store.tables import (
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
from rowferry.errors import (
    BadInput,
    ChangefeedExists,
    IllegalMove,
    NoSuchChangefeed,
    RowferryError,
    SpecChanged,
)
from rowferry.spec.changefeed import ChangefeedSpec

# Asked for by every server once a second: plain rows, without what nobody looks at.
_FEEDS, _LEASES, _TABLES = (
    MetaTable.metadata.tables[name] for name in ("changefeeds", "leases", "subscribe")
)
_ALL_FEEDS = select(*(c for c in _FEEDS.c if c.name not in ("position", "sink_state")))
_ALL_LEASES = select(_LEASES)
_CANCELLED_BY_HAND = select(_TABLES.c.changefeed).where(_TABLES.c.cancel == 1).distinct()


class StoredFeeds:
    """What the methods of the store do with changefeeds, each inside of its transaction."""

    def __init__(self, settings: StoredSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock

    def create(
        self,
        session: Session,
        changefeed: str,
        text: str,
        cluster_id: int,
        subscribing: Subscribing | None,
        paused: bool,
    ) -> FeedRecord:
        """Add a new changefeed; `text` is what is stored of its settings."""
        now = self._clock()
        if session.get(FeedRow, changefeed) is not None:
            raise ChangefeedExists(f"changefeed {changefeed} exists already; use another id")
        _check_subscriber(session, changefeed, cluster_id, subscribing)
        lease = session.get(LeaseRow, changefeed)  # left by a removed one of the same id
        if lease is None:
            lease = LeaseRow(changefeed=changefeed, epoch=0, claimed_at=0, expires_at=0)
            session.add(lease)
        row = FeedRow(
            id=changefeed,
            state=FeedState.STOPPED if paused else lifecycle.INITIAL,
            spec=text,
            spec_version=1,
            cluster_id=cluster_id,
            created_at=to_ms(now),
            epoch=lease.epoch,
            micro_batch=0,
            published="",
            position="{}",
            watermark=0,
            cancel=0,
            error_code="",
            error="",
            subscriber=subscribing.name if subscribing else None,
        )
        session.add(row)
        session.flush()
        if subscribing:
            tables = {subscribing.table: subscribing.table_id}
            publishing.subscribe(session, row, tables, owner="")
        session.add(SpecRow(changefeed=changefeed, version=1, spec=text, stored_at=to_ms(now)))
        fence.note(session, changefeed, now, "created", {"paused": True} if paused else {})
        return to_feed(row, lease, False, self._settings.of(row))

    def one(self, session: Session, row: FeedRow) -> FeedRecord:
        """Return the changefeed of a row."""
        lease = session.get(LeaseRow, row.id)
        parked = quarantine.counts(session, row.id).get(row.id, 0)
        return to_feed(row, lease, is_cancelled(session, row), self._settings.of(row), parked)

    def all(self, session: Session) -> tuple[FeedRecord, ...]:
        """Return all changefeeds, by id."""
        connection = session.connection()
        rows = connection.execute(_ALL_FEEDS).all()
        leases = {lease.changefeed: lease for lease in connection.execute(_ALL_LEASES)}
        cancelled = set(connection.scalars(_CANCELLED_BY_HAND))
        parked = quarantine.counts(session)
        return tuple(
            to_feed(
                row,
                leases.get(row.id),
                row.cancel == 1 or row.id in cancelled,
                self._settings.of(row),
                parked.get(row.id, 0),
            )
            for row in sorted(rows, key=lambda row: row.id)
        )

    def update_spec(
        self, session: Session, changefeed: str, spec: ChangefeedSpec, since: int | None
    ) -> FeedRecord:
        """Store new settings, unless somebody else has changed them since that version."""
        row = fence.locked(session, changefeed)
        if self._take_spec(session, row, spec, since):
            details = {"spec_version": row.spec_version}
            fence.note(session, changefeed, self._clock(), "updated", details)
        return self.one(session, row)

    def _take_spec(
        self, session: Session, row: FeedRow, spec: ChangefeedSpec, since: int | None
    ) -> bool:
        """Store settings if they differ from those in force; returns whether they did."""
        if spec.changefeed_id != row.id:
            raise BadInput(f"the id of changefeed {row.id} cannot be changed")
        if self._settings.equal(row, spec):
            return False
        if since is not None and row.spec_version != since:
            raise SpecChanged(
                f"the settings of changefeed {row.id} were changed by somebody else just "
                "now; look at them and ask again"
            )
        row.spec = text = self._settings.text(spec)
        row.spec_version += 1
        version, now = row.spec_version, to_ms(self._clock())
        session.add(SpecRow(changefeed=row.id, version=version, spec=text, stored_at=now))
        return True

    def spec(self, session: Session, changefeed: str, version: int) -> ChangefeedSpec:
        """Return the settings of one spec version."""
        row = session.get(SpecRow, (changefeed, version))
        if row is None:
            raise NoSuchChangefeed(
                f"there is no spec version {version} of changefeed {changefeed!r}"
            )
        what = f"settings of changefeed {changefeed}"
        return self._settings.read(row.spec, what)

    def remove(self, session: Session, who: str | Claim) -> None:
        """Delete all of a changefeed but its epoch and a last line of history."""
        now = self._clock()
        changefeed = fence.locked(session, who).id
        quarantine.forget_all(session, changefeed)
        for table in (SpecRow, TableVersionRow, PendingRow, HistoryRow):
            session.execute(delete(table).where(table.changefeed == changefeed))
        watching.forget_changefeed(session, changefeed)
        published.forget(session, changefeed)
        for named in (SubscribeRow, ProgressRow):
            session.execute(delete(named).where(named.changefeed == changefeed))
        session.execute(delete(FeedRow).where(FeedRow.id == changefeed))
        # Whoever ran this one stays fenced when a new one takes the id.
        fence.end_lease(session, changefeed)
        fence.note(session, changefeed, now, "removed", {})

    def move(
        self, session: Session, who: str | Claim, verb: Verb, error: Exception | None
    ) -> FeedState:
        """Change the state by a verb of the lifecycle."""
        row = fence.locked(session, who)
        state = lifecycle.move(to_state(row), verb)
        was = row.state
        row.state = state
        if error is not None:
            row.error_code, row.error = _error_words(error)
        elif state is FeedState.NORMAL:
            row.error_code = row.error = ""
        if was != state or error is not None:
            details = {"from": was, "to": state, "error": str(error) if error else ""}
            fence.note(session, row.id, self._clock(), "state", details)
        return state

    def reset(
        self,
        session: Session,
        changefeed: str,
        spec: ChangefeedSpec,
        why: str,
        snapshot: bool,
        since: int | None,
    ) -> FeedRecord:
        """Forget how far a changefeed is, unless somebody else has changed its settings since."""
        row = fence.locked(session, changefeed)
        if to_state(row).runs:
            raise IllegalMove(
                f"cannot reset changefeed {changefeed} while it is {row.state}; pause it first"
            )
        self._take_spec(session, row, spec, since)
        details = {"why": why, "spec_version": row.spec_version, "watermark": row.watermark}
        if parked := quarantine.counts(session, changefeed).get(changefeed, 0):
            details["parked rows forgotten"] = parked  # nobody delivers them any more
        publishing.forget_progress(session, row, snapshot)
        row.epoch = fence.end_lease(session, changefeed)
        fence.note(session, changefeed, self._clock(), "reset", details)
        return self.one(session, row)


def request_cancel(session: Session, changefeed: str) -> None:
    """Ask the owner to stop and remove a changefeed."""
    fence.locked(session, changefeed).cancel = 1
    mine = SubscribeRow.changefeed == changefeed
    session.execute(update(SubscribeRow).where(mine).values(cancel=1))


def is_cancelled(session: Session, row: FeedRow) -> bool:
    """Return whether removal was asked for, also by hand in a subscription's row."""
    asked = select(SubscribeRow.cancel).where(
        SubscribeRow.changefeed == row.id, SubscribeRow.cancel == 1
    )
    return row.cancel == 1 or session.scalar(asked.limit(1)) is not None


def _check_subscriber(
    session: Session, changefeed: str, cluster_id: int, subscribing: Subscribing | None
) -> None:
    """Refuse a subscription that is there, and one name for a subscriber and for a changefeed."""
    if subscribing is None:
        if session.scalar(select(FeedRow.id).where(FeedRow.subscriber == changefeed).limit(1)):
            raise ChangefeedExists(
                f"changefeed {changefeed}: this is the name of a subscriber; use another id"
            )
        return
    name, table = subscribing.name, subscribing.table
    other = session.get(FeedRow, name)
    if other is not None and other.subscriber != name:
        raise ChangefeedExists(
            f"subscriber {name}: this is the id of a changefeed that is no subscription; use "
            "another name"
        )
    if session.get(SubscribeRow, (cluster_id, *table, name)) is not None:
        raise ChangefeedExists(
            f"subscriber {name} has table {table} already; unsubscribe it first, or use another "
            "name"
        )


def _error_words(error: Exception) -> tuple[str, str]:
    if isinstance(error, RowferryError):
        return error.code, storable(error.words)
    known = RowferryError(f"{type(error).__name__}: {error}")
    return known.code, storable(known.words)
