"""Frames the log on the driver: borders, commit timestamps, segments, statements.

The scanner reads no rows. It walks over a stream in compiled code, which stops for what a stretch
depends on: a table that it has not met, a statement, the end of a file, a segment that is long
enough. Whatever it has framed can be taken at a border between transactions.
"""

from __future__ import annotations

from typing import Final

from rowferry.change.plan import Segment
from rowferry.errors import CorruptLog, SourceMismatch, SourceUnavailable
from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.compressed import inflate_payload
from rowferry.flow.capture.binlog.frame.framed_gtids import FramedGtids
from rowferry.flow.capture.binlog.frame.framing_judge import (
    FramingJudge,
    KnowsTables,
    LoggedStatement,
)
from rowferry.flow.capture.binlog.frame.known_tables import KnownTables
from rowferry.flow.capture.binlog.frame.scan import LogBytes, run_walk
from rowferry.flow.capture.binlog.frame.segment_cutter import SegmentCutter
from rowferry.flow.capture.binlog.frame.special_events import SpecialEvents
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.frame.walk_state import NEVER, WalkState
from rowferry.flow.capture.binlog.frame.xa import PreparedRows
from rowferry.flow.capture.binlog.position import FIRST_OFFSET, Gtids, LogPosition
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql.session import Flavour

HUGE_TXN: Final = 2 << 20  # bytes without a border after which part of a transaction is framed


