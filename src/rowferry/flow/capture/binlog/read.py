"""Reads one segment of the log in a task: fetch, find the captured rows, decode them in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from rowferry.change.chunk import Cut, Op, Rows
from rowferry.change.own_tables import MARK
from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog, SourceUnavailable, TableVersionUnknown
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.decode.decoders import Decoders
from rowferry.flow.capture.binlog.decode.rows_events import COMPRESSED, RowEvents, RowsDecoder
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.compressed import inflate_payload
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes
from rowferry.flow.capture.binlog.frame.scan import (
    NONE_JOINED,
    FoundEvents,
    LogBytes,
    Maps,
    SegmentPairs,
    run_walk,
)
from rowferry.flow.capture.binlog.frame.special_events import EventJudge, SpecialEvents
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.frame.walk_state import WalkState
from rowferry.mysql.session import Flavour, Login

BLOCK_BYTES: Final = 8 << 20  # log bytes that are decoded together
# With many tables they are more, so that a chunk has rows enough to be worth its making.
_BYTES_A_TABLE: Final = 256 << 10
_LARGEST_BLOCK: Final = 128 << 20
_ROOM_BEHIND: Final = 1 << 20
_TAKEN_AT_ONCE: Final = 256 << 10  # what has come; over TLS each read gives a small part of it
_ROOM: Final = 1 << 16
_HALVES: Final = {0: None, k.LEFT: Op.DELETE, k.CAME: Op.INSERT}


def read_log(
    login: Login,
    segment: Segment,
    tables: Mapping[TableSlice, TableSchema],
    allow_partial: bool = False,
    drop_marked: bool = False,
) -> Iterator[Rows]:
    """Yield the captured rows of a log segment, for each table in log order.

    With `drop_marked`, those that another changefeed wrote are left out.

    Raises:
        SourceMoved: another server answers; its files have other offsets.
        CorruptLog, EventUnknown: the place of what cannot be read.
    """
    begun = False
    held = _held_bytes(segment)
    try:
        if held:
            for rows in _Reader(segment, tables, allow_partial, drop_marked).held(held):
                begun = True
                yield rows
            return
    except CorruptLog as err:
        if begun and not segment.payload:  # the next try asks the source, who may know better
            raise SourceUnavailable(f"bytes of the log that were kept are damaged: {err}") from err
        if begun:
            raise
    # Also bytes that were damaged when they were planned: the log may have been restored since.
    yield from _Reader(segment, tables, allow_partial, drop_marked).fetched(login)


class _Held(NamedTuple):
    """A part of a segment whose bytes are here, up to a log offset."""

    data: npt.NDArray[np.uint8]
    start: int
    to: int
    joined: npt.NDArray[np.int64] = NONE_JOINED


def _held_bytes(segment: Segment) -> list[_Held]:
    """Return the bytes that this machine has; none: not all of them."""
    begin, to = segment.read["from"], segment.read["to"]
    if segment.payload:  # a plan of an older version
        return [_Held(np.frombuffer(segment.payload, np.uint8), begin, to)]
    parts = []
    for piece in cast(tuple[KeptBytes, ...], segment.near):
        data = piece.packets()
        if data is None:
            return []
        parts.append(_Held(data, piece.start, piece.to, piece.joined_packets()))
    return parts


_DECODERS: Final = Decoders()


class _Reader(EventJudge):
    """One segment being read. What the planner judges at special events, the plan has decided."""

    def __init__(
        self,
        segment: Segment,
        tables: Mapping[TableSlice, TableSchema],
        allow_partial: bool,
        drop_marked: bool,
    ) -> None:
        read = segment.read
        self._read = read
        self._to = int(read["to"])
        self._block = max(BLOCK_BYTES, min(len(segment.slices) * _BYTES_A_TABLE, _LARGEST_BLOCK))
        # Rows come out block by block, and in a block table by table. Blocks end at offsets of the
        # log, so that rows have the same order wherever the bytes come from: sinks count them.
        self._block_end = int(read["from"]) + self._block
        self._maria = bool(read["maria"])
        self._flavour = Flavour.MARIADB if self._maria else Flavour.MYSQL
        self._slices = segment.slices
        self._tables = tables
        self._partial, self._drop_marked = allow_partial, drop_marked
        self._places: dict[tuple[str, str], dict[int, int]] = {}
        for database, table, partition, place in read["names"]:
            self._places.setdefault((database, table), {})[partition] = place
        self._halves = bool(read.get("halves"))  # plans of older versions have none
        self._maps, self._pairs, self._collected = Maps(), SegmentPairs(), FoundEvents(_ROOM)
        self._decoders: list[tuple[RowsDecoder, int | None]] = []  # by the pairs' places
        self._forms: list[int] = []  # by the same; below 0: the table stands alone
        # As this reader met them: a process numbers forms by what it has read before, and in a
        # replay by another one tables must come in the same order.
        self._own_forms: dict[int, int] = {}
        self._pairs_of: dict[int, list[int]] = {}  # of each slice
        state = WalkState.without_bounds()
        state.offset, state.last_ts = read["from"], read["last_ts"]
        state.txn_ts, state.clamp_ms = read["txn_ts"], read["clamp_ms"]
        state.open = 1
        state.rows_at = segment.ordinal << 40
        self._state = state
        self._point = WalkPoint(state, read["file"], int(read["tail"]))
        self._events = SpecialEvents(self._point, self)
        for number in read.get("others", ()):  # plans of older versions have none
            self._maps.put(number.to_bytes(6, "little"), captured=False)
        for body in read["maps"]:
            self.table(bytes.fromhex(body), inside=False)

    def held(self, parts: Iterable[_Held]) -> Iterator[Rows]:
        """Read bytes that are here, part by part."""
        data = np.zeros(0, np.uint8)
        for part in parts:
            carried = self._carried(data)
            data = np.concatenate([carried, part.data]) if len(carried) else part.data
            joined = part.joined + np.array([len(carried), 0], np.int64)
            self._state.at, self._state.offset = len(carried), part.start
            self._to = part.to
            yield from self._hold(data, joined)
        yield from self._decode(data)

    def _carried(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes of what is not decoded yet, whose block goes on in the next part."""
        spans = self._collected.spans[: self._state.collected, :2]
        if not len(spans):
            return data[:0]
        carried = np.concatenate([data[start:end] for start, end in spans.tolist()])
        ends = np.cumsum(spans[:, 1] - spans[:, 0])
        spans[:, 0], spans[:, 1] = ends - (spans[:, 1] - spans[:, 0]), ends
        return carried

    def _hold(self, data: npt.NDArray[np.uint8], joined: npt.NDArray[np.int64]) -> Iterator[Rows]:
        while True:
            reason = self._walk(data, len(data), 5, self._point.tail, joined)
            if reason == k.MORE:
                break
            if reason == k.END and self._block_end >= self._to:
                return
            if reason == k.END:
                yield from self._end_block(data)
            elif reason == k.FULL:
                yield from self._decode(data)
            else:
                yield from self._handle(reason, data)
        # The last packets before the end may be of those that nobody needs, and not be here.
        if self._state.at < len(data):
            raise CorruptLog(f"the bytes of {self._point} end before {self._to}")

    def _end_block(self, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        self._block_end += self._block
        yield from self._decode(data)

    def fetched(self, login: Login) -> Iterator[Rows]:
        """Ask the server for the segment's bytes."""
        start = StartAt(self._read["file"], self._read["from"])
        room = min(self._block, self._read["to"] - self._read["from"]) + _ROOM_BEHIND
        stream = LogStream(login, self._flavour, start, server=self._read["server"], room=room)
        self._point.tail = stream.tail  # until the FORMAT event tells the file's own
        try:
            yield from self._stream(stream)
        finally:
            stream.close()

    def _stream(self, stream: LogStream) -> Iterator[Rows]:
        state = self._state
        while True:
            moved = _fill(stream)
            state.at -= moved
            self._collected.spans[: state.collected, :2] -= moved
            while True:
                reason = self._walk(stream.data, stream.filled, 5, self._point.tail, stream.joined)
                if reason == k.JOIN:
                    if stream.join_packets(state.at):
                        continue
                    reason = k.MORE
                if reason == k.MORE:
                    if state.offset < self._to:
                        break
                    reason = k.END  # do not wait for an event that nobody needs
                elif reason == k.END and self._block_end < self._to:
                    yield from self._end_block(stream.data)
                    stream.start = state.at
                    continue
                if reason == k.END:
                    yield from self._decode(stream.data)
                    if state.offset < self._read["to"]:
                        raise SourceUnavailable(
                            f"the log ends at {self._point}, before {self._read['to']}"
                        )
                    return
                if reason == k.FULL:
                    yield from self._decode(stream.data)
                elif reason == k.REFUSED:
                    self._point.data = stream.data
                    raise stream.error(self._point.packet())
                else:
                    yield from self._handle(reason, stream.data)

    def _walk(
        self,
        data: npt.NDArray[np.uint8],
        filled: int,
        prefix: int,
        tail: int,
        joined: npt.NDArray[np.int64] = NONE_JOINED,
    ) -> int:
        stop_at = min(self._to, self._block_end)
        log = LogBytes(data, filled, prefix, tail, self._maria, stop_at, joined)
        border = self._point.border
        return run_walk(log, self._state, border, self._maps, self._pairs, True, self._collected)

    # --- rows ------------------------------------------------------------------------------------

    def _decode(self, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        """Decode what was found in a buffer, table by table."""
        count = self._state.collected
        if not count:
            return
        self._state.collected = 0
        marked = self._collected.place[:count]
        places = marked & k.PLACE
        forms = np.array(self._forms, np.int64)[places]
        by_table = np.lexsort((places, forms))  # inside a table the log's order stays
        if not self._halves:
            by_table = by_table[marked[by_table] & k.LEFT == 0]
            marked = places
        places, forms, marked = places[by_table], forms[by_table], marked[by_table]
        start, end, code, seq = self._collected.spans[by_table].T.copy()
        commit_ts = self._collected.commit_ts[by_table].astype(np.uint64)
        if self._read["fixed_ts"]:
            commit_ts[:] = self._read["fixed_ts"]
        events = RowEvents(data, start, end, code.astype(np.uint8), commit_ts, seq)
        for first, last in _runs(forms):
            part, tables = events.part(first, last), marked[first:last]
            single = forms[first] < 0 or tables[0] == tables[-1]
            if single or bool((part.code >= COMPRESSED).any() or (tables > k.PLACE).any()):
                yield from self._decode_tables(part, tables)
            else:
                yield from self._decode_alike(part, tables)

    def _decode_tables(self, events: RowEvents, places: npt.NDArray[np.int32]) -> Iterator[Rows]:
        """Decode events of tables one after the other; places may be marked by LEFT and CAME."""
        for first, last in _runs(places):
            decoder, physical = self._decoders[int(places[first]) & k.PLACE]
            half = _HALVES[int(places[first]) & ~k.PLACE]
            for chunk in decoder.decode(events.part(first, last)):
                yield Rows(chunk.table, chunk.batch, physical, half=half)

    def _decode_alike(self, events: RowEvents, places: npt.NDArray[np.int32]) -> Iterator[Rows]:
        """Decode tables of the same layout together: each call costs as much as many rows."""
        try:
            for rows, event in self._decoders[int(places[0])][0].decode_alike(events):
                of_row = places[event]
                for first, last in _runs(of_row):
                    decoder, physical = self._decoders[int(of_row[first])]
                    batch = rows.batch.slice(first, last - first)
                    yield Rows(decoder.schema, batch, physical, cut=Cut(rows.batch, first))
        except CorruptLog:
            for _ in self._decode_tables(events, places):
                pass  # so that the error names the table that it is about
            raise

    # --- single events ---------------------------------------------------------------------------

    def _handle(self, reason: int, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        if reason == k.BAD_CRC:
            raise CorruptLog(f"the checksum of the event at {self._point} does not fit")
        if reason == k.NEW_PAIR:
            raise TableVersionUnknown(f"rows at {self._point} are of a partition not planned for")
        if reason != k.SPECIAL:
            raise CorruptLog(f"the event at {self._point} cannot be read (reason {reason})")
        self._point.data = data
        if not self._events.interpret():
            yield from self._decode(data)
            yield from self._payload()

    def rotate(self) -> None:
        """Step over it: a segment lies in one file."""
        self._point.skip()

    def table(self, body: bytes, inside: bool) -> None:
        """Make the decoders of a table whose rows are planned."""
        mapped = _DECODERS.mapped(body, self._flavour)
        wanted = self._places.get((mapped.table.database, mapped.table.table), {})
        mark = self._drop_marked and mapped.table.table.lower() == MARK
        slot = self._maps.put(body, bool(wanted), mark)
        met: dict[int, int] = {}  # partitions of one slice share its decoder: so they stay in order
        for partition, place in wanted.items():
            one = self._slices[place]
            self._pairs.put(slot, partition, met.setdefault(place, len(self._decoders)))
            if met[place] < len(self._decoders):
                continue
            decoder = _DECODERS.of(body, self._tables[one], self._flavour, self._partial)
            self._decoders.append((decoder, one.physical_id))
            form = _DECODERS.form(body, self._tables[one], self._flavour)
            self._note_form(place, self._own_forms.setdefault(form, len(self._own_forms)))

    def _note_form(self, place: int, form: int) -> None:
        """Note how the newest pair's table is made; one that is mapped in two ways stands alone."""
        pairs = self._pairs_of.setdefault(place, [])
        pairs.append(len(self._forms))
        self._forms.append(form)
        if form != self._forms[pairs[0]]:
            for pair in pairs:
                self._forms[pair] = -1 - place

    def _payload(self) -> Iterator[Rows]:
        """Decode a compressed transaction block by block."""
        point, state = self._point, self._state
        begin, end = state.event_at, state.event_end
        for block in inflate_payload([point.body()]):
            state.at = 0
            while True:
                reason = self._walk(block, len(block), 0, 0)
                if reason in (k.MORE, k.FULL):
                    yield from self._decode(block)
                    if reason == k.MORE:
                        break
                elif reason == k.SPECIAL:
                    self._events.inside(block, state)
                else:
                    raise CorruptLog(f"the TRANSACTION_PAYLOAD_EVENT at {point} is damaged")
        state.event_at, state.event_end = begin, end
        point.skip()
        point.close()


def _fill(stream: LogStream) -> int:
    """Take what has come, after waiting for something; returns by how much other bytes moved."""
    moved = stream.fill()
    left = _TAKEN_AT_ONCE
    with suppress(SourceUnavailable):  # whoever still needs more meets it again
        while left > 0 and stream.wait(0):
            before = stream.filled
            step = stream.fill()
            moved += step
            left -= stream.filled + step - before
    return moved


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield where each run of equal values begins and ends."""
    borders = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return zip([0, *borders], [*borders, len(values)], strict=True)
