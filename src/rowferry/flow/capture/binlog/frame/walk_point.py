"""Where a walk stands: the event there, and the step over it. The same for planner and task."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.event_kernels import is_inside
from rowferry.flow.capture.binlog.frame.walk_state import WalkState

_MADE_UP: Final = 0x20  # a flag of events


class WalkPoint:
    """The event at which a walk stopped.

    Attributes:
        state: of the walk.
        border: its copy at the last border between transactions.
        data: the buffer; whoever walks gives the present one.
        tail: how many bytes of checksum stand behind each event.
        file: the log file.
    """

    def __init__(self, state: WalkState, file: str, tail: int) -> None:
        self.state, self.border = state, state.copy()
        self.data: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.tail, self.file = tail, file

    def __str__(self) -> str:
        return f"{self.file}:{self.state.offset}"

    @property
    def code(self) -> int:
        """The event's type."""
        return int(self.data[self.state.event_at + 4])

    @property
    def server_id(self) -> int:
        """The server that first wrote the event."""
        header = self.state.event_at
        return int.from_bytes(self.data[header + 5 : header + 9].tobytes(), "little")

    @property
    def size(self) -> int:
        """How many bytes the event has, checksum included."""
        return self.state.event_end - self.state.event_at

    @property
    def is_made_up(self) -> bool:
        """Whether the event is in no file: the server made it for whoever reads."""
        header = self.state.event_at
        place = self.data[header + 13 : header + 17].any()
        return not place or bool(self.data[header + 17] & _MADE_UP)

    def packet(self) -> bytes:
        """Return the content of the packet, which may be no event."""
        return self.data[self.state.event_at - 1 : self.state.event_end].tobytes()

    def body(self) -> bytes:
        """Return what stands behind the event's header; its checksum was checked.

        Raises:
            CorruptLog: it does not fit.
        """
        begin, end = self.state.event_at, self.state.event_end
        stop = end - self.tail
        if self.tail:
            checksum = int.from_bytes(self.data[stop:end].tobytes(), "little")
            if zlib.crc32(self.data[begin:stop].data) != checksum:
                raise CorruptLog(f"the checksum of the event at {self} does not fit")
        return self.data[begin + ev.HEADER : stop].tobytes()

    def skip(self) -> None:
        """Step over the event."""
        skip_event(self.data, self.state)

    def take_format(self) -> None:
        """Step over a FORMAT event: it says whether events have checksums."""
        begin, end = self.state.event_at + ev.HEADER, self.state.event_end
        self.tail = 4 if ev.has_checksums(self.data[begin:end].tobytes()) else 0
        self.skip()

    def close(self) -> None:
        """End the open transaction."""
        k.close_transaction(self.state, self.border)


def skip_event(data: npt.NDArray[np.uint8], state: WalkState) -> None:
    """Step over the event where a walk stands; the log's offset moves with real events."""
    header, offset = state.event_at, state.offset
    fields = data[header : header + ev.HEADER].tobytes()
    low, flags = int.from_bytes(fields[13:17], "little"), int.from_bytes(fields[17:19], "little")
    # A FORMAT event is sent again, with its own place, where a stream begins inside a file.
    repeated = fields[4] == ev.FORMAT and offset > low
    if low and not flags & 0x20 and not repeated:
        behind = (offset & ~0xFFFFFFFF) | low
        state.offset = behind if behind >= offset else behind + (1 << 32)
    elif not low and state.txn_ts and is_inside(fields[4], flags):
        state.offset = offset + state.event_end - header
    state.at = state.event_end
