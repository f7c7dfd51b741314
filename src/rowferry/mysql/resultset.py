"""The rows of one SELECT as Arrow columns, in blocks of bounded size.

Bytes go from the socket into a buffer that compiled code walks over; no row is a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableSchema
from rowferry.columnar.packed import Bytes, Longs
from rowferry.errors import CorruptLog, RowferryError, SourceError, SourceUnavailable
from rowferry.moment import moment
from rowferry.mysql import resultset_kernels as kernels
from rowferry.mysql import session
from rowferry.mysql.address_text import vector_texts
from rowferry.mysql.charsets import to_utf8
from rowferry.mysql.session import Connection, Login

Meanings: TypeAlias = Mapping[int, type[SourceError]]

_QUERY: Final = 3
_BLOCK: Final = 8 << 20  # so many bytes are collected before rows are read out of them
_SPARE: Final = 1 << 20
_LONGEST: Final = 1100 << 20  # a packet may have 1 GiB
_CELLS: Final = 2 << 20  # values in one block of rows, so that wide tables stay small
_ROWS: Final = 1 << 16
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_NOT_READABLE: Final = "the server's answer cannot be read"


class ResultSet:
    """An answer to a SELECT, on a connection that does nothing else meanwhile."""

    def __init__(
        self, connection: Connection[Any], login: Login, sql: str, meanings: Meanings
    ) -> None:
        """Send the statement and wait for the head of its answer.

        Until the rows are read to their end, the connection is good for nothing else. `meanings`
        says what an error number of the server means here, where it is not the usual.

        Raises:
            SourceError: the server refused, or did not answer.
        """
        self._connection, self._login = connection, login
        self._meanings = meanings
        self._raw: Bytes = np.empty(_BLOCK + _SPARE, np.uint8)
        self._filled = 0
        self._state: Longs = np.array([0, 0, 1], np.int64)
        self._start: Longs = np.empty(kernels.MAX_COLUMNS + 1, np.int64)
        self._end: Longs = np.empty(kernels.MAX_COLUMNS + 1, np.int64)
        session.send_command(connection, login, _QUERY, sql.encode())
        self._socket = session.socket_of(connection)
        self._socket.settimeout(login.read_timeout_s)
        while self._packets() == kernels.MORE:
            self._fill()
        self.columns = int(self._state[kernels.COUNT]) - 1
        self._skip()
        room = min(_ROWS, _CELLS // max(1, self.columns) + 1)
        self._start, self._end = np.empty(room, np.int64), np.empty(room, np.int64)

    def read(self, schema: TableSchema) -> Iterator[pa.StructArray]:
        """Yield all rows as images of a table, whose columns the statement named in order.

        Raises:
            SourceUnavailable: the connection was lost.
            CorruptLog: a value is not what its column's type allows.
        """
        if self.columns != len(schema.columns):
            raise CorruptLog(f"{self._login}: {self.columns} columns for {len(schema.columns)}")
        while True:
            why = self._packets()
            count = int(self._state[kernels.COUNT])
            if why == kernels.MORE and (count == 0 or self._filled < _BLOCK):
                self._fill()
                continue
            if count:
                self._state[kernels.COUNT] = 0
                yield row_images(schema, self._raw, self._start[:count], self._end[:count])
            if why == kernels.END:
                session.check_end(self._connection, self._login, self._packet())
                return

    def finish(self) -> None:
        """Read to the end and forget the rows."""
        while self._packets() != kernels.END:
            self._state[kernels.COUNT] = 0
            self._fill()
        session.check_end(self._connection, self._login, self._packet())

    def _packets(self) -> int:
        why = kernels.find_packets(self._raw, self._filled, self._state, self._start, self._end)
        if why == kernels.REFUSED:
            raise self._refusal()
        if why == kernels.BAD:
            raise CorruptLog(f"{self._login}: {_NOT_READABLE}: its packets are out of order")
        return why

    def _refusal(self) -> RowferryError:
        packet = self._packet()
        meaning = self._meanings.get(int.from_bytes(packet[1:3], "little"))
        error = session.error_of(packet, self._login)
        return meaning(error.words) if meaning else error

    def _packet(self) -> bytes:
        at = int(self._state[kernels.AT])
        size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
        return self._raw[at + 4 : at + 4 + size].tobytes()

    def _skip(self) -> None:
        """Go on behind the packet that ended the columns' definitions."""
        packet = self._packet()
        session.check_end(self._connection, self._login, packet)
        self._state[:] = (
            int(self._state[kernels.AT]) + 4 + len(packet),
            0,
            (int(self._state[kernels.NEXT]) + 1) & 255,
        )

    def _fill(self) -> None:
        """Wait for bytes and add them; between blocks of rows the rest moves to the front."""
        moment("receive rows")
        if self._state[kernels.COUNT] == 0:
            self._make_room()
        try:
            got = self._socket.recv_into(self._raw[self._filled :].data)
        except (OSError, ValueError) as err:
            raise SourceUnavailable(f"{self._login} stopped sending rows: {err}") from None
        if not got:
            raise SourceUnavailable(f"{self._login} closed the connection amid a result")
        self._filled += got

    def _make_room(self) -> None:
        at = int(self._state[kernels.AT])
        left = self._filled - at
        usual = _BLOCK + _SPARE
        if left > _LONGEST:
            raise CorruptLog(f"{self._login}: {_NOT_READABLE}: a row has more than 1 GiB")
        room = max(usual, min(2 * left, _LONGEST + usual) if left > usual // 2 else usual)
        target = self._raw if room == len(self._raw) else np.empty(room, np.uint8)
        target[:left] = self._raw[at : self._filled]
        self._raw, self._filled = target, left
        self._state[kernels.AT] = 0


# --- packets to columns --------------------------------------------------------------------------


def row_images(schema: TableSchema, raw: Bytes, start: Longs, end: Longs) -> pa.StructArray:
    """Return rows of the text protocol as images of type `schema.image`.

    Raises:
        CorruptLog: a row's packet does not hold the columns, or a value is not of its type; the
            text names table, column and row.
    """
    at = np.empty((len(schema.columns), len(start)), np.int64)
    size = np.empty_like(at)
    wrong = kernels.locate(raw, start, end, at, size)
    if wrong:
        row, column = divmod(int(wrong) - 1, kernels.MAX_COLUMNS)
        raise _unreadable(schema, column, row)
    children = []
    for c, column_ in enumerate(schema.columns):
        try:
            children.append(_column(column_.type, raw, at[c], size[c]))
        except _BadValueError as err:
            raise _unreadable(schema, c, err.row) from None
    return pa.StructArray.from_arrays(children, fields=list(schema.image))


class _BadValueError(Exception):
    def __init__(self, row: int) -> None:
        self.row = row


def _unreadable(schema: TableSchema, column: int, row: int) -> CorruptLog:
    name = schema.columns[column].name
    return CorruptLog(f"{schema.id}, column {name!r}, row {row} of a block: {_NOT_READABLE}")


def _column(kind: SqlType, raw: Bytes, at: Longs, size: Longs) -> pa.Array:
    rows = len(at)
    bitmap = np.zeros((rows + 7) // 8, np.uint8)
    nulls = kernels.validity(size, bitmap)
    valid = pa.py_buffer(bitmap) if nulls else None
    if kind.kind in _NUMBERS:
        numbers = np.empty(rows, np.uint64)
        signed = kind.arrow == pa.int64()
        _check(kernels.integers(raw, at, size, signed, numbers))
        return pa.Array.from_buffers(kind.arrow, rows, [valid, pa.py_buffer(numbers)], nulls)
    offsets = np.empty(rows + 1, np.int64)
    kernels.text_offsets(size, offsets)
    out: Bytes = np.empty(int(offsets[rows]), np.uint8)
    kernels.texts(raw, at, offsets, out)
    if kind.kind is Kind.FLOAT or kind.kind is Kind.DOUBLE:
        return _floats(kind, _strings(pa.large_utf8(), valid, offsets, out, nulls))
    if kind.kind is Kind.VECTOR:
        out, offsets, wrong = vector_texts(out, offsets, size != kernels.NULL)
        _check(wrong + 1)
    elif kind.kind is not Kind.BINARY:
        out, offsets = to_utf8("utf8mb4", out, offsets)  # as the log's rows: stray bytes become `?`
    return _strings(kind.arrow, valid, offsets, out, nulls)


def _strings(
    kind: pa.DataType, valid: pa.Buffer | None, offsets: Longs, data: Bytes, nulls: int
) -> pa.Array:
    used = pa.py_buffer(data).slice(0, int(offsets[-1]))
    rows = len(offsets) - 1
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(offsets), used], nulls)


def _check(wrong: int) -> None:
    if wrong:
        raise _BadValueError(int(wrong) - 1)


def _floats(kind: SqlType, text: pa.Array) -> pa.Array:
    try:
        wide = text.cast(pa.float64())
    except pa.ArrowInvalid:
        raise _BadValueError(_first_bad(text)) from None
    return wide.cast(kind.arrow, safe=False)


def _first_bad(text: pa.Array) -> int:
    for row, value in enumerate(text.view(pa.large_binary()).to_pylist()):
        try:
            float(value or 0)
        except ValueError:
            return row
    return 0