class Scanner:
    """Frames one stream from a position on. Not for use from several threads at once."""

    def __init__(
        self,
        stream: PacketBuffer,
        position: LogPosition,
        book: KnowsTables,
        appetite: Appetite,
        xa: PreparedRows | None = None,
    ) -> None:
        self._stream = stream
        self._flavour, self._server = position.flavour, position.server
        self._maria = position.flavour is Flavour.MARIADB
        self._place = appetite.until_place
        self._tables = KnownTables()
        self._xa = xa or PreparedRows(position.server, position.prepared, position.left_out)
        self.stopped = False  # the next event lies behind the wanted place
        state = WalkState.without_bounds()
        state.offset, state.last_ts = position.offset, position.last_ts
        state.txn_ts, delivered_ts = position.txn_ts, 0
        if position.txn_ts and not position.file:
            # By GTID a transaction comes from its beginning, also what was delivered of it.
            state.txn_ts, delivered_ts = 0, position.last_ts
            state.last_ts = position.last_ts - 1
        state.txn_at = state.txn_offset = -1
        if appetite.until_ts is not None:
            state.until_ts = appetite.until_ts
        state.whole = appetite.whole_transactions
        state.clamp_ms = book.source_ms() + k.AHEAD_MS
        # Its border is where the walk can begin again: mostly the last one between transactions.
        self._point = WalkPoint(state, position.file, stream.tail)
        self._gtids = FramedGtids(self._point, position.executed, self._maria)
        if delivered_ts:
            self._gtids.await_transaction(position.txn_gtid)
        elif position.txn_gtid:
            self._gtids.go_on_inside(position.txn_gtid)
        # Where a stream begins behind GTIDs, the server passes over the head of a file in silence:
        # who began to read at the offset so far would get all of it once more.
        self._is_placed = bool(position.file)
        self._begun_behind = str(position.executed)
        self._cutter = SegmentCutter(
            self._point, stream, self._tables, self._xa, appetite, position.server, self._maria
        )
        self._judge = FramingJudge(
            self._point,
            self._tables,
            self._cutter,
            self._gtids,
            self._xa,
            book,
            position.flavour,
            appetite,
            delivered_ts,
        )
        self._events = SpecialEvents(self._point, self._judge)

    # --- what the planner asks -------------------------------------------------------------------

    @property
    def file(self) -> str:
        """The file that is being framed."""
        return self._point.file

    @property
    def statement(self) -> LoggedStatement | None:
        """The statement with which the stretch ends."""
        return self._judge.statement_met

    @property
    def ended(self) -> bool:
        """Whether the next transaction lies behind the wanted end."""
        return self._judge.ended

    @property
    def at_border(self) -> bool:
        """Whether everything framed so far ends between two transactions."""
        border = self._point.border
        return border.txn_ts == 0 and border.last_ts >= self._judge.delivered_ts

    @property
    def blocked(self) -> bool:
        """Whether nothing more is framed before `take`."""
        return self.statement is not None or self.ended or self.stopped

    def backlog(self) -> tuple[int, int]:
        """Return how many segments and bytes can be taken, about."""
        return self._cutter.backlog()

    @property
    def breadth(self) -> int:
        """How many tables the segment has that is being framed, or the last one."""
        return self._cutter.breadth

    def take(self) -> tuple[tuple[Segment, ...], LogPosition]:
        """Return the segments framed so far and the position behind them; at a border only."""
        taken = self._cutter.take()
        if len(self._tables.maps) > 4096 and self._cutter.draft is None:
            self.forget_tables()
        return taken, self.position()

    def take_clamped(self) -> int:
        """Return how many transactions had a time that is not believed, since the last call."""
        clamped, self._judge.clamped = self._judge.clamped, 0
        return clamped

    def position(self) -> LogPosition:
        """Return the place of the last border (or of the statement that stopped the walk).

        It has no file as long as nobody knows up to where the GTIDs reach in it.
        """
        border, gtids = self._point.border, str(self._gtids.executed())
        if border.txn_ts or gtids != self._begun_behind:
            self._is_placed = True
        return LogPosition(
            flavour=self._flavour,
            server=self._server,
            file=self.file if self._is_placed else "",
            offset=border.offset if self._is_placed else FIRST_OFFSET,
            gtids=gtids,
            last_ts=border.last_ts,
            txn_ts=border.txn_ts,
            prepared=self._xa.to_json(),
            txn_gtid=self._gtids.under_way(),
            left_out=self._xa.left_out(),
        )

    def note_end(self, file: str, offset: int) -> None:
        """Note where the log ended a moment ago: whoever stands there has passed all GTIDs."""
        if self.file == file and self._point.border.offset >= offset:
            self._is_placed = True

    def move_clock(self, commit_ts: int) -> None:
        """Let later commit timestamps be above a watermark; only while nothing is framed."""
        border = self._point.border
        if commit_ts <= border.last_ts:
            return
        if not self._cutter.has_rows(border):
            # Opened by a transaction of which a part has come: it is walked anew, with a commit-ts
            # above the watermark, and so must be what its segment begins with.
            self._cutter.close(border)
        self._point.state.last_ts = border.last_ts = commit_ts

    def forget_tables(self) -> None:
        """Ask about every table again: definitions or the filter's answer may have changed."""
        self._tables.forget()

    def go_on(self) -> None:
        """Frame on behind the statement that was taken."""
        self._judge.statement_met = None
        self.forget_tables()

    def exclude_until(self, table_id: int, low: Gtids) -> None:
        """Leave a table's rows out while transactions belong to `low` (its snapshot has them)."""
        self._gtids.exclude_until(table_id, low)

    def waits_for(self) -> set[int]:
        """Return the tables whose snapshot's position has not been passed."""
        return self._gtids.waits_for()

    # --- framing ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Wait for bytes and frame them."""
        self.receive()
        self.frame()

    def frame_to(self, offset: int) -> LogPosition:
        """Frame up to an offset of the file, the wanted end, or the end of a bounded stream."""
        self._judge.stop_at = offset
        while not self.ended and self._point.border.offset < offset:
            self.advance()
        return self.position()

    def receive(self) -> None:
        """Wait for bytes (the only part that waits)."""
        moved = self._stream.fill()
        for state in (self._point.state, self._point.border):
            state.at -= moved
            state.txn_at -= moved
        self._cutter.moved(moved)

    def frame(self) -> None:
        """Frame the bytes that have come."""
        point, stream = self._point, self._stream
        while not self.blocked:
            log = LogBytes(
                stream.data,
                stream.filled,
                5,
                point.tail,
                self._maria,
                self._judge.stop_at,
                stream.joined,
            )
            reason = run_walk(
                log, point.state, point.border, self._tables.maps, self._cutter.pairs, False
            )
            if reason == k.MORE:
                break
            if reason == k.JOIN:
                if not stream.join_packets(point.state.at):
                    break
                continue
            point.data = stream.data
            self._handle(reason)
        self._keep()

    def _keep(self) -> None:
        """Settle on what was framed, so that its bytes can go."""
        state, border = self._point.state, self._point.border
        if state.txn_ts == 0:
            self._check_delivered()
            border.take(state)
        elif self._stream.filled - border.at > HUGE_TXN and not self.blocked:
            self._cutter.settle()
        else:
            state.take(border)
        self._cutter.carry(border.at)
        self._stream.start = max(self._stream.start, border.at)

    def _check_delivered(self) -> None:
        """Refuse a server that has another transaction in the place of one that was begun."""
        delivered_ts = self._judge.delivered_ts
        if not self._judge.met_delivered and self._point.state.last_ts >= delivered_ts > 0:
            raise SourceMismatch(
                f"the transaction before {self._point} is not the CREATE TABLE … SELECT with "
                f"commit-ts {delivered_ts} whose statement was delivered before the failover: this "
                "server does not have it, or has it elsewhere"
            )

    def _handle(self, reason: int) -> None:
        state = self._point.state
        if reason == k.SPECIAL:
            if not self._events.interpret():
                self._look_into_payload()
        elif reason == k.FIRST_ROW:
            self._cutter.open()
        elif reason == k.NEW_PAIR:
            self._cutter.add_pair(state.pair_slot, state.pair_partition)
        elif reason == k.CUT:
            self._cutter.long_enough()
        elif reason == k.NEW_DAY:
            self._cutter.close(state)
        elif reason == k.NEW_RUN:
            self._gtids.begin_run()
            state.accept = 0 if state.each else 1
        elif reason == k.EACH_TXN:
            self._gtids.look_at_lows(self._gtids.is_in, self._judge.hold_tables)
            state.accept = 1
        elif reason == k.CLAMP:
            self._judge.renew_clamp()
        elif reason == k.UNTIL:
            self._judge.ended = True
        elif reason == k.REFUSED:
            raise self._stream.error(self._point.packet())
        elif reason == k.END:
            self._end()
        else:
            raise CorruptLog(f"the event at {self._point} cannot be read")

    def _end(self) -> None:
        """Stop where nothing more is wanted; or where the server has nothing more."""
        at_end_of_stream = self._stream.data[self._point.state.event_at - 1] == 0xFE
        if self._place is not None and not at_end_of_stream:
            self.stopped = True
        elif self._place is None and self._judge.stop_at != NEVER:
            self._judge.ended = True
        else:
            raise SourceUnavailable(f"the server ended the log's stream at {self._point}")

    def _look_into_payload(self) -> None:
        """Look into a compressed transaction: which tables it holds."""
        point, outer = self._point, self._point.state
        nested = self._walked_through_payload()
        if nested is None:  # its tables do not fit into the open segment
            self._cutter.close(point.border)
            nested = self._walked_through_payload()
        if nested is None:
            raise CorruptLog(f"the transaction at {point} has a table with two versions")
        outer.count = nested.count
        ended = nested.captured_ts == nested.last_ts and nested.txn_ts == 0
        outer.in_txn = max(outer.in_txn, nested.in_txn, int(ended))
        point.skip()
        if self._judge.prepared:
            self._judge.prepare_xa(self._judge.prepared)
        point.close()
        if not self._judge.prepared and outer.open and outer.offset >= outer.cut_at:
            self._cutter.cut()

    def _walked_through_payload(self) -> WalkState | None:
        """Walk through the compressed transaction, whose tables come into the open segment.

        Returns None where that has another version of one of them.
        """
        point = self._point
        self._judge.prepared, self._judge.payload_stands_alone = b"", False
        nested = point.state.copy()
        nested.whole, nested.cut_at, nested.day_end = 1, NEVER, NEVER
        scratch = nested.copy()
        for block in inflate_payload([point.body()]):
            nested.at = 0
            log = LogBytes(block, len(block), 0, 0, self._maria, NEVER)
            while True:
                reason = run_walk(
                    log, nested, scratch, self._tables.maps, self._cutter.pairs, False
                )
                if reason == k.MORE:
                    break
                if reason == k.FIRST_ROW:
                    self._cutter.open()
                    nested.open = 1
                elif reason == k.NEW_PAIR:
                    self._cutter.add_pair(nested.pair_slot, nested.pair_partition)
                elif reason == k.SPECIAL:
                    self._events.inside(block, nested)
                    if self._judge.payload_stands_alone:
                        return None
                else:
                    raise CorruptLog(f"the TRANSACTION_PAYLOAD_EVENT at {point} is damaged")
        return nested
