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
from rowferry.flow.capture.binlog.frame.event_kernels import (
    CRC_TABLES,
    begin_time,
    crc32,
    is_half,
    is_inside,
    is_quiet,
    is_rows,
    left_partition_of,
    number_at,
    partition_of,
    query_word,
)
from rowferry.flow.capture.binlog.frame.walk_state import NEVER, WalkState

# --- places in `state`; `WalkState` says what each one is ----------------------------------------
AT: Final = WalkState.at.place
OFFSET: Final = WalkState.offset.place
EVENT_AT: Final = WalkState.event_at.place
EVENT_END: Final = WalkState.event_end.place
LAST_TS: Final = WalkState.last_ts.place
CLAMP_MS: Final = WalkState.clamp_ms.place
CLAMPED: Final = WalkState.clamped.place
UNTIL_TS: Final = WalkState.until_ts.place
TXN_TS: Final = WalkState.txn_ts.place
TXN_AT: Final = WalkState.txn_at.place
TXN_OFFSET: Final = WalkState.txn_offset.place
TXN_LAST_TS: Final = WalkState.txn_last_ts.place
ALONE: Final = WalkState.alone.place
HALF: Final = WalkState.half.place
IN_TXN: Final = WalkState.in_txn.place
STATEMENT: Final = WalkState.statement.place
MARKED: Final = WalkState.marked.place
RUN_A: Final = WalkState.run_a.place
RUN_B: Final = WalkState.run_b.place
RUN_NEXT: Final = WalkState.run_next.place
RUN_OPEN: Final = WalkState.run_open.place
EACH: Final = WalkState.each.place
ACCEPT: Final = WalkState.accept.place
OPEN: Final = WalkState.open.place
CUT_AT: Final = WalkState.cut_at.place
DAY_END: Final = WalkState.day_end.place
WHOLE: Final = WalkState.whole.place
FROM_TS: Final = WalkState.from_ts.place
COUNT: Final = WalkState.count.place
CAPTURED_TS: Final = WalkState.captured_ts.place
CAPTURED_END: Final = WalkState.captured_end.place
PAIR_SLOT: Final = WalkState.pair_slot.place
PAIR_PARTITION: Final = WalkState.pair_partition.place
COLLECTED: Final = WalkState.collected.place
ROWS_AT: Final = WalkState.rows_at.place

# --- what a TABLE_MAP's rows are -----------------------------------------------------------------
CAPTURED: Final = 1
MARK: Final = 2  # all rows behind it in its transaction are not captured

# --- a mark beside an event's place: it moves rows between partitions, and stands there twice -----
LEFT: Final = 1 << 28  # for the partition that they leave
CAME: Final = 1 << 29  # for the one that they come to
PLACE: Final = LEFT - 1

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


def tick(last_ts: int, commit_ms: int, clamp_ms: int) -> int:
    """Return the next transaction's commit-ts, as the walk gives it."""
    believed = commit_ms if commit_ms <= clamp_ms else clamp_ms - AHEAD_MS
    return max(last_ts + 1, believed << PHYSICAL_SHIFT)


@njit(cache=True, nogil=True)
def find_map(map_keys: Any, number: Any) -> Any:
    """Return the place of a table number in the hash, or the free place for it."""
    mask = len(map_keys) - 1
    place = (number * np.int64(0x9E3779B1)) & mask
    while map_keys[place] != 0 and map_keys[place] != number + 1:
        place = (place + 1) & mask
    return place


@njit(cache=True, nogil=True)
def find_pair(pair_keys: Any, key: Any) -> Any:
    """Return the place of a pair in the hash, or the free place for it."""
    mask = len(pair_keys) - 1
    place = (key * np.int64(0x9E3779B1)) & mask
    while pair_keys[place] != -1 and pair_keys[place] != key:
        place = (place + 1) & mask
    return place


@njit(cache=True, nogil=True)
def joined_size(joined: Any, at: Any) -> Any:
    """Return the size of the packet at a place that was joined from several; -1: it was not."""
    for i in range(len(joined)):
        if joined[i, 0] == at:
            return joined[i, 1]
    return np.int64(-1)


