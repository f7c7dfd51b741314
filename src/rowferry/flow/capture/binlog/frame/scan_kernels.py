"""Compiled walks over the log: where transactions begin and end, and which rows are captured.

Two callers share one walk. The planner (`collect` false) learns borders, sizes and which tables
occur. A task (`collect` true) also gets the place of every captured rows event. Both tick the same
clock over the same events, so both give a transaction the same commit-ts.

Comes in: a buffer of packets (4-byte header, a zero byte, the event) or of bare events. Lengths are
checked before every read, and no byte of a server is taken for a mark of ours. Goes out: a reason
for stopping; everything else is in `state`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from rowferry.change.position import PHYSICAL_SHIFT

# --- what `state` holds, by place ----------------------------------------------------------------
AT: Final = 0  # index in the buffer of the next packet
OFFSET: Final = 1  # log offset behind the last event
LAST_TS: Final = 2  # the clock: commit-ts of the last transaction (or watermark)
CLAMP_MS: Final = 3  # later times are not believed: the source's clock + AHEAD_MS
TXN_TS: Final = 4  # commit-ts of the transaction that is open; 0: none is
TXN_AT: Final = 5  # index in the buffer where it began (may be gone: negative)
TXN_OFFSET: Final = 6  # log offset where it began
TXN_LAST_TS: Final = 7  # the clock before it
ALONE: Final = 8  # 1: the next QUERY is the whole transaction
RUN_A: Final = 9  # who commits: uuid's first half, or domain
RUN_B: Final = 10  # uuid's second half, or server id
RUN_NEXT: Final = 11  # the number that continues the run (MySQL), or last + 1 (MariaDB)
RUN_OPEN: Final = 12  # 1: RUN_* are set
COUNT: Final = 13  # captured rows events so far
OPEN: Final = 14  # 1: the caller has opened a segment
CUT_AT: Final = 15  # log offset from which a segment should end
DAY_END: Final = 16  # the last commit-ts of the segment's date
CAPTURED_TS: Final = 17  # commit-ts of the last transaction with captured rows
CAPTURED_END: Final = 18  # log offset behind it
IN_TXN: Final = 19  # 1: captured rows in the open transaction
FROM_TS: Final = 20  # rows of transactions up to this commit-ts are not captured
EVENT_AT: Final = 21  # index in the buffer of the event (its header) that stopped the walk
EVENT_END: Final = 22  # index behind it, checksum included
ROWS_AT: Final = 23  # virtual place of the next rows event: gives `seq`
FOUND: Final = 24  # how many events were collected
EACH: Final = 25  # 1: stop at every transaction (GTID), before it is taken
ACCEPT: Final = 26  # 1: take the next GTID as it is (the caller has seen it)
STATEMENT: Final = 27  # 1: inside a statement (a TABLE_MAP was seen, its last rows not yet)
WHOLE: Final = 28  # 1: segments end at borders only
PAIR_SLOT: Final = 29  # slot of the rows event that stopped the walk
PAIR_PARTITION: Final = 30  # its partition + 1; 0: none
CLAMPED: Final = 31  # transactions whose time was clamped
UNTIL_TS: Final = 32  # the walk ends before transactions above this commit-ts
MARKED: Final = 33  # 1: the open transaction has a table whose rows say that it is not captured
HALF: Final = 34  # 1: the open transaction is an ALTER that only begins, or that failed
STATE_SIZE: Final = 35

# --- what a TABLE_MAP's rows are -----------------------------------------------------------------
CAPTURED: Final = 1
MARK: Final = 2  # all rows behind it in its transaction are not captured

# --- why a walk stopped --------------------------------------------------------------------------
MORE: Final = 0  # no whole packet is left
SPECIAL: Final = 1  # an event for the caller; the walk stands before it
CUT: Final = 2  # the segment is long enough
NEW_DAY: Final = 3  # the next transaction has another date
FIRST_ROW: Final = 4  # a captured rows event and no open segment
NEW_PAIR: Final = 5  # a table (partition) that is not in the segment yet
CLAMP: Final = 6  # a time far ahead of the source's clock
NEW_RUN: Final = 7  # a GTID that does not continue the run
EACH_TXN: Final = 8  # a GTID, because EACH is set
BAD: Final = 9  # cannot be: too short, not an event
REFUSED: Final = 10  # the server's error packet
END: Final = 11  # the server's EOF packet
FULL: Final = 12  # the arrays for collected events are full
BAD_CRC: Final = 13  # a checksum does not fit
JOIN: Final = 14  # an event in several packets: the caller joins them, then walks on
UNTIL: Final = 15  # the next transaction lies behind the end that is wanted

AHEAD_MS: Final = 60_000  # how far ahead of the source's clock a time may be

_NEVER: Final = np.int64(1) << np.int64(62)


@njit(cache=True, nogil=True)
def _crc_tables() -> Any:
    table = np.zeros((8, 256), np.uint32)
    for i in range(256):
        c = np.uint32(i)
        for _ in range(8):
            if c & np.uint32(1):
                c = np.uint32(0xEDB88320) ^ (c >> np.uint32(1))
            else:
                c = c >> np.uint32(1)
        table[0, i] = c
    for i in range(256):
        c = table[0, i]
        for k in range(1, 8):
            c = table[0, c & np.uint32(0xFF)] ^ (c >> np.uint32(8))
            table[k, i] = c
    return table


CRC_TABLES: Final = _crc_tables()


@njit(cache=True, nogil=True)
def crc32(data: Any, start: Any, end: Any, tables: Any) -> Any:
    """Return the CRC-32 of data[start:end], eight bytes a step."""
    c = np.uint32(0xFFFFFFFF)
    p = start
    while p + 8 <= end:
        a = c ^ (
            np.uint32(data[p])
            | np.uint32(data[p + 1]) << np.uint32(8)
            | np.uint32(data[p + 2]) << np.uint32(16)
            | np.uint32(data[p + 3]) << np.uint32(24)
        )
        c = (
            tables[7, a & np.uint32(0xFF)]
            ^ tables[6, (a >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (a >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, a >> np.uint32(24)]
            ^ tables[3, data[p + 4]]
            ^ tables[2, data[p + 5]]
            ^ tables[1, data[p + 6]]
            ^ tables[0, data[p + 7]]
        )
        p += 8
    while p < end:
        c = tables[0, (c ^ np.uint32(data[p])) & np.uint32(0xFF)] ^ (c >> np.uint32(8))
        p += 1
    return c ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def _number(data: Any, p: Any, size: Any) -> Any:
    found = np.int64(0)
    for i in range(size):
        found |= np.int64(data[p + i]) << np.int64(8 * i)
    return found


def tick(last_ts: int, commit_ms: int, clamp_ms: int) -> int:
    """Return the next transaction's commit-ts, as the walk gives it."""
    believed = commit_ms if commit_ms <= clamp_ms else clamp_ms - AHEAD_MS
    return max(last_ts + 1, believed << PHYSICAL_SHIFT)


