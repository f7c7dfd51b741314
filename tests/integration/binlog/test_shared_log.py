"""Changefeeds of one process that read one server's log together, and when they do not."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from feed_kit import Feed, Scene, scene_of

from patience import until_it_fails
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog import planner as planner_module
from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.client.server import LogLook
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.frame import shared_log
from rowferry.flow.capture.binlog.frame.shared_log import SHARED_LOGS, SharedLog, SharedStream
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.mysql.session import Flavour, Login
from rowferry.testing.servers import Server

ROW = "x" * 1000


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as scene:
        scene.sql("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v longtext)")
        yield scene
    assert not SHARED_LOGS._logs and not SHARED_LOGS._planners


def _planner(feed: Feed) -> BinlogPlanner:
    planner = feed.loop._planner
    assert isinstance(planner, BinlogPlanner)
    return planner


def _stream(feed: Feed) -> Any:
    ahead = _planner(feed)._ahead if feed.loop._planner else None
    return ahead._stream if ahead else None


def _dumps(scene: Scene) -> list[str]:
    """Return the connections to which the server sends its log, without those that just ended."""
    rows = scene.server.execute("SHOW PROCESSLIST")
    return [str(row[0]) for row in rows if str(row[4]).startswith("Binlog Dump")]


def _share(*feeds: Feed) -> SharedLog:
    """Let feeds catch up until all of them read one log."""
    deadline = time.monotonic() + 60
    while not all(isinstance(_stream(feed), SharedStream) for feed in feeds):
        assert time.monotonic() < deadline, [_stream(feed) for feed in feeds]
        for feed in feeds:
            feed.catch_up()
            feed.step()
    streams = [_stream(feed) for feed in feeds]
    logs = {stream.log for stream in streams if isinstance(stream, SharedStream)}
    assert len(logs) == 1
    return logs.pop()


def _check(*feeds: Feed) -> None:
    for feed in feeds:
        feed.catch_up()
        assert not feed.differences()
        assert not feed.repeated("t")
        assert not feed.faults


def test_one_connection_serves_all(scene: Scene) -> None:
    """Rows, statements, another file, long events: each feed has all of it once."""
    feeds = [scene.feed(), scene.feed()]
    third = scene.feed(rules=[f"{scene.database}.oth*"])
    log = _share(*feeds, third)
    scene.sql(
        f"INSERT INTO t (v) VALUES ('{ROW}'), ('b')",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1), (2)",
        "FLUSH BINARY LOGS",
        "UPDATE t SET v = 'c' WHERE id = 2",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
        "INSERT INTO t (v) VALUES (REPEAT('y', 18000000))",  # an event in two packets
        "FLUSH BINARY LOGS",
        "XA START 'x'",
        "INSERT INTO t (v) VALUES ('by xa')",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
        "DELETE FROM t WHERE id = 1",
    )
    _check(*feeds, third)
    assert _share(*feeds, third) is log
    assert len(_dumps(scene)) == 1
    feeds[0].stop()
    scene.sql("INSERT INTO t (v) VALUES ('after one has left')")
    _check(feeds[1])
    assert _share(feeds[1], third) is log


def test_a_feed_alone_has_a_connection_of_its_own(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    feed.catch_up()
    assert isinstance(_stream(feed), LogStream)


def test_a_connection_that_ends_ends_nothing_else(scene: Scene) -> None:
    """Each feed goes on by itself, and they meet again."""
    feeds = [scene.feed(), scene.feed()]
    log = _share(*feeds)
    scene.sql("INSERT INTO t (v) VALUES ('a'), ('b')")
    for connection in _dumps(scene):
        with suppress(SourceUnavailable):  # one that feeds had before they met has just ended
            scene.server.execute(f"KILL {connection}")
    scene.sql("INSERT INTO t (v) VALUES ('c')", "DELETE FROM t WHERE v = 'a'")
    _check(*feeds)
    other = _share(*feeds)
    assert other is not log and log.is_lost
    scene.sql("INSERT INTO t (v) VALUES ('d')")
    _check(*feeds)


def test_who_falls_behind_reads_by_itself_and_comes_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "KEPT_BYTES", 1 << 16)
    quick, slow = scene.feed(), scene.feed()
    log = _share(quick, slow)
    _planner(slow)._ahead.changed.acquire()  # type: ignore[union-attr]
    try:
        for _ in range(8):
            scene.sql(*[f"INSERT INTO t (v) VALUES ('{ROW}')"] * 40)
            quick.catch_up()
    finally:
        _planner(slow)._ahead.changed.release()  # type: ignore[union-attr]
    assert log._blocks[0].at > _stream(slow).at
    slow.step()
    assert len(log._readers) == 1
    _check(quick, slow)
    assert _share(quick, slow) is log


def test_who_never_comes_to_the_end_shares_too(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart under load all are behind, and each that reads alone makes it worse."""
    feeds = [scene.feed(), scene.feed()]
    for feed in feeds:
        feed.catch_up()
        feed.stop()
    scene.sql("INSERT INTO t (v) VALUES ('written meanwhile')")
    with monkeypatch.context() as busy:
        busy.setattr(LogLook, "is_reached_by", lambda look, position: False)
        for feed in feeds:
            feed.run()
        deadline = time.monotonic() + 60
        while not all(isinstance(_stream(feed), SharedStream) for feed in feeds):
            assert time.monotonic() < deadline, [_stream(feed) for feed in feeds]
            scene.sql("INSERT INTO t (v) VALUES ('more')")
            for feed in feeds:
                feed.step()
    _check(*feeds)


