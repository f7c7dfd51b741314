"""What sinks into databases do alike: claim the downstream, judge tables, note what is reached."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from rowferry.change.chunk import SchemaChange
from rowferry.change.event_counts import EventCounts
from rowferry.change.plan import Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.dispatch.by_neighbours import ByNeighbours
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.defaults import LaneDefaults
from rowferry.flow.sink.delivered_tables import DeliveredTables
from rowferry.flow.sink.sql.ledger import SqlLedger
from rowferry.flow.sink.sql.session import SessionT, SqlRefusal, SqlSession, SqlSessions
from rowferry.moment import moment

LOG = logging.getLogger(__name__)
SEGMENT_BYTES: Final = 16 << 20
KEPT: Final = 2  # connections of a process between tasks: a server has few in all
_LANES: Final = 16  # of a table whose keys can be divided


_AskedT = TypeVar("_AskedT", bound=SqlSession, contravariant=True)


class RunsChanges(Protocol[_AskedT]):
    """Makes the schema changes of plans downstream."""

    def is_begun(self, session: _AskedT, micro_batch: int, first: SchemaChange) -> bool:
        """Return whether the first one of a micro-batch was begun. Raises as `SqlSession.ask`."""

    def run(self, plan: Plan, epoch: int, there: Collection[TableId] = ()) -> None:
        """Make those of a plan, in order; some tables must be there."""


class SqlSink(LaneDefaults, ABC, Generic[SessionT]):
    """Writes rows into tables of the same names (or routed ones) in a database.

    Rows are visible as soon as they are written; a replay writes them again, with the same result.
    """

    _ledger: SqlLedger[SessionT]
    _sessions: SqlSessions[SessionT]
    _changes: RunsChanges[SessionT]

    def __init__(self, replaced_ddl: Collection[int]) -> None:
        """Know nothing of the downstream yet; some DDLs, by commit-ts, are not run as they are."""
        self.counts = EventCounts()
        self._delivered = DeliveredTables(replaced_ddl)
        self._owner = Owner("", 0)  # and what the downstream has confirmed since
        self._looked = False  # whether all that was delivered to was seen in this run
        self._forgot = False  # whether notes of another life of the changefeed were removed
        self._judged: set[tuple[TableId, int, int]] = set()

    # --- what differs -----------------------------------------------------------------------------

    @abstractmethod
    def session_of_its_own(self) -> SessionT:
        """Open a connection of its own. Raises SinkUnwritable or SinkUnavailable."""

    @abstractmethod
    def advice(self, tables: Sequence[TableSchema]) -> list[str]:
        """Say which tables lack something here."""

    @abstractmethod
    def _fit(
        self, session: SessionT, fresh: Sequence[TableSchema], known: Collection[TableId]
    ) -> None:
        """Judge tables that are met first, and make those that may be missing.

        Raises:
            TargetLost: one is missing that is `known` to have been there.
            TargetUnfit: one is missing, or rows do not fit into it.
            SqlRefusal: the downstream refuses something.
        """

    @abstractmethod
    def _require_there(self, session: SessionT, known: Collection[TableId]) -> None:
        """Raise TargetLost where tables are gone to which something was delivered."""

    @abstractmethod
    def forget_above(self, session: SessionT, micro_batch: int, changes: int) -> None:
        """Forget lanes above a micro-batch, schema changes above another, and commit.

        Of the next micro-batch, forget what was only begun. In a transaction that was begun.
        """

    @abstractmethod
    def _forget_plan(self, plan: Plan) -> None:
        """Forget what was noted of a plan that is given up, but for what it has made.

        Raises:
            Fenced: somebody else has claimed the changefeed, and may have noted that.
        """

    @abstractmethod
    def note_reached(self, session: SessionT, plan: Plan) -> None:
        """Note what is reached and commit, in a transaction that was begun."""

    def _after_reached(self, session: SessionT, plan: Plan) -> None:
        """Do what others wait for, once it is noted what is reached."""

    # --- what does not ----------------------------------------------------------------------------

    @property
    def dispatch(self) -> ByNeighbours:
        """All changes of a key go to one lane."""
        return ByNeighbours()

    def segment_bytes(self, table: TableId) -> int:
        """Return the size at which reading is fastest."""
        return SEGMENT_BYTES

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Raise the fence: on return no transaction of an older epoch can end any more.

        Raises:
            Fenced: somebody with a higher epoch was here.
            SinkUnwritable: our own tables cannot be made or written.
            TargetLost: it lacks what this changefeed has noted there.
            TargetWentBack: it was restored, or is another server, and lacks what was delivered.
        """
        moment("open downstream")
        self._owner = owner
        self._claim()
        self._delivered.resume(owner, state)
        self._looked, self._forgot, self._judged = False, False, set()

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether the plan's schema changes were begun, before which all rows are there.

        Something has failed before. A transaction of that time may still be under way, and would
        set rows back if it ended after those that are written now; or the downstream is another one
        since. Claiming it again waits for the one and finds the other.
        """
        self._claim()
        return self._is_begun(plan.micro_batch, plan.stretch.schema_changes)

    def has_changes_of(self, plan: Plan) -> bool:
        """Return whether this plan, or one that was given up in its place, has begun its changes.

        One that was given up keeps only what was made: see `discard`.
        """
        return self._is_begun(plan.micro_batch, plan.stretch.schema_changes)

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Make the schema changes in order, then note what is reached."""
        there = {*self._delivered.known, *(table.written_as for table in tables.values())}
        self._changes.run(plan, self._owner.epoch, there)
        with self._sessions.one() as session:
            try:
                moment("publish progress downstream")
                fence = self._ledger.begin(session, self._owner.epoch)
                self._ledger.check_reached(session, self._owner, fence)
                self.note_reached(session, plan)
                moment("progress published downstream")
                self._after_reached(session, plan)
            except SqlRefusal as err:
                session.rollback()
                raise err.as_error("noting what is reached") from err
        self._delivered.publish(plan.sink_state)
        self._owner = replace(
            self._owner,
            delivered=max(self._owner.delivered, plan.stretch.watermark or 0),
            micro_batch=plan.micro_batch,
            continues=True,
        )

    def discard(self, plan: Plan) -> bool:
        """Nothing can be taken back; the rows that were written will be written again.

        A transaction of the plan may still be under way, whose task has failed. It would set rows
        back later, or note as delivered what the plan in this one's place, which has the same
        number, did not write yet: so it is waited for.
        """
        self._claim()
        self._forget_plan(plan)
        return True

    def close(self) -> None:
        """Let connections go."""
        self._sessions.close()

    def _claim(self) -> None:
        """Wait until no transaction of an earlier claim is under way, and let none begin."""
        moment("connect to claim downstream")
        session = self.session_of_its_own()
        try:
            self._ledger.claim(session, self._owner)
        finally:
            session.close()

    def _is_begun(self, micro_batch: int, changes: Sequence[SchemaChange]) -> bool:
        if not changes:
            return False
        with self._sessions.one() as session:
            try:
                return self._changes.is_begun(session, micro_batch, changes[0])
            except SqlRefusal as err:
                raise err.as_error("looking for schema changes that were begun") from err

    def _look(self) -> None:
        """Look once in a run whether all tables are there to which something was delivered."""
        if self._looked or not self._delivered.known:
            return
        with self._sessions.one() as session:
            try:
                # A plan that was given up may have dropped some; its changes come again.
                if not self._ledger.has_changes_after(session, self._owner.micro_batch):
                    self._require_there(session, self._delivered.known)
                    self._looked = True
            except SqlRefusal as err:
                raise err.as_error("the downstream's tables") from err

    def _forget_notes(self) -> None:
        """Forget once in a run what was noted of micro-batches that are not planned yet.

        A changefeed that was removed and made again counts them from 1 again. Of schema changes,
        those of the next one stay: that may have been given up when some of its own were made. Not
        in a life that has published nothing yet, where one before it has: then it is of a
        changefeed that was removed, or of before a reset, after which rows are wanted again that
        were there. And not what was only begun or refused: who gives a plan up leaves none, another
        life may.
        """
        if self._forgot:
            return
        moment("forget lanes of another life")
        with self._sessions.one() as session:
            try:
                fence = self._ledger.begin(session, self._owner.epoch)
                own = self._owner.micro_batch
                is_other = not self._owner.continues and max(own, int(fence[0][2])) > 0
                self.forget_above(session, own, own if is_other else own + 1)
            except SqlRefusal as err:
                session.rollback()
                raise err.as_error("forgetting how far lanes have come") from err
        self._forgot = True

    def _judge(self, stretch: Stretch, tables: Collection[TableSchema]) -> None:
        """Judge table versions that are met first; rows that are not written need none."""
        if self._is_begun(self._owner.micro_batch + 1, stretch.schema_changes):
            return
        # A table's partitions come as slices of their own.
        fresh = list({_version(t): t for t in tables if _version(t) not in self._judged}.values())
        if not fresh:
            return
        moment("judge downstream tables")
        session = self.session_of_its_own()
        try:
            self._fit(session, fresh, self._delivered.known if self._looked else ())
        except SqlRefusal as err:
            raise err.as_error("making tables") from err
        finally:
            session.close()
        self._judged |= {_version(t) for t in fresh}
        for line in self.advice(fresh):
            LOG.warning("%s", line)


def lanes_of(table: TableSchema, divided: bool, exact: bool) -> Topic:
    """Return a topic: rows that may stand in each other's way are in one of its partitions."""
    return Topic(str(table.written_as), _LANES if divided else 1, 1 << 30, exact)


def _version(table: TableSchema) -> tuple[TableId, int, int]:
    return table.written_as, table.table_id, table.version
