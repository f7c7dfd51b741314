"""A server that is not what it should be: its answers are bounded, and odd ones have one error."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
from wire_rogue_kit import EOF, FULL, Answer, column, honest, packet, packets, rogue

from rowferry.change.table import TableId, TableSchema
from rowferry.columnar import inflate
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import CorruptLog, OddAnswer, SinkUnavailable, SourceError
from rowferry.flow.capture.binlog.client import packets as streams
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import MappedTable
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.scan import LogBytes, Maps, SegmentPairs, run_walk
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.walk_state import WalkState
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql import session, wary_connection
from rowferry.mysql.session import Flavour, Login
from rowferry.spec.uri import Uri

DUMP = b"\x12"
MOST = 1 << 20
WHOLE = Appetite(
    segment_bytes=lambda _: 1 << 20, stretch_bytes=1 << 30, partition_label=lambda _: ""
)


def login(port: int) -> Login:
    return Login("127.0.0.1", port, "u", "p", ssl_mode="disabled", read_timeout_s=10.0)


def asked(answer: Callable[[bytes], Answer]) -> None:
    """Ask a server whose answer to one statement is this."""

    def answers(command: bytes) -> Answer:
        return answer(command) if b"attack" in command else honest(command)

    with rogue(answers) as server, session.connected(login(server.port)) as connection:
        session.rows(connection, login(server.port), "SELECT attack")


# --- answers without end --------------------------------------------------------------------------


def endless_rows(_: bytes) -> Iterator[bytes]:
    yield packets(b"\1", column(), EOF)
    for block in range(64):
        yield b"".join(packet(4 + block * 1024 + i, b"\x05hello") for i in range(1024))


def endless_packet(_: bytes) -> Iterator[bytes]:
    for number in range(1, 5):
        yield packet(number, bytes(FULL))


@pytest.mark.parametrize("answer", [endless_rows, endless_packet])
def test_an_answer_without_end(
    answer: Callable[[bytes], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wary_connection, "MOST_ANSWER", MOST)
    with pytest.raises(OddAnswer, match=f"longer than {MOST} bytes"):
        asked(answer)


def test_an_event_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that each announce another: what is kept of them stays below a limit."""
    monkeypatch.setattr(streams, "LONGEST_EVENT", 40 << 20)

    def answers(command: bytes) -> Answer:
        if command[:1] != DUMP:
            return honest(command)
        return (packet(i, bytes(FULL)) for i in range(1, 8))

    with rogue(answers) as server:
        stream = LogStream(login(server.port), Flavour.MYSQL, StartAt("f", 4))
        try:
            with pytest.raises(CorruptLog, match="an event of more than"):
                while True:
                    stream.fill()
            assert len(stream.data) <= 40 << 20
        finally:
            stream.close()


# --- answers that are none ------------------------------------------------------------------------

HEAD = packets(b"\1", column(), EOF)
ODD = {
    "an empty packet": packets(b""),
    "an error that is cut": packets(b"\xff\1"),
    "no columns, and no OK": packets(b"\xfd\1"),
    "a column that is cut": packets(b"\1", b"\3de"),
    "a column of 4 GB": packets(b"\1", b"\xfe" + struct.pack("<Q", 4 << 30)),
    "more columns than there are": packets(b"\xfa", column(), EOF),
    "no end of the columns": packets(b"\1", column(), b"\1x"),
    "a value of 4 GB": HEAD + packets(b"\xfe" + struct.pack("<Q", 4 << 30) + b"x", first=4),
    "a value that is cut": HEAD + packets(b"\x20abc", first=4),
    "no UTF-8": HEAD + packets(b"\2\xff\xfe", EOF, first=4),
    "an end that is cut": HEAD + packets(b"\xfe", first=4),
    "a packet out of order": packets(b"\1", column(), first=9),
    "our files": packets(b"\xfb/etc/passwd"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer(name: str) -> None:
    """Whatever it is, it is an error of ours, of one line; none of the client library's."""
    with pytest.raises(SourceError) as found:
        asked(lambda _: [ODD[name]])
    assert "\n" not in str(found.value)
    if name not in ("our files", "a packet out of order"):
        assert isinstance(found.value, OddAnswer), found.value


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\x0a",
        b"\x0a8.4",
        b"\x0a8.4.0\0\1",
        b"\x0a\0" + bytes(40),
        b"\xff",
        b"\x0ax.y\0" + bytes(60),
    ],
)
def test_an_odd_greeting(greeting: bytes) -> None:
    with rogue(greeting=packet(0, greeting)) as server:
        with pytest.raises(OddAnswer, match="not what the protocol allows"):
            session.connect(login(server.port))


