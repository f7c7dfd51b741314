"""Rows events as chunks: the bytes of one table's events become Arrow columns.

Comes in: a buffer and where in it the rows events of one TABLE_MAP lie. Goes out: chunks. One pass
finds where each row image has each column's bytes, a second one fills the columns; what needs more
than that (other character sets, JSON, vectors, addresses) is converted column by column.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.table import TableSchema
from rowferry.columnar.addresses import (
    BAD_COLUMN_COUNT,
    BAD_COMPRESSED,
    BAD_DECIMAL,
    BAD_DIFF,
    BAD_JSON,
    BAD_LENGTH,
    BAD_OPTIONS,
    BAD_PARTITION,
    BAD_TIME,
    BAD_VECTOR,
    CUT_SHORT,
    EMPTY_IMAGE,
    JSON_TOO_DEEP,
    NO_DOCUMENT,
    PARTIAL_IMAGE,
    Longs,
    frozen,
)
from rowferry.errors import CorruptLog, EventUnknown, SourceUnsupported, TableVersionUnknown
from rowferry.flow.capture.binlog.decode import kernels_find as kernels
from rowferry.flow.capture.binlog.decode.columns import ColumnReader
from rowferry.flow.capture.binlog.decode.images import FoundRows, ImageReader, ImageRefused
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, mismatch
from rowferry.flow.capture.binlog.decode.table_map_reader import JSON
from rowferry.flow.capture.binlog.frame.compressed import inflate_part
from rowferry.mysql.session import Flavour

_ROWS: Final = 1 << 16  # of a chunk, at most
_BYTES: Final = 32 << 20  # of a chunk's rows, about
_CELLS: Final = 1 << 22  # places that are found at a time
_BLOCK_BYTES: Final = 1 << 17  # of rows that are taken column by column together
_SCRATCHES: Final = 2  # kept for later

# Why the bytes of an event cannot be read.
_WORDS: Final[dict[int, str]] = {
    CUT_SHORT: "the event is cut short",
    BAD_COLUMN_COUNT: "the event has another number of columns than its TABLE_MAP",
    PARTIAL_IMAGE: "the row image lacks columns; SET GLOBAL binlog_row_image = FULL, reconnect "
    "all sessions and begin after this place, or set partial-row-image=allow",
    EMPTY_IMAGE: "the row image has no columns at all",
    BAD_OPTIONS: "the row image has unknown value options",
    BAD_DECIMAL: "the bytes are not a decimal of this type",
    BAD_TIME: "the bytes are not a date or time",
    BAD_JSON: "the bytes are not binary JSON",
    JSON_TOO_DEEP: "the JSON document is nested too deeply",
    BAD_VECTOR: "the bytes are not a vector",
    BAD_LENGTH: "the value is longer than its type allows",
    NO_DOCUMENT: "only what changed in a JSON document is logged, and the image before the change "
    "lacks the document; SET GLOBAL binlog_row_value_options = '' and begin after this place",
    BAD_DIFF: "the changes of a JSON document do not fit it",
    BAD_COMPRESSED: "the bytes are not a compressed value",
    BAD_PARTITION: "the event does not say which partition its rows are in",
}
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
COMPRESSED: Final = min(_PLAIN)  # codes from here on
_IS_ROWS: Final = np.isin(np.arange(256), list(_NAMES))  # by type code
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
            allow_partial: images may lack columns; then the chunks' structs lack them too, unless
                the image before an update tells them. Virtual columns, which nobody writes on, they
                may always lack: some servers leave them out.

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
        virtual = (i for i, c in enumerate(schema.columns) if c.generated == "virtual")
        self._virtual = frozenset(virtual)
        columns = [
            ColumnReader(mapped_column, column, mapped.has_metadata, str(schema.id))
            for mapped_column, column in zip(mapped.columns, schema.columns, strict=True)
        ]
        documents = [i for i, c in enumerate(mapped.columns) if c.code == JSON]
        self._images = ImageReader(columns, documents)
        self._columns = len(columns)
        self._documents = len(documents)
        self._width = frozen(np.array([c.width for c in columns], np.int64))
        self._room = max(64, min(_ROWS, _CELLS // (2 * max(1, len(columns)))))

    def of_table(self, schema: TableSchema) -> RowsDecoder:
        """Return a decoder for a table that differs from this one in its name only."""
        decoder = copy(self)
        decoder.schema = schema
        return decoder

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
            SourceUnsupported: partitions are asked for, and the log does not tell them.
        """
        if by_partition and self._flavour is Flavour.MARIADB:
            raise SourceUnsupported(
                f"{self.schema.id}: MariaDB's log does not say which partition a row is in"
            )
        self._require_rows(events)
        for plain in self._inflated(events):
            for rows, event in self._decode(plain):
                if by_partition:
                    yield from self._split(plain, event, rows)
                else:
                    yield rows

    def decode_alike(self, events: RowEvents) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
        """Give rows of this table and of others made alike, each chunk with its rows' events.

        The events are not compressed. Errors name this table, whichever is at fault.
        """
        self._require_rows(events)
        return self._decode(events)

    def _require_rows(self, events: RowEvents) -> None:
        unknown = ~_IS_ROWS[events.code]
        if unknown.any():
            raise EventUnknown(
                f"{self.schema.id}: event code {int(events.code[unknown][0])} holds no rows"
            )

    def _inflated(self, events: RowEvents) -> Iterator[RowEvents]:
        """Give events without MariaDB's compression, at most about `_BYTES` of them at a time."""
        compressed = events.code >= COMPRESSED
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
        count = self._columns
        place += 1 if count < 251 else 3
        place += (count + 7) // 8 * (2 if code in (167, 170) else 1)
        return body[:place] + inflate_part(body[place:], name)

    def _decode(self, events: RowEvents) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        plain = replace(
            events,
            data=frozen(events.data),
            start=frozen(events.start),
            end=frozen(events.end),
            code=frozen(events.code.astype(np.uint8, copy=False)),
        )
        numbers = _RowNumbers()
        while state[kernels.EVENT] < len(plain):
            room = min(self._room, self._most_rows(plain, int(state[kernels.EVENT])))
            with _scratch.lent(room, self._columns) as at:
                located = self._find(plain, state, at)
                if state[kernels.FAULT]:
                    event, why = int(state[kernels.EVENT]), int(state[kernels.FAULT])
                    column, place = int(state[kernels.FAULT_COLUMN]), int(state[kernels.FAULT_AT])
                    self._refuse(events, event, why, column, place)
                if not located.rows:
                    continue
                rows = self._rows(plain, located, numbers)
            if self._allow_partial:
                yield from _with_what_stayed(rows, located.event)
            else:
                yield rows, located.event

    def _find(self, events: RowEvents, state: Longs, at: Longs) -> FoundRows:
        """Run the first pass for one chunk; `at` has room for the places of its values."""
        room, count, documents = at.shape[1], self._columns, self._documents
        has_partial = bool(documents) and bool((events.code == kernels.PARTIAL_UPDATE).any())
        op, event = np.empty(room, np.int8), np.empty(room, np.int32)
        partial = np.zeros((room if has_partial else 0, documents), np.uint8)
        shape, shaped = np.zeros((2, count), np.int16), np.zeros(2, np.int64)
        sizes, nulls = np.zeros((2, count), np.int64), np.zeros((2, count), np.int64)
        rows = kernels.walk(
            events.data,
            events.start,
            events.end,
            events.code,
            self._width,
            documents,
            self._allow_partial or bool(self._virtual),
            _BYTES,
            at,
            op,
            event,
            partial,
            shape,
            shaped,
            sizes,
            nulls,
            state,
        )
        bytes_a_row = int(state[kernels.BYTES]) // max(1, rows) + 1
        block = max(8, _BLOCK_BYTES // bytes_a_row // 8 * 8)
        cut = partial[:rows] if has_partial else None
        located = FoundRows(
            rows, block, op[:rows], event[:rows], at, shape, shaped, sizes, nulls, cut
        )
        if rows and self._virtual and not self._allow_partial:
            self._check_shapes(events, located)
        return located

    def _check_shapes(self, events: RowEvents, located: FoundRows) -> None:
        """Refuse images that lack other columns than virtual ones."""
        for side in range(2):
            have = {int(c) for c in located.shape[side, : max(0, int(located.shaped[side]))]}
            lacking = set(range(self._columns)) - have - self._virtual
            if located.shaped[side] >= 0 and lacking:
                event = int(located.event[0])
                place = int(events.start[event])
                self._refuse(events, event, PARTIAL_IMAGE, min(lacking), place)

    def _most_rows(self, events: RowEvents, first: int) -> int:
        """Return how many rows the events can hold at most: each has a bitmap."""
        rest = int((events.end[first:] - events.start[first:]).sum())
        return max(1, rest if self._allow_partial else rest // ((self._columns + 7) // 8 or 1))

    def _rows(self, events: RowEvents, located: FoundRows, numbers: _RowNumbers) -> Rows:
        """Run the second pass, and put the chunk together."""
        try:
            before, after = self._images.read(events.data, located)
        except ImageRefused as err:
            self._refuse(events, int(located.event[err.row]), err.why, err.column, err.place)
        event = located.event
        return make_rows(
            self.schema,
            pa.array(located.op),
            pa.array(events.commit_ts[event].astype(np.uint64, copy=False)),
            pa.array(events.seq[event] + numbers.of(event)),
            before,
            after,
        )

    def _split(self, events: RowEvents, event: npt.NDArray[np.int32], rows: Rows) -> Iterator[Rows]:
        """Give rows of each table partition as a chunk of their own."""
        used = np.unique(event)
        of_event = np.zeros(len(events), np.int64)
        for e in used:
            number = partition_of(
                events.data[events.start[e] : events.end[e]].tobytes(), int(events.code[e])
            )
            if number is None:
                self._refuse(events, int(e), BAD_PARTITION, -1, int(events.start[e]))
            of_event[e] = number
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
        raise CorruptLog(f"{words}, byte {byte} after its header: {_WORDS[why]}")


def _with_what_stayed(
    rows: Rows, event: npt.NDArray[np.int32]
) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
    """Give updates the columns that their images after the change lack, from those before it.

    What the log leaves out there was not changed; only what is generated may have changed with the
    columns that it is made of. Inserts have no image to take a column from, and all rows of a chunk
    have the same columns: so they go into chunks of their own.
    """
    before, after = rows.before.type, rows.after.type
    have = {field.name for field in after}
    stayed = {
        field.name
        for field in before
        if field.name not in have and not rows.table.column(field.name).generated
    }
    if not stayed or not (rows.op == int(Op.UPDATE)).any():
        yield rows, event
        return
    inserts = rows.op == int(Op.INSERT)
    borders = np.flatnonzero(inserts[1:] != inserts[:-1]) + 1
    for first, last in pairwise([0, *borders.tolist(), len(rows)]):
        part = replace(rows, batch=rows.batch.slice(first, last - first))
        if not inserts[first]:
            part = _filled(part, stayed)
        yield part, event[first:last]


def _filled(rows: Rows, stayed: set[str]) -> Rows:
    """Return rows whose images after the change have these columns of those before it, too."""
    before, after = rows.before, rows.after
    arrays, fields = [], []
    for column in rows.table.columns:
        source = before if column.name in stayed else after
        place = source.type.get_field_index(column.name)
        if place >= 0:
            arrays.append(source.field(place))
            fields.append(source.type.field(place))
    whole = pa.StructArray.from_arrays(arrays, fields=fields, mask=after.is_null())
    place = rows.batch.schema.get_field_index("after")
    return replace(rows, batch=rows.batch.set_column(place, "after", whole))


class Scratch:
    """Room for the places of values. All decoders of a process use it in turn.

    Room is kept for a few who decode at once, not for each thread: a server has a thread for every
    changefeed, and the largest micro-batch of each would stay in memory.
    """

    def __init__(self) -> None:
        self._free: list[Longs] = []
        self._lock = threading.Lock()

    @contextmanager
    def lent(self, rows: int, columns: int) -> Iterator[Longs]:
        """Lend room for so many rows; nobody may look at it after the block."""
        size = 2 * rows * columns
        with self._lock:
            room = self._free.pop() if self._free else np.empty(0, np.int64)
        if size > len(room):
            room = np.empty(size, np.int64)
        try:
            yield room[:size].reshape(2, rows, columns)
        finally:
            with self._lock:
                if len(self._free) < _SCRATCHES:
                    self._free.append(room)


_scratch: Final = Scratch()


class _RowNumbers:
    """Numbers the rows inside each event, also where an event's rows are in several chunks."""

    def __init__(self) -> None:
        self._event = -1
        self._count = 0

    def of(self, event: npt.NDArray[np.int32]) -> Longs:
        rows = np.arange(len(event), dtype=np.int64)
        begins = np.concatenate(([True], event[1:] != event[:-1]))
        first = np.maximum.accumulate(np.where(begins, rows, 0))
        numbers = rows - first
        if int(event[0]) == self._event:
            numbers[event == event[0]] += self._count
        self._event, self._count = int(event[-1]), int(numbers[-1]) + 1
        return numbers


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
    if code < 30 or code > kernels.PARTIAL_UPDATE or len(body) < 10:
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
