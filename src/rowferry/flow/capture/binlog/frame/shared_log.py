"""One connection to a server's log for all changefeeds of this process that read it.

A server sends its log to everybody who asks, event by event. With a connection for each changefeed
this process would receive every event as often as it has changefeeds. So those that have caught up
share one: `SharedLog` receives, and keeps the newest bytes in memory; each changefeed has a
`SharedStream`, which gives it the same packets that a connection of its own would.

What is shared is a matter of speed only. A changefeed joins where it stands, if the kept bytes
reach back there; else it reads by itself. Whoever falls behind what is kept, and everybody when
the connection ends, hears `SharedLogLost` and goes on by itself: errors of the server are met
there.

Many changefeeds read at once, and one that has fallen behind reads a lot: so what is kept is never
changed, only replaced as a whole, and reading it takes no lock. Whoever waits for more takes one.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.client.server import BinlogServer, LogLook
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import packet_kernels as k
from rowferry.mysql.session import Flavour, Login

LOG = logging.getLogger(__name__)
KEPT_BYTES: Final = 32 << 20
# What comes in small pieces is kept in larger ones: the C library gives those back as they are let
# go, and keeps the holes that many small ones leave in its heaps.
_PIECE_BYTES: Final = 512 << 10
_ROOM: Final = 256 << 10  # of a changefeed's own buffer at first
_MOST_AT_ONCE: Final = 1 << 20
_MOST_READS: Final = 512
_LOOK_S: Final = 0.2
# More is let come before it is passed on, the longer the more changefeeds wait: each of them is
# woken by that.
_GATHER_S: Final = 0.002
_MOST_GATHER_S: Final = 0.1
_LOOK_LASTS_S: Final = 0.01  # for each changefeed: what one has asked the server, others need not
_MOST_LOOK_LASTS_S: Final = 0.5

# Who may share: the login, the server behind it, and the replica's number that users asked for.
SharedKey: TypeAlias = tuple[Login, str, int]


class SharedLogLost(Exception):
    """The shared log does not have what comes next; read on by a connection of your own."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Whole packets that came at once, of one file.

    Attributes:
        at: where it begins, in bytes since the shared log began.
        file_number: how many files were there before, since then.
        offset: of the file, before the first event.
        tail: bytes of checksum behind each event.
        begins, places: offsets at which events begin, and where in `data` their packets do.
    """

    at: int
    data: bytes
    file: str
    file_number: int
    offset: int
    tail: int
    begins: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]

    @property
    def end(self) -> int:
        return self.at + len(self.data)

    @property
    def nbytes(self) -> int:
        return len(self.data) + self.begins.nbytes + self.places.nbytes

    def with_next(self, other: _Block) -> _Block:
        """Return this block and the one that came behind it as one."""
        return replace(
            self,
            data=self.data + other.data,
            begins=np.concatenate([self.begins, other.begins]),
            places=np.concatenate([self.places, other.places + len(self.data)]),
        )

    def can_grow_by(self, other: _Block) -> bool:
        """Return whether the one behind it is of the same kind, and the two are not too large."""
        is_same = (self.file_number, self.tail) == (other.file_number, other.tail)
        return is_same and len(self.data) + len(other.data) <= _PIECE_BYTES

    @property
    def place(self) -> tuple[int, int]:
        """Where in the log it begins: places ascend."""
        return self.file_number, self.offset


class SharedLog:
    """Receives a log and keeps its newest bytes for everybody who has joined."""

    def __init__(self, login: Login, stream: LogStream, flavour: Flavour, start: StartAt) -> None:
        self._login, self._stream = login, stream
        self._maria = flavour is Flavour.MARIADB
        self._file, self._tail = start.file, stream.tail
        self._state = np.zeros(k.STATE_SIZE, np.int64)
        self._state[k.OFFSET] = start.offset
        self._changed = threading.Condition()
        self._blocks: tuple[_Block, ...] = ()
        self._file_number = 0
        self._end = 0
        # What lies behind all that is kept, and where: changes together with it. While an event
        # goes on, of which not all packets have come, it stays before that event.
        self._border = (start.file, start.offset, stream.tail, 0)
        self._readers: set[SharedStream] = set()
        self._is_held_up = False  # it waits until somebody has read
        self._is_lost = False
        self._leaving = threading.Event()
        self._looking = threading.Lock()
        self._look: LogLook | None = None
        self._looked_at = 0.0
        self._thread = threading.Thread(target=self._run, name="shared-binlog", daemon=True)
        self._thread.start()

    # --- who reads -------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether nothing more comes."""
        return self._is_lost

    @property
    def nbytes(self) -> int:
        """How much memory what is kept takes."""
        return sum(block.nbytes for block in self._blocks)

    def join(self, file: str, offset: int) -> SharedStream | None:
        """Return a stream of all that lies behind a border of the log; None: it is not kept."""
        with self._changed:
            start = self._find(file, offset)
            if start is None or self._is_lost:
                return None
            stream = SharedStream(self, self._login, *start)
            self._readers.add(stream)
            return stream

    def reaches(self, file: str, offset: int) -> bool:
        """Return whether `join` would give a stream."""
        return not self._is_lost and self._find(file, offset) is not None

    def leave(self, stream: SharedStream) -> bool:
        """Let a reader go; returns whether it was the last."""
        with self._changed:
            self._readers.discard(stream)
            self._changed.notify_all()
            return not self._readers

    def _find(self, file: str, offset: int) -> tuple[int, int] | None:
        """Return where the first event lies that begins at an offset or behind it, and its tail."""
        # The border first: what is behind it may have become a block by the time of the next look.
        last_file, last_offset, last_tail, end = self._border
        blocks = self._blocks
        number = next((b.file_number for b in reversed(blocks) if b.file == file), None)
        if number is not None:
            first = bisect_right(blocks, (number, offset), key=_place_of) - 1
            while first > 0 and blocks[first - 1].place == blocks[first].place:
                first -= 1
            if first >= 0 and blocks[first].file_number == number:
                for block in blocks[first:]:
                    if block.file_number != number:
                        break
                    place = int(np.searchsorted(block.begins, offset))
                    if place < len(block.begins):
                        return block.at + int(block.places[place]), block.tail
        # Nothing is there yet: what comes next is what lies behind.
        return (end, last_tail) if (file, offset) == (last_file, last_offset) else None

    def arrived(self, stream: SharedStream, seconds: float) -> bool:
        """Return whether there is more for a reader, after waiting for some at most so long."""
        if self._has_more(stream) or not seconds:
            return self._has_more(stream)
        with self._changed:
            if not self._has_more(stream):
                self._changed.wait(seconds)
        return self._has_more(stream)

    def _has_more(self, stream: SharedStream) -> bool:
        return self._is_lost or self._end > stream.at

    def copy(self, stream: SharedStream, room: memoryview) -> int:
        """Copy a reader's next bytes, and return how many they are.

        Raises:
            SharedLogLost: they are not kept any more, or will never come.
        """
        while not self._has_more(stream):
            self.arrived(stream, _LOOK_S)
        blocks, at = self._blocks, stream.at
        if not blocks or at < blocks[0].at or at >= blocks[-1].end:
            raise SharedLogLost
        most, size = min(len(room), _MOST_AT_ONCE), 0
        for block in blocks[bisect_right(blocks, at, key=_start_of) - 1 :]:
            begin = at + size - block.at
            part = min(most - size, len(block.data) - begin)
            room[size : size + part] = block.data[begin : begin + part]
            size += part
            if size == most:
                break
        stream.at = at + size
        if self._is_held_up:
            with self._changed:
                self._changed.notify_all()
        return size

    def look(self, server: BinlogServer) -> LogLook:
        """Return the server's clock and then its log's end, as somebody has asked a moment ago.

        All that was committed by that clock lies before that end, whenever it was asked.
        """
        with self._looking:
            lasts_s = min(_MOST_LOOK_LASTS_S, _LOOK_LASTS_S * len(self._readers))
            if self._look is None or time.monotonic() - self._looked_at > lasts_s:
                self._looked_at = time.monotonic()
                self._look = server.look()
            return self._look

    # --- receiving -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop receiving; readers hear that it is lost."""
        self._leaving.set()
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()
        self._thread.join(timeout=30)
        with suppress(Exception):
            self._stream.close()

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                self._next()
        except Exception as err:  # whoever reads on by itself meets the same, and judges it
            LOG.info("the log of %s that changefeeds share has ended: %s", self._login, err)
        finally:
            with self._changed:
                self._is_lost = True
                self._blocks = ()
                self._changed.notify_all()

    def _next(self) -> None:
        stream = self._stream
        if not stream.wait(0):
            if not stream.wait(_LOOK_S):
                return
            self._leaving.wait(min(_MOST_GATHER_S, _GATHER_S * len(self._readers)))
        for _ in range(_MOST_READS):  # over TLS each event comes by itself
            self._state[k.AT] -= stream.fill()
            if stream.filled - stream.start > _MOST_AT_ONCE or not stream.wait(0):
                break
        self._keep()
        with self._changed:
            if not self._is_ahead_of_all():
                return
            self._is_held_up = True  # from here on whoever reads says so: look once more
            while self._is_ahead_of_all() and not self._leaving.is_set():
                self._changed.wait(_LOOK_S)
            self._is_held_up = False

    def _is_ahead_of_all(self) -> bool:
        """Return whether all readers together are so slow that nothing more can be kept."""
        nearest = max((stream.at for stream in self._readers), default=self._end)
        return self._end - nearest > KEPT_BYTES // 2

    def _keep(self) -> None:
        """Keep the whole packets that have come, and let the oldest go."""
        stream, state = self._stream, self._state
        begins = np.empty(4096, np.int64)
        places = np.empty(4096, np.int64)
        while True:
            file, offset, tail, begin = self._file, int(state[k.OFFSET]), self._tail, stream.start
            number = self._file_number
            state[k.COUNT] = 0
            reason = k.place_packets(stream.data, stream.filled, self._maria, state, begins, places)
            end, count = int(state[k.AT]), int(state[k.COUNT])
            if reason == k.NEW_FILE:
                self._look_at_file(stream.data[state[k.EVENT_AT] : state[k.EVENT_END]].tobytes())
            with self._changed:
                if end > begin:
                    self._add(
                        _Block(
                            self._end,
                            stream.data[begin:end].tobytes(),
                            file,
                            number,
                            offset,
                            tail,
                            begins[:count].copy(),
                            places[:count] - begin,
                        )
                    )
                stream.start = end
                if not state[k.GOES_ON]:  # else it would lie inside an event
                    self._border = (self._file, int(state[k.OFFSET]), self._tail, self._end)
                if reason == k.NO_EVENT:
                    self._is_lost = True
                    self._leaving.set()
                if reason in (k.NO_EVENT, k.MORE):
                    self._changed.notify_all()
                    return

    def _add(self, block: _Block) -> None:
        oldest = block.end - KEPT_BYTES
        blocks = self._blocks[bisect_right(self._blocks, oldest, key=_start_of) :]
        if blocks and blocks[-1].can_grow_by(block):
            blocks, block = blocks[:-1], blocks[-1].with_next(block)
        self._blocks = (*blocks, block)
        self._end = block.end  # readers look at it before they look at blocks

    def _look_at_file(self, event: bytes) -> None:
        """Take in a ROTATE or FORMAT event: the next packets have another file, or another tail."""
        if event[4] == ev.FORMAT:
            self._tail = 4 if ev.has_checksums(event[ev.HEADER :]) else 0
            return
        name, offset = ev.parse_rotate(event[ev.HEADER : len(event) - self._tail])
        if name != self._file:
            self._file = name
            self._file_number += 1
            self._state[k.OFFSET] = offset


