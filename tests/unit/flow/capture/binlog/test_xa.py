"""Prepared transactions: what is remembered of them, and what is planned when they end."""

from __future__ import annotations

import struct
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from binlog_event_kit import table_map
from test_scanner import TABLE_MAP, UUID, WHOLE, CapturedTables, Log, plain, query, row, rows_of

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import EventUnknown
from rowferry.flow.capture.binlog.decode.table_map import MappedTable
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.xa import PreparedRows, statement_xid, without_tables
from rowferry.flow.capture.binlog.position import LeftOut, LogPosition
from rowferry.mysql.session import Flavour

COMMIT = "XA COMMIT X'61',X'',1"


def remembered() -> PreparedRows:
    part = Segment(0, {"server": "s", "fixed_ts": 0}, (), 5, 5, 100)
    return PreparedRows("s", {statement_xid(COMMIT): [part.to_json()]})


def test_a_commit_leaves_positions_as_they_were() -> None:
    """The log is read ahead while a plan is carried out, whose position was recorded before."""
    rows = remembered()
    position = rows.to_json()
    recorded = deepcopy(position)
    (part,) = rows.end(COMMIT, True, 9, "here", lambda table: True)
    assert (part.read["fixed_ts"], part.first_commit_ts, part.last_commit_ts) == (9, 9, 9)
    assert position == recorded
    assert rows.to_json() == {}


def test_a_rollback_plans_nothing() -> None:
    rows = remembered()
    assert (
        rows.end(COMMIT.replace("COMMIT", "ROLLBACK"), False, 9, "here", lambda table: True) == []
    )
    assert rows.to_json() == {}


def test_rows_that_a_snapshot_has_are_taken_out() -> None:
    """Segments have the others by the same names, and those that have no others are left out."""
    slices = tuple(TableSlice(TableId("d", name), at, 1) for at, name in enumerate("abc", 1))
    read = {"names": [["d", "a", 0, 0], ["d", "b", 0, 1], ["d", "b", 3, 1], ["d", "c", 0, 2]]}
    part = Segment(0, read, slices, 5, 5, 100)
    assert without_tables([part], ()) == [part]
    (found,) = without_tables([part], {1})
    assert found.slices == slices[1:]
    assert found.read["names"] == [["d", "b", 0, 0], ["d", "b", 3, 0], ["d", "c", 0, 1]]
    assert without_tables([part], {1, 2, 3}) == []
    assert len(part.slices) == 3 and len(read["names"]) == 4


# --- a filter that changes while one is prepared -------------------------------------------------

OTHER = TableId("d", "other")
XA_PREPARE = 38


class Filtered(CapturedTables):
    """Captures the tables that a filter keeps at this moment."""

    def __init__(self, *kept: str) -> None:
        super().__init__()
        self.kept = {TableId("d", name) for name in kept}

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        table = super().captured(mapped, commit_ts)
        return table if mapped.table in self.kept else None

    def is_captured(self, table: TableId) -> bool:
        return table in self.kept


def in_other(number: int) -> list[tuple[int, bytes]]:
    """Insert one row into the other table, which has another number."""
    (_, mapped), (code, rows) = row(number)
    own = (78).to_bytes(6, "little")
    other = table_map([(3, b"")], {4: b"\x02id"}, database="d", table="other")
    return [(TABLE_MAP, own + other[6:]), (code, own + rows[6:])]


def prepared(log: Log, number: int, *rows: tuple[int, bytes], maria: bool = False) -> None:
    """Write a transaction up to its XA PREPARE."""
    log.add(*gtid(number, 0x40 if maria else 0, maria))
    log.add(2, query("XA START X'61',X'',1"))
    for code, body in rows:
        log.add(code, body)
    log.add(2, query("XA END X'61',X'',1"))
    log.add(XA_PREPARE, struct.pack("<BIII", 0, 1, 1, 0) + b"a")


def ended(log: Log, number: int, how: str = "COMMIT", maria: bool = False) -> None:
    log.add(*gtid(number, 0x80 if maria else 0, maria))
    log.add(2, query(f"XA {how} X'61',X'',1"))


def gtid(number: int, flags: int, maria: bool) -> tuple[int, bytes]:
    if not maria:
        return plain(number)
    return ev.MARIA_GTID, number.to_bytes(8, "little") + bytes(4) + bytes([flags]) + bytes(6)


def stand_at(book: CapturedTables, log: Log, position: LogPosition) -> Scanner:
    stream: Any = log
    return Scanner(stream, position, book, WHOLE)


def begin(maria: bool) -> LogPosition:
    return LogPosition(Flavour.MARIADB if maria else Flavour.MYSQL, "s", "binlog.000001")


