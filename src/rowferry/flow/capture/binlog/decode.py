"""Rows events as chunks: the bytes of one table's events become Arrow columns.

Comes in: a buffer and where in it the rows events of one TABLE_MAP lie. Goes out: chunks. One pass
finds where each row image has each column's bytes, a second one fills the columns; what needs more
than that (other character sets, JSON, vectors, addresses) is converted column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog, EventUnknown, TableVersionUnknown
from rowferry.flow.capture.binlog import decode_kernels as first_pass
from rowferry.flow.capture.binlog import decode_kernels_columns as second_pass
from rowferry.flow.capture.binlog.compressed import inflate_part
from rowferry.flow.capture.binlog.decode_columns import ColumnReader, Refused, Strings
from rowferry.flow.capture.binlog.decode_kernels_memory import (
    BAD_PARTITION,
    WORDS,
    Longs,
    frozen,
)
from rowferry.flow.capture.binlog.session import Flavour
from rowferry.flow.capture.binlog.table_map import JSON, MappedTable, mismatch

_ROWS: Final = 1 << 16  # of a chunk, at most
_BYTES: Final = 32 << 20  # of a chunk's rows, about
_CELLS: Final = 1 << 22  # places that are found at a time
_BLOCK_BYTES: Final = 1 << 17  # of rows that are taken column by column together

_NAMES: Final = {
    23: "WRITE_ROWS_EVENT_V1",
    24: "UPDATE_ROWS_EVENT_V1",
    25: "DELETE_ROWS_EVENT_V1",
    30: "WRITE_ROWS_EVENT",
    31: "UPDATE_ROWS_EVENT",
    32: "DELETE_ROWS_EVENT",
    39: "PARTIAL_UPDATE_ROWS_EVENT",
    166: "WRITE_ROWS_COMPRESSED_EVENT_V1",
    167: "UPDATE_ROWS_COMPRESSED_EVENT_V1",
    168: "DELETE_ROWS_COMPRESSED_EVENT_V1",
    169: "WRITE_ROWS_COMPRESSED_EVENT",
    170: "UPDATE_ROWS_COMPRESSED_EVENT",
    171: "DELETE_ROWS_COMPRESSED_EVENT",
}
# MariaDB's compressed events -> their plain form.
_PLAIN: Final = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
_PARTITION: Final = 1  # kind of extra data in a rows event


@dataclass(frozen=True, slots=True)
class RowEvents:
    """Rows events of one TABLE_MAP, in log order.

    Attributes:
        data: the buffer that holds them.
        start: first byte of each after its 19-byte header.
        end: first byte after each, its checksum excluded.
        code: their type codes.
        commit_ts: of each event's transaction.
        seq: of each event's first row; the i-th row gets `seq + i`.
    """

    data: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    code: npt.NDArray[np.uint8]
    commit_ts: npt.NDArray[np.uint64]
    seq: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def part(self, first: int, last: int) -> RowEvents:
        """Return the events from `first` to before `last`."""
        cut = slice(first, last)
        return RowEvents(
            self.data,
            self.start[cut],
            self.end[cut],
            self.code[cut],
            self.commit_ts[cut],
            self.seq[cut],
        )


@dataclass(slots=True)
class _Chunk:
    """What the first pass found."""

    rows: int
    block: int
    op: npt.NDArray[np.int8]
    event: npt.NDArray[np.int32]
    at: Longs
    shape: npt.NDArray[np.int16]
    shaped: Longs
    sizes: Longs
    nulls: Longs
    partial: npt.NDArray[np.uint8]


class RowsDecoder:
    """Decodes rows of one TABLE_MAP into chunks of one table version."""

    def __init__(
        self,
        mapped: MappedTable,
        schema: TableSchema,
        flavour: Flavour,
        allow_partial: bool = False,
    ) -> None:
        """Prepare for rows of a table.

        Args:
            mapped: the table as the log describes it.
            schema: the version in force; its columns are the log's, by position.
            flavour: whose log it is.
            allow_partial: images may lack columns; then the chunks' structs lack them too.

        Raises:
            TableVersionUnknown: the version's columns are not those of the log.
            SourceUnsupported, EventUnknown: a column cannot be read here.
        """
        words = mismatch(mapped, schema)
        if words:
            raise TableVersionUnknown(f"{schema.id}, version {schema.version}: {words}")
        self.schema = schema
        self._flavour = flavour
        self._allow_partial = allow_partial
        self._columns = [
            ColumnReader(found, column, mapped.has_metadata, str(schema.id))
            for found, column in zip(mapped.columns, schema.columns, strict=True)
        ]
        self._width = frozen(np.array([c.width for c in self._columns], np.int64))
        self._action = frozen(np.array([c.action for c in self._columns], np.int64))
        self._first = frozen(np.array([c.first for c in self._columns], np.int64))
        self._second = frozen(np.array([c.second for c in self._columns], np.int64))
        self._documents = [i for i, c in enumerate(mapped.columns) if c.code == JSON]
        count = max(1, len(self._columns))
        self._at = np.empty((2, 0, count), np.int64)
        self._room = max(64, min(_ROWS, _CELLS // (2 * count)))

    def decode(self, events: RowEvents, by_partition: bool = False) -> Iterator[Rows]:
        """Give the rows as chunks, in log order; memory stays bounded.

        Args:
            events: of this decoder's TABLE_MAP.
            by_partition: give rows of different table partitions in chunks of their own, with the
                partition's number as `physical_id`. An update that moves a row counts to the
                partition where it is now.

        Raises:
            CorruptLog: bytes are damaged, or an image lacks columns; names event, column, place.
            EventUnknown: an event that is no rows event, or compressed in an unknown way.
        """
        unknown = ~np.isin(events.code, list(_NAMES))
        if unknown.any():
            raise EventUnknown(
                f"{self.schema.id}: event code {int(events.code[unknown][0])} holds no rows"
            )
        for plain in self._inflated(events):
            yield from self._decode(plain, by_partition)

    def _inflated(self, events: RowEvents) -> Iterator[RowEvents]:
        """Give events without MariaDB's compression, at most about `_BYTES` of them at a time."""
        compressed = events.code >= min(_PLAIN)
        if not compressed.any():
            yield events
            return
        first, have = 0, 0
        bodies: list[bytes] = []
        for i in range(len(events)):
            body = events.data[events.start[i] : events.end[i]].tobytes()
            if compressed[i]:
                body = self._inflate(body, int(events.code[i]))
            bodies.append(body)
            have += len(body)
            if have >= _BYTES or i + 1 == len(events):
                yield _joined(events.part(first, i + 1), bodies)
                first, have, bodies = i + 1, 0, []

    def _inflate(self, body: bytes, code: int) -> bytes:
        """Return a compressed event's plain body: its rows are compressed, its header is not."""
        name = f"{self.schema.id}, {_NAMES[code]}"
        place = 8
        if code >= 169:
            place += int.from_bytes(body[8:10], "little")
        count = len(self._columns)
        place += 1 if count < 251 else 3
        place += (count + 7) // 8 * (2 if code in (167, 170) else 1)
        return body[:place] + inflate_part(body[place:], name)

    def _decode(self, events: RowEvents, by_partition: bool) -> Iterator[Rows]:
        state = np.zeros(first_pass.STATE_SIZE, np.int64)
        raw = frozen(events.data)
        start, end = frozen(events.start), frozen(events.end)
        code = frozen(events.code.astype(np.uint8, copy=False))
        first_row = _RowNumbers()
        while state[first_pass.EVENT] < len(events):
            chunk = self._walk(raw, start, end, code, state)
            if state[first_pass.FAULT]:
                self._refuse(
                    events,
                    int(state[first_pass.EVENT]),
                    int(state[first_pass.FAULT]),
                    int(state[first_pass.FAULT_COLUMN]),
                    int(state[first_pass.FAULT_AT]),
                )
            if chunk.rows:
                rows = self._rows(events, raw, chunk, first_row)
                if by_partition:
                    yield from self._split(events, chunk, rows)
                else:
                    yield rows

    def _walk(
        self,
        raw: npt.NDArray[np.uint8],
        start: Longs,
        end: Longs,
        code: npt.NDArray[np.uint8],
        state: Longs,
    ) -> _Chunk:
        """Run the first pass for one chunk."""
        room = min(self._room, self._most_rows(start, end, state))
        count, documents = len(self._columns), len(self._documents)
        has_partial = bool(documents) and bool((code == first_pass.PARTIAL_UPDATE).any())
        chunk = _Chunk(
            rows=0,
            block=8,
            op=np.empty(room, np.int8),
            event=np.empty(room, np.int32),
            at=self._places(room),
            shape=np.zeros((2, count), np.int16),
            shaped=np.zeros(2, np.int64),
            sizes=np.zeros((2, count), np.int64),
            nulls=np.zeros((2, count), np.int64),
            partial=np.zeros((room if has_partial else 0, documents), np.uint8),
        )
        chunk.rows = first_pass.walk(
            raw,
            start,
            end,
            code,
            self._width,
            documents,
            self._allow_partial,
            _BYTES,
            chunk.at,
            chunk.op,
            chunk.event,
            chunk.partial,
            chunk.shape,
            chunk.shaped,
            chunk.sizes,
            chunk.nulls,
            state,
        )
        bytes_a_row = int(state[first_pass.BYTES]) // max(1, chunk.rows) + 1
        chunk.block = max(8, _BLOCK_BYTES // bytes_a_row // 8 * 8)
        return chunk

    def _places(self, room: int) -> Longs:
        """Return room for the places of values; chunks use it one after the other."""
        if self._at.shape[1] < room:
            self._at = np.empty((2, room, len(self._columns)), np.int64)
        return self._at

    def _most_rows(self, start: Longs, end: Longs, state: Longs) -> int:
        """Return how many rows the rest of the events can hold at most: each has a bitmap."""
        rest = int((end[state[first_pass.EVENT] :] - start[state[first_pass.EVENT] :]).sum())
        if self._allow_partial:
            return max(1, rest)
        return max(1, rest // max(1, (len(self._columns) + 7) // 8))

    def _rows(
        self,
        events: RowEvents,
        raw: npt.NDArray[np.uint8],
        chunk: _Chunk,
        first_row: _RowNumbers,
    ) -> Rows:
        rows, op, event = chunk.rows, chunk.op[: chunk.rows], chunk.event[: chunk.rows]
        before = self._side(events, raw, chunk, first_pass.BEFORE, None)
        after = self._side(events, raw, chunk, first_pass.AFTER, before)
        return make_rows(
            self.schema,
            pa.array(op),
            pa.array(events.commit_ts[event].astype(np.uint64, copy=False)),
            pa.array(events.seq[event] + first_row.of(event)),
            _struct(before, rows, op != first_pass.INSERT),
            _struct(after, rows, op != first_pass.DELETE),
        )

    def _side(
        self,
        events: RowEvents,
        raw: npt.NDArray[np.uint8],
        chunk: _Chunk,
        side: int,
        before: _Images | None,
    ) -> _Images:
        """Fill the columns of one side's images, and convert those that need it."""
        rows = chunk.rows
        if chunk.shaped[side] < 0:
            return _Images([pa.field(c.name, c.arrow) for c in self._columns], None, {})
        n = int(chunk.shaped[side])
        places = [int(c) for c in chunk.shape[side, :n]]
        readers = [self._columns[c] for c in places]
        at = chunk.at[side]
        sizes, nulls = chunk.sizes[side], chunk.nulls[side]
        fixed = [r.is_fixed for r in readers]
        slot = np.zeros(n, np.int64)
        slot[fixed] = np.arange(sum(fixed))
        slot[~np.array(fixed, np.bool_)] = np.arange(n - sum(fixed))
        rooms = [r.room(rows - int(nulls[j]), int(sizes[j])) for j, r in enumerate(readers)]
        begin = np.cumsum([0, *(s for s, f in zip(rooms, fixed, strict=True) if not f)])
        words = np.empty((sum(fixed), rows), np.int64)
        offsets = np.empty((n - sum(fixed), rows + 1), np.int64)
        out = np.empty(int(begin[-1]), np.uint8)
        with_nulls = nulls[:n] > 0
        bitmap_slot = np.where(with_nulls, np.cumsum(with_nulls) - 1, -1)
        bitmaps = np.empty((int(with_nulls.sum()), (rows + 7) // 8), np.uint8)
        row, j, why = second_pass.fill(
            raw,
            at,
            rows,
            chunk.block,
            chunk.shape[side],
            self._action,
            self._first,
            self._second,
            frozen(slot),
            words,
            offsets,
            frozen(begin),
            out,
            frozen(bitmap_slot),
            bitmaps,
        )
        if why:
            self._refuse(events, int(chunk.event[row]), why, places[j], int(at[row, j]))
        images = _Images([pa.field(r.name, r.arrow) for r in readers], [], {})
        for j, reader in enumerate(readers):
            bitmap = pa.py_buffer(bitmaps[bitmap_slot[j]]) if with_nulls[j] else None
            if fixed[j]:
                images.add(reader.words(words[slot[j]], bitmap, int(nulls[j])))
                continue
            k = int(slot[j])
            found = Strings(out[begin[k] : begin[k + 1]], offsets[k])
            present = at[:rows, j] >= 0
            try:
                if side == first_pass.AFTER and len(chunk.partial) and places[j] in self._documents:
                    changed = chunk.partial[:rows, self._documents.index(places[j])]
                    found = reader.with_changes(
                        found, present, changed, before.documents.get(places[j]) if before else None
                    )
                if len(chunk.partial) and places[j] in self._documents:
                    images.documents[places[j]] = (found, present)
                images.add(reader.strings(found, present, bitmap, int(nulls[j])))
            except Refused as err:
                place = int(at[err.row, j])
                self._refuse(events, int(chunk.event[err.row]), err.why, places[j], place)
        return images

    def _split(self, events: RowEvents, chunk: _Chunk, rows: Rows) -> Iterator[Rows]:
        """Give rows of each table partition as a chunk of their own."""
        event = chunk.event[: chunk.rows]
        used = np.unique(event)
        of_event = np.zeros(len(events), np.int64)
        for e in used:
            found = partition_of(
                events.data[events.start[e] : events.end[e]].tobytes(), int(events.code[e])
            )
            if found is None:
                self._refuse(events, int(e), BAD_PARTITION, -1, int(events.start[e]))
            of_event[e] = found
        partitions = of_event[event]
        for partition in np.unique(partitions):
            where = np.flatnonzero(partitions == partition)
            part = rows if len(where) == len(rows) else rows.take(where)
            yield replace(part, physical_id=int(partition))

    def _refuse(self, events: RowEvents, event: int, why: int, column: int, place: int) -> NoReturn:
        name = _NAMES[int(events.code[event])]
        words = f"{self.schema.id}, {name} {event} of {len(events)}"
        if column >= 0:
            words += f", column {self.schema.columns[column].name!r}"
        byte = place - int(events.start[event])
        raise CorruptLog(f"{words}, byte {byte} after its header: {WORDS[why]}")


class _Images:
    """The columns of one side of a chunk; no arrays: no row has such an image."""

    def __init__(
        self,
        fields: list[pa.Field],
        arrays: list[pa.Array] | None,
        documents: dict[int, tuple[Strings, npt.NDArray[np.bool_]]],
    ) -> None:
        self.fields = fields
        self.arrays = arrays
        self.documents = documents  # binary JSON by column, where the other side may need it

    def add(self, array: pa.Array) -> None:
        assert self.arrays is not None
        self.arrays.append(array)


class _RowNumbers:
    """Numbers the rows inside each event, also where an event's rows are in several chunks."""

    def __init__(self) -> None:
        self._event = -1
        self._count = 0

    def of(self, event: npt.NDArray[np.int32]) -> Longs:
        rows = np.arange(len(event), dtype=np.int64)
        begins = np.concatenate(([True], event[1:] != event[:-1]))
        first = np.maximum.accumulate(np.where(begins, rows, 0))
        found = rows - first
        if int(event[0]) == self._event:
            found[event == event[0]] += self._count
        self._event, self._count = int(event[-1]), int(found[-1]) + 1
        return found


def _struct(images: _Images, rows: int, present: npt.NDArray[np.bool_]) -> pa.StructArray:
    kind = pa.struct(images.fields)
    if images.arrays is None:
        return pa.nulls(rows, kind)
    whole = bool(present.all())
    bitmap = None if whole else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [bitmap], children=images.arrays)


def _joined(events: RowEvents, bodies: list[bytes]) -> RowEvents:
    """Return the events with these plain bodies."""
    end = np.cumsum([len(b) for b in bodies], dtype=np.int64)
    start = np.concatenate((np.zeros(1, np.int64), end[:-1]))
    code = np.array([_PLAIN.get(int(c), int(c)) for c in events.code], np.uint8)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    return RowEvents(data, start, end, code, events.commit_ts, events.seq)


def partition_of(body: bytes, code: int) -> int | None:
    """Return the number of the table partition that a rows event's rows are in; None: it has none.

    Only MySQL's events of version 2 say it. `body` is the event after its 19-byte header.
    """
    if code < 30 or code > first_pass.PARTIAL_UPDATE or len(body) < 10:
        return None
    end = min(len(body), 8 + int.from_bytes(body[8:10], "little"))
    place = 10
    while place < end:
        if body[place] == _PARTITION:
            return int.from_bytes(body[place + 1 : place + 3], "little")
        if place + 1 >= end:
            return None
        place += 1 + body[place + 1]
    return None