@njit(cache=True, nogil=True, inline="always")
def _is_rows(code: Any) -> Any:
    return (23 <= code <= 25) or (30 <= code <= 32) or code == 39 or (166 <= code <= 171)


@njit(cache=True, nogil=True, inline="always")
def _is_quiet(code: Any) -> Any:
    """Return whether an event says nothing about rows, tables or transactions."""
    return (
        code == 27
        or code == 41
        or code == 3
        or code == 5
        or code == 9  # what a file holds that a statement loads; so 11 and 17
        or code == 11
        or code == 13
        or code == 14
        or code == 17
        or code == 28
        or code == 29
        or code == 36
        or code == 37
        or code == 160
        or code == 161
        or code == 164
    )


@njit(cache=True, nogil=True, inline="always")
def _is_inside(code: Any, flags: Any) -> Any:
    """Return whether an event without an end position is one of a transaction (MariaDB 11.4).

    Others are not in the file: the server made them up for the stream.
    """
    return (
        not flags & 0x20
        and code != 4
        and code != 15
        and code != 27
        and code != 41
        and code != 163
        and code != 164
    )


@njit(cache=True, nogil=True)
def _find_map(map_keys: Any, number: Any) -> Any:
    """Return the place of a table number in the hash, or the free place for it."""
    mask = len(map_keys) - 1
    place = (number * np.int64(0x9E3779B1)) & mask
    while map_keys[place] != 0 and map_keys[place] != number + 1:
        place = (place + 1) & mask
    return place


@njit(cache=True, nogil=True)
def _find_pair(pair_keys: Any, key: Any) -> Any:
    mask = len(pair_keys) - 1
    place = (key * np.int64(0x9E3779B1)) & mask
    while pair_keys[place] != -1 and pair_keys[place] != key:
        place = (place + 1) & mask
    return place