def test_who_is_behind_takes_all_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many changefeeds that are behind take so many turns that none of them catches up."""
    monkeypatch.setattr(shared_log, "_PIECE_BYTES", 0)
    quick, slow = scene.feed(), scene.feed()
    log = _share(quick, slow)
    stream = _stream(slow)
    _planner(slow)._ahead.changed.acquire()  # type: ignore[union-attr]
    try:
        before = stream.at
        for _ in range(8):
            scene.sql(f"INSERT INTO t (v) VALUES ('{ROW}')")
            quick.catch_up()
        assert len([block for block in log._blocks if block.end > before]) > 4
        room, end = bytearray(1 << 20), log._end
        size = log.copy(stream, memoryview(room))
        assert size >= end - before
        assert room[:size] in b"".join(block.data for block in log._blocks)
        stream.at = before
    finally:
        _planner(slow)._ahead.changed.release()  # type: ignore[union-attr]
    slow.catch_up()
    _check(quick, slow)


def test_nobody_reads_then_nothing_is_received(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept stays bounded when all feeds stand still; nothing is skipped."""
    monkeypatch.setattr(shared_log, "KEPT_BYTES", 1 << 18)
    feeds = [scene.feed(), scene.feed()]
    log = _share(*feeds)
    for feed in feeds:
        _planner(feed)._ahead.changed.acquire()  # type: ignore[union-attr]
    try:
        for _ in range(20):
            scene.sql(*[f"INSERT INTO t (v) VALUES ('{ROW}')"] * 100)
        assert sum(len(block.data) for block in log._blocks) < (1 << 18) + (2 << 20)
    finally:
        for feed in feeds:
            _planner(feed)._ahead.changed.release()  # type: ignore[union-attr]
    _check(*feeds)