def behind_prepare(
    book: CapturedTables, *rows: tuple[int, bytes], maria: bool = False
) -> LogPosition:
    """Return the stored position behind a prepared transaction of these rows."""
    log = Log()
    prepared(log, 1, *rows, maria=maria)
    scanner = stand_at(book, log, begin(maria))
    scanner.advance()
    segments, position = scanner.take()
    assert segments == () and len(position.prepared) == 1
    return LogPosition.from_json(position.to_json())


def committed(book: CapturedTables, position: LogPosition, how: str = "COMMIT") -> LogPosition:
    log = Log()
    log._offset = position.offset
    ended(log, 2, how, position.flavour is Flavour.MARIADB)
    scanner = stand_at(book, log, position)
    scanner.advance()
    return scanner.take()[1]


@pytest.mark.parametrize("maria", [False, True], ids=["mysql", "mariadb"])
def test_a_table_that_joins_between_prepare_and_commit(maria: bool) -> None:
    """Its rows were not remembered: they are named, and not left out in silence."""
    position = behind_prepare(Filtered("t"), *row(1), *in_other(2), maria=maria)
    assert position.left_out == (LeftOut("61,,1", "d", "other"),)
    with pytest.raises(EventUnknown, match=r"while d\.other was not captured.*filter\.rules"):
        committed(Filtered("t", "other"), position)


@pytest.mark.parametrize("maria", [False, True], ids=["mysql", "mariadb"])
def test_tables_that_stay_left_out(maria: bool) -> None:
    position = behind_prepare(Filtered("t"), *row(1), *in_other(2), maria=maria)
    end = committed(Filtered("t"), position)
    assert (end.prepared, end.left_out) == ({}, ())
    assert "left_out" not in end.to_json()


def test_a_table_that_joins_is_nothing_to_a_rollback_or_to_other_transactions() -> None:
    position = behind_prepare(Filtered("t"), *row(1), *in_other(2))
    end = committed(Filtered("t", "other"), position, "ROLLBACK")
    assert (end.prepared, end.left_out) == ({}, ())
    position = behind_prepare(Filtered("t"), *row(1))
    assert position.left_out == ()
    assert committed(Filtered("t", "other"), position).prepared == {}


def test_every_transaction_tells_its_tables() -> None:
    """Also where its tables were met before, and where others lie between."""
    log, book = Log(), Filtered("t")
    log.transaction(*in_other(1), gtid=plain(1))
    prepared(log, 2, *in_other(2))
    log.transaction(*row(3), gtid=plain(3))
    scanner = stand_at(book, log, begin(False))
    scanner.advance()
    segments, position = scanner.take()
    assert list(rows_of(segments)) == [3]
    assert position.left_out == (LeftOut("61,,1", "d", "other"),)
    ended(log, 4)
    prepared(log, 5, *row(5))
    scanner.advance()
    assert scanner.take()[1].left_out == ()


def test_a_transaction_of_which_a_part_has_come() -> None:
    """It is walked again from its beginning, and its tables count once."""
    log, book = Log(), Filtered("t")
    log.add(*plain(1))
    log.add(2, query("XA START X'61',X'',1"))
    for code, body in in_other(1):
        log.add(code, body)
    log.pause()
    for code, body in in_other(2):
        log.add(code, body)
    log.add(XA_PREPARE, struct.pack("<BIII", 0, 1, 1, 0) + b"a")
    scanner = stand_at(book, log, begin(False))
    scanner.advance()
    scanner.advance()
    assert scanner.take()[1].left_out == (LeftOut("61,,1", "d", "other"),)


def test_one_that_an_older_version_has_prepared() -> None:
    """Its position does not tell what was left out."""
    position = behind_prepare(Filtered("t"), *in_other(1))
    older = replace(position, left_out=())
    assert "left_out" not in older.to_json()
    assert committed(Filtered("t", "other"), older).prepared == {}


@pytest.mark.parametrize("maria", [False, True], ids=["mysql", "mariadb"])
def test_one_that_was_prepared_before_the_beginning(maria: bool) -> None:
    """Nobody knows which rows it has: it is named where it is committed."""
    with pytest.raises(EventUnknown, match="XA COMMIT 61,,1 .* before this changefeed's log began"):
        committed(Filtered("t"), replace(begin(maria), offset=4))
    committed(Filtered("t"), begin(maria), "ROLLBACK")


def test_a_whole_transaction_comes_at_its_commit() -> None:
    log = Log()
    prepared(log, 1, *row(1), *in_other(2))
    ended(log, 2)
    scanner = stand_at(Filtered("t", "other"), log, begin(False))
    scanner.advance()
    segments, end = scanner.take()
    assert [name[:2] for s in segments for name in s.read["names"]] == [["d", "t"], [*OTHER]]
    assert end.gtids == f"{UUID.hex()[:8]}-0506-0708-090a-0b0c0d0e0f10:1-2"
