"""Tables without a key: each row is applied once, which the ledger remembers."""

from __future__ import annotations

import threading
from typing import Final

from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.postgresql.effects import keyless_effect
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal
from rowferry.flow.sink.postgresql.session import PostgresqlSessions
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.sql.ledger import LanePlace

_ALL: Final = 1 << 62  # more rows than a segment has


class KeylessLanes:
    """Applies packets of tables without a key, in their order.

    Written twice, a row would be there twice: so each transaction notes how far it came, and what
    was applied before is left out. Counted are the rows of a lane within its segment: a replay may
    cut them into other packets. A task that Spark has given up may still be at work beside the one
    in its place: whoever comes second does not find the lane as it was, and gives way.
    """

    def __init__(
        self,
        ledger: CopyLedger,
        sessions: PostgresqlSessions,
        transactions: MergeTransactions,
        rows: int,
    ) -> None:
        self._ledger, self._sessions = ledger, sessions
        self._transactions, self._rows = transactions, rows
        self._known: dict[int, dict[str, LanePlace]] = {}
        self._at: dict[str, LanePlace] = {}  # what came to each lane so far

    def apply(self, packet: Packet, frames: list[RowFrame], stop: threading.Event) -> None:
        """Apply what no earlier run has applied. Raises as `MergeTransactions.apply`."""
        lane = f"{packet.topic.name}/{packet.partition}"
        done, before = self._done(packet, lane), self._rows_before(packet, lane)
        for frame in frames:
            start = min(max(done - before, 0), len(frame))
            for begin in range(start, len(frame), self._rows):
                end = min(begin + self._rows, len(frame))
                place = LanePlace(packet.micro_batch, packet.segment, 0, before + end)
                self._transactions.apply(
                    [keyless_effect(frame.slice(begin, end))],
                    packet.epoch,
                    stop,
                    self._ledger.note_delivered(
                        lane, place, before + begin if packet.topic.exact else None
                    ),
                )
            before += len(frame)
        self._at[lane] = LanePlace(packet.micro_batch, packet.segment, 0, before)

    def _rows_before(self, packet: Packet, lane: str) -> int:
        """Return how many rows of the packet's segment came to its lane before it."""
        at = self._at.get(lane)
        if at is None or (at.micro_batch, at.segment) != (packet.micro_batch, packet.segment):
            return 0
        return at.rows

    def _done(self, packet: Packet, lane: str) -> int:
        """Return how many rows of a packet's segment an earlier run made durable."""
        if not packet.topic.exact:
            return 0
        number = packet.micro_batch
        if number not in self._known:
            with self._sessions.one() as session:
                try:
                    self._known[number] = self._ledger.delivered(session, number)
                except PostgresqlRefusal as err:
                    raise err.as_error("how far lanes have come") from err
        there = self._known[number].get(lane)
        if there is None or packet.segment > there.segment:
            return 0
        return there.rows if packet.segment == there.segment else _ALL
