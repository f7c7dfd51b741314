"""Rows of the text protocol, found and read by compiled code.

Comes in: a buffer with a result set's packets. Goes out: where each row has each column's value,
then columns of numbers and texts. No length is trusted before it was compared with the bytes at
hand; a kernel says which row and column it cannot read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rowferry.columnar.packed import Bytes, Longs, Words, compiled, i64, u64

# --- what `state` holds, by place ----------------------------------------------------------------
AT: Final = 0  # index in the buffer of the next packet
COUNT: Final = 1  # packets found so far
NEXT: Final = 2  # the number that the next packet must have
STATE_SIZE: Final = 3

# --- why a walk over packets stopped -------------------------------------------------------------
MORE: Final = 0  # no whole packet is left
FULL: Final = 1  # the arrays for packets are full
END: Final = 2  # the end of the rows; AT stands before it
REFUSED: Final = 3  # the server's error packet; AT stands before it
BAD: Final = 4  # a packet's number is not the next one, or it is empty

NULL: Final = -1  # the size of a value that is NULL
MAX_COLUMNS: Final = 4096  # of a table in either server
_FULL_PACKET: Final = 0xFFFFFF  # a packet of this size goes on in the next one


@compiled
def _packet_size(raw: Bytes, p: int) -> int:
    return i64(raw[p]) | i64(raw[p + 1]) << 8 | i64(raw[p + 2]) << 16


@compiled
def _joined(raw: Bytes, filled: int, p: int, number: int) -> tuple[int, int, int]:
    """Make one stretch of a packet that goes on in others, in place.

    Returns where the stretch ends, where the next packet begins, and how many packets it came in;
    (0, 0, 0): it is not whole yet, (-1, 0, 0): the packets' numbers do not follow each other.
    """
    q, parts, size = p, 0, _FULL_PACKET
    while size == _FULL_PACKET:
        if filled - q < 4:
            return 0, 0, 0
        if i64(raw[q + 3]) != (number + parts) & 255:
            return -1, 0, 0
        size = _packet_size(raw, q)
        if size > filled - q - 4:
            return 0, 0, 0
        q += 4 + size
        parts += 1
    end = p + 4
    place = p
    for _ in range(parts):
        size = _packet_size(raw, place)
        for i in range(size):
            raw[end + i] = raw[place + 4 + i]
        end += size
        place += 4 + size
    return end, q, parts


@compiled
def find_packets(raw: Bytes, filled: int, state: Longs, start: Longs, end: Longs) -> int:
    """Find whole packets in `raw[state[AT]:filled]`; say why the walk stopped.

    Their payloads are at `raw[start[i]:end[i]]`, from `state[COUNT]` on. A payload that came in
    several packets is joined in place.
    """
    p, count, number = state[AT], state[COUNT], state[NEXT]
    why = FULL
    while count < len(start):
        why = MORE
        if filled - p < 4:
            break
        size = _packet_size(raw, p)
        if i64(raw[p + 3]) != number or size == 0:
            why = BAD
            break
        if size > filled - p - 4:
            break
        first = i64(raw[p + 4])
        if first == 0xFE and size < 9:
            why = END
            break
        if first == 0xFF:
            why = REFUSED
            break
        stop, after, parts = p + 4 + size, p + 4 + size, i64(1)
        if size == _FULL_PACKET:
            stop, after, parts = _joined(raw, filled, p, number)
            if stop <= 0:
                why = BAD if stop < 0 else MORE
                break
        start[count], end[count] = p + 4, stop
        count += 1
        p, number = after, (number + parts) & 255
        why = FULL
    state[AT], state[COUNT], state[NEXT] = p, count, number
    return why


@compiled
def locate(raw: Bytes, start: Longs, end: Longs, at: Longs, size: Longs) -> int:
    """Find each row's values: `at` and `size` have a line for each column.

    Returns 0, or 1 + row * MAX_COLUMNS + column of the value that does not fit its packet. A row
    with bytes after its last value does not fit either.
    """
    columns = i64(at.shape[0])
    for row in range(len(start)):
        p, stop = start[row], end[row]
        for c in range(columns):
            if p >= stop:
                return 1 + row * MAX_COLUMNS + c
            first = i64(raw[p])
            p += 1
            if first == 251:
                at[c, row], size[c, row] = p, NULL
                continue
            length = first
            if first > 251:
                wide = i64(2) if first == 252 else i64(3) if first == 253 else i64(8)
                if first == 255 or wide > stop - p:
                    return 1 + row * MAX_COLUMNS + c
                length = i64(0)
                for i in range(wide):
                    length |= i64(raw[p + i]) << (8 * i)
                p += wide
            if length < 0 or length > stop - p:
                return 1 + row * MAX_COLUMNS + c
            at[c, row], size[c, row] = p, length
            p += length
        if p != stop:
            return 1 + row * MAX_COLUMNS + columns - 1
    return 0


# --- one column at a time; `at` and `size` come from `locate` -------------------------------------


@compiled
def validity(size: Longs, bitmap: Bytes) -> int:
    """Set the bits of the rows that have a value; return how many are NULL."""
    nulls = 0
    for row in range(len(size)):
        if size[row] == NULL:
            nulls += 1
        else:
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
    return nulls


@compiled
def integers(raw: Bytes, at: Longs, size: Longs, signed: bool, out: Words) -> int:
    """Read one column's decimal numbers as 64-bit patterns; NULL gives 0.

    Returns 0, or 1 + the row whose text is not such a number.
    """
    for row in range(len(at)):
        p, stop = at[row], at[row] + size[row]
        number = u64(0)
        negative = False
        if size[row] != NULL:
            if p < stop and raw[p] == 45:
                negative = True
                p += 1
            if p == stop or (negative and not signed):
                return row + 1
            while p < stop - 1 and raw[p] == 48:  # ZEROFILL pads to any width
                p += 1
            if stop - p > 20:
                return row + 1
            for i in range(p, stop):
                digit = u64(raw[i]) - u64(48)
                if digit > u64(9):
                    return row + 1
                if i - p == 19 and number > (u64(0xFFFFFFFFFFFFFFFF) - digit) // u64(10):
                    return row + 1
                number = number * u64(10) + digit
            limit = u64(1) << u64(63)
            if signed and number >= limit + u64(negative):
                return row + 1
        out[row] = ~number + u64(1) if negative else number
    return 0


@compiled
def text_offsets(size: Longs, offsets: Longs) -> None:
    """Fill `offsets` with where each row's text will begin, and the end."""
    q = i64(0)
    for row in range(len(size)):
        offsets[row] = q
        if size[row] != NULL:
            q += size[row]
    offsets[len(size)] = q


@compiled
def texts(raw: Bytes, at: Longs, offsets: Longs, out: Bytes) -> None:
    """Copy one column's values to the places that `text_offsets` found."""
    for row in range(len(at)):
        room = out[offsets[row] : offsets[row + 1]]
        source = raw[at[row] : at[row] + len(room)]
        for i in range(len(room)):
            room[i] = source[i]


def warm() -> None:
    """Compile every kernel, so that the first real rows need not wait."""
    raw = np.frombuffer(bytearray(b"\x05\x00\x00\x00\x04\x00\x00\x80\x3f"), np.uint8)
    state, start, end = np.zeros(STATE_SIZE, np.int64), np.empty(1, np.int64), np.empty(1, np.int64)
    find_packets(raw, len(raw), state, start, end)
    at, size = np.empty((1, 1), np.int64), np.empty((1, 1), np.int64)
    locate(raw, start, end, at, size)
    validity(size[0], np.zeros(1, np.uint8))
    words, offsets = np.empty(1, np.uint64), np.empty(2, np.int64)
    integers(raw, at[0], size[0], True, words)
    text_offsets(size[0], offsets)
    texts(raw, at[0], offsets, np.empty(4, np.uint8))
