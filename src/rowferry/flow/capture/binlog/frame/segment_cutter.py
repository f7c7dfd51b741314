"""Cuts the log into segments on the driver: where each begins and ends, and what it takes along."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.plan import Segment
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.frame.kept_log import LogKeeper
from rowferry.flow.capture.binlog.frame.known_tables import KnownTables
from rowferry.flow.capture.binlog.frame.scan import SegmentPairs
from rowferry.flow.capture.binlog.frame.segment_draft import SegmentDraft
from rowferry.flow.capture.binlog.frame.segment_join import SliceBytes, join_segments
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.frame.walk_state import NEVER, WalkState
from rowferry.flow.capture.binlog.frame.xa import PreparedRows
from rowferry.flow.capture.contract import Appetite
from rowferry.flow.capture.label_end import label_end

SEGMENT_BYTES: Final = 32 << 20
CARRY_BYTES: Final = 512 << 10  # segments up to this size take their bytes along
_TWO_DAYS: Final = (2 * 86_400_000) << PHYSICAL_SHIFT


@dataclass(slots=True)
class _Begun:
    """What there was when the border went into an open transaction.

    Attributes:
        txn_ts: of that transaction.
        border: the last one before it.
        segments: how many were done.
        draft: the one that was open.
    """

    txn_ts: int
    border: WalkState
    segments: int
    draft: SegmentDraft | None


class SegmentCutter:
    """The segments of a walk: those that are done, and the one that is open.

    Attributes:
        draft: the open one.
    """

    def __init__(
        self,
        point: WalkPoint,
        stream: PacketBuffer,
        tables: KnownTables,
        xa: PreparedRows,
        appetite: Appetite,
        server: str,
        maria: bool,
    ) -> None:
        self._point, self._stream, self._tables, self._xa = point, stream, tables, xa
        self._appetite, self._server, self._maria = appetite, server, maria
        self.draft: SegmentDraft | None = None
        self._segments: list[Segment] = []
        self._joinable: dict[int, SliceBytes] = {}  # by the segments' identity
        self._keeper = LogKeeper()
        self._begun: _Begun | None = None

    @property
    def pairs(self) -> SegmentPairs:
        """What the open segment has, for the walk."""
        return self.draft.pairs if self.draft else SegmentPairs()

    def backlog(self) -> tuple[int, int]:
        """Return how many segments and bytes can be taken, about."""
        size = sum(s.log_bytes for s in self._segments)
        count = len(self._segments)
        if self.draft is not None and self.draft.file == self._point.file:
            size += max(0, self._point.border.offset - self.draft.start)
            count += 1
        return count, size

    @property
    def breadth(self) -> int:
        """How many tables the segment has that is being framed, or the last one."""
        if self.draft is not None:
            return len(self.draft.slices)
        return len(self._segments[-1].slices) if self._segments else 0

    def has_rows(self, upto: WalkState) -> bool:
        """Return whether the open segment has captured rows by then."""
        return self.draft is not None and bool(self.draft.pairs.seen(upto.count))

    def take(self) -> tuple[Segment, ...]:
        """Return the segments up to the last border; they are then gone from here."""
        if self.has_rows(self._point.border):
            self.close(self._point.border)
        self._keeper.turn()
        framed, self._segments = self._segments, []
        sizes, self._joinable = self._joinable, {}
        if self._appetite.fewer_slices:
            framed = join_segments(framed, [sizes.get(id(s)) for s in framed], self._appetite)
        return tuple(replace(s, ordinal=place) for place, s in enumerate(framed))

    def add(self, segments: list[Segment]) -> None:
        """Add segments that were made before."""
        self._segments += segments

    def open(self) -> None:
        """Open a segment with the transaction whose first captured rows the walk stands at."""
        point, state = self._point, self._point.state
        inside = bool(state.in_txn) or state.txn_offset < 0
        begin = state.offset if inside else state.txn_offset
        buffered = state.at if inside else state.txn_at
        txn_ts = state.txn_ts
        self.draft = SegmentDraft(
            server=self._server,
            file=point.file,
            start=begin,
            last_ts=state.last_ts if inside else state.txn_last_ts,
            txn_ts=txn_ts if inside else 0,
            clamp_ms=state.clamp_ms,
            first_ts=txn_ts,
            carried_from=max(0, buffered),
            xa=self._xa.inside,
            by_partition=self._appetite.by_partition,
        )
        whole = buffered >= self._stream.start
        if not whole:
            self.draft.carried = None
        if whole and not self._xa.inside:  # those wait, maybe for days, until they are committed
            self.draft.keeper = self._keeper
        if inside:
            self.draft.maps, self.draft.others = self._tables.maps.in_force()
        far = self._maria and begin >= (1 << 32) - (1 << 30)
        end = label_end(txn_ts, txn_ts + _TWO_DAYS, self._appetite.partition_label)
        self._set_bounds(1, NEVER if far else begin + SEGMENT_BYTES, end)

    def add_pair(self, slot: int, partition: int) -> None:
        """Add a table (partition) to the open segment."""
        opened, state = self.draft, self._point.state
        assert opened is not None
        name, schema = self._tables.of(slot)
        if opened.add(slot, name, schema, partition):
            wish = opened.start + max(1 << 20, self._appetite.segment_bytes(schema.id))
            if state.cut_at != NEVER and wish < state.cut_at:
                state.cut_at = self._point.border.cut_at = wish

    def cut(self) -> None:
        """End the segment where the walk stands, inside a transaction if need be."""
        state, border = self._point.state, self._point.border
        self._note_begun()
        self.close(state, inside=state.txn_ts != 0)
        border.take(state)
        border.open = 0

    def settle(self) -> None:
        """Let the walk begin again where it stands, inside a transaction if need be."""
        self._note_begun()
        self._point.border.take(self._point.state)

    def roll_back(self) -> None:
        """Drop the open transaction: the walk stands where it did, as if that had never begun.

        Raises:
            CorruptLog: the beginning of it has been taken.
        """
        state, border, begun = self._point.state, self._point.border, self._begun
        if border.txn_ts:
            if begun is None or begun.txn_ts != state.txn_ts:
                raise CorruptLog(
                    f"the log's file ends at {self._point} inside a CREATE TABLE … SELECT whose "
                    "statement was delivered: the server died while it wrote it, and does not have "
                    "the table; drop it where it was made, and make a new changefeed"
                )
            for gone in self._segments[begun.segments :]:
                self._joinable.pop(id(gone), None)
            del self._segments[begun.segments :]
            self.draft = begun.draft
            if self.draft is not None:
                self.draft.ask_for_bytes()  # others lie behind its own by now
            border.take(begun.border)
        border.at, border.event_at, border.event_end = state.at, state.event_at, state.event_end
        state.take(border)
        if self.draft is None or self.draft.xa:
            self.draft = None
            self._set_bounds(0, NEVER, NEVER)
        self.close(state)

    def long_enough(self) -> None:
        """End the segment, which is as long as it should be, if it has captured rows."""
        state = self._point.state
        if self.draft is None or self.has_rows(state):
            self.cut()
        else:
            # So much lies between the transaction's begin and its first captured rows: a segment
            # holds one event of them, however long that makes it.
            state.cut_at = self._point.border.cut_at = state.offset + 1

    def close(self, upto: WalkState, inside: bool = False) -> None:
        """End the open segment at a border, or `inside` a transaction, whose state is `upto`."""
        opened = self.draft
        if opened is None:
            return
        seen = opened.pairs.seen(upto.count)
        if seen:
            end = upto.offset if inside else upto.captured_end
            last = upto.txn_ts if inside else upto.captured_ts
            self.carry(self._point.state.at)  # bytes behind the segment's end do no harm
            segment = opened.finished(seen, end, last, self._maria, self._point.tail)
            (self._xa.parts if opened.xa else self._segments).append(segment)
            # Where tables wait for their snapshot, a neighbour may leave out what this one holds.
            if not opened.xa and not self._point.state.each:
                self._joinable[id(segment)] = opened.bytes_of(seen)
        self.draft = None
        self._set_bounds(0, NEVER, NEVER)

    def carry(self, behind: int) -> None:
        """Take along the open segment's bytes in the buffer up to a place."""
        if self.draft is not None:
            tail, maps = self._point.tail, self._tables.maps
            self.draft.carry(self._stream, behind, tail, maps, CARRY_BYTES)

    def moved(self, by: int) -> None:
        """Note that the buffer's bytes lie lower than before."""
        if self.draft is not None:
            self.draft.carried_from = max(0, self.draft.carried_from - by)

    def _note_begun(self) -> None:
        state, border = self._point.state, self._point.border
        if state.txn_ts and not border.txn_ts:
            count = len(self._segments)
            self._begun = _Begun(state.txn_ts, border.copy(), count, self.draft)

    def _set_bounds(self, is_open: int, cut_at: int, day_end: int) -> None:
        for state in (self._point.state, self._point.border):
            state.open, state.cut_at, state.day_end = is_open, cut_at, day_end
