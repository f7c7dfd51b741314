"""A server that was killed while it wrote a transaction: the rest of it is in no file."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from test_inside_transactions import OTHER, Making, made, maria
from test_scanner import (
    ROTATE,
    TABLE,
    WHOLE,
    CapturedTables,
    Log,
    plain,
    query,
    row,
    rows_of,
    tagged,
)
from test_xa import XA_PREPARE, gtid

from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.frame import scanner as scanner_module
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.mysql.session import Flavour

NAME = "01020304-0506-0708-090a-0b0c0d0e0f10"
QUERY, XID, STOP, FORMAT = 2, 16, 3, 15
NEXT = (4).to_bytes(8, "little") + b"binlog.000002"


class Files(Log):
    """A log of several files."""

    def next_file(self, by_crash: bool = True, stops: bool = False) -> None:
        """Go on in another file: a server that was stopped has said so in the first one."""
        if stops:
            self.add(STOP, b"")
        if not by_crash:
            self.add(ROTATE, NEXT)
        self.make_up(ROTATE, NEXT, 0)
        self._offset = 4
        self.add(FORMAT, bytes(57) + b"\0\0\0\0\0")

    def torn(self, *events: tuple[int, bytes], gtid: tuple[int, bytes]) -> None:
        """Write a transaction that does not end."""
        self.add(*gtid)
        self.add(QUERY, query("BEGIN"))
        for code, body in events:
            self.add(code, body)


def scanner_of(
    log: Log, flavour: Flavour = Flavour.MYSQL, book: Any = None, gtids: str = ""
) -> Scanner:
    stream: Any = log
    position = LogPosition(flavour, "s", "binlog.000001", gtids=gtids)
    return Scanner(stream, position, book or CapturedTables(), WHOLE)


MARIA = [maria(number) for number in range(10)]
PLAIN = [plain(number or 1) for number in range(10)]


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("is_maria", [False, True], ids=["mysql", "mariadb"])
def test_what_the_server_rolled_back_is_dropped(rows: int, is_maria: bool) -> None:
    """Its number is another one's then, and what came before it is there."""
    gtids, flavour = (MARIA, Flavour.MARIADB) if is_maria else (PLAIN, Flavour.MYSQL)
    log = Files()
    log.transaction(*row(1), gtid=gtids[1])
    log.transaction(*row(2), gtid=gtids[2])
    log.torn(*(one for at in range(rows) for one in row(100 + at)), gtid=gtids[3])
    log.next_file()
    log.transaction(*row(3), gtid=gtids[3])
    log.transaction(*row(4), gtid=gtids[4])
    scanner = scanner_of(log, flavour)
    scanner.advance()
    segments, end = scanner.take()
    assert list(rows_of(segments)) == [1, 2, 3, 4]
    stamps = list(rows_of(segments).values())
    assert stamps == sorted(set(stamps)) and stamps[-1] == end.last_ts
    assert [(s.read["file"], s.last_commit_ts) for s in segments] == [
        ("binlog.000001", stamps[1]),
        ("binlog.000002", stamps[3]),
    ]
    assert (end.file, end.offset) == ("binlog.000002", log._offset)
    assert end.gtids == ("0-1-4" if is_maria else f"{NAME}:1-4")


