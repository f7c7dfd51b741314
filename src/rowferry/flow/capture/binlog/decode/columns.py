"""How the values of one column are read, and what is done to them after the compiled passes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column
from rowferry.columnar.addresses import (
    BAD_COMPRESSED,
    BAD_VECTOR,
    NO_DOCUMENT,
    Bytes,
    Longs,
    frozen,
)
from rowferry.columnar.inflate import LONGEST_ROW
from rowferry.columnar.json_binary import MYSQL, json_texts
from rowferry.errors import EventUnknown
from rowferry.flow.capture.binlog.decode import kernels_columns as k
from rowferry.flow.capture.binlog.decode import kernels_text as texts
from rowferry.flow.capture.binlog.decode import table_map_reader as codes
from rowferry.flow.capture.binlog.decode.json_changes import apply_changes
from rowferry.flow.capture.binlog.decode.table_map import MappedColumn
from rowferry.mysql.address_text import (
    ADDRESS_ROOM,
    INET4,
    INET6,
    UUID,
    addresses,
    vector_texts,
)
from rowferry.mysql.charsets import charset_of, plain_name, to_utf8

Flags = npt.NDArray[np.bool_]
_WHOLE: Final = {codes.TINY: 1, codes.SHORT: 2, codes.INT24: 3, codes.LONG: 4, codes.LONGLONG: 8}
_ADDRESSES: Final = {"inet4": INET4, "inet6": INET6, "uuid": UUID}
_OLD_TIMES: Final = {
    codes.TIME: (k.OLD_TIME, 3),
    codes.DATETIME: (k.OLD_DATE_TIME, 8),
    codes.TIMESTAMP: (k.OLD_TIMESTAMP, 4),
}
_TIMES: Final = {
    codes.TIME2: (k.TIME, 3),
    codes.DATETIME2: (k.DATE_TIME, 5),
    codes.TIMESTAMP2: (k.TIMESTAMP, 4),
}
_ROOMS: Final = {
    k.DATE: texts.DATE_ROOM,
    k.OLD_TIME: texts.TIME_ROOM,
    k.TIME: texts.TIME_ROOM,
    k.OLD_DATE_TIME: texts.DATE_TIME_ROOM,
    k.DATE_TIME: texts.DATE_TIME_ROOM,
    k.OLD_TIMESTAMP: texts.DATE_TIME_ROOM,
    k.TIMESTAMP: texts.DATE_TIME_ROOM,
}


class BadValue(Exception):
    """The value in a row of the chunk cannot be read, and why; `RowsDecoder` says where."""

    def __init__(self, row: int, why: int) -> None:
        self.row = row
        self.why = why


@dataclass(frozen=True, slots=True)
class Strings:
    """A column of byte strings: their bytes, where each begins, and where the last one ends."""

    data: Bytes
    offsets: Longs


class ColumnReader:
    """Reads one column: tells the compiled passes how, and finishes what they give.

    Attributes:
        name: of the column.
        arrow: the Arrow type of its values.
        width: bytes of a value in the log; negative: bytes of the length in front of it.
        action: how the second pass reads it, with `first` and `second`.
    """

    def __init__(
        self, mapped: MappedColumn, column: Column, has_metadata: bool, table: str
    ) -> None:
        """Prepare for a column.

        Raises:
            EventUnknown: the log has a form of this type that is not known here.
        """
        self.name = column.name
        self.arrow = column.type.arrow
        self._mapped = mapped
        self._type = column.type
        self._charset = charset_of(mapped.collation) if has_metadata else ""
        if column.type.kind is Kind.TEXT and self._charset in ("", "binary"):
            self._charset = plain_name(column.type.charset)
        unsigned = mapped.unsigned if has_metadata else column.type.unsigned
        if mapped.code in _OLD_TIMES and column.type.fraction_digits:
            raise EventUnknown(
                f"{table}, column {column.name!r}: its fraction is stored in MariaDB's old form, "
                "which the log does not describe; SET GLOBAL mysql56_temporal_format = ON and "
                "rebuild the table with ALTER TABLE … FORCE"
            )
        self.width, self.action, self.first, self.second = _reading(mapped, column.type, unsigned)

    @property
    def is_fixed(self) -> bool:
        """Values are 64-bit words."""
        return self.action < k.FIXED_ACTIONS

    def room(self, values: int, size: int) -> int:
        """Return how many bytes values of variable length can need; `size`: as the log has them."""
        if self.action == k.STRING:
            return size
        if self.action == k.PADDED:
            return values * self.second
        if self.action == k.DECIMAL:
            return values * (self.first + texts.DECIMAL_ROOM)
        return values * _ROOMS.get(self.action, 0)

    def words(self, words: Longs, bitmap: pa.Buffer | None, nulls: int) -> pa.Array:
        """Return the column's array, given its values as 64-bit words."""
        values: npt.NDArray[Any] = words
        if self._mapped.code == codes.FLOAT:
            values = np.ascontiguousarray(words.view(np.float32)[::2])
        return pa.Array.from_buffers(self.arrow, len(words), [bitmap, pa.py_buffer(values)], nulls)

    def strings(
        self, raw_texts: Strings, present: Flags, bitmap: pa.Buffer | None, nulls: int
    ) -> pa.Array:
        """Return the column's array, given its values as bytes.

        Raises:
            BadValue: a value cannot be read.
        """
        done = self._converted(raw_texts, present)
        used = pa.py_buffer(done.data).slice(0, int(done.offsets[-1]))
        buffers = [bitmap, pa.py_buffer(done.offsets), used]
        return pa.Array.from_buffers(self.arrow, len(present), buffers, nulls)

    def _converted(self, raw_texts: Strings, present: Flags) -> Strings:
        if self._mapped.code in (codes.BLOB_COMPRESSED, codes.VARCHAR_COMPRESSED):
            raw_texts = _inflated(raw_texts)
        used = raw_texts.data[: raw_texts.offsets[-1]]
        match self._type.kind:
            case Kind.TEXT if self._type.name in _ADDRESSES:
                kind = _ADDRESSES[self._type.name]
                out = np.empty(int(present.sum()) * ADDRESS_ROOM, np.uint8)
                offsets = np.empty(len(raw_texts.offsets), np.int64)
                addresses(kind, frozen(raw_texts.data), frozen(raw_texts.offsets), offsets, out)
                return Strings(out, offsets)
            case Kind.TEXT:
                return Strings(*to_utf8(self._charset, used, raw_texts.offsets))
            case Kind.JSON:
                at, sizes = raw_texts.offsets[:-1], np.diff(raw_texts.offsets)
                data, offsets, row, why = json_texts(MYSQL, raw_texts.data, at, sizes, present)
                if why:
                    raise BadValue(row, why)
                return Strings(*to_utf8("utf8mb4", data[: offsets[-1]], offsets))
            case Kind.VECTOR:
                data, offsets, row = vector_texts(raw_texts.data, raw_texts.offsets, present)
                if row >= 0:
                    raise BadValue(row, BAD_VECTOR)
                return Strings(data, offsets)
        return raw_texts

    def with_changes(
        self, raw_texts: Strings, changed: Flags, before: tuple[Strings, Flags] | None
    ) -> Strings:
        """Return whole binary documents, given the changes of those in `changed` rows.

        Raises:
            BadValue: the document before the change is not there, or the changes do not fit it.
        """
        if not changed.any():
            return raw_texts
        parts = _pieces(raw_texts)
        for row in map(int, np.flatnonzero(changed)):
            if before is None or not before[1][row]:
                raise BadValue(row, NO_DOCUMENT)
            old, offsets = before[0].data, before[0].offsets
            document = old[offsets[row] : offsets[row + 1]].tobytes()
            whole, why = apply_changes(document, parts[row])
            if why:
                raise BadValue(row, why)
            parts[row] = whole
        return _of_pieces(parts)


