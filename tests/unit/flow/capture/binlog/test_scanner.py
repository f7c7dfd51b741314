"""Framing a log that was written by hand: statements, and transactions whose GTIDs have a tag."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from binlog_event_kit import names, table_map

from rowferry.change.plan import Segment
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import CorruptLog, EventUnknown, SourceUnavailable
from rowferry.flow.capture.binlog.client.gtid import GtidSet
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, infer_schema, parse_table_map
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.scan import NONE_JOINED, Maps
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.read import read_log
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql.session import Flavour, Login
from rowferry.testing.slow_binlog import rows_body

CODES = {"anonymous": 34, "query": 2, "xid": 16, "begin load": 17, "block": 9, "delete file": 11}
LOAD, TABLE_MAP, WRITE_ROWS, GTID, GTID_TAGGED = 18, 19, 30, 33, 42
ROTATE, HEARTBEAT, PREVIOUS_GTIDS, MADE_UP = 4, 27, 35, 0x20
NOW_MS = 1_700_000_000_000
UUID = bytes(range(1, 17))
MAP = table_map([(3, b"")], {4: names("id")}, database="d")
TABLE = infer_schema(parse_table_map(MAP, Flavour.MYSQL), None).at(1)
ANONYMOUS = (CODES["anonymous"], b"\1" + bytes(24))
WHOLE = Appetite(
    segment_bytes=lambda _: 1 << 20, stretch_bytes=1 << 30, partition_label=lambda _: ""
)


class Log:
    """A log that is written by hand, and given as a stream gives it."""

    tail = 0

    def __init__(self) -> None:
        self._packets = b""
        self._offset = 4
        self.start = self.filled = 0
        self.pieces: list[int] = []  # behind how many bytes the stream waits
        self.data = np.zeros(0, np.uint8)
        self.joined = NONE_JOINED

    def add(self, code: int, body: bytes) -> None:
        size = ev.HEADER + len(body)
        self._offset += size
        head = struct.pack("<IBIIIH", 1_700_000_000, code, 1, size, self._offset, 0)
        self._packets += (size + 1).to_bytes(3, "little") + b"\0\0" + head + body

    def make_up(self, code: int, body: bytes, offset: int) -> None:
        """Add an event that is not in the file."""
        size = ev.HEADER + len(body)
        head = struct.pack("<IBIIIH", 0, code, 1, size, offset, MADE_UP if not offset else 0)
        self._packets += (size + 1).to_bytes(3, "little") + b"\0\0" + head + body

    def transaction(self, *events: tuple[int, bytes], gtid: tuple[int, bytes] = ANONYMOUS) -> None:
        self.add(*gtid)
        self.add(CODES["query"], query("BEGIN"))
        for code, body in events:
            self.add(code, body)
        self.add(CODES["xid"], bytes(8))

    def pause(self) -> None:
        """Let what was written so far come by itself."""
        self.pieces.append(len(self._packets))

    def fill(self) -> int:
        if self.filled == len(self._packets):
            raise SourceUnavailable("no more")
        self.data = np.frombuffer(self._packets, np.uint8)
        self.filled = self.pieces.pop(0) if self.pieces else len(self.data)
        return 0


class CapturedTables:
    """Knows one captured table, d.t; notes what it is asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.clock_ms = NOW_MS - 120_000  # it has gone on whenever it is asked

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        return TABLE

    def is_captured(self, table: TableId) -> bool:
        return True

    def effects(self, query: ev.Query) -> Effects | None:
        self.asked.append(query.sql)
        return None

    def named(self, query: ev.Query) -> str:
        return "d.t" if " t " in f"{query.sql} " else ""

    def is_mark(self, table: TableId) -> bool:
        return False

    def source_ms(self) -> int:
        self.clock_ms += 120_000
        return self.clock_ms


def query(sql: str, head: bytes = b"") -> bytes:
    return bytes(8) + b"\1" + bytes(4) + head + b"d\0" + sql.encode()


def framed(*events: tuple[int, bytes]) -> CapturedTables:
    """Frame one transaction of these events to its end; return what the book was asked."""
    log, book = Log(), CapturedTables()
    log.transaction(*events)
    position = LogPosition(Flavour.MYSQL, "", "binlog.000001")
    scanner = Scanner(log, position, book, WHOLE)  # type: ignore[arg-type]
    scanner.advance()
    assert scanner.at_border and scanner.position().offset == log._offset
    return book


ROW_STATEMENTS = (
    "INSERT INTO {}",
    "/* by a mapper */ INSERT INTO {}",
    "/*a*/-- b\n# c\n/*d*/ update {} SET v = 1",
    "/*!50000 UPDATE {} SET v = 1 */",
    "DELETE/* all */FROM {}",
    "SET STATEMENT max_statement_time = 1, a = 'x FOR y' FOR INSERT INTO {}",
    "WITH c AS (SELECT 1) DELETE {} FROM {} JOIN c",
)


