"""The meta store on a SQL database: `contract.MetaStore`, one short transaction per method."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import select

from rowferry.change.plan import Plan
from rowferry.change.position import RangeProgress
from rowferry.change.quarantine import DivertedRow, ParkedKey, ParkedRow, RowPlace
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store import (
    changefeeds,
    fence,
    holding,
    publishing,
    quarantine,
    resnapshots,
)
from rowferry.control.store.connection import BUSY_TIMEOUT_S, Database, undone_again
from rowferry.control.store.contract import (
    FeedRecord,
    Hold,
    MetaStore,
    StoredState,
    Subscribed,
    Subscribing,
)
from rowferry.control.store.rows import read, read_object
from rowferry.control.store.settings import StoredSettings
from rowferry.control.store.tables import FeedRow, MetaTable, PendingRow
from rowferry.control.store.watched_store import WatchedStore
from rowferry.errors import Fenced
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.sealing import SecretKeys

_TABLES = MetaTable.metadata.tables["subscribe"]


def open_store(
    url: str,
    *,
    clock: Callable[[], float] = time.time,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    keys: SecretKeys | None = None,
) -> MetaStore:
    """Open the meta database, making or upgrading its tables where needed.

    The URL is `sqlite:///path`, `mysql://…`, `mariadb://…` or `postgresql://…`. Several processes
    may open a new one at the same time. `busy_timeout_s` bounds every wait for a lock or for a
    connection, twice that the wait for an answer. With `keys`, secrets of settings are encrypted.

    Raises:
        BadUri: the URL is not one of a database that can be used, or its server refuses us.
        MetaUnavailable: it cannot be reached, written or locked now.
        MetaDamaged: it is not a meta database, or one of a newer version.
    """
    return SqlStore(Database(url, busy_timeout_s), clock, keys)


class SqlStore(WatchedStore):
    """See `MetaStore` for what each method promises."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        keys: SecretKeys | None = None,
    ) -> None:
        super().__init__(database, clock)
        self._settings = StoredSettings(keys)
        self._feeds = changefeeds.StoredFeeds(self._settings, clock)
        self._keys = keys

    # --- changefeeds -----------------------------------------------------------------------------

    @undone_again
    def create_changefeed(
        self,
        spec: ChangefeedSpec,
        cluster_id: int = 0,
        subscribing: Subscribing | None = None,
        paused: bool = False,
    ) -> FeedRecord:
        """Store a new changefeed."""
        moment("store changefeed")
        changefeed, text = spec.changefeed_id, self._settings.text(spec)
        with self.database.writing(f"create changefeed {changefeed}") as session:
            return self._feeds.create(session, changefeed, text, cluster_id, subscribing, paused)

    def feed(self, changefeed: str) -> FeedRecord | None:
        """Return one changefeed, or None."""
        moment("look at changefeed")
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            return None if row is None else self._feeds.one(session, row)

    def subscribed(self, name: str) -> tuple[Subscribed, ...]:
        """Return the rows of one `subscribe_name`."""
        moment("read subscriptions")
        order = (_TABLES.c.cluster_id, _TABLES.c.db_name, _TABLES.c.table_name)
        mine = select(_TABLES).where(_TABLES.c.subscribe_name == name).order_by(*order)
        with self.database.reading(f"read the subscriptions of {name}") as session:
            rows = [dict(row) for row in session.execute(mine).mappings()]
        return tuple(
            Subscribed(**(row | {"changefeed": row["changefeed"] or name})) for row in rows
        )

    def feeds(self) -> tuple[FeedRecord, ...]:
        """Return all changefeeds, by id."""
        moment("list changefeeds")
        with self.database.reading("list changefeeds") as session:
            return self._feeds.all(session)

    @undone_again
    def update_spec(
        self, changefeed: str, spec: ChangefeedSpec, since: int | None = None
    ) -> FeedRecord:
        """Store new settings as the next spec version."""
        moment("store settings")
        with self.database.writing(f"update changefeed {changefeed}") as session:
            return self._feeds.update_spec(session, changefeed, spec, since)

    def spec(self, changefeed: str, version: int) -> ChangefeedSpec:
        """Return the settings of one spec version."""
        moment("read settings of plan")
        with self.database.reading(f"read changefeed {changefeed}") as session:
            return self._feeds.spec(session, changefeed, version)

    @undone_again
    def remove(self, who: str | Claim) -> None:
        """Delete all of a changefeed but its epoch and a last line of history."""
        moment("remove changefeed")
        with self.database.writing(f"remove changefeed {_id(who)}") as session:
            self._feeds.remove(session, who)

    @undone_again
    def move(self, who: str | Claim, verb: Verb, error: Exception | None = None) -> FeedState:
        """Change the state by a verb of the lifecycle."""
        moment("move state")
        with self.database.writing(f"{verb} changefeed {_id(who)}") as session:
            return self._feeds.move(session, who, verb, error)

    @undone_again
    def reset(
        self,
        changefeed: str,
        spec: ChangefeedSpec,
        why: str,
        snapshot: bool = False,
        since: int | None = None,
    ) -> FeedRecord:
        """Forget how far a changefeed is."""
        moment("reset changefeed")
        with self.database.writing(f"reset changefeed {changefeed}") as session:
            return self._feeds.reset(session, changefeed, spec, why, snapshot, since)

    @undone_again
    def request_cancel(self, changefeed: str) -> None:
        """Ask the owner to stop and remove the changefeed."""
        moment("ask for removal")
        with self.database.writing(f"cancel changefeed {changefeed}") as session:
            changefeeds.request_cancel(session, changefeed)

    def cancel_requested(self, changefeed: str) -> bool:
        """Return whether removal was asked for."""
        moment("look for removal")
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            return row is not None and changefeeds.is_cancelled(session, row)

    @undone_again
    def hold(self, changefeed: str, hold: Hold, instead_of: str = "") -> None:
        """Ask the owner to stand still."""
        moment("ask for hold")
        with self.database.writing(f"hold changefeed {changefeed}") as session:
            holding.ask(session, changefeed, hold, instead_of, self._clock())

    @undone_again
    def end_hold(self, changefeed: str, hold: str) -> None:
        """Let the owner go on."""
        moment("end hold")
        with self.database.writing(f"end the hold of {changefeed}") as session:
            holding.end(session, changefeed, hold)

    @undone_again
    def answer_hold(self, claim: Claim, hold: str, reached: str) -> None:
        """Note what the owner has reached under a hold."""
        moment("note standing")
        with self.database.writing(f"hold changefeed {claim.changefeed}") as session:
            holding.answer(session, claim, hold, reached)

    @undone_again
    def ask_resnapshot(self, changefeed: str, wanted: Resnapshot) -> None:
        """Ask the owner to read rows of a table again."""
        moment("ask for resnapshot")
        with self.database.writing(f"resnapshot {wanted.table} of {changefeed}") as session:
            resnapshots.ask(session, changefeed, wanted, self._clock())

    @undone_again
    def cancel_resnapshot(self, changefeed: str, which: str) -> bool:
        """End an open resnapshot as cancelled."""
        moment("cancel resnapshot")
        with self.database.writing(f"cancel a resnapshot of {changefeed}") as session:
            return resnapshots.end(session, changefeed, resnapshots.cancelled(which), self._clock())

    @undone_again
    def end_resnapshot(self, claim: Claim, ended: Resnapshot) -> None:
        """Note how a resnapshot ended."""
        moment("note end of resnapshot")
        with self.database.writing(f"end a resnapshot of {claim.changefeed}") as session:
            resnapshots.end(session, claim, ended, self._clock())

    # --- quarantine ------------------------------------------------------------------------------

    @undone_again
    def park(self, claim: Claim, plan: Plan, rows: Sequence[DivertedRow]) -> None:
        """Store the rows that a pending plan parks."""
        moment("park rows")
        refused = plan.quarantine.refused if plan.quarantine else ()
        with self.database.writing(f"park rows of {claim.changefeed}") as session:
            quarantine.park(
                *(session, claim, plan.micro_batch, rows, refused, self._keys, self._clock())
            )
        moment("rows parked")

    def parked(
        self, changefeed: str, places: Collection[RowPlace] | None = None
    ) -> tuple[ParkedRow, ...]:
        """Return parked rows, with their images where places are named."""
        moment("read parked rows")
        with self.database.reading(f"read the parked rows of {changefeed}") as session:
            return quarantine.rows_of(session, changefeed, places, self._keys)

    @undone_again
    def want_parked(self, changefeed: str, keys: Collection[ParkedKey]) -> int:
        """Ask the owner to send rows again."""
        moment("ask for parked rows")
        with self.database.writing(f"retry parked rows of {changefeed}") as session:
            return quarantine.want(session, changefeed, keys, self._clock())

    @undone_again
    def drop_parked(self, changefeed: str, places: Collection[RowPlace]) -> int:
        """Forget parked rows for good."""
        moment("drop parked rows")
        with self.database.writing(f"drop parked rows of {changefeed}") as session:
            return quarantine.drop(session, changefeed, places, self._clock())

    # --- leases ----------------------------------------------------------------------------------

    @undone_again
    def claim(
        self,
        changefeed: str,
        holder: Holder,
        now: float,
        ttl_s: float,
        stale_end: float | None = None,
    ) -> Claim:
        """Take the changefeed with a new epoch."""
        moment("claim")
        with self.database.writing(f"claim changefeed {changefeed}") as session:
            claim = fence.take(session, changefeed, holder, now, ttl_s, stale_end)
        moment("claimed")
        return claim

    @undone_again
    def renew(self, claim: Claim, now: float) -> None:
        """Extend the lease."""
        moment("renew lease")
        with self.database.writing(f"renew the lease of {claim.changefeed}") as session:
            fence.extend(session, claim, now)

    @undone_again
    def renew_all(self, claims: Sequence[Claim], now: float) -> tuple[Claim, ...]:
        """Extend many leases; returns the claims that are not in force any more."""
        moment("renew leases")
        if not claims:
            return ()
        with self.database.urgent(f"renew {len(claims)} leases") as session:
            return fence.extend_all(session, claims, now)

    @undone_again
    def release(self, claim: Claim, why: str = "") -> None:
        """Give the lease back."""
        moment("release")
        try:
            with self.database.writing(f"release changefeed {claim.changefeed}") as session:
                fence.give_back(session, claim)
                if why:
                    details = {"by": str(claim.holder), "epoch": claim.epoch, "why": why}
                    fence.note(session, claim.changefeed, self._clock(), "released", details)
            moment("released")
        except Fenced:
            return  # someone else has it: there is nothing of ours to give back

    # --- the loop --------------------------------------------------------------------------------

    def state(self, changefeed: str) -> StoredState:
        """Return what was published last."""
        moment("read state")
        with self.database.reading(f"read changefeed {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            if row is None:
                raise fence.no_such(changefeed)
            sink_state = row.sink_state
            return StoredState(
                position=read_object(row.position, f"position of changefeed {changefeed}"),
                ranges=publishing.progress_of(session, row),
                versions=publishing.versions_to_go_on(session, row),
                watermark=row.watermark,
                micro_batch=row.micro_batch,
                sink_state=None
                if sink_state is None
                else read_object(sink_state, f"sink state of changefeed {changefeed}"),
                spec=self._settings.of(row),
                spec_version=row.spec_version,
                epoch=row.epoch,
                continues=bool(row.published),
                made_ms=row.created_at,
            )

    def position(self, changefeed: str) -> dict[str, Any]:
        """Return the source's own state."""
        moment("read position")
        with self.database.reading(f"read the position of {changefeed}") as session:
            text = session.scalar(select(FeedRow.position).where(FeedRow.id == changefeed))
            if text is None:
                raise fence.no_such(changefeed)
            return read_object(text, f"position of changefeed {changefeed}")

    def ranges(self, changefeed: str) -> tuple[RangeProgress, ...]:
        """Return how far each range is."""
        moment("read ranges")
        with self.database.reading(f"read the progress of {changefeed}") as session:
            row = session.get(FeedRow, changefeed)
            if row is None:
                raise fence.no_such(changefeed)
            return publishing.progress_of(session, row)

    @undone_again
    def record(self, claim: Claim, plan: Plan, versions: Sequence[TableSchema]) -> None:
        """Store new table versions, and the plan as pending."""
        moment("record plan")
        with self.database.writing(f"record a plan of {claim.changefeed}") as session:
            publishing.record_plan(session, claim, plan, versions, self._clock())
        moment("plan recorded")

    @undone_again
    def record_again(self, claim: Claim, plan: Plan) -> None:
        """Store the pending plan with the rows that it parks."""
        moment("record plan again")
        with self.database.writing(f"record a plan of {claim.changefeed} again") as session:
            publishing.record_again(session, claim, plan)
        moment("plan recorded again")

    def pending(self, changefeed: str) -> Plan | None:
        """Return the pending plan."""
        moment("read pending plan")
        with self.database.reading(f"read the plan of {changefeed}") as session:
            row = session.get(PendingRow, changefeed)
            if row is None:
                return None
            return read(row.plan, Plan.from_json, f"pending plan of changefeed {changefeed}")

    @undone_again
    def publish(self, claim: Claim, plan: Plan, position: dict[str, Any] | None = None) -> None:
        """Make the pending plan's end the changefeed's state."""
        moment("publish progress")
        with self.database.writing(f"publish a plan of {claim.changefeed}") as session:
            publishing.publish_plan(session, claim, plan, position, self._clock())
        moment("progress published")

    @undone_again
    def discard(
        self, claim: Claim, micro_batch: int, why: str, position: dict[str, Any] | None = None
    ) -> None:
        """Forget the pending plan of this number and note it."""
        moment("discard plan")
        with self.database.writing(f"discard a plan of {claim.changefeed}") as session:
            if publishing.discard_plan(session, claim, micro_batch, position):
                details = {"micro_batch": micro_batch, "why": why}
                fence.note(session, claim.changefeed, self._clock(), "discarded", details)
        moment("plan discarded")

    def close(self) -> None:
        """Let connections go."""
        self.database.close()


def _id(who: str | Claim) -> str:
    return who if isinstance(who, str) else who.changefeed