def _reading(mapped: MappedColumn, kind: SqlType, unsigned: bool) -> tuple[int, int, int, int]:
    """Return a column's width, action and what the action needs to know."""
    code, meta = mapped.code, mapped.meta
    if code in _WHOLE:
        return _WHOLE[code], k.UNSIGNED if unsigned else k.SIGNED, _WHOLE[code], 0
    if code in (codes.FLOAT, codes.DOUBLE):
        size = 4 if code == codes.FLOAT else 8
        return size, k.UNSIGNED, size, 0
    if code in (codes.ENUM, codes.SET):
        return meta, k.UNSIGNED, meta, 0
    if code == codes.BIT:
        return (meta + 7) // 8, k.BIG_ENDIAN, (meta + 7) // 8, 0
    if code == codes.YEAR:
        # Of two digits, 00 is what MariaDB takes for 2000, however it is stored.
        return 1, k.YEAR, 2000 if kind.length == 2 else 0, 0
    if code == codes.NEWDECIMAL:
        digits, scale = meta >> 8, meta & 255
        size = sum(n // 9 * 4 + (n % 9 + 1) // 2 for n in (digits - scale, scale))
        return size, k.DECIMAL, digits, scale
    if code in (codes.DATE, codes.NEWDATE):
        return 3, k.DATE, 0, 0
    if code in _TIMES:
        action, size = _TIMES[code]
        return size + (meta + 1) // 2, action, meta, 0
    if code in _OLD_TIMES:
        action, size = _OLD_TIMES[code]
        return size, action, 0, 0
    if code in codes.STRINGS:
        head = 1 if meta < 256 else 2
        if code == codes.STRING and (kind.kind is Kind.BINARY or kind.name in _ADDRESSES):
            return -head, k.PADDED, head, meta
        return -head, k.STRING, head, 0
    return -meta, k.STRING, meta, 0


# --- strings one by one: rare forms only ---------------------------------------------------------


def _pieces(raw_texts: Strings) -> list[bytes]:
    whole = raw_texts.data[: raw_texts.offsets[-1]].tobytes()
    places = raw_texts.offsets.tolist()
    return [whole[a:b] for a, b in zip(places[:-1], places[1:], strict=True)]


def _of_pieces(parts: list[bytes]) -> Strings:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    return Strings(np.frombuffer(b"".join(parts), np.uint8), offsets)


def _inflated(raw_texts: Strings) -> Strings:
    """Undo MariaDB's COMPRESSED column attribute; equal values are inflated once."""
    parts = _pieces(raw_texts)
    known: dict[bytes, bytes] = {b"": b""}
    for row, part in enumerate(parts):
        if part not in known:
            known[part] = _inflate(part, row)
    return _of_pieces([known[part] for part in parts])


def _inflate(part: bytes, row: int) -> bytes:
    """Return a value's plain form: its first byte tells the method and the bytes of the length."""
    method, flags = part[0] >> 4, part[0] & 15
    if method == 0 and flags == 0:
        return part[1:]
    if method != 8:
        raise BadValue(row, BAD_COMPRESSED)
    head = 1 + (flags & 7)
    size = int.from_bytes(part[1:head], "big")
    if size > LONGEST_ROW:
        raise BadValue(row, BAD_COMPRESSED)
    stream = zlib.decompressobj(wbits=15 if not flags & 8 else -15)
    try:
        plain = stream.decompress(part[head:], size + 1)
    except zlib.error:
        raise BadValue(row, BAD_COMPRESSED) from None
    if len(plain) != size:
        raise BadValue(row, BAD_COMPRESSED)
    return plain
