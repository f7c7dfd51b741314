"""Frames the log in a thread of its own, so that planning the next stretch costs no time."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import ClassVar

from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.client.server import BinlogServer, LogLook
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.shared_log import SharedStream

_MOST_SEGMENTS = 256
_LOOK_S = 0.2
_MOST_READS = 64
_MOST_WAITING = 4 << 20  # bytes that were received and not framed
# After a silence more is let come before it is read, the longer the more readers there are: each
# of them is woken by every transaction, and together they would do nothing but wake up.
_GATHER_S = 0.002
_MOST_GATHER_S = 0.1


class ReadAhead:
    """A scanner that works on while nobody asks. Hold `changed` for every use of the scanner."""

    readers: ClassVar[int] = 0  # in this process, about

    def __init__(self, stream: PacketBuffer, scanner: Scanner, most_bytes: int) -> None:
        self.scanner = scanner
        self.changed = threading.Condition()
        self._stream = stream
        self._most_bytes = most_bytes
        self._drained = False
        self._taken = False
        self._stopped = False
        self._gathering = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="binlog", daemon=True)
        ReadAhead.readers += 1
        self._thread.start()

    def wait(self, enough_bytes: int, seconds: float) -> None:
        """Wait (inside `changed`) until there is enough to take, or nothing more comes.

        Raises:
            RowferryError: what ended the framing.
        """
        until = time.monotonic() + seconds
        while True:
            if self._error is not None:
                raise self._error
            if self.scanner.blocked or self._holds(enough_bytes):
                return
            if self._drained and self.scanner.at_border:
                return
            left = until - time.monotonic()
            if left <= 0:
                return
            self.changed.wait(left)

    @property
    def is_drained(self) -> bool:
        """Whether all that has come was framed (inside `changed`)."""
        return self._drained and self.scanner.at_border

    @property
    def is_shared(self) -> bool:
        """Whether others read the same connection."""
        return isinstance(self._stream, SharedStream)

    def look(self, server: BinlogServer) -> LogLook:
        """Return the server's clock, and then the log's end, as asked now or a moment ago."""
        return self._stream.look(server)

    def has_news(self) -> bool:
        """Return whether there is something to take, or an error to hear of."""
        with self.changed:
            return (
                self._error is not None
                or not self._thread.is_alive()
                or self.scanner.blocked
                or not self.scanner.at_border
                or self.scanner.backlog()[0] > 0
            )

    def poke(self) -> None:
        """Let the framing go on after a take (inside `changed`).

        Also where this thread did not come to see that it had to stop: bytes that were received by
        then would wait for the next ones, which may be a heartbeat long.
        """
        self._taken = True
        self.changed.notify_all()

    def close(self) -> None:
        """Stop the thread and close the stream."""
        with self.changed:
            ReadAhead.readers -= not self._stopped
            self._stopped = True
            self._gathering.set()
            self.changed.notify_all()
        self._thread.join(timeout=30)
        with suppress(Exception):
            self._stream.close()
        self._error = None  # its traceback leads back here: buffers would wait for the collector

    def _run(self) -> None:
        try:
            while self._next():
                pass
        except BaseException as err:
            with self.changed:
                self._error = err
                self.changed.notify_all()

    def _next(self) -> bool:
        with self.changed:
            while not self._stopped:
                if self._full():
                    self.changed.wait()
                elif self._taken:
                    self._taken = False
                    self.scanner.frame()  # bytes that had come before it stopped
                    self.changed.notify_all()
                else:
                    break
            if self._stopped:
                return False
        ready = self._stream.wait(0)
        if not ready:
            with self.changed:
                self._drained = True
                self.changed.notify_all()
            ready = self._stream.wait(_LOOK_S)
            if ready and not self._stream.gathers:
                self._gathering.wait(min(_MOST_GATHER_S, _GATHER_S * self.readers))
        if ready:
            with self.changed:
                if not self._stopped:
                    self._drained = False
                    self.scanner.receive()
                    try:
                        for _ in range(_MOST_READS):  # over TLS each event comes by itself
                            if self._has_enough() or not self._stream.wait(0):
                                break
                            self.scanner.receive()
                    finally:  # a server says why before it closes the connection
                        self.scanner.frame()
        return True

    def _has_enough(self) -> bool:
        """Return whether what has come is to be framed first: a backlog needs no larger buffer."""
        waiting = self._stream.filled - self._stream.start
        return self._stream.is_full or waiting > _MOST_WAITING

    def _full(self) -> bool:
        return self.scanner.blocked or self._holds(self._most_bytes)

    def _holds(self, size: int) -> bool:
        """Return whether so much can be taken; never inside a transaction, however long it is."""
        segments, framed = self.scanner.backlog()
        return self.scanner.at_border and (framed >= size or segments >= _MOST_SEGMENTS)
