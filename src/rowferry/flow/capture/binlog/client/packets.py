"""Packets of the log in one buffer, wherever their bytes come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.inflate import LONGEST_ROW
from rowferry.errors import CorruptLog, RowferryError
from rowferry.flow.capture.binlog.client.server import BinlogServer, LogLook
from rowferry.mysql import session
from rowferry.mysql.session import Login

FIRST_ROOM: Final = 4 << 20
LONGEST_EVENT: Final = LONGEST_ROW
_FEW: Final = 256  # fills that needed little room before the buffer becomes smaller again
_LEAST_FREE: Final = 64 << 10  # with less behind what is filled, there is no room for more


class PacketBuffer(ABC):
    """Packets as they come. Not for use from several threads at once, except `close`.

    Attributes:
        data: the buffer; `filled` bytes of it are valid.
        start: what lies before was taken.
        joined: (place, size) of events that came in several packets and were joined.
        tail: how many bytes of checksum stand behind each event where the stream begins.
        gathers: it lets more come by itself before it says that bytes have arrived.
    """

    tail: int
    gathers: bool = False

    def __init__(self, login: Login, room: int) -> None:
        self._login = login
        self._room = room
        self._fills, self._most_left = 0, 0  # since room was last looked at
        self.data: npt.NDArray[np.uint8] = np.zeros(room, np.uint8)
        self.start = 0
        self.filled = 0
        self.joined: npt.NDArray[np.int64] = np.zeros((0, 2), np.int64)

    @property
    def is_full(self) -> bool:
        """Whether the next `fill` needs a larger buffer, if nothing is taken before it."""
        return self.filled - self.start + _LEAST_FREE > len(self.data)

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Return whether bytes have arrived, after waiting for some at most so long."""

    @abstractmethod
    def _receive(self, room: memoryview) -> int:
        """Wait for bytes, put them there and return how many."""

    @abstractmethod
    def close(self) -> None:
        """Let go of where bytes come from."""

    def look(self, server: BinlogServer) -> LogLook:
        """Return the server's clock, and then the log's end."""
        return server.look()

    def fill(self) -> int:
        """Wait for more bytes and add them behind `filled`; moves the untaken ones to the front.

        Returns by how much the untaken ones moved.

        Raises:
            SourceUnavailable: the connection ended or stayed silent for too long.
        """
        moved = self._give_room_back()
        left = self.filled - self.start
        if self.start and (left < 4096 or self.filled + (256 << 10) > len(self.data)):
            moved += self._move_to_front(self.data)
        if self.is_full:
            if len(self.data) >= LONGEST_EVENT:
                raise CorruptLog(f"{self._login} sent an event of more than {LONGEST_EVENT} bytes")
            more = np.zeros(min(len(self.data) * 2, LONGEST_EVENT), np.uint8)
            more[: self.filled] = self.data[: self.filled]
            self.data = more
        self.filled += self._receive(self.data[self.filled :].data)
        return moved

    def _give_room_back(self) -> int:
        """Make a buffer smaller again that a long transaction has made large.

        Not only when all of the room is needed no more: a server has a buffer for every changefeed,
        and one that is behind for a second now and then would keep many times what it needs.

        Returns by how much the untaken bytes moved.
        """
        left = self.filled - self.start
        self._fills, self._most_left = self._fills + 1, max(self._most_left, left)
        if self._fills < _FEW:
            return 0
        needed = self._room
        while needed < 2 * self._most_left:
            needed *= 2
        self._fills, self._most_left = 0, 0
        is_large = needed < len(self.data)
        return self._move_to_front(np.zeros(needed, np.uint8)) if is_large else 0

    def _move_to_front(self, room: npt.NDArray[np.uint8]) -> int:
        """Put the untaken bytes to the front of a buffer, this or another; returns how far."""
        moved, left = self.start, self.filled - self.start
        room[:left] = self.data[moved : self.filled]
        self.data, self.start, self.filled = room, 0, left
        self.joined = self.joined[self.joined[:, 0] >= moved] - (moved, 0)
        return moved

    def next_event(self) -> bytes | None:
        """Take the next event, a short one; None: the log ends here.

        Raises:
            RowferryError: the server refuses to send the log.
        """
        while True:
            size = int.from_bytes(self.data[self.start : self.start + 3].tobytes(), "little")
            end = self.start + 4 + size
            if self.filled >= self.start + 4 and self.filled >= end:
                break
            self.fill()
        packet = self.data[self.start + 4 : end].tobytes()
        self.start = end
        if packet[:1] == b"\xff":
            raise self.error(packet)
        if packet[:1] == b"\xfe" and len(packet) < 9:
            return None
        if len(packet) < 20 or packet[:1] != b"\0":
            raise CorruptLog(f"{self._login} sent no event where one must be")
        return packet[1:]

    def join_packets(self, at: int) -> bool:
        """Make one packet of an event that came in several, in place; False: it is not whole yet.

        The joined packet's header cannot tell the length any more: `joined` does, by its place.
        """
        parts = []
        place = at
        while True:
            if place + 4 > self.filled:
                return False
            size = int.from_bytes(self.data[place : place + 3].tobytes(), "little")
            if place + 4 + size > self.filled:
                return False
            parts.append((place + 4, size))
            place += 4 + size
            if size < 0xFFFFFF:
                break
        to = at + 4
        for begin, size in parts:
            self.data[to : to + size] = self.data[begin : begin + size]
            to += size
        self.joined = np.append(self.joined, np.array([[at, to - at - 4]], np.int64), axis=0)
        rest = self.filled - place
        self.data[to : to + rest] = self.data[place : self.filled]
        self.filled = to + rest
        return True

    def error(self, packet: bytes) -> RowferryError:
        """Return what an error packet says, as one of ours."""
        return session.error_of(packet, self._login)