@pytest.mark.parametrize("sql", ROW_STATEMENTS)
def test_rows_as_a_statement(sql: str) -> None:
    """They stop the feed where they concern it, however they are written."""
    with pytest.raises(EventUnknown, match=r"binlog\.000001:\d+ changes rows of d\.t .* = ROW"):
        framed((CODES["query"], query(sql.replace("{}", "t"))))
    assert framed((CODES["query"], query(sql.replace("{}", "u")))).asked == []


def test_a_function_as_a_statement() -> None:
    """Nobody can say which rows it changes."""
    with pytest.raises(EventUnknown, match="calls a function that changes rows .* = ROW"):
        framed((CODES["query"], query("SELECT `d`.`f`(1)")))


def test_a_file_as_a_statement() -> None:
    """The file's bytes say nothing; the statement behind them says which table it is for."""
    file = [(CODES[name], bytes(12)) for name in ("begin load", "block", "delete file")]
    loads = [query(f"LOAD DATA INFILE 'f' INTO TABLE {name}", head=bytes(13)) for name in "tu"]
    with pytest.raises(EventUnknown, match=r"changes rows of d\.t"):
        framed(*file, (LOAD, loads[0]))
    assert framed(*file, (LOAD, loads[1])).asked == []


def test_other_statements_are_judged_by_the_book() -> None:
    sql = "/* by a mapper */ ALTER TABLE t ADD a int"
    assert framed((CODES["query"], query(sql))).asked == [sql]


# --- GTIDs with tags -----------------------------------------------------------------------------


def row(number: int) -> list[tuple[int, bytes]]:
    """Insert one row into the captured table."""
    body = rows_body(WRITE_ROWS, 1, [[number.to_bytes(4, "little")]])
    return [(TABLE_MAP, MAP), (WRITE_ROWS, body)]


def plain(number: int) -> tuple[int, bytes]:
    return GTID, b"\1" + UUID + number.to_bytes(8, "little")


def tagged(number: int, after_ms: int = 0) -> tuple[int, bytes]:
    """Write a GTID with the tag `x`; all its numbers but the time are short."""
    time = b"\xff" + ((NOW_MS + after_ms) * 1000).to_bytes(8, "little")
    fields = b"\2" + bytes(b << 1 for b in UUID) + b"\4" + bytes([number << 2])
    return GTID_TAGGED, b"\2\2\2" + fields + b"\6\2x" + b"\x0c" + time


def delivered(log: Log, low: str = "") -> dict[int, int]:
    """Frame a log, and read what was framed; returns the rows' keys and commit-ts."""
    position = LogPosition(Flavour.MYSQL, "", "binlog.000001")
    scanner = Scanner(log, position, CapturedTables(), WHOLE)  # type: ignore[arg-type]
    if low:
        scanner.exclude_until(TABLE.table_id, GtidSet.parse(low))
    scanner.advance()
    return rows_of(scanner.take()[0])


def rows_of(segments: tuple[Segment, ...]) -> dict[int, int]:
    """Read segments as a task does; returns the rows' keys and commit-ts."""
    nobody = Login("", 0, "", "")
    found: dict[int, int] = {}
    for segment in segments:
        for rows in read_log(nobody, segment, dict.fromkeys(segment.slices, TABLE)):
            keys = [image["id"] for image in rows.after.to_pylist()]
            found.update(zip(keys, rows.commit_ts.tolist(), strict=True))
    return found


def test_tagged_transactions_beside_a_snapshot() -> None:
    """What a table's snapshot holds is left out, and nothing else, whoever has a tag."""
    name = "01020304-0506-0708-090a-0b0c0d0e0f10"
    for low, left in ((f"{name}:1:x:2", [2, 4, 5]), (f"{name}:1-2:x:1", [3, 5])):
        log = Log()
        for number, gtid in enumerate([plain(1), tagged(1), tagged(2), plain(2), tagged(3)], 1):
            log.transaction(*row(number), gtid=gtid)
        assert list(delivered(log, low)) == left


@pytest.mark.parametrize(
    "gtid",
    [
        plain(0),
        plain(1 << 63),
        tagged(0),
        (GTID_TAGGED, b"\2\2\2\2" + b"\1\4" * 16 + b"\4\4"),  # its octets are larger than any
    ],
)
def test_a_transaction_that_cannot_be(gtid: tuple[int, bytes]) -> None:
    log = Log()
    log.transaction(*row(1), gtid=gtid)
    with pytest.raises(CorruptLog, match="number|names no transaction"):
        delivered(log)