def _start_of(block: _Block) -> int:
    return block.at


def _place_of(block: _Block) -> tuple[int, int]:
    return block.place


class SharedStream(PacketBuffer):
    """One changefeed's packets of a shared log; `at`: what was read, in bytes since that began."""

    gathers = True

    def __init__(self, log: SharedLog, login: Login, at: int, tail: int) -> None:
        super().__init__(login, _ROOM)
        self.log, self.at, self.tail = log, at, tail

    def wait(self, seconds: float) -> bool:
        """Return whether there is more, also an end to hear of, after waiting at most so long."""
        return self.log.arrived(self, seconds)

    def look(self, server: BinlogServer) -> LogLook:
        """Return what somebody of those who share the log has asked a moment ago."""
        return self.log.look(server)

    def _receive(self, room: memoryview) -> int:
        return self.log.copy(self, room)

    def close(self) -> None:
        """Leave the shared log; the last to leave ends it."""
        SHARED_LOGS.leave(self)


class SharedLogs:
    """The shared logs of this process; for use from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planners: Counter[SharedKey] = Counter()
        self._logs: dict[SharedKey, SharedLog] = {}
        self._turns: dict[SharedKey, threading.Lock] = {}  # to open one

    @property
    def nbytes(self) -> int:
        """How much memory all that is kept takes."""
        with self._lock:
            return sum(log.nbytes for log in self._logs.values())

    def enter(self, key: SharedKey) -> None:
        """Note a changefeed that reads this log, in whatever way; `exit` when it does not."""
        with self._lock:
            self._planners[key] += 1
            self._turns.setdefault(key, threading.Lock())

    def exit(self, key: SharedKey) -> None:
        """Note that a changefeed has left."""
        with self._lock:
            self._planners[key] -= 1
            if not self._planners[key]:
                del self._planners[key], self._turns[key]

    def serves(self, key: SharedKey, file: str, offset: int) -> bool:
        """Return whether `join` would give a stream there; one alone has no use for it."""
        with self._lock:
            log = self._living(key)
            return log.reaches(file, offset) if log else self._planners[key] > 1

    def join(
        self, key: SharedKey, flavour: Flavour, start: StartAt, server_id: Callable[[], int]
    ) -> SharedStream | None:
        """Return a stream from a border of the log on, over the connection that all share.

        It is opened if there is none, as a replica with that number. None: read by a connection of
        your own.

        Raises:
            RowferryError: as `LogStream`.
        """
        with self._turns[key]:
            with self._lock:
                log = self._living(key)
                if log is None and self._planners[key] < 2:
                    return None
            if log is None:
                login, identity, _ = key
                stream = LogStream(login, flavour, start, server_id(), server=identity)
                log = SharedLog(login, stream, flavour, start)
                with self._lock:
                    self._logs[key] = log
            return log.join(start.file, start.offset)

    def _living(self, key: SharedKey) -> SharedLog | None:
        log = self._logs.get(key)
        if log is not None and log.is_lost:
            del self._logs[key]
            return None
        return log

    def leave(self, stream: SharedStream) -> None:
        """Let a reader go; the last one ends its log."""
        with self._lock:
            if not stream.log.leave(stream):
                return
            for key in [key for key, log in self._logs.items() if log is stream.log]:
                del self._logs[key]
        stream.log.close()


SHARED_LOGS: Final = SharedLogs()