@pytest.mark.parametrize("last", [OTHER, tagged(1), plain(7)])
def test_its_gtid_does_not_count(last: tuple[int, bytes]) -> None:
    """Whoever has it, a failover must bring what gets it later."""
    log = Files()
    log.transaction(*row(1), gtid=plain(6))
    log.torn(*row(100), gtid=last)
    log.next_file()
    scanner = scanner_of(log, gtids=f"{NAME}:1-5")
    scanner.advance()
    assert scanner.take()[1].gtids == f"{NAME}:1-6"
    log.transaction(*row(2), gtid=plain(7))
    log.transaction(*row(3), gtid=last if last != plain(7) else plain(8))
    scanner.advance()
    segments, end = scanner.take()
    assert list(rows_of(segments)) == [2, 3]
    assert end.executed.contains(parse_gtids(f"{NAME}:1-7", Flavour.MYSQL))


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("cuts", [True, False], ids=["cut", "whole"])
@pytest.mark.parametrize("pieces", [True, False], ids=["in pieces", "at once"])
def test_one_of_which_segments_were_made(
    before: int, cuts: bool, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is so large that its beginning was framed, and cut into segments, before the file ends."""
    monkeypatch.setattr(scanner_module, "HUGE_TXN", 200)
    if cuts:
        monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 300)
    log = Files()
    for number in range(1, before + 1):
        log.transaction(*row(number), gtid=plain(number))
    log.torn(gtid=plain(before + 1))
    for number in range(20):
        for code, body in row(100 + number):
            log.add(code, body)
        if pieces:
            log.pause()
    log.next_file()
    log.transaction(*row(50), gtid=plain(before + 1))
    scanner = scanner_of(log)
    while log.filled < len(log._packets):
        scanner.advance()
    segments, end = scanner.take()
    framed = [replace(s, payload=taken_along(log, s.read)) for s in segments]
    assert list(rows_of(tuple(framed))) == [*range(1, before + 1), 50]
    assert end.executed == parse_gtids(f"{NAME}:1-{before + 1}", Flavour.MYSQL)
    assert scanner.take()[0] == ()


def taken_along(log: Log, read: dict[str, Any]) -> bytes:
    """Return the packets of a segment, as the server gives them."""
    found, at, data, file = b"", 0, log._packets, "binlog.000001"
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little") + 4
        code, place = data[at + 9], int.from_bytes(data[at + 18 : at + 22], "little")
        if code == ROTATE:
            file = "binlog.000002"
        if file == read["file"] and read["from"] < place <= read["to"]:
            found += data[at : at + size]
        at += size
    return found


@pytest.mark.parametrize("is_maria", [False, True], ids=["mysql", "mariadb"])
@pytest.mark.parametrize("huge", [True, False])
def test_one_that_was_to_be_prepared(
    is_maria: bool, huge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for its commit, and the next ones are no part of it."""
    if huge:
        monkeypatch.setattr(scanner_module, "HUGE_TXN", 10)
        monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 100)
    log = Files()
    log.transaction(*row(1), gtid=gtid(1, 0, is_maria))
    log.add(*gtid(2, 0x40, is_maria))
    log.add(QUERY, query("XA START X'61',X'',1"))
    for number in range(5):
        for code, body in row(100 + number):
            log.add(code, body)
        log.pause()
    log.next_file()
    log.transaction(*row(2), gtid=gtid(2, 0, is_maria))
    scanner = scanner_of(log, Flavour.MARIADB if is_maria else Flavour.MYSQL)
    while log.filled < len(log._packets):
        scanner.advance()
    segments, end = scanner.take()
    framed = [replace(s, payload=taken_along(log, s.read)) for s in segments]
    assert list(rows_of(tuple(framed))) == [1, 2]
    assert (end.prepared, end.left_out) == ({}, ())


def test_one_that_makes_a_table_whose_statement_was_delivered() -> None:
    """Readers have a table that the source does not have: they are told so."""
    log = Files()
    log.transaction(*row(1), gtid=plain(1))
    made(log, plain(2))
    scanner = scanner_of(log, book=Making())
    scanner.advance()
    scanner.take()
    scanner.go_on()
    for code, body in row(100):
        log.add(code, body)
    log.next_file()
    with pytest.raises(CorruptLog, match="inside a CREATE TABLE … SELECT whose statement was del"):
        scanner.advance()


@pytest.mark.parametrize(("by_crash", "stops"), [(False, False), (True, True)])
def test_a_file_that_was_ended(by_crash: bool, stops: bool) -> None:
    """Then no transaction is open: what seems to be one is not understood."""
    log = Files()
    log.torn(*row(1), gtid=plain(1))
    log.next_file(by_crash, stops)
    with pytest.raises(
        CorruptLog, match=r"binlog\.000001:\d+ (inside a transaction|cannot be read)"
    ):
        scanner_of(log).advance()
    whole = Files()
    whole.transaction(*row(1), gtid=plain(1))
    whole.next_file(by_crash, stops)
    whole.transaction(*row(2), gtid=plain(2))
    scanner = scanner_of(whole)
    scanner.advance()
    assert list(rows_of(scanner.take()[0])) == [1, 2]


def test_a_snapshot_s_rows_are_left_out_behind_it() -> None:
    """What a table's snapshot has is left out before the torn one and after it."""
    log = Files()
    log.transaction(*row(1), gtid=plain(1))
    log.torn(*row(100), gtid=plain(2))
    log.next_file()
    log.transaction(*row(2), gtid=plain(2))
    log.transaction(*row(3), gtid=plain(3))
    scanner = scanner_of(log)
    scanner.exclude_until(TABLE.table_id, parse_gtids(f"{NAME}:1-2", Flavour.MYSQL))
    scanner.advance()
    assert list(rows_of(scanner.take()[0])) == [3]


def test_prepared_ones_stay_prepared() -> None:
    """They were whole before the server died, and are committed behind it."""
    log = Files()
    log.add(*plain(1))
    log.add(QUERY, query("XA START X'61',X'',1"))
    for code, body in row(1):
        log.add(code, body)
    log.add(XA_PREPARE, struct.pack("<BIII", 0, 1, 1, 0) + b"a")
    log.torn(*row(100), gtid=plain(2))
    log.next_file()
    log.add(*plain(2))
    log.add(QUERY, query("XA COMMIT X'61',X'',1"))
    scanner = scanner_of(log)
    scanner.advance()
    segments, end = scanner.take()
    assert [s.read["file"] for s in segments] == ["binlog.000001"]
    assert end.prepared == {}
