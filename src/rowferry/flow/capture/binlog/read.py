"""Reads one segment of the log in a task: fetch, find the captured rows, decode them in columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rowferry.change.chunk import Cut, Rows
from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog, EventUnknown, SourceUnavailable, TableVersionUnknown
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.decode.decoders import Decoders
from rowferry.flow.capture.binlog.decode.rows_events import COMPRESSED, RowEvents, RowsDecoder
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.compressed import inflate_payload
from rowferry.flow.capture.binlog.frame.scan import (
    NONE_JOINED,
    FoundEvents,
    Maps,
    SegmentPairs,
    run_walk,
)
from rowferry.mysql.feed_mark import MARK_TABLE
from rowferry.mysql.session import Flavour, Login

BLOCK_BYTES: Final = 8 << 20  # log bytes that are decoded together
# With many tables they are more, so that a chunk has rows enough to be worth its making.
_BYTES_A_TABLE: Final = 256 << 10
_LARGEST_BLOCK: Final = 128 << 20
_ROOM_BEHIND: Final = 1 << 20
_TAKEN_AT_ONCE: Final = 256 << 10  # what has come; over TLS each read gives a small part of it
_ROOM: Final = 1 << 16
_NEVER: Final = 1 << 62


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
    try:
        if segment.payload:
            data = np.frombuffer(segment.payload, np.uint8)
            for rows in _Reader(segment, tables, allow_partial, drop_marked).carried(data):
                begun = True
                yield rows
            return
    except CorruptLog:
        if begun:
            raise
    # Also bytes that were damaged when they were planned: the log may have been restored since.
    yield from _Reader(segment, tables, allow_partial, drop_marked).fetched(login)


_DECODERS: Final = Decoders()


class _Reader:
    """One segment being read."""

    def __init__(
        self,
        segment: Segment,
        tables: Mapping[TableSlice, TableSchema],
        allow_partial: bool,
        drop_marked: bool,
    ) -> None:
        read = segment.read
        self._read = read
        self._maria = bool(read["maria"])
        self._flavour = Flavour.MARIADB if self._maria else Flavour.MYSQL
        self._tail = int(read["tail"])
        self._slices = segment.slices
        self._tables = tables
        self._partial, self._drop_marked = allow_partial, drop_marked
        self._places: dict[tuple[str, str], dict[int, int]] = {}
        for database, table, partition, place in read["names"]:
            self._places.setdefault((database, table), {})[partition] = place
        self._maps, self._pairs, self._found = Maps(), SegmentPairs(), FoundEvents(_ROOM)
        self._decoders: list[tuple[RowsDecoder, int | None]] = []  # by the pairs' places
        self._forms: list[int] = []  # by the same; below 0: the table stands alone
        self._pairs_of: dict[int, list[int]] = {}  # of each slice
        state = np.zeros(k.STATE_SIZE, np.int64)
        state[k.OFFSET] = read["from"]
        state[k.LAST_TS] = read["last_ts"]
        state[k.TXN_TS] = read["txn_ts"]
        state[k.CLAMP_MS] = read["clamp_ms"]
        state[k.DAY_END] = state[k.CUT_AT] = state[k.UNTIL_TS] = _NEVER
        state[k.OPEN] = 1
        state[k.ROWS_AT] = segment.ordinal << 40
        self._state, self._border = state, state.copy()
        for body in read["maps"]:
            self._meet_table(bytes.fromhex(body))

    def carried(self, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        """Read the bytes that the plan took along."""
        ended = False
        while not ended:
            reason = self._walk(data, len(data), 5, self._tail)
            if reason in (k.MORE, k.END):
                ended = True
            elif reason != k.FULL:
                yield from self._handle(reason, data)
                continue
            yield from self._decode(data)
        if self._state[k.OFFSET] < self._read["to"]:
            raise CorruptLog(f"the bytes of {self._where()} end before {self._read['to']}")

    def fetched(self, login: Login) -> Iterator[Rows]:
        """Ask the server for the segment's bytes."""
        start = StartAt(self._read["file"], self._read["from"])
        room = min(self._block_bytes(), self._read["to"] - self._read["from"]) + _ROOM_BEHIND
        stream = LogStream(login, self._flavour, start, server=self._read["server"], room=room)
        self._tail = stream.tail  # until the FORMAT event tells the file's own
        try:
            yield from self._stream(stream)
        finally:
            stream.close()

    def _stream(self, stream: LogStream) -> Iterator[Rows]:
        state = self._state
        while True:
            moved = _fill(stream)
            state[k.AT] -= moved
            self._found.spans[: int(state[k.FOUND]), :2] -= moved
            while True:
                reason = self._walk(stream.data, stream.filled, 5, self._tail, stream.joined)
                if reason == k.JOIN:
                    if stream.join_packets(int(state[k.AT])):
                        continue
                    reason = k.MORE
                if reason == k.MORE:
                    if state[k.OFFSET] >= self._read["to"]:
                        reason = k.END  # do not wait for an event that nobody needs
                    else:
                        if state[k.AT] - stream.start < self._block_bytes():
                            break
                        yield from self._decode(stream.data)
                        stream.start = int(state[k.AT])
                        break
                if reason == k.END:
                    yield from self._decode(stream.data)
                    if state[k.OFFSET] < self._read["to"]:
                        raise SourceUnavailable(
                            f"the log ends at {self._where()}, before {self._read['to']}"
                        )
                    return
                if reason == k.FULL:
                    yield from self._decode(stream.data)
                elif reason == k.REFUSED:
                    begin, end = int(state[k.EVENT_AT]) - 1, int(state[k.EVENT_END])
                    raise stream.error(stream.data[begin:end].tobytes())
                else:
                    yield from self._handle(reason, stream.data)

    def _block_bytes(self) -> int:
        wanted = min(len(self._slices) * _BYTES_A_TABLE, _LARGEST_BLOCK)
        return max(BLOCK_BYTES, wanted)

    def _walk(
        self,
        data: npt.NDArray[np.uint8],
        filled: int,
        prefix: int,
        tail: int,
        joined: npt.NDArray[np.int64] = NONE_JOINED,
    ) -> int:
        return run_walk(
            data,
            filled,
            prefix,
            tail,
            self._maria,
            int(self._read["to"]),
            self._state,
            self._border,
            self._maps,
            self._pairs,
            True,
            self._found,
            joined,
        )

    # --- rows ------------------------------------------------------------------------------------

    def _decode(self, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        """Decode what was found in a buffer, table by table."""
        found = int(self._state[k.FOUND])
        if not found:
            return
        self._state[k.FOUND] = 0
        places = self._found.place[:found]
        forms = np.array(self._forms, np.int64)[places]
        by_table = np.lexsort((places, forms))  # inside a table the log's order stays
        places, forms = places[by_table], forms[by_table]
        start, end, code, seq = self._found.spans[by_table].T.copy()
        commit_ts = self._found.commit_ts[by_table].astype(np.uint64)
        if self._read["fixed_ts"]:
            commit_ts[:] = self._read["fixed_ts"]
        events = RowEvents(data, start, end, code.astype(np.uint8), commit_ts, seq)
        for first, last in _runs(forms):
            part, tables = events.part(first, last), places[first:last]
            single = forms[first] < 0 or tables[0] == tables[-1]
            if single or bool((part.code >= COMPRESSED).any()):
                yield from self._decode_tables(part, tables)
            else:
                yield from self._decode_alike(part, tables)

    def _decode_tables(self, events: RowEvents, places: npt.NDArray[np.int32]) -> Iterator[Rows]:
        """Decode events of tables one after the other."""
        for first, last in _runs(places):
            decoder, physical = self._decoders[int(places[first])]
            for chunk in decoder.decode(events.part(first, last)):
                yield Rows(chunk.table, chunk.batch, physical)

    def _decode_alike(self, events: RowEvents, places: npt.NDArray[np.int32]) -> Iterator[Rows]:
        """Decode events of tables made alike together: each call costs as much as many rows."""
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
        state = self._state
        if reason == k.BAD_CRC:
            raise CorruptLog(f"the checksum of the event at {self._where()} does not fit")
        if reason == k.NEW_PAIR:
            raise TableVersionUnknown(f"rows at {self._where()} are of a partition not planned for")
        if reason != k.SPECIAL:
            raise CorruptLog(f"the event at {self._where()} cannot be read (reason {reason})")
        code = int(data[int(state[k.EVENT_AT]) + 4])
        if code == ev.TABLE_MAP:
            self._meet_table(self._body(data))
        elif code == ev.FORMAT:
            begin, end = int(state[k.EVENT_AT]) + ev.HEADER, int(state[k.EVENT_END])
            self._tail = 4 if ev.has_checksums(data[begin:end].tobytes()) else 0
            self._skip(data)
        elif code in (ev.QUERY, ev.QUERY_COMPRESSED):
            self._statement(ev.parse_query(self._body(data), code == ev.QUERY_COMPRESSED))
            self._skip(data)
        elif code == ev.EXECUTE_LOAD_QUERY:
            self._statement(ev.parse_load(self._body(data)))
            self._skip(data)
        elif code == ev.GTID_TAGGED:
            gtid = ev.parse_tagged_gtid(self._body(data))
            state[k.TXN_TS] = state[k.LAST_TS] = k.tick(
                int(state[k.LAST_TS]), gtid.commit_us // 1000, int(state[k.CLAMP_MS])
            )
            state[k.ALONE] = 1
            self._skip(data)
        elif code == ev.MARIA_GTID:
            state[k.ACCEPT] = 1  # XA: what it holds was decided by the plan
        elif code == ev.XA_PREPARE:
            self._skip(data)
            k.close_transaction(state, self._border)
        elif code == ev.TRANSACTION_PAYLOAD:
            yield from self._decode(data)
            yield from self._payload(data)
        elif code in (ev.ROTATE, ev.PREVIOUS_GTIDS, ev.MARIA_GTID_LIST):
            self._skip(data)
        else:
            raise EventUnknown(
                f"{ev.event_name(code)} (code {code}) at {self._where()} is not understood"
            )

    def _meet_table(self, body: bytes) -> None:
        mapped = _DECODERS.mapped(body, self._flavour)
        wanted = self._places.get((mapped.table.database, mapped.table.table), {})
        mark = self._drop_marked and mapped.table.table.lower() == MARK_TABLE
        slot = self._maps.put(body, bool(wanted), mark)
        for partition, place in wanted.items():
            one = self._slices[place]
            decoder = _DECODERS.of(body, self._tables[one], self._flavour, self._partial)
            self._pairs.put(slot, partition, len(self._decoders))
            self._decoders.append((decoder, one.physical_id))
            self._note_form(place, _DECODERS.form(body, self._tables[one], self._flavour))

    def _note_form(self, place: int, form: int) -> None:
        """Note how the newest pair's table is made; one that is mapped in two ways stands alone."""
        pairs = self._pairs_of.setdefault(place, [])
        pairs.append(len(self._forms))
        self._forms.append(form)
        if form != self._forms[pairs[0]]:
            for pair in pairs:
                self._forms[pair] = -1 - place

    def _statement(self, query: ev.Query) -> None:
        """End the transaction where a statement is one: the plan has judged what it does."""
        state = self._state
        words = query.sql.upper().split(None, 2)[:2]
        if words[:1] == ["XA"]:
            over = words[1:] in (["COMMIT"], ["ROLLBACK"])
            state[k.ALONE] = 0
        elif words[:1] == ["ROLLBACK"]:
            over = words[1:] != ["TO"]
        elif words[:1] in (["BEGIN"], ["SAVEPOINT"], ["RELEASE"]):
            over = False
        else:
            goes_on = query.sql.rstrip().upper().endswith("START TRANSACTION")
            over = bool(state[k.ALONE]) and not goes_on
            if goes_on:
                state[k.ALONE] = 0
        if over:
            k.close_transaction(state, self._border)

    def _payload(self, data: npt.NDArray[np.uint8]) -> Iterator[Rows]:
        """Decode a compressed transaction block by block."""
        state = self._state
        body, end = self._body(data), int(state[k.EVENT_END])
        for block in inflate_payload([body]):
            state[k.AT] = 0
            while True:
                reason = self._walk(block, len(block), 0, 0)
                if reason in (k.MORE, k.FULL):
                    yield from self._decode(block)
                    if reason == k.MORE:
                        break
                    continue
                begin, stop = int(state[k.EVENT_AT]), int(state[k.EVENT_END])
                code = int(block[begin + 4])
                if reason == k.SPECIAL and code == ev.TABLE_MAP:
                    self._meet_table(block[begin + ev.HEADER : stop].tobytes())
                elif reason == k.SPECIAL and code in (ev.QUERY, ev.XA_PREPARE):
                    state[k.AT] = stop
                else:
                    raise CorruptLog(f"the TRANSACTION_PAYLOAD_EVENT at {self._where()} is damaged")
        state[k.EVENT_END] = end
        state[k.EVENT_AT] = end - len(body) - self._tail - ev.HEADER
        self._skip(data)
        k.close_transaction(state, self._border)

    # --- small pieces ----------------------------------------------------------------------------

    def _body(self, data: npt.NDArray[np.uint8]) -> bytes:
        begin, end = int(self._state[k.EVENT_AT]), int(self._state[k.EVENT_END])
        stop = end - self._tail
        if self._tail:
            told = int.from_bytes(data[stop:end].tobytes(), "little")
            if zlib.crc32(data[begin:stop].data) != told:
                raise CorruptLog(f"the checksum of the event at {self._where()} does not fit")
        return data[begin + ev.HEADER : stop].tobytes()

    def _skip(self, data: npt.NDArray[np.uint8]) -> None:
        skip_event(data, self._state)

    def _where(self) -> str:
        return f"{self._read['file']}:{int(self._state[k.OFFSET])}"


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


def skip_event(data: npt.NDArray[np.uint8], state: Any) -> None:
    """Step over the event where a walk stands; the log's offset moves with real events."""
    header = int(state[k.EVENT_AT])
    fields = data[header : header + ev.HEADER].tobytes()
    low, flags = int.from_bytes(fields[13:17], "little"), int.from_bytes(fields[17:19], "little")
    offset = int(state[k.OFFSET])
    # A FORMAT event is sent again, with its own place, where a stream begins inside a file.
    repeated = fields[4] == ev.FORMAT and offset > low
    if low and not flags & 0x20 and not repeated:
        behind = (offset & ~0xFFFFFFFF) | low
        state[k.OFFSET] = behind if behind >= offset else behind + (1 << 32)
    elif not low and state[k.TXN_TS] and k._is_inside(fields[4], flags):
        state[k.OFFSET] = offset + int(state[k.EVENT_END]) - header
    state[k.AT] = state[k.EVENT_END]
