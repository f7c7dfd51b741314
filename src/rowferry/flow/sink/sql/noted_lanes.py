"""How far lanes have come, as far as the task knows that writes them.

A task that Spark has given up may still be at work beside the one in its place. Each of their
transactions notes how far it came, on condition that the lane is where this task has seen it last:
of two that bring the same rows, one is refused. Whoever is refused ends, and the next try goes on
from what is noted. So it does where the answer to a COMMIT was lost: a task does not try the same
transaction again, and the next one finds it noted.
"""

from __future__ import annotations

from typing import Final, Generic

from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace, SqlLedger
from rowferry.flow.sink.sql.session import SessionT, SqlRefusal, SqlSessions

_ALL: Final = 1 << 62  # more rows than a segment has


class NotedLanes(Generic[SessionT]):
    """What lanes have noted, read once; then each transaction of this task moves it on.

    For use from several threads, one for each lane.
    """

    def __init__(self, ledger: SqlLedger[SessionT], sessions: SqlSessions[SessionT]) -> None:
        self._ledger, self._sessions = ledger, sessions
        self._places: dict[str, LanePlace] | None = None

    def read(self) -> dict[str, LanePlace]:
        """Return what is noted, by lane.

        Raises:
            RowferryError: it cannot be read.
        """
        if self._places is None:
            with self._sessions.one() as session:
                try:
                    self._places = self._ledger.delivered(session)
                except SqlRefusal as err:
                    raise err.as_error("how far lanes have come") from err
        return self._places

    def done(self, packet: Packet, lane: str) -> LanePlace | None:
        """Return how far a lane came in a packet's micro-batch before; None: nobody noted it.

        What may come with other rows the second time is done from its beginning.
        """
        place = self.read().get(lane)
        if place is None or not packet.topic.exact or place.micro_batch != packet.micro_batch:
            return None
        return place

    def rows_done(self, packet: Packet, lane: str) -> int:
        """Return how many rows of a packet's segment are durable; counted are those of its lane."""
        place = self.done(packet, lane)
        if place is None or packet.segment > place.segment:
            return 0
        return place.rows if packet.segment == place.segment else _ALL

    def note(self, lane: str, place: LanePlace) -> LaneNote | None:
        """Return what a transaction is to note; None: the lane is noted to be there already.

        That is so for rows which come once more because they may be other ones.
        """
        since = self.read().get(lane)
        if since is not None and since.micro_batch == place.micro_batch:
            if (place.segment, place.rows) <= (since.segment, since.rows):
                return None
        return LaneNote(lane, place, since)

    def moved(self, note: LaneNote | None) -> None:
        """Keep in mind what a transaction has noted."""
        if note is not None:
            self.read()[note.lane] = note.place
