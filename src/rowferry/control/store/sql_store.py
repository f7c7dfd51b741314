"""The meta store on a SQL database: `contract.MetaStore`, one short transaction per method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from rowferry.change.plan import Plan
from rowferry.change.table import TableSchema
from rowferry.control import lifecycle
from rowferry.control.lease import Claim, Holder
from rowferry.control.lifecycle import State, Verb
from rowferry.control.store import fence, publishing
from rowferry.control.store.connection import BUSY_TIMEOUT_S, Database
from rowferry.control.store.contract import Feed, FeedState, MetaStore, Note, Server
from rowferry.control.store.rows import (
    read,
    read_object,
    to_feed,
    to_ms,
    to_note,
    to_server,
    to_spec,
    to_state,
    to_text,
)
from rowferry.control.store.tables import (
    FeedRow,
    HistoryRow,
    LeaseRow,
    PendingRow,
    ProgressRow,
    ServerRow,
    SpecRow,
    SubscribeRow,
    TableVersionRow,
)
from rowferry.errors import BadInput, ChangefeedExists, Fenced, NoSuchChangefeed, RowferryError
from rowferry.spec.changefeed import ChangefeedSpec


def open_store(
    url: str,
    *,
    clock: Callable[[], float] = time.time,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> MetaStore:
    """Open the meta database (`sqlite:///path`), making or upgrading it where needed.

    Several processes may open a new file at the same time.

    Raises:
        BadUri: the URL is not one of a database that can be used.
        MetaUnavailable: it cannot be reached, written or locked now.
        MetaDamaged: it is not a meta database, or one of a newer version.
    """
    return SqlStore(Database(url, busy_timeout_s), clock)


class SqlStore:
    """See `MetaStore` for what each method promises."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock

    # --- changefeeds -----------------------------------------------------------------------------

    def create_changefeed(self, spec: ChangefeedSpec, cluster_id: int = 0) -> Feed:
        """Store a new changefeed."""
        now, text = self._clock(), to_text(spec.to_json())
        changefeed = spec.changefeed_id
        with self.database.writing(f"create changefeed {changefeed}") as session:
            if session.get(FeedRow, changefeed) is not None:
                raise ChangefeedExists(f"changefeed {changefeed} exists already; use another id")
            lease = session.get(LeaseRow, changefeed)  # left by a removed one of the same id
            if lease is None:
                lease = LeaseRow(changefeed=changefeed, epoch=0, claimed_at=0, expires_at=0)
                session.add(lease)
            row = FeedRow(
                id=changefeed,
                state=lifecycle.INITIAL,
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
            )
            session.add(row)
            session.flush()
            session.add(SpecRow(changefeed=changefeed, version=1, spec=text, stored_at=to_ms(now)))
            fence.note(session, changefeed, now, "created", {})
            return to_feed(row, lease, cancel=False)

    def feed(self, changefeed: str) -> Feed | None:
        """Return one changefeed, or None."""
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            return None if row is None else _feed(session, row)

    def feeds(self) -> tuple[Feed, ...]:
        """Return all changefeeds, by id."""
        with self.database.reading("list changefeeds") as session:
            rows = session.scalars(select(FeedRow).order_by(FeedRow.id)).all()
            return tuple(_feed(session, row) for row in rows)

    def update_spec(self, changefeed: str, spec: ChangefeedSpec) -> Feed:
        """Store new settings as the next spec version."""
        if spec.changefeed_id != changefeed:
            raise BadInput(f"the id of changefeed {changefeed} cannot be changed")
        now, text = self._clock(), to_text(spec.to_json())
        with self.database.writing(f"update changefeed {changefeed}") as session:
            row = fence.locked(session, changefeed)
            if row.spec != text:
                row.spec = text
                row.spec_version += 1
                version = row.spec_version
                session.add(
                    SpecRow(changefeed=changefeed, version=version, spec=text, stored_at=to_ms(now))
                )
                fence.note(session, changefeed, now, "updated", {"spec_version": version})
            return _feed(session, row)

    def spec(self, changefeed: str, version: int) -> ChangefeedSpec:
        """Return the settings of one spec version."""
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(SpecRow, (changefeed, version))
            if row is None:
                raise NoSuchChangefeed(
                    f"there is no spec version {version} of changefeed {changefeed!r}"
                )
            what = f"settings of changefeed {changefeed}"
            return read(row.spec, ChangefeedSpec.from_json, what)

    def remove(self, who: str | Claim) -> None:
        """Delete all of a changefeed but its epoch and a last line of history."""
        now = self._clock()
        with self.database.writing(f"remove changefeed {_id(who)}") as session:
            changefeed = fence.locked(session, who).id
            for table in (SpecRow, TableVersionRow, PendingRow, HistoryRow):
                session.execute(delete(table).where(table.changefeed == changefeed))
            for named in (SubscribeRow, ProgressRow):
                session.execute(delete(named).where(named.subscribe_name == changefeed))
            session.execute(delete(FeedRow).where(FeedRow.id == changefeed))
            lease = session.get_one(LeaseRow, changefeed)
            # One up: whoever ran this one stays fenced when a new one takes the id.
            lease.epoch += 1
            lease.holder = None
            lease.expires_at = 0
            fence.note(session, changefeed, now, "removed", {})

    def move(self, who: str | Claim, verb: Verb, error: Exception | None = None) -> State:
        """Change the state by a verb of the lifecycle."""
        with self.database.writing(f"{verb} changefeed {_id(who)}") as session:
            row = fence.locked(session, who)
            state = lifecycle.move(to_state(row), verb)
            self._enter(session, row, state, error)
            return state

    def set_state(self, who: str | Claim, state: State, error: Exception | None = None) -> None:
        """Set the state, whatever it was."""
        with self.database.writing(f"set changefeed {_id(who)} to {state}") as session:
            self._enter(session, fence.locked(session, who), state, error)

    def _enter(self, session: Session, row: FeedRow, state: State, error: Exception | None) -> None:
        was = row.state
        row.state = state
        if error is not None:
            row.error_code, row.error = _error_words(error)
        elif state is State.NORMAL:
            row.error_code = row.error = ""
        if was != state or error is not None:
            details = {"from": was, "to": state, "error": str(error) if error else ""}
            fence.note(session, row.id, self._clock(), "state", details)

    def request_cancel(self, changefeed: str) -> None:
        """Ask the owner to stop and remove the changefeed."""
        with self.database.writing(f"cancel changefeed {changefeed}") as session:
            fence.locked(session, changefeed).cancel = 1
            mine = SubscribeRow.subscribe_name == changefeed
            session.execute(update(SubscribeRow).where(mine).values(cancel=1))

    def cancel_requested(self, changefeed: str) -> bool:
        """Return whether removal was asked for."""
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            return row is not None and _cancelled(session, row)

    # --- leases ----------------------------------------------------------------------------------

    def claim(self, changefeed: str, holder: Holder, now: float, ttl_s: float) -> Claim:
        """Take the changefeed with a new epoch."""
        with self.database.writing(f"claim changefeed {changefeed}") as session:
            return fence.take(session, changefeed, holder, now, ttl_s)

    def renew(self, claim: Claim, now: float) -> None:
        """Extend the lease."""
        with self.database.writing(f"renew the lease of {claim.changefeed}") as session:
            fence.extend(session, claim, now)

    def release(self, claim: Claim) -> None:
        """Give the lease back."""
        try:
            with self.database.writing(f"release changefeed {claim.changefeed}") as session:
                fence.give_back(session, claim)
        except Fenced:
            return  # someone else has it: there is nothing of ours to give back

    # --- the loop --------------------------------------------------------------------------------

    def state(self, changefeed: str) -> FeedState:
        """Return what was published last."""
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            if row is None:
                raise fence.no_such(changefeed)
            sink_state = row.sink_state
            return FeedState(
                position=read_object(row.position, f"position of changefeed {changefeed}"),
                ranges=publishing.progress_of(session, row),
                versions=publishing.versions_to_go_on(session, row),
                watermark=row.watermark,
                micro_batch=row.micro_batch,
                sink_state=None
                if sink_state is None
                else read_object(sink_state, f"sink state of changefeed {changefeed}"),
                spec=to_spec(row),
                spec_version=row.spec_version,
                epoch=row.epoch,
            )

    def record(self, claim: Claim, plan: Plan, versions: Sequence[TableSchema]) -> None:
        """Store new table versions, and the plan as pending."""
        with self.database.writing(f"record a plan of {claim.changefeed}") as session:
            publishing.record_plan(session, claim, plan, versions, self._clock())

    def pending(self, changefeed: str) -> Plan | None:
        """Return the pending plan."""
        with self.database.reading(f"read the plan of {changefeed}") as session:
            row = session.get(PendingRow, changefeed)
            if row is None:
                return None
            return read(row.plan, Plan.from_json, f"pending plan of changefeed {changefeed}")

    def publish(self, claim: Claim, plan: Plan, position: dict[str, Any] | None = None) -> None:
        """Make the pending plan's end the changefeed's state."""
        with self.database.writing(f"publish a plan of {claim.changefeed}") as session:
            publishing.publish_plan(session, claim, plan, position)

    def discard(self, claim: Claim, micro_batch: int, why: str) -> None:
        """Forget the pending plan of this number and note it."""
        with self.database.writing(f"discard a plan of {claim.changefeed}") as session:
            if publishing.discard_plan(session, claim, micro_batch):
                details = {"micro_batch": micro_batch, "why": why}
                fence.note(session, claim.changefeed, self._clock(), "discarded", details)

    # --- history and servers ---------------------------------------------------------------------

    def note(self, changefeed: str, what: str, details: Mapping[str, Any] | None = None) -> None:
        """Add a line to the changefeed's history."""
        with self.database.writing(f"write the history of {changefeed}") as session:
            fence.note(session, changefeed, self._clock(), what, details or {})

    def history(self, changefeed: str, limit: int = 100) -> tuple[Note, ...]:
        """Return the latest lines, newest first."""
        with self.database.reading(f"read the history of {changefeed}") as session:
            mine = select(HistoryRow).where(HistoryRow.changefeed == changefeed)
            rows = session.scalars(mine.order_by(HistoryRow.id.desc()).limit(limit))
            return tuple(to_note(row) for row in rows)

    def announce(self, holder: Holder, address: str, now: float) -> None:
        """Say that this server is alive."""
        with self.database.writing("announce a server") as session:
            session.merge(
                ServerRow(
                    instance=holder.instance,
                    holder=to_text(holder.to_json()),
                    address=address,
                    seen_at=to_ms(now),
                )
            )

    def servers(self, since: float = 0.0) -> tuple[Server, ...]:
        """Return the servers seen at or after `since`."""
        with self.database.reading("list servers") as session:
            rows = session.scalars(select(ServerRow).where(ServerRow.seen_at >= to_ms(since)))
            found = [to_server(row) for row in rows]
            return tuple(sorted(found, key=lambda s: (s.holder.host, s.holder.pid)))

    def close(self) -> None:
        """Let connections go."""
        self.database.close()


def _id(who: str | Claim) -> str:
    return who if isinstance(who, str) else who.changefeed


def _feed(session: Session, row: FeedRow) -> Feed:
    return to_feed(row, session.get(LeaseRow, row.id), _cancelled(session, row))


def _cancelled(session: Session, row: FeedRow) -> bool:
    asked = select(SubscribeRow.cancel).where(
        SubscribeRow.subscribe_name == row.id, SubscribeRow.cancel == 1
    )
    return row.cancel == 1 or session.scalar(asked.limit(1)) is not None


def _error_words(error: Exception) -> tuple[str, str]:
    if isinstance(error, RowferryError):
        return error.code, error.words
    known = RowferryError(f"{type(error).__name__}: {error}")
    return known.code, known.words
