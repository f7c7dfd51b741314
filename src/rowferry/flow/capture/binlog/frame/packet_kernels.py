"""A compiled walk over packets that learns where in the log's files they lie, and nothing else."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from rowferry.flow.capture.binlog.frame.event_kernels import is_inside, number_at

# --- places in `state` ---------------------------------------------------------------------------
AT: Final = 0  # of the next packet in the buffer
OFFSET: Final = 1  # of the log's file, behind the events so far
GOES_ON: Final = 2  # the next packet belongs to the event before it
COUNT: Final = 3  # of places that were noted
EVENT_AT: Final = 4  # of the event at which the walk stopped
EVENT_END: Final = 5
STATE_SIZE: Final = 6

# --- why a walk stopped --------------------------------------------------------------------------
MORE: Final = 0  # no whole packet is left
NEW_FILE: Final = 1  # behind a ROTATE or FORMAT event
FULL: Final = 2  # no room for places
NO_EVENT: Final = 3  # before a packet that is no event: the server refuses, or ends the stream

_ROTATE: Final = 4
_FORMAT: Final = 15
_HEARTBEAT: Final = 27
_HEARTBEAT_2: Final = 41
_MADE_UP: Final = 0x20  # a flag: it is not in the file


@njit(cache=True, nogil=True)
def place_packets(data: Any, filled: Any, maria: Any, state: Any, begins: Any, places: Any) -> Any:
    """Walk on over whole packets and return why the walk stopped.

    Args:
        data: the buffer.
        filled: how many bytes of it are valid.
        maria: MariaDB's events may not tell where they end, inside a transaction.
        state: as named above.
        begins: gets the offset at which each event begins that tells it, rising.
        places: gets the place of its packet.
    """
    low_bits = np.int64(0xFFFFFFFF)
    while True:
        at = state[AT]
        if at + 4 > filled:
            return MORE
        size = number_at(data, at, 3)
        if at + 4 + size > filled:
            return MORE
        if state[GOES_ON] == 1:
            state[GOES_ON] = 1 if size == 0xFFFFFF else 0
            state[AT] = at + 4 + size
            continue
        if size < 20 or data[at + 4] != 0:
            return NO_EVENT
        if state[COUNT] >= len(begins):
            return FULL
        h = at + 5
        code = data[h + 4]
        length = number_at(data, h + 9, 4)
        low = number_at(data, h + 13, 4)
        flags = number_at(data, h + 17, 2)
        offset = state[OFFSET]
        behind = offset
        begin = np.int64(-1)
        if code == _HEARTBEAT or code == _FORMAT:
            # A heartbeat tells how far the server is; a FORMAT event may be sent a second time.
            if low > offset & low_bits:
                behind = (offset & ~low_bits) | low
        elif code == _HEARTBEAT_2:
            pass
        elif low != 0 and not flags & _MADE_UP:
            behind = (offset & ~low_bits) | low
            if behind < offset:
                behind += np.int64(1) << np.int64(32)
            begin = behind - length
        elif low == 0 and maria and is_inside(code, flags):
            behind = offset + length
        if code == _ROTATE and begin < 0:
            begin = offset  # a file that ended without one: this begins the next
        if begin >= 0:
            begins[state[COUNT]] = begin
            places[state[COUNT]] = at
            state[COUNT] += 1
        state[OFFSET] = behind
        state[AT] = at + 4 + size
        state[GOES_ON] = 1 if size == 0xFFFFFF else 0
        if code == _ROTATE or code == _FORMAT:
            state[EVENT_AT] = h
            state[EVENT_END] = at + 4 + size
            return NEW_FILE


def warm() -> None:
    """Compile the kernel on a tiny input."""
    numbers = np.zeros(1, np.int64)
    for maria in (False, True):
        state = np.zeros(STATE_SIZE, np.int64)
        place_packets(np.zeros(64, np.uint8), 0, maria, state, numbers, numbers.copy())
