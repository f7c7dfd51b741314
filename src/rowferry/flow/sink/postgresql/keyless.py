"""Tables without a key: each row is applied once, which the ledger remembers."""

from __future__ import annotations

import threading

from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.postgresql.effects import keyless_effect
from rowferry.flow.sink.postgresql.ledger import CopyLedger
from rowferry.flow.sink.postgresql.session import PostgresqlSession, PostgresqlSessions
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.sql.ledger import LanePlace
from rowferry.flow.sink.sql.noted_lanes import NotedLanes


class KeylessLanes:
    """Applies packets of tables without a key, in their order.

    Written twice, a row would be there twice: so each transaction notes how far it came, and what
    was applied before is left out. Counted are the rows of a lane within its segment: a replay may
    cut them into other packets.
    """

    def __init__(
        self,
        ledger: CopyLedger,
        sessions: PostgresqlSessions,
        transactions: MergeTransactions,
        rows: int,
    ) -> None:
        self._transactions, self._rows = transactions, rows
        self._noted: NotedLanes[PostgresqlSession] = NotedLanes(ledger, sessions)
        self._at: dict[str, LanePlace] = {}  # what came to each lane so far

    def apply(self, packet: Packet, frames: list[RowFrame], stop: threading.Event) -> None:
        """Apply what no earlier run has applied. Raises as `MergeTransactions.apply`."""
        lane = f"{packet.topic.name}/{packet.partition}"
        done, before = self._noted.rows_done(packet, lane), self._rows_before(packet, lane)
        for frame in frames:
            start = min(max(done - before, 0), len(frame))
            for begin in range(start, len(frame), self._rows):
                end = min(begin + self._rows, len(frame))
                place = LanePlace(packet.micro_batch, packet.segment, 0, before + end)
                note = self._noted.note(lane, place)
                effect = keyless_effect(frame.slice(begin, end))
                self._transactions.apply([effect], packet.epoch, stop, note)
                self._noted.moved(note)
            before += len(frame)
        self._at[lane] = LanePlace(packet.micro_batch, packet.segment, 0, before)

    def _rows_before(self, packet: Packet, lane: str) -> int:
        """Return how many rows of the packet's segment came to its lane before it."""
        at = self._at.get(lane)
        if at is None or (at.micro_batch, at.segment) != (packet.micro_batch, packet.segment):
            return 0
        return at.rows
