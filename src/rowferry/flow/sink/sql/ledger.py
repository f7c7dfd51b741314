"""A sink's own tables downstream: the fence, how far lanes have come, which DDLs were run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic

from rowferry.change.own_tables import DELIVERED, FENCE, SCHEMA_CHANGES
from rowferry.errors import (
    BadInput,
    Fenced,
    RowferryError,
    SinkUnavailable,
    TargetLost,
    TargetWentBack,
)
from rowferry.flow.sink.contract import RESTORE, Owner
from rowferry.flow.sink.sql.session import SessionT, SqlRefusal
from rowferry.moment import moment


@dataclass(frozen=True, slots=True)
class LanePlace:
    """How far a lane has come inside a micro-batch."""

    micro_batch: int
    segment: int
    packet: int
    rows: int  # of the lane within the segment


@dataclass(frozen=True, slots=True)
class LaneNote:
    """How far a lane has come once a transaction is there.

    Attributes:
        since: what was noted when the lane was seen last; None: nothing. Where it says something
            else now, another task writes the lane.
    """

    lane: str
    place: LanePlace
    since: LanePlace | None


class SqlLedger(ABC, Generic[SessionT]):
    """What a changefeed writes down in the downstream, and how."""

    def __init__(self, space: str, changefeed: str, feed: str) -> None:
        """Keep tables in `space`, a database or schema; `feed` is the changefeed as SQL has it."""
        self._space, self._changefeed, self._feed = space, changefeed, feed

    @abstractmethod
    def name(self, table: str) -> str:
        """Return one of the tables as SQL writes it."""

    @abstractmethod
    def _make(self, session: SessionT, owner: Owner) -> None:
        """Make the tables where they are missing. Raises TargetLost, and as `SqlSession.ask`."""

    @abstractmethod
    def raise_fence(self, session: SessionT, epoch: int) -> list[tuple[Any, ...]]:
        """Let nobody of an older epoch write; return epoch, commit-ts and micro-batch of the fence.

        No epoch goes down. Raises as `SqlSession.ask`.
        """

    @abstractmethod
    def begin(
        self, session: SessionT, epoch: int, *, since: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Begin a transaction that ends before anybody else can claim the changefeed.

        Returns what the fence says, as `raise_fence` does. `since` is the micro-batch that was
        `published` when the task began; None: it may be another one now.

        Raises:
            Fenced: somebody has claimed it.
            SinkUnavailable: another micro-batch was published meanwhile, and as `SqlSession.ask`.
            SqlRefusal: as `SqlSession.ask`.
        """

    # --- the fence --------------------------------------------------------------------------------

    def claim(self, session: SessionT, owner: Owner) -> None:
        """Make the tables where they are missing, and let nobody of an older epoch write any more.

        Raises:
            Fenced: somebody with a higher epoch has claimed it.
            SinkUnwritable: a privilege is missing.
            TargetLost: a table, or the changefeed's row, was there and is gone.
            TargetWentBack: what is noted is less than what was delivered.
            BadInput: it is more than the owner knows of.
        """
        moment("claim downstream")
        try:
            self._make(session, owner)
            rows = self.raise_fence(session, owner.epoch)
        except SqlRefusal as err:
            raise err.as_error(f"the sink's own tables in {self._space}") from err
        self.check(rows, owner.epoch)
        self.check_reached(session, owner, rows)

    def judge_fence(
        self, session: SessionT, rows: list[tuple[Any, ...]], epoch: int, since: int | None
    ) -> None:
        """Judge the fence's row as `check` does; a transaction ends where it is not ours."""
        try:
            self.check(rows, epoch, since)
        except RowferryError:
            session.rollback()
            raise

    def check(self, rows: list[tuple[Any, ...]], epoch: int, since: int | None = None) -> None:
        """Judge the fence's row: epoch, commit-ts and micro-batch.

        Raises:
            Fenced: it has not our epoch.
            TargetLost: it is not there.
            SinkUnavailable: another micro-batch than `since` is published now.
        """
        if not rows or rows[0][0] is None:
            raise TargetLost(
                f"the row of changefeed {self._changefeed!r} in {self._space}.{FENCE} is gone; "
                f"{RESTORE}"
            )
        held = int(rows[0][0])
        if held != epoch:
            raise Fenced(
                f"changefeed {self._changefeed!r} belongs to epoch {held} in "
                f"{self._space}.{FENCE}, not to our epoch {epoch}; remove its rows there only "
                "if no other process runs it"
            )
        # A row of the fence that was made since the last note has 0.
        if since is not None and int(rows[0][2]) not in (0, since):
            raise SinkUnavailable(
                f"{self._space}.{FENCE} says that changefeed {self._changefeed!r} has published "
                f"micro-batch {int(rows[0][2])} since this task began: another task did its work"
            )

    def published(self, session: SessionT) -> int:
        """Return the micro-batch that the fence says is published; 0: none."""
        moment("read what is published")
        rows = session.ask(
            f"SELECT MAX(micro_batch) FROM {self.name(FENCE)} WHERE changefeed = %s",
            (self._changefeed,),
        )
        return int(rows[0][0] or 0)

    def check_reached(self, session: SessionT, owner: Owner, rows: list[tuple[Any, ...]]) -> None:
        """Refuse a downstream that has noted less than it has confirmed, or more than is known.

        Raises:
            TargetLost, TargetWentBack, BadInput: as `claim`; `rows` is what the fence says.
        """
        reached, number = int(rows[0][1]), int(rows[0][2])
        if owner.newest is not None and number > owner.newest:
            raise BadInput(
                f"{session.place} has the changes of changefeed {self._changefeed!r} up to "
                f"micro-batch {number}, and what is to be written ends with {owner.newest}: it is "
                "old, and would set newer rows back"
            )
        if not owner.continues or (reached >= owner.delivered and number >= owner.micro_batch):
            return
        until = f"up to commit-ts {owner.delivered} and micro-batch {owner.micro_batch}"
        if not reached and not number:
            raise TargetLost(
                f"{session.place}: {self._space}.{FENCE} knows nothing of changefeed "
                f"{self._changefeed!r}, which has delivered {until}: it was emptied, or another "
                f"server took its place; {RESTORE}"
            )
        raise TargetWentBack(
            f"{session.place} has the changes of changefeed {self._changefeed!r} up to commit-ts "
            f"{reached} and micro-batch {number} only, but they were delivered {until}: it was "
            "restored, or another server took its place"
        )

    def _refuse_gone(self, session: SessionT, owner: Owner, missing: Collection[str]) -> None:
        """Refuse a downstream that lacks tables in which something was noted."""
        if owner.continues and missing:
            raise TargetLost(
                f"{session.place}: {self._space}.{min(missing)}, in which changefeed "
                f"{self._changefeed!r} notes what it has delivered, is gone; {RESTORE}"
            )

    def _reached(self, micro_batch: int, commit_ts: int | None) -> str:
        """Return the statement that notes what is published."""
        mark = "" if commit_ts is None else f", commit_ts = GREATEST(commit_ts, {commit_ts})"
        return (
            f"UPDATE {self.name(FENCE)} SET micro_batch = {micro_batch}{mark} "
            f"WHERE changefeed = {self._feed}"
        )

    # --- lanes ------------------------------------------------------------------------------------

    def delivered(self, session: SessionT) -> dict[str, LanePlace]:
        """Return how far each lane has come, in the last micro-batch that has rows in it."""
        moment("read what lanes delivered")
        lanes = session.ask(
            "SELECT lane, micro_batch, segment, packet, packet_rows "
            f"FROM {self.name(DELIVERED)} WHERE changefeed = %s",
            (self._changefeed,),
        )
        return {str(lane): LanePlace(*map(int, place)) for lane, *place in lanes}

    def check_noted(self, session: SessionT, note: LaneNote) -> None:
        """Raise SinkUnavailable where a lane is noted otherwise than it was seen last."""
        if self.delivered(session).get(note.lane) != note.since:
            raise SinkUnavailable(
                f"{session.place}, rows of lane {note.lane}: another task writes them; the next "
                "try goes on where that one is"
            )

    def _forget_delivered(self, below: int | None = None, above: int | None = None) -> str:
        """Return the statement that removes what lanes noted, of some micro-batches or of all."""
        lower = "" if below is None else f" AND micro_batch < {below}"
        higher = "" if above is None else f" AND micro_batch > {above}"
        return f"DELETE FROM {self.name(DELIVERED)} WHERE changefeed = {self._feed}{lower}{higher}"

    # --- schema changes ---------------------------------------------------------------------------

    def _forget_changes(self, above: int) -> str:
        """Return the statement that removes the notes of schema changes behind a micro-batch."""
        return (
            f"DELETE FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = {self._feed} "
            f"AND micro_batch > {above}"
        )

    def has_changes_after(self, session: SessionT, micro_batch: int) -> bool:
        """Return whether schema changes were begun of a micro-batch that comes after this one."""
        moment("look for notes of ddl")
        return bool(
            session.ask(
                f"SELECT 1 FROM {self.name(SCHEMA_CHANGES)} WHERE changefeed = %s AND "
                "micro_batch > %s LIMIT 1",
                (self._changefeed, micro_batch),
            )
        )