def test_tagged_transactions_have_their_own_times() -> None:
    """The source's clock is asked again before a time is taken to be from the future."""
    log = Log()
    log.transaction(*row(1), gtid=tagged(1))
    log.transaction(*row(2), gtid=tagged(2, after_ms=100_000))
    log.transaction(*row(3), gtid=tagged(3, after_ms=10_000_000))
    times = [stamp >> PHYSICAL_SHIFT for stamp in delivered(log).values()]
    assert times[:2] == [NOW_MS, NOW_MS + 100_000]
    assert times[2] < NOW_MS + 1_000_000


# --- places --------------------------------------------------------------------------------------


def behind_gtids(log: Log) -> Scanner:
    """Frame a log that a server sends from behind five transactions on; it passes over them."""
    log.make_up(ROTATE, (4).to_bytes(8, "little") + b"binlog.000007", 0)
    log.add(PREVIOUS_GTIDS, bytes(8))
    log.pause()
    log._offset = 100_000
    name = "01020304-0506-0708-090a-0b0c0d0e0f10"
    position = LogPosition(Flavour.MYSQL, "s", gtids=f"{name}:1-5")
    return Scanner(log, position, CapturedTables(), WHOLE)  # type: ignore[arg-type]


def test_a_place_behind_gtids_that_the_server_passes_over() -> None:
    """Where the file goes on behind them is known with the next transaction, and not before."""
    log = Log()
    scanner = behind_gtids(log)
    log.transaction(*row(6), gtid=plain(6))
    scanner.advance()
    scanner.note_end("binlog.000007", 100_000)
    assert scanner.at_border
    assert (scanner.position().file, scanner.position().offset) == ("", 4)
    scanner.advance()
    assert (scanner.position().file, scanner.position().offset) == ("binlog.000007", log._offset)


def test_a_place_behind_gtids_at_the_log_s_end() -> None:
    """A server that is idle says how far it is, and that is as far as its log goes."""
    log = Log()
    scanner = behind_gtids(log)
    log.make_up(HEARTBEAT, b"binlog.000007", 100_000)
    scanner.advance()
    scanner.advance()
    scanner.note_end("binlog.000007", 100_001)
    assert scanner.position().file == ""
    scanner.note_end("binlog.000007", 100_000)
    assert (scanner.position().file, scanner.position().offset) == ("binlog.000007", 100_000)


# --- watermarks ----------------------------------------------------------------------------------


def test_a_watermark_inside_a_transaction_of_which_a_part_has_come() -> None:
    """Its rows come above the watermark, also where a segment was opened for them before."""
    log = Log()
    log.add(*ANONYMOUS)
    log.add(CODES["query"], query("BEGIN"))
    for code, body in row(1):
        log.add(code, body)
    log.pause()
    log.add(CODES["xid"], bytes(8))
    position = LogPosition(Flavour.MYSQL, "", "binlog.000001")
    scanner = Scanner(log, position, CapturedTables(), WHOLE)  # type: ignore[arg-type]
    scanner.advance()
    assert scanner.at_border and scanner.take()[0] == ()
    watermark = (NOW_MS + 5_000) << PHYSICAL_SHIFT
    scanner.move_clock(watermark)
    scanner.advance()
    segments, behind = scanner.take()
    assert [s.read["last_ts"] >= watermark for s in segments] == [True]
    assert rows_of(segments) == {1: behind.last_ts}
    assert segments[0].first_commit_ts == behind.last_ts > watermark


# --- tables that are not captured ----------------------------------------------------------------


class OneTable(CapturedTables):
    """Captures d.t alone, and notes of which tables it was asked."""

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        self.asked.append(mapped.table.table)
        return TABLE if mapped.table.table == "t" else None


def test_a_number_that_another_table_gets() -> None:
    """A table that is not captured is known by its name, whatever its columns are."""
    log, book = Log(), OneTable()
    insert = rows_body(WRITE_ROWS, 1, [[(5).to_bytes(4, "little")]])
    for columns in (1, 2):
        other = table_map([(3, b"")] * columns, database="d", table="u")
        log.transaction((TABLE_MAP, other), (WRITE_ROWS, insert))
    log.transaction(*row(7))
    position = LogPosition(Flavour.MYSQL, "", "binlog.000001")
    scanner = Scanner(log, position, book, WHOLE)  # type: ignore[arg-type]
    scanner.advance()
    assert book.asked == ["u", "t"]
    assert list(rows_of(scanner.take()[0])) == [7]


def test_of_tables_that_are_not_captured_little_is_kept() -> None:
    wide = table_map([(3, b"")] * 500, database="d", table="u")
    maps = Maps()
    for number in range(1000):
        maps.put(number.to_bytes(6, "little") + wide[6:], captured=False, by_name=True)
    assert len(maps) == 1000
    assert maps.bytes.nbytes < 1000 * 40 < 1000 * len(wide)