@njit(cache=True, nogil=True)
def _query_word(data: Any, p: Any, end: Any) -> Any:
    """Return 1 for BEGIN, 2 for COMMIT, 0 for every other statement of a QUERY body."""
    if p + 13 > end:
        return 0
    at = p + 13 + _number(data, p + 11, 2) + np.int64(data[p + 8]) + 1
    size = end - at
    if size == 5:
        if (
            data[at] == 66
            and data[at + 1] == 69
            and data[at + 2] == 71
            and data[at + 3] == 73
            and data[at + 4] == 78
        ):
            return 1
    elif size == 6:
        if (
            data[at] == 67
            and data[at + 1] == 79
            and data[at + 2] == 77
            and data[at + 3] == 77
            and data[at + 4] == 73
            and data[at + 5] == 84
        ):
            return 2
    return 0


@njit(cache=True, nogil=True)
def _begin_time(data: Any, p: Any, end: Any, code: Any, seconds: Any) -> Any:
    """Return the milliseconds at which a transaction was committed at its origin."""
    if code == 33 or code == 34:
        at = p + 42  # flags, uuid, number, type code, two logical clocks
        if end >= at + 7 and data[p + 25] == 2:
            immediate = _number(data, at, 7)
            if immediate >> np.int64(55) & np.int64(1):
                if end >= at + 14:
                    original = _number(data, at + 7, 7)
                    return original // 1000
            return (immediate & ((np.int64(1) << np.int64(55)) - 1)) // 1000
    return seconds * 1000


@njit(cache=True, nogil=True)
def _is_half(data: Any, p: Any, end: Any, flags: Any) -> Any:
    """Return whether MariaDB's ALTER in two phases begins with this GTID, or ends in vain.

    Its text stands in the log twice then; only behind a GTID that commits it, it counts.
    """
    at = p + 13 + (8 if flags & 2 else 0)  # a number of the group commit may come first
    return not flags & 0xC0 and at < end and data[at] & 0x0A != 0


@njit(cache=True, nogil=True)
def _partition(data: Any, p: Any, end: Any, code: Any) -> Any:
    """Return the partition + 1 that a version-2 rows event names; 0: none; -1: too short."""
    if code != 30 and code != 31 and code != 32 and code != 39:
        return 0
    if p + 10 > end:
        return -1
    size = _number(data, p + 8, 2)
    at = p + 10
    stop = p + 8 + size
    if stop > end:
        return -1
    if at + 3 <= stop and data[at] == 1:
        return _number(data, at + 1, 2) + 1
    return 0


@njit(cache=True, nogil=True)
def _joined_size(joined: Any, at: Any) -> Any:
    """Return the size of the packet at a place that was joined from several; -1: it was not."""
    for i in range(len(joined)):
        if joined[i, 0] == at:
            return joined[i, 1]
    return np.int64(-1)


