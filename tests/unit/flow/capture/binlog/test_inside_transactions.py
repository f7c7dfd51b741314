"""Positions inside a transaction: behind a CREATE TABLE … SELECT, before the rows of its query."""

from __future__ import annotations

from typing import Any

import pytest
from test_scanner import GTID, UUID, WHOLE, CapturedTables, Log, plain, query, row, rows_of, tagged

from rowferry.errors import SourceMismatch
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.mysql.session import Flavour

NAME = "01020304-0506-0708-090a-0b0c0d0e0f10"
OTHER = GTID, b"\1" + UUID[::-1] + (9).to_bytes(8, "little")
QUERY, XID = 2, 16
CREATE = "CREATE TABLE t (id int) START TRANSACTION"


class Making(CapturedTables):
    """Captures the table that a CREATE makes; whose statement ends the stretch."""

    def effects(self, query: ev.Query) -> Effects | None:
        super().effects(query)
        return Effects()


def maria(number: int) -> tuple[int, bytes]:
    return ev.MARIA_GTID, number.to_bytes(8, "little") + bytes(4) + b"\0" + bytes(6)


def scanner_of(log: Log, position: LogPosition, book: CapturedTables | None = None) -> Scanner:
    stream: Any = log
    return Scanner(stream, position, book or Making(), WHOLE)


def made(log: Log, gtid: tuple[int, bytes]) -> None:
    """Write the beginning of a transaction that makes a table of a query."""
    log.add(*gtid)
    log.add(QUERY, query(CREATE))


def filled(log: Log, number: int) -> None:
    """Write the rest of it."""
    for code, body in row(number):
        log.add(code, body)
    log.add(XID, bytes(8))


def behind(log: Log, book: CapturedTables | None = None, **facts: Any) -> LogPosition:
    """Frame up to the statement; return the position as it is stored."""
    start = LogPosition(facts.pop("flavour", Flavour.MYSQL), "s", "binlog.000001", **facts)
    scanner = scanner_of(log, start, book)
    scanner.advance()
    assert scanner.statement is not None
    return LogPosition.from_json(scanner.take()[1].to_json())


def go_on(position: LogPosition, *gtids: tuple[int, bytes]) -> tuple[Log, Scanner]:
    """Return a scanner that begins at a position, and its log: the rest, and other transactions."""
    log = Log()
    log._offset = position.offset
    filled(log, 1)
    for number, gtid in enumerate(gtids, 2):
        log.transaction(*row(number), gtid=gtid)
    return log, scanner_of(log, position)


@pytest.mark.parametrize(
    ("gtid", "before", "name", "following", "after"),
    [
        (plain(6), f"{NAME}:1-5", f"{NAME}:6", plain(7), f"{NAME}:1-7"),
        (plain(6), f"{NAME}:1-5", f"{NAME}:6", tagged(1), f"{NAME}:1-6:x:1"),
        (tagged(6), f"{NAME}:1:x:1-5", f"{NAME}:x:6", tagged(7), f"{NAME}:1:x:1-7"),
        (tagged(6), f"{NAME}:1:x:1-5", f"{NAME}:x:6", plain(2), f"{NAME}:1-2:x:1-6"),
        (maria(6), "0-1-5", "0-1-6", maria(7), "0-1-7"),
    ],
)
def test_its_gtid_counts_when_it_has_ended(
    gtid: tuple[int, bytes], before: str, name: str, following: tuple[int, bytes], after: str
) -> None:
    """Also for who begins inside it: what lacks one GTID is sent it again by another server."""
    flavour = Flavour.MARIADB if gtid[0] == ev.MARIA_GTID else Flavour.MYSQL
    log = Log()
    made(log, gtid)
    position = behind(log, flavour=flavour, gtids=before)
    assert (position.gtids, position.txn_gtid) == (before, name)
    _, alone = go_on(position)
    alone.advance()
    ended = alone.take()[1]
    held = str(LogPosition(flavour, "s", gtids=name).executed)
    assert ended.executed.contains(LogPosition(flavour, "s", gtids=held).executed)
    assert (ended.txn_ts, ended.txn_gtid) == (0, "")
    _, scanner = go_on(position, following)
    scanner.advance()
    segments, end = scanner.take()
    assert end.gtids == after
    assert list(rows_of(segments).items())[0] == (1, position.txn_ts)


def test_without_gtids_nothing_is_kept() -> None:
    log = Log()
    made(log, (34, b"\1" + bytes(24)))
    position = behind(log)
    assert position.txn_ts and (position.gtids, position.txn_gtid) == ("", "")
    assert "txn_gtid" not in position.to_json()
    _, scanner = go_on(position)
    scanner.advance()
    assert scanner.take()[1].gtids == ""


def elsewhere(position: LogPosition) -> LogPosition:
    """Return a position as it is taken over by another server."""
    form = {**position.to_json(), "server": "other", "file": "", "offset": 4}
    return LogPosition.from_json(form)


def inside() -> LogPosition:
    log = Log()
    made(log, plain(6))
    return elsewhere(behind(log, gtids=f"{NAME}:1-5"))


def test_another_server_sends_all_of_it() -> None:
    """Its statement is not told again, and its rows have the commit-ts that it had."""
    position, log, book = inside(), Log(), Making()
    made(log, plain(6))
    filled(log, 1)
    log.transaction(*row(2), gtid=plain(7))
    scanner = scanner_of(log, position, book)
    scanner.advance()
    segments, end = scanner.take()
    assert book.asked == []
    assert rows_of(segments)[1] == position.txn_ts
    assert end.gtids == f"{NAME}:1-7"


@pytest.mark.parametrize("first", [OTHER, tagged(6), plain(7)])
@pytest.mark.parametrize("as_table", [True, False], ids=["CREATE TABLE", "rows"])
def test_another_server_sends_another_transaction(first: tuple[int, bytes], as_table: bool) -> None:
    """Its CREATE is not taken for the one that was delivered, though it stands in its place."""
    position, log, book = inside(), Log(), Making()
    if as_table:
        made(log, first)
        filled(log, 1)
    else:
        log.transaction(*row(1), gtid=first)
    made(log, plain(6))
    filled(log, 2)
    scanner = scanner_of(log, position, book)
    with pytest.raises(SourceMismatch, match=rf"not the CREATE TABLE … SELECT {NAME}:6 whose"):
        scanner.advance()
    assert book.asked == []


def test_a_position_that_an_older_version_has_stored() -> None:
    """It does not say which transaction it is: what stands in its place and is like it, it is."""
    form = {k: v for k, v in inside().to_json().items() if k != "txn_gtid"}
    position = LogPosition.from_json(form)
    assert position.txn_gtid == ""
    log, book = Log(), Making()
    made(log, plain(6))
    filled(log, 1)
    scanner = scanner_of(log, position, book)
    scanner.advance()
    assert book.asked == [] and list(rows_of(scanner.take()[0])) == [1]
    log = Log()
    log.transaction(*row(1), gtid=plain(6))
    with pytest.raises(SourceMismatch, match="is not the CREATE TABLE … SELECT with commit-ts"):
        scanner_of(log, position).advance()