@pytest.mark.parametrize("piece_bytes", [0, 1000, shared_log._PIECE_BYTES])
def test_a_stream_begins_at_every_border_as_one_of_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Wherever a feed stood, the shared log gives it the packets that the server would."""
    monkeypatch.setattr(shared_log, "_PIECE_BYTES", piece_bytes)
    feeds = [scene.feed(), scene.feed()]
    log = _share(*feeds)
    borders = [_planner(feeds[0])._state.log]
    for i in range(6):
        scene.sql(f"INSERT INTO t (v) VALUES ('{i}')", "UPDATE t SET v = 'z' ORDER BY id LIMIT 1")
        if i % 2:
            scene.sql("FLUSH BINARY LOGS")
        if i == 3:
            scene.sql(f"CREATE TABLE u{i} (id int PRIMARY KEY)")
        for feed in feeds:
            feed.catch_up()
        borders.append(_planner(feeds[0])._state.log)
    server = _planner(feeds[0])._server
    pieces = len(log._blocks)
    assert pieces > 8 if not piece_bytes else pieces < 8 if piece_bytes > 1000 else pieces > 3
    assert len({(b.file, b.offset) for b in borders}) == 7 and len({b.file for b in borders}) == 4
    for border in borders:
        shared = log.join(border.file, border.offset)
        assert shared is not None, border
        start = StartAt(border.file, border.offset)
        with closing(shared), closing(LogStream(server.login, server.flavour, start)) as own:
            wanted = [e for e in _events(own) if not _is_made_up(e)]
            assert _taken(shared, len(wanted)) == wanted, border
    missing = borders[-1]
    assert log.join(missing.file, missing.offset + 1) is None  # ahead of what has come
    assert log.join(borders[0].file, 4) is None  # before what is kept


def _events(stream: LogStream) -> Iterator[bytes]:
    while (event := stream.next_event()) is not None:
        yield event


def _taken(stream: SharedStream, count: int) -> list[bytes]:
    events: list[bytes] = []
    while len(events) < count:
        assert stream.filled > stream.start or stream.wait(10.0), "an event is missing"
        event = stream.next_event()
        assert event is not None
        if not _is_made_up(event):
            events.append(event)
    return events


def _is_made_up(event: bytes) -> bool:
    """Return whether an event is not in the file, or was sent again where a stream begins."""
    return event[4] in (4, 15, 27, 35, 41, 163, 164) or event[13:17] == bytes(4)


class _Pieces(PacketBuffer):
    """A stream of what a test hands it."""

    tail = 0

    def __init__(self) -> None:
        super().__init__(Login("nowhere", 0, "", ""), 1 << 20)
        self.come = bytearray()

    def wait(self, seconds: float) -> bool:
        if not self.come:
            time.sleep(min(seconds, 0.01))
        return bool(self.come)

    def _receive(self, room: memoryview) -> int:
        size = min(len(room), len(self.come))
        room[:size] = self.come[:size]
        del self.come[:size]
        return size

    def close(self) -> None:
        self.come.clear()


def test_nobody_joins_inside_an_event_of_several_packets() -> None:
    """Who stands behind it, by a connection of its own, reads on by that until all of it came."""
    size, payload = (1 << 24) + 1000, 40  # a compressed transaction
    head = struct.pack("<IBIIIH", 1_700_000_000, payload, 1, size, 4 + size, 0)
    event = b"\0" + head + bytes(size - len(head))
    first, rest = event[:0xFFFFFF], event[0xFFFFFF:]
    stream, start = _Pieces(), StartAt("binlog.000001", 4)
    log = SharedLog(stream._login, stream, Flavour.MYSQL, start)  # type: ignore[arg-type]
    with closing(log):
        for number, part in enumerate((first, rest)):
            end = log._end + 4 + len(part)
            stream.come += len(part).to_bytes(3, "little") + bytes([number]) + part
            deadline = time.monotonic() + 60
            while log._end < end:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert log.reaches(start.file, start.offset)
            assert log.reaches(start.file, 4 + size) == (part is rest)
        behind = log.join(start.file, 4 + size)
        assert behind is not None and behind.at == log._end


def test_who_fails_to_begin_leaves(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = [scene.feed(), scene.feed()]
    log = _share(*feeds)
    _planner(feeds[1])._close_log()
    with monkeypatch.context() as patch:

        def fail(*args: Any) -> Any:
            raise SourceUnavailable("the server was restarted")

        patch.setattr(planner_module, "Scanner", fail)
        until_it_fails(feeds[1], "the server was restarted")
    assert log._readers == {_stream(feeds[0])}
    feeds[1].faults.clear()
    _check(*feeds)


def test_many_feeds_join_and_leave_while_rows_are_written(scene: Scene) -> None:
    """Threads that catch up, stop and begin again at any time: all have every row once."""
    feeds = [scene.feed() for _ in range(5)]
    written = threading.Event()

    def write() -> None:
        for i in range(120):
            scene.sql(f"INSERT INTO t (v) VALUES ('{i}')", "UPDATE t SET v = 'u' WHERE id % 7 = 0")
            if i % 40 == 39:
                scene.sql("FLUSH BINARY LOGS")
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    turn = 0
    while not written.is_set():
        feed = feeds[turn % len(feeds)]
        feed.step()
        if turn % 11 == 10:
            feed.run()  # as another process would
        turn += 1
    writer.join()
    _check(*feeds)
    _share(*feeds)