@njit(cache=True, nogil=True)
def walk(
    data: Any,
    filled: Any,
    prefix: Any,
    tail: Any,
    maria: Any,
    stop_at: Any,
    state: Any,
    border: Any,
    map_keys: Any,
    map_slots: Any,
    slot_start: Any,
    slot_size: Any,
    slot_captured: Any,
    map_bytes: Any,
    pair_keys: Any,
    pair_place: Any,
    first_seen: Any,
    seen_bytes: Any,
    collect: Any,
    out: Any,
    out_ts: Any,
    out_slot: Any,
    tables: Any,
    joined: Any,
) -> Any:
    """Walk on from `state[AT]` and return why the walk stopped.

    `filled` bytes of `data` are valid; `prefix` is 5 for packets, 0 for bare events; `tail` is how
    many bytes of checksum stand behind each event. The walk ends with END at log offset `stop_at`.
    `border` gets a copy of `state` at every border between transactions. `seen_bytes` counts the
    captured rows events of each place, those that are walked over again as often as that.
    With `collect`, `out` gets (start, end, code, seq place) of captured rows events, whose
    checksums are checked. `joined` has (place, size) of the packets that the caller joined.
    """
    while True:
        at = state[AT]
        if prefix == 5:
            if at + 5 > filled:
                return MORE
            size = _number(data, at, 3)
            if size == 0xFFFFFF:
                size = _joined_size(joined, at)
                if size < 0:
                    return JOIN
            if at + 4 + size > filled:
                return MORE
            first = data[at + 4] if size > 0 else 0
            state[EVENT_AT] = at + 5
            state[EVENT_END] = at + 4 + size
            if first == 0xFF:
                return REFUSED
            if first == 0xFE and size < 9:
                return END
            if size < 20 or first != 0:
                return BAD
            h = at + 5
            end = at + 4 + size
        else:
            if at + 19 > filled:
                return MORE
            h = at
            length = _number(data, h + 9, 4)
            if length < 19:
                return BAD
            if at + length > filled:
                return MORE
            end = at + length
            state[EVENT_AT] = h
            state[EVENT_END] = end
        length = end - h
        code = data[h + 4]
        flags = _number(data, h + 17, 2)
        if _number(data, h + 9, 4) != length or length < 19 + tail:
            return BAD
        low = _number(data, h + 13, 4)
        offset = state[OFFSET]
        if prefix == 5 and low != 0 and code != 27 and code != 41 and not flags & 0x20:
            behind = (offset & ~np.int64(0xFFFFFFFF)) | low
            if behind < offset:
                behind += np.int64(1) << np.int64(32)
            if behind - length >= stop_at:
                return END
            real = True
        elif prefix == 5 and low == 0 and maria and state[TXN_TS] != 0 and _is_inside(code, flags):
            behind = offset + length
            if offset >= stop_at:
                return END
            real = True
        else:
            behind = offset
            real = False
        body = h + 19
        stop = end - tail
        artificial = prefix == 5 and not real
        if code == 27 and low > (offset & np.int64(0xFFFFFFFF)) and state[TXN_TS] == 0:
            # The server passed events that are not for us: it tells how far it is.
            behind = (offset & ~np.int64(0xFFFFFFFF)) | low
        if _is_quiet(code) or (flags & 0x80 and code != 33 and code != 42):
            state[OFFSET] = behind
            state[AT] = end
            continue
        if code == 33 or code == 34 or code == 162:
            if state[TXN_TS] != 0:
                return BAD
            if code == 162:
                if stop - body < 13:
                    return BAD
                a, b = _number(data, body + 8, 4), _number(data, h + 5, 4)
                number = _number(data, body, 8)
                two = data[body + 12]
                half = _is_half(data, body, stop, two)
                fits = state[RUN_A] == a and state[RUN_B] == b
                if two & 0xC0 and state[ACCEPT] == 0:
                    return SPECIAL  # XA
            else:
                if stop - body < 25:
                    return BAD
                a, b = _number(data, body + 1, 8), _number(data, body + 9, 8)
                number = _number(data, body + 17, 8)
                two = 1
                half = False
                fits = state[RUN_A] == a and state[RUN_B] == b and state[RUN_NEXT] == number
                if code == 34:
                    fits = True
            if state[ACCEPT] == 0 and not collect:
                if state[RUN_OPEN] == 0 and code != 34:
                    return NEW_RUN
                if not fits:
                    return NEW_RUN
                if state[EACH] == 1:
                    return EACH_TXN
            t = _begin_time(data, body, stop, code, _number(data, h, 4))
            if t > state[CLAMP_MS]:
                if not collect and state[ACCEPT] != 2:
                    return CLAMP
                t = state[CLAMP_MS] - AHEAD_MS
                state[CLAMPED] += 1
            stamp = max(state[LAST_TS] + 1, t << np.int64(18))
            if stamp > state[UNTIL_TS]:
                return UNTIL
            if state[OPEN] == 1 and stamp > state[DAY_END]:
                return NEW_DAY
            state[ACCEPT] = 0
            state[TXN_LAST_TS] = state[LAST_TS]
            state[LAST_TS] = stamp
            state[TXN_TS] = stamp
            state[TXN_AT] = at
            state[TXN_OFFSET] = offset if not real else behind - length
            state[IN_TXN] = 0
            state[STATEMENT] = 0
            state[MARKED] = 0
            state[HALF] = 1 if half else 0
            if code != 34:
                state[RUN_NEXT] = number + 1
            state[ALONE] = 1 if two & 1 else 0
            state[OFFSET] = behind
            state[AT] = end
            continue
        if code == 19:
            if stop - body < 8:
                return BAD
            number = _number(data, body, 6)
            place = _find_map(map_keys, number)
            if map_keys[place] == 0:
                return SPECIAL
            slot = map_slots[place]
            same = slot_size[slot] == stop - body
            if same:
                start = slot_start[slot]
                for i in range(stop - body):
                    if map_bytes[start + i] != data[body + i]:
                        same = False
                        break
            if not same:
                return SPECIAL
            if collect and tail == 4:
                if crc32(data, h, stop, tables) != np.uint32(_number(data, stop, 4)):
                    return BAD_CRC
            if slot_captured[slot] == MARK:
                state[MARKED] = 1
            state[STATEMENT] = 1
            state[OFFSET] = behind
            state[AT] = end
            continue
        if _is_rows(code):
            if stop - body < 8:
                return BAD
            number = _number(data, body, 6)
            row_flags = _number(data, body + 6, 2)
            if number == 0xFFFFFF and stop - body <= 12:
                state[OFFSET] = behind
                state[AT] = end
                continue  # only says that a statement ended
            place = _find_map(map_keys, number)
            if map_keys[place] == 0:
                return SPECIAL
            slot = map_slots[place]
            captured = slot_captured[slot] == CAPTURED and state[MARKED] == 0
            if captured and state[TXN_TS] == 0:
                return BAD
            if captured and state[TXN_TS] > state[FROM_TS]:
                if state[OPEN] == 0:
                    return FIRST_ROW
                part = _partition(data, body, stop, code)
                if part < 0:
                    return BAD
                key = np.int64(slot) * 65537 + part
                found = _find_pair(pair_keys, key)
                if pair_keys[found] == -1:
                    state[PAIR_SLOT] = slot
                    state[PAIR_PARTITION] = part
                    return NEW_PAIR
                if not collect:
                    if offset >= state[CUT_AT] and state[WHOLE] == 0:
                        return CUT
                elif state[FOUND] >= len(out_ts):
                    return FULL
                state[COUNT] += 1
                index = pair_place[found]
                if state[COUNT] < first_seen[index]:
                    first_seen[index] = state[COUNT]
                seen_bytes[index] += length
                state[IN_TXN] = 1
                if collect:
                    if tail == 4:
                        if crc32(data, h, stop, tables) != np.uint32(_number(data, stop, 4)):
                            return BAD_CRC
                    k = state[FOUND]
                    out[k, 0] = body
                    out[k, 1] = stop
                    out[k, 2] = code
                    out[k, 3] = state[ROWS_AT]
                    out_ts[k] = state[TXN_TS]
                    out_slot[k] = index
                    state[FOUND] = k + 1
                    room = np.int64(length)
                    if 166 <= code <= 171:
                        room = room * 1100 + 64  # zlib never packs more than 1032 into one
                    state[ROWS_AT] += room
            if row_flags & 1:
                state[STATEMENT] = 0
            state[OFFSET] = behind
            state[AT] = end
            continue
        over = False
        if code == 16:
            over = True
        elif code == 2:
            word = _query_word(data, body, stop)
            if word == 1:
                state[ALONE] = 0
            elif word == 2:
                over = True
            else:
                return SPECIAL
        elif artificial and (code == 163 or code == 35):
            pass
        else:
            return SPECIAL
        state[OFFSET] = behind
        state[AT] = end
        if over:
            _close(state, border, behind)
            if not collect and state[OPEN] == 1 and behind >= state[CUT_AT]:
                return CUT


@njit(cache=True, nogil=True)
def _close(state: Any, border: Any, behind: Any) -> None:
    if state[IN_TXN] == 1:
        state[CAPTURED_TS] = state[TXN_TS]
        state[CAPTURED_END] = behind
    state[TXN_TS] = 0
    state[IN_TXN] = 0
    state[STATEMENT] = 0
    state[MARKED] = 0
    state[HALF] = 0
    state[ALONE] = 0
    for i in range(len(state)):
        border[i] = state[i]


def close_transaction(state: Any, border: Any) -> None:
    """End the open transaction where the walk stands."""
    _close(state, border, state[OFFSET])


def warm() -> None:
    """Compile the kernels on a tiny input."""
    from rowferry.flow.capture.binlog.frame.scan import Maps, SegmentPairs, run_walk

    state = np.zeros(STATE_SIZE, np.int64)
    data = np.zeros(64, np.uint8)
    for collect in (False, True):
        run_walk(
            data, 0, 5, 4, False, 1 << 62, state, state.copy(), Maps(), SegmentPairs(), collect
        )
    _close(state, state.copy(), np.int64(0))
    crc32(data, 0, 16, CRC_TABLES)