@njit(cache=True, nogil=True)
def walk(
    log: Any, state: Any, border: Any, maps: Any, pairs: Any, events: Any, collect: Any
) -> Any:
    """Walk on from `state[AT]` and return why the walk stopped.

    Args:
        log: (data, filled, prefix, tail, maria, stop_at, joined, tables): `filled` bytes of `data`
            are valid; `prefix` is 5 for packets, 0 for bare events; `tail` is how many bytes of
            checksum stand behind each event; the walk ends with END at log offset `stop_at`;
            `joined` has (place, size) of the packets that the caller joined; `tables` are for
            checksums.
        state: as `WalkState` describes it.
        border: gets a copy of `state` at every border between transactions.
        maps: (keys, slots, start, size, captured, bytes) of `Maps`.
        pairs: (keys, place, first_seen, seen_bytes) of `SegmentPairs`. The last one counts the
            captured rows events of each place, those that are walked over again as often as that.
        events: (spans, commit_ts, place) of `FoundEvents`: with `collect`, spans get (start, end,
            code, seq place) of captured rows events, whose checksums are checked. One that moves
            rows between partitions with places of their own is there twice, by LEFT and CAME.
        collect: false for the planner, true for a task.
    """
    # Taken apart once, and one function for all kinds of events: cut into functions, also inlined
    # ones, the walk takes half as long again and more.
    data, filled, prefix, tail, maria, stop_at, joined, tables = log
    map_keys, map_slots, slot_start, slot_size, slot_captured, map_bytes = maps
    pair_keys, pair_place, first_seen, seen_bytes = pairs
    out, out_ts, out_slot = events
    while True:
        at = state[AT]
        if prefix == 5:
            if at + 5 > filled:
                return MORE
            size = number_at(data, at, 3)
            if size == 0xFFFFFF:
                size = joined_size(joined, at)
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
            length = number_at(data, h + 9, 4)
            if length < 19:
                return BAD
            if at + length > filled:
                return MORE
            end = at + length
            state[EVENT_AT] = h
            state[EVENT_END] = end
        length = end - h
        code = data[h + 4]
        flags = number_at(data, h + 17, 2)
        if number_at(data, h + 9, 4) != length or length < 19 + tail:
            return BAD
        low = number_at(data, h + 13, 4)
        offset = state[OFFSET]
        if prefix == 5 and low != 0 and code != 27 and code != 41 and not flags & 0x20:
            behind = (offset & ~np.int64(0xFFFFFFFF)) | low
            if behind < offset:
                behind += np.int64(1) << np.int64(32)
            if behind - length >= stop_at:
                return END
            real = True
        elif prefix == 5 and low == 0 and maria and state[TXN_TS] != 0 and is_inside(code, flags):
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
        if is_quiet(code) or (flags & 0x80 and code != 33 and code != 42):
            if code == 3 and state[TXN_TS] != 0:
                return BAD  # the server was stopped, and has ended what it wrote
            state[OFFSET] = behind
            state[AT] = end
            continue
        if code == 33 or code == 34 or code == 162:
            if state[TXN_TS] != 0:
                return BAD
            if code == 162:
                if stop - body < 13:
                    return BAD
                a, b = number_at(data, body + 8, 4), number_at(data, h + 5, 4)
                number = number_at(data, body, 8)
                two = data[body + 12]
                half = is_half(data, body, stop, two)
                fits = state[RUN_A] == a and state[RUN_B] == b
                if two & 0xC0 and state[ACCEPT] == 0:
                    return SPECIAL  # XA
            else:
                if stop - body < 25:
                    return BAD
                a, b = number_at(data, body + 1, 8), number_at(data, body + 9, 8)
                number = number_at(data, body + 17, 8)
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
            t = begin_time(data, body, stop, code, number_at(data, h, 4))
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
            number = number_at(data, body, 6)
            place = find_map(map_keys, number)
            if map_keys[place] == 0:
                return SPECIAL
            slot = map_slots[place]
            size = slot_size[slot]
            same = size == stop - body
            if size < 0:  # of a table that is not captured only the name is known
                size = -size
                same = size <= stop - body
            if same:
                start = slot_start[slot]
                for i in range(size):
                    if map_bytes[start + i] != data[body + i]:
                        same = False
                        break
            if not same:
                return SPECIAL
            if collect and tail == 4:
                if crc32(data, h, stop, tables) != np.uint32(number_at(data, stop, 4)):
                    return BAD_CRC
            if slot_captured[slot] == MARK:
                state[MARKED] = 1
            state[STATEMENT] = 1
            state[OFFSET] = behind
            state[AT] = end
            continue
        if is_rows(code):
            if stop - body < 8:
                return BAD
            number = number_at(data, body, 6)
            row_flags = number_at(data, body + 6, 2)
            if number == 0xFFFFFF and stop - body <= 12:
                state[OFFSET] = behind
                state[AT] = end
                continue  # only says that a statement ended
            place = find_map(map_keys, number)
            if map_keys[place] == 0:
                return SPECIAL
            slot = map_slots[place]
            captured = slot_captured[slot] == CAPTURED and state[MARKED] == 0
            if captured and state[TXN_TS] == 0:
                return BAD
            if captured and state[TXN_TS] > state[FROM_TS]:
                if state[OPEN] == 0:
                    return FIRST_ROW
                part = partition_of(data, body, stop, code)
                if part < 0:
                    return BAD
                key = np.int64(slot) * 65537 + part
                pair = find_pair(pair_keys, key)
                if pair_keys[pair] == -1:
                    state[PAIR_SLOT] = slot
                    state[PAIR_PARTITION] = part
                    return NEW_PAIR
                left = left_partition_of(data, body, code) if part > 0 else 0
                old_pair = pair
                if left > 0 and left != part:
                    old_pair = find_pair(pair_keys, np.int64(slot) * 65537 + left)
                    if pair_keys[old_pair] == -1 and collect:
                        old_pair = pair  # a plan of an older version
                    elif pair_keys[old_pair] == -1:
                        state[PAIR_SLOT] = slot
                        state[PAIR_PARTITION] = left
                        return NEW_PAIR
                if not collect:
                    if offset >= state[CUT_AT] and state[WHOLE] == 0:
                        return CUT
                elif state[COLLECTED] + 1 >= len(out_ts):
                    return FULL
                state[COUNT] += 1
                index = pair_place[pair]
                old_index = pair_place[old_pair]
                for seen in (index, old_index):
                    if state[COUNT] < first_seen[seen]:
                        first_seen[seen] = state[COUNT]
                seen_bytes[index] += length
                state[IN_TXN] = 1
                if collect:
                    if tail == 4:
                        if crc32(data, h, stop, tables) != np.uint32(number_at(data, stop, 4)):
                            return BAD_CRC
                    halves = 1 if index == old_index else 2
                    for half in range(halves):
                        k = state[COLLECTED]
                        out[k, 0] = body
                        out[k, 1] = stop
                        out[k, 2] = code
                        out[k, 3] = state[ROWS_AT]
                        out_ts[k] = state[TXN_TS]
                        out_slot[k] = index
                        if halves == 2:
                            out_slot[k] = (old_index | LEFT) if half == 0 else (index | CAME)
                        state[COLLECTED] = k + 1
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
            word = query_word(data, body, stop)
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


def close_transaction(state: WalkState, border: WalkState) -> None:
    """End the open transaction where the walk stands."""
    _close(state.array, border.array, state.offset)


def warm() -> None:
    """Compile the kernels on a tiny input."""
    from rowferry.flow.capture.binlog.frame.scan import LogBytes, Maps, SegmentPairs, run_walk

    state = WalkState()
    data = np.zeros(64, np.uint8)
    for collect in (False, True):
        log = LogBytes(data, 0, prefix=5, tail=4, maria=False, stop_at=NEVER)
        run_walk(log, state, state.copy(), Maps(), SegmentPairs(), collect)
    close_transaction(state, state.copy())
    crc32(data, 0, 16, CRC_TABLES)