def test_a_downstream_that_answers_oddly() -> None:
    with rogue(greeting=packet(0, b"\x0a8.4")) as server:
        with pytest.raises(SinkUnavailable, match="not what the protocol allows"):
            MySqlTarget(Uri.parse(f"mysql://u:p@127.0.0.1:{server.port}/", "--apply"))


# --- the log --------------------------------------------------------------------------------------


class NoTables:
    """Captures nothing."""

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        return None

    def is_captured(self, table: TableId) -> bool:
        return False

    def effects(self, query: ev.Query) -> Effects | None:
        return None

    def named(self, query: ev.Query) -> str:
        return ""

    def is_mark(self, table: TableId) -> bool:
        return False

    def source_ms(self) -> int:
        return 1_700_000_000_000


def walked(data: bytes, filled: int) -> int:
    state = WalkState()
    log = LogBytes(np.frombuffer(bytearray(data), np.uint8), filled, 5, 0, False, 1 << 62)
    return run_walk(log, state, state.copy(), Maps(), SegmentPairs(), False)


@pytest.mark.parametrize("behind", [0, 15, 0x7FFFFFFF, 0xFFFFFFFF])
def test_no_byte_behind_the_buffer_is_looked_at(behind: int) -> None:
    """A packet of the largest size, of which five bytes have come: whatever lies behind them."""
    head = b"\xff\xff\xff\0\1"
    stale = bytes(9) + struct.pack("<I", behind) + bytes(8)
    assert walked(head + stale, len(head)) == k.JOIN


def test_no_byte_of_the_wire_is_a_mark_of_ours() -> None:
    """A server may begin a packet with any byte: only we know which packets we joined."""
    event = b"\1" + struct.pack("<IBIIIH", 0, 27, 1, 19, 0, 0)
    assert walked(b"\xff\xff\xff\0" + event + bytes(64), 4 + len(event)) == k.JOIN


class Dump:
    """A log that is sent in packets."""

    def __init__(self) -> None:
        self.offset, self.bytes, self._numbers = 4, b"", count(1)

    def add(self, code: int, body: bytes) -> None:
        size = ev.HEADER + len(body)
        self.offset += size
        rest = b"\0" + struct.pack("<IBIIIH", 1_700_000_000, code, 1, size, self.offset, 0) + body
        while True:
            part, rest = rest[:FULL], rest[FULL:]
            self.bytes += packet(next(self._numbers), part)
            if len(part) < FULL:
                return

    def transaction(self, size: int) -> None:
        self.add(34, b"\1" + bytes(24))
        self.add(2, bytes(8) + b"\1" + bytes(4) + b"d\0BEGIN")
        self.add(29, bytes(size))  # an event that says nothing
        self.add(16, bytes(8))


def test_events_in_several_packets_are_framed() -> None:
    """Long events of one transaction, short ones around them; one fills its packets exactly."""
    log = Dump()
    for size in (10, FULL - 1 - ev.HEADER, 100, 2 * FULL, FULL + 5, 7):
        log.transaction(size)
    scanner = scanned(log)
    assert scanner.position().offset == log.offset and scanner.at_border


def maps_log(count: int) -> Dump:
    """A transaction that describes a table again and again, each time another way."""
    log = Dump()
    log.add(34, b"\1" + bytes(24))
    log.add(2, bytes(8) + b"\1" + bytes(4) + b"d\0BEGIN")
    pieces = []
    for number in range(count):
        body = number.to_bytes(6, "little") + b"\1\0\1d\0\6%06d\0\1\3\0\0" % (number % 1_000_000)
        size = ev.HEADER + len(body)
        log.offset += size
        head = struct.pack("<IBIIIH", 1_700_000_000, 19, 1, size, log.offset, 0)
        pieces.append(packet(next(log._numbers), b"\0" + head + body))
    log.bytes += b"".join(pieces)
    log.add(16, bytes(8))
    return log


def scanned(log: Dump) -> Scanner:
    answers = lambda c: [log.bytes] if c[:1] == DUMP else honest(c)  # noqa: E731
    with rogue(answers) as server:
        stream = LogStream(login(server.port), Flavour.MYSQL, StartAt("f", 4))
        scanner = Scanner(stream, LogPosition(Flavour.MYSQL, "", "f"), NoTables(), WHOLE)
        try:
            while scanner.position().offset < log.offset:
                scanner.advance()
        finally:
            stream.close()
    return scanner


def test_very_many_descriptions_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scanned(maps_log(5_000)).at_border
    monkeypatch.setattr(scan, "MOST_MAPS", MOST)
    with pytest.raises(CorruptLog, match=r"one transaction has 1,9\d\d TABLE_MAPs"):
        scanned(maps_log(5_000))


def test_the_longest_row_is_the_longest_event() -> None:
    assert inflate.LONGEST_ROW == streams.LONGEST_EVENT
