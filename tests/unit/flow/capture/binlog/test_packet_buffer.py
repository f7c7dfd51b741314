"""The buffer of a stream's packets: it grows for what is long, and becomes small again."""

from __future__ import annotations

from typing import Any

import numpy as np

from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.frame.read_ahead import ReadAhead
from rowferry.testing.harness import wait_for

ROOM = 256 << 10
LOGIN: Any = "the server"


class Arriving(PacketBuffer):
    """Gives what is put into `coming`."""

    tail = 0

    def __init__(self) -> None:
        super().__init__(LOGIN, ROOM)
        self.coming = b""

    def wait(self, seconds: float) -> bool:
        return bool(self.coming)

    def _receive(self, room: memoryview) -> int:
        now = self.coming[: len(room)]
        room[: len(now)] = now
        self.coming = self.coming[len(now) :]
        return len(now)

    def close(self) -> None:
        pass


def packet(size: int, fill: int) -> bytes:
    return size.to_bytes(3, "little") + b"\0" + b"\0" + bytes([fill]) * (size - 1)


def test_a_buffer_is_small_again_behind_a_backlog() -> None:
    stream = Arriving()
    stream.coming = packet(3 << 20, 7)
    assert stream.next_event() == bytes([7]) * ((3 << 20) - 1)
    assert len(stream.data) >= 3 << 20
    for number in range(1000):
        stream.coming = packet(500, number % 200) + packet(700, 201)[:300]
        assert stream.next_event() == bytes([number % 200]) * 499
        stream.coming = packet(700, 201)[300:]
        assert stream.next_event() == bytes([201]) * 699
    assert len(stream.data) == ROOM


def test_a_buffer_in_use_keeps_its_room() -> None:
    stream = Arriving()
    for number in range(600):
        stream.coming = packet(1 << 20, number % 200)
        stream.fill()
        stream.fill()  # what waits to be taken needs it
        assert stream.next_event() == bytes([number % 200]) * ((1 << 20) - 1)
    assert len(stream.data) > ROOM


def test_untaken_bytes_and_joined_events_move_with_the_buffer() -> None:
    stream = Arriving()
    stream.coming = packet(3 << 20, 7)
    stream.next_event()
    moved = 0
    for number in range(600):
        stream.coming += packet(90, number % 200)
        place = stream.start
        stream.joined = np.array([[place, 90]], np.int64)
        step = stream.fill()
        assert stream.start == place - step
        assert stream.joined.tolist() == [[stream.start, 90]]
        moved += step
        assert stream.next_event() == bytes([number % 200]) * 89
    assert len(stream.data) == ROOM
    assert moved > 0


def test_room_follows_what_is_still_needed() -> None:
    """Being behind for a moment now and then does not keep the room of one long transaction."""
    stream = Arriving()
    stream.coming = packet(3 << 20, 7)
    stream.next_event()
    for number in range(1200):
        size = 150 << 10 if number % 50 == 0 else 900
        whole = packet(size, number % 200)
        stream.coming = whole[: size * 2 // 3]
        stream.fill()
        stream.coming = whole[size * 2 // 3 :]
        assert stream.next_event() == bytes([number % 200]) * (size - 1)
    assert len(stream.data) == ROOM


class FramesAll:
    """A scanner that frames whatever has come."""

    blocked = False
    at_border = True

    def __init__(self, stream: PacketBuffer) -> None:
        self.stream = stream
        self.framed = 0

    def receive(self) -> None:
        self.stream.fill()

    def frame(self) -> None:
        self.framed += self.stream.filled - self.stream.start
        self.stream.start = self.stream.filled

    def backlog(self) -> tuple[int, int]:
        return 0, 0


def test_a_backlog_of_short_transactions_needs_no_more_room() -> None:
    """Each changefeed has a buffer: all of them would grow at once behind a restart."""
    stream = Arriving()
    size = 10 << 20
    stream.coming = bytes(size)
    scanner: Any = FramesAll(stream)
    ahead = ReadAhead(stream, scanner, 1 << 30)
    try:
        wait_for(lambda: scanner.framed == size, "all of it is framed", 60, 0.01)
    finally:
        ahead.close()
    assert len(stream.data) == ROOM
