"""Targets: the binary log, answers of MySQL's protocol, pages and rows of range stores."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from binlog_event_kit import mapped, names, row_events, table_map
from fuzz_driver import Target, buffer

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.columnar import json_binary
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.decode.json_changes import apply_changes
from rowferry.flow.capture.binlog.decode.rows_events import RowEvents, RowsDecoder
from rowferry.flow.capture.binlog.decode.table_map import (
    MappedColumn,
    MappedTable,
    infer_schema,
    parse_table_map,
)
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.compressed import inflate_part, inflate_payload
from rowferry.flow.capture.binlog.frame.scan import (
    FoundEvents,
    LogBytes,
    Maps,
    SegmentPairs,
    run_walk,
)
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.walk_state import WalkState
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.contract import Appetite
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.flow.capture.range_log.page import read_page
from rowferry.mysql import resultset_kernels as packets
from rowferry.mysql.resultset import row_images
from rowferry.mysql.session import Flavour, Login, error_of
from rowferry.refstore.rows.kv_encode import encode_rows
from rowferry.testing.slow_binlog import rows_body
from rowferry.wire import range_cdc_pb2 as pb

NEVER = 1 << 62
MYSQL, MARIADB = Flavour.MYSQL, Flavour.MARIADB

# --- a log ----------------------------------------------------------------------------------------

INTS = table_map([(3, b""), (15, b"\x28\0")], {4: names("id", "name")}, database="d")
ROW = rows_body(30, 2, [[struct.pack("<i", 1), b"\5hello"], [struct.pack("<i", 2), None]])
UPDATE = rows_body(31, 2, [[struct.pack("<i", 1), b"\1a"], [struct.pack("<i", 1), b"\1b"]])


def log(*events: tuple[int, bytes], packed: bool = True) -> bytes:
    """Return events as the packets of a stream, or bare."""
    found, offset = b"", 4
    for code, body in events:
        size = ev.HEADER + len(body)
        offset += size
        event = struct.pack("<IBIIIH", 1_700_000_000, code, 1, size, offset, 0) + body
        found += (size + 1).to_bytes(3, "little") + b"\0\0" + event if packed else event
    return found


def query(sql: bytes) -> bytes:
    return bytes(8) + b"\1" + bytes(4) + b"d\0" + sql


GTID = b"\1" + bytes(range(1, 17)) + struct.pack("<q", 5) + b"\2" + bytes(16) + bytes(7)
MARIA_GTID = struct.pack("<QIB", 7, 0, 0) + bytes(6)
CHANGE = ((19, INTS), (30, ROW), (31, UPDATE))
MYSQL_LOG = log((33, GTID), (2, query(b"BEGIN")), *CHANGE, (16, bytes(8)))
SHORT_LOG = log(
    (34, b"\1" + bytes(24)), (2, query(b"BEGIN")), (19, INTS), (30, ROW), (16, bytes(8))
)
MARIA_LOG = log((162, MARIA_GTID), (19, INTS), (23, rows_body(23, 2, [])), (2, query(b"COMMIT")))
ODD_LOG = log((4, struct.pack("<Q", 4) + b"f"), (27, b"f"), (33, GTID), (2, query(b"XA END")))
NESTED = log((2, query(b"BEGIN")), *CHANGE, (16, bytes(8)), packed=False)


def walk(data: bytes, prefix: int, maria: bool, collect: bool) -> Any:
    """Walk as the scanner and the tasks do, without what they make of it."""
    room, state = buffer(data), WalkState.without_bounds()
    state.clamp_ms, state.open = 1_800_000_000_000, collect
    border, maps, pairs, found = state.copy(), Maps(), SegmentPairs(), FoundEvents(16)
    log = LogBytes(room, len(room), prefix, 0, maria, NEVER)
    reasons = []
    for _ in range(40):
        why = run_walk(log, state, border, maps, pairs, collect, found)
        reasons.append(why)
        begin, end = state.event_at, state.event_end
        if why == k.SPECIAL:
            body = room[begin + ev.HEADER : end].tobytes()
            if room[begin + 4] == ev.TABLE_MAP and len(maps) < 8:
                maps.put(body, captured=True)
            else:
                state.at, state.txn_ts = end, 0
        elif why == k.FIRST_ROW:
            state.open = 1
        elif why == k.NEW_PAIR:
            pairs.put(state.pair_slot, state.pair_partition, 0)
        elif why in (k.NEW_RUN, k.CLAMP):
            state.accept = 2
        elif why == k.FULL:
            state.collected = 0
        else:
            break
    needed = bytes(maps.needed(room, 0, len(room), 0)) if prefix == 5 else b""
    return reasons, state.array.tolist(), found.spans.tolist(), needed


class Held:
    """A log in memory, given as a stream gives it."""

    tail = 0

    def __init__(self, data: bytes) -> None:
        self.data = buffer(data)
        self.start, self.filled = 0, len(data)
        self.joined = np.zeros((0, 2), np.int64)

    def fill(self) -> int:
        return 0

    def join_packets(self, at: int) -> bool:
        return False

    def error(self, packet: bytes) -> Exception:
        return error_of(packet, Login("h", 1, "u", ""))


class CapturedTables:
    """Captures every table as the log describes it."""

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        return infer_schema(mapped, None)

    def is_captured(self, table: TableId) -> bool:
        return True

    def effects(self, query: ev.Query) -> None:
        return None

    def named(self, query: ev.Query) -> str:
        return ""

    def is_mark(self, table: TableId) -> bool:
        return False

    def source_ms(self) -> int:
        return 1_700_000_000_000


WHOLE = Appetite(
    segment_bytes=lambda _: 1 << 20, stretch_bytes=1 << 30, partition_label=lambda _: ""
)


def scan(data: bytes) -> Any:
    scanner = Scanner(Held(data), LogPosition(MYSQL, "", "f"), CapturedTables(), WHOLE)  # type: ignore[arg-type]
    scanner.advance()
    return str(scanner.position())


# --- rows -----------------------------------------------------------------------------------------

_C = MappedColumn
NUMBERS = mapped(
    _C("", 1, 0),
    _C("", 2, 0),
    _C("", 3, 0),
    _C("", 9, 0),
    _C("", 8, 0, unsigned=True),
    _C("", 4, 4),
    _C("", 5, 8),
    _C("", 13, 0),
    _C("", 16, 10),
)
NUMBER_ROW = [
    b"\1",
    b"\1\2",
    b"\1\2\3\4",
    b"\1\2\3",
    bytes(range(8)),
    struct.pack("<f", 1.5),
    struct.pack("<d", -2.5),
    b"\x70",
    b"\1\2",
]
DECIMALS = mapped(_C("", 246, 10 << 8 | 2), _C("", 246, 65 << 8 | 30), _C("", 246, 1 << 8 | 1))
DECIMAL_ROW = [b"\x80\0\0\1\5", b"\x80" + bytes(29), b"\x85"]
TIMES = mapped(_C("", 17, 6), _C("", 18, 3), _C("", 19, 6), _C("", 10, 0), _C("", 17, 0))
TIME_ROW = [
    b"\x65\0\0\0\0\0\1",
    b"\x99\xb0\x92\xc8\x80\0\1",
    b"\x80\x10\x20\0\0\1",
    b"\x21\xcc\x0f",
    b"\x65\0\0\1",
]
TEXTS = mapped(
    _C("", 15, 40, collation=45),
    _C("", 15, 300, collation=8),
    _C("", 254, 40, collation=28),
    _C("", 252, 2, collation=63),
    _C("", 247, 1, collation=45, elements=("a", "b")),
    _C("", 248, 1, collation=45, elements=("a", "b")),
)
TEXT_ROW = [b"\5hello", b"\3\0abc", b"\2\xd6\xd0", b"\3\0\0\1\2", b"\1", b"\3"]
JSON = mapped(_C("", 245, 4), _C("", 245, 2))


def small_json(*entries: bytes, tail: bytes = b"") -> bytes:
    size = 4 + 3 * len(entries) + len(tail)
    return b"\x02" + struct.pack("<HH", len(entries), size) + b"".join(entries) + tail


DOCUMENTS = (
    b"\x04\0",
    b"\x05\xff\xff",
    b"\x0b" + struct.pack("<d", 0.1),
    b"\x0c\x05hello",
    small_json(b"\x05\1\0", b"\x04\1\0"),
    small_json(b"\x0c\x07\0", tail=b"\x02hi"),
    b"\x00" + struct.pack("<HHHHBH", 1, 13, 11, 1, 5, 7)[:-1] + b"\0k" + b"x",
    b"\x0f\x0c\x08" + bytes(8),
    b"\x0f\xf6\x04\x04\x02\x80\x05",
)
JSON_ROW = [struct.pack("<I", len(DOCUMENTS[4])) + DOCUMENTS[4], b"\2\0\4\1"]


def rows_target(name: str, table: MappedTable, row: list[bytes], share: int) -> Target:
    decoder = RowsDecoder(table, infer_schema(table, None), MYSQL)
    none: list[bytes | None] = [None] * len(row)
    bodies = [rows_body(code, len(row), [row, none]) for code in (23, 25, 30, 32)]
    bodies += [rows_body(code, len(row), [row, row, none, row]) for code in (24, 31)]
    codes = (23, 25, 30, 32, 24, 31)

    def run(data: bytes) -> Any:
        """Decode one event; its first byte chooses the code."""
        body, code = data[1:], codes[data[0] % len(codes)] if data else 23
        events = row_events((code, body))
        raw = buffer(body)
        return [
            str(rows.batch.to_pydict()) if len(body) < 200 else len(rows)
            for rows in decoder.decode(RowEvents(raw, *_rest(events)))
            if rows.batch.validate(full=True) is None
        ]

    corpus = tuple(bytes([i]) + b for i, b in enumerate(bodies))
    return Target(name, corpus, run, share, kernel=True)


def _rest(events: RowEvents) -> tuple[Any, ...]:
    return events.start, events.end, events.code, events.commit_ts, events.seq


MARIA = RowsDecoder(TEXTS, infer_schema(TEXTS, None), MARIADB)


def maria_part(plain: bytes) -> bytes:
    return b"\x82" + len(plain).to_bytes(2, "big") + zlib.compress(plain)


def compressed_rows(data: bytes) -> Any:
    return [len(rows) for rows in MARIA.decode(row_events((169, data)))]


def compressed_row(code: int) -> bytes:
    plain = rows_body(30, len(TEXT_ROW), [TEXT_ROW])
    head = 8 + 2 + 1 + 1
    return plain[:head] + maria_part(plain[head:])


def payload(plain: bytes, method: int) -> bytes:
    packed = pa.Codec("zstd").compress(plain, asbytes=True) if method == 0 else plain
    fields = ((1, len(packed)), (2, method), (3, len(plain)))
    head = b"".join(bytes([key, 3, 252]) + struct.pack("<H", v) for key, v in fields if v < 65536)
    return head + b"\0" + packed


def json_documents(data: bytes) -> Any:
    raw = buffer(data)
    spans = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    text, offsets, row, why = json_binary.json_texts(
        json_binary.MYSQL, raw, *spans, np.array([True])
    )
    return why or text[: offsets[-1]].tobytes()


def json_changes(data: bytes) -> Any:
    cut = data[0] if data else 0
    return apply_changes(data[1 : 1 + cut], data[1 + cut :])


CHANGE_LIST = b"\0\3$[0\5\2\5\2\0"


def table_maps(data: bytes) -> Any:
    found = []
    for flavour in (MYSQL, MARIADB):
        mapped = parse_table_map(data, flavour)
        RowsDecoder(mapped, infer_schema(mapped, None), flavour)
        found.append(str(mapped))
    return found


MAPS = (
    INTS,
    table_map(
        [(1, b""), (246, b"\x0a\2"), (15, b"\x28\0"), (254, b"\xf7\1"), (245, b"\4"), (18, b"\6")],
        {1: b"\x80", 2: b"\x2d", 4: names(*"abcdef"), 6: b"\1\1a", 8: b"\0"},
        nullable=0x3F,
    ),
)

PARSERS: tuple[Callable[[bytes], Any], ...] = (
    ev.parse_query,
    lambda body: ev.parse_query(body, compressed=True),
    ev.parse_load,
    ev.parse_rotate,
    ev.has_checksums,
    ev.parse_tagged_gtid,
    lambda body: inflate_part(body, "an event"),
)


def parse_event(data: bytes) -> Any:
    return str(PARSERS[data[0] % len(PARSERS)](data[1:])) if data else None


TAGGED = b"\2\x40\0" + b"\0\2\2" + bytes(32) + b"\4\2\6\2a\x08\2\x0a\2\x0c\2"
EVENTS = (
    b"\0" + query(b"CREATE TABLE t (id int)"),
    b"\1" + query(maria_part(b"INSERT INTO t VALUES (1)")),
    b"\2" + query(b"")[:13] + bytes(13) + b"d\0LOAD DATA",
    b"\3" + struct.pack("<Q", 4) + b"binlog.000002",
    b"\4" + struct.pack("<H", 4) + b"8.4.0".ljust(50, b"\0") + bytes(40) + b"\1" + bytes(4),
    b"\6" + maria_part(b"hello " * 9),
)

# --- answers --------------------------------------------------------------------------------------

_COLUMNS = (
    SqlType("int"),
    SqlType("bigint", unsigned=True),
    SqlType("varchar", length=40),
    SqlType("double"),
    SqlType("varbinary", length=9),
    SqlType("datetime"),
)
ANSWER = TableSchema(
    TableId("d", "t"), 1, 1, tuple(Column(i + 1, f"c{i}", t) for i, t in enumerate(_COLUMNS))
)


def packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def line(*values: bytes | None) -> bytes:
    return b"".join(b"\xfb" if v is None else bytes([len(v)]) + v for v in values)


LINES = (
    line(b"-7", b"18446744073709551615", b"hello", b"1.5e3", b"\0\1", b"2020-01-01 00:00:00"),
    line(*[None] * 6),
)
PACKETS = (
    packet(1, LINES[0]) + packet(2, LINES[1]) + packet(3, b"\xfe\0\0\2\0"),
    packet(1, LINES[0]) + packet(2, b"\xff\1\2#HY000no"),
)


def result_set(data: bytes) -> Any:
    raw, state = buffer(data), np.array([0, 0, 1], np.int64)
    start, end = np.empty(8, np.int64), np.empty(8, np.int64)
    why = packets.find_packets(raw, len(raw), state, start, end)
    count = int(state[packets.COUNT])
    image = row_images(ANSWER, raw, start[:count], end[:count])
    image.validate(full=True)
    return why, state.tolist(), len(image)


# --- range stores ---------------------------------------------------------------------------------

_STORED = (
    SqlType("int"),
    SqlType("decimal", length=20, scale=4),
    SqlType("varchar", length=40),
    SqlType("datetime", scale=3),
    SqlType("json"),
    SqlType("double"),
    SqlType("time"),
    SqlType("enum", elements=("a", "b")),
    SqlType("vector"),
)
STORED = TableSchema(
    TableId("d", "t"),
    5,
    1,
    tuple(Column(i + 1, f"c{i}", t) for i, t in enumerate(_STORED)),
    (Index(1, "PRIMARY", ("c0",), unique=True, primary=True),),
)
STORED_ROWS = [
    {
        "c0": 1,
        "c1": "-12.3400",
        "c2": "héllo",
        "c3": "2020-01-02 03:04:05.678",
        "c4": '{"a":[1,"x"]}',
        "c5": 1.5,
        "c6": "-12:34:56",
        "c7": 1,
        "c8": "[1,2.5]",
    },
    {
        "c0": 2,
        "c1": "0.0000",
        "c2": "",
        "c3": "0000-00-00 00:00:00.000",
        "c4": "null",
        "c5": -0.0,
        "c6": "838:59:59",
        "c7": 2,
        "c8": "[]",
    },
]
KEYS, VALUES = (
    a.to_pylist() for a in encode_rows(STORED, 5, pa.array(STORED_ROWS, STORED.image), None)
)
STORE = RowDecoder(STORED)


def stored_row(data: bytes) -> Any:
    """Decode one row: the first byte is the key's length."""
    cut = min(data[0], len(data) - 1) if data else 0
    raw = buffer(data[1:])
    places = (np.array([n], np.int64) for n in (0, cut, cut, len(raw) - cut))
    found = STORE.decode(raw, *places)
    found.validate(full=True)
    return len(found)


_LOG_DATA = pb.CdcPullLogResponse.DESCRIPTOR.fields_by_name["log_data"]
_CHANGE = _LOG_DATA.message_type._concrete_class


def page() -> bytes:
    """Return an answer with every kind of field that a row change has."""
    changes = []
    for key, value in zip(KEYS, VALUES, strict=True):
        change = _CHANGE()
        for one in _CHANGE.DESCRIPTOR.fields:
            if one.cpp_type == one.CPPTYPE_STRING and not one.is_repeated:
                setattr(change, one.name, key if "key" in one.name else value)
            elif one.cpp_type in (one.CPPTYPE_UINT64, one.CPPTYPE_INT64, one.CPPTYPE_UINT32):
                setattr(change, one.name, 300)
        changes.append(change)
    return pb.CdcPullLogResponse(
        current_log_index=9, closed_ts=7, log_data=changes
    ).SerializeToString()


def pages(data: bytes) -> Any:
    frame = buffer(data)
    found, rest = read_page(frame, _LOG_DATA.number, "a page")  # type: ignore[arg-type]
    return len(found), rest


UUID = b"3e11fa47-71ca-11e1-9e33-c80aa9429562"
TARGETS = (
    Target(
        "log: framing, MySQL",
        (MYSQL_LOG, SHORT_LOG, ODD_LOG),
        lambda d: walk(d, 5, False, False),
        24,
        kernel=True,
    ),
    Target(
        "log: framing, MariaDB",
        (MARIA_LOG, MYSQL_LOG),
        lambda d: walk(d, 5, True, False),
        16,
        kernel=True,
    ),
    Target(
        "log: framing, collecting",
        (MYSQL_LOG, MARIA_LOG),
        lambda d: walk(d, 5, False, True),
        16,
        kernel=True,
    ),
    Target(
        "log: framing, inside a payload",
        (NESTED,),
        lambda d: walk(d, 0, False, True),
        16,
        kernel=True,
    ),
    Target("log: scanner", (MYSQL_LOG, SHORT_LOG), scan, 6, kernel=True),
    Target("log: table maps", MAPS, table_maps, 4),
    Target("log: single events", EVENTS, parse_event, 60, (b"\xfe", b"\xfc\xff\xff")),
    Target("log: compressed rows", (compressed_row(169),), compressed_rows, 4, kernel=True),
    Target(
        "log: compressed transactions",
        (payload(NESTED, 0), payload(NESTED, 255)),
        lambda d: [b.tobytes() for b in inflate_payload([d])],
        6,
        kernel=True,
    ),
    Target("log: JSON", DOCUMENTS, json_documents, 24, kernel=True),
    Target(
        "log: JSON changes",
        (bytes([len(DOCUMENTS[4])]) + DOCUMENTS[4] + CHANGE_LIST,),
        json_changes,
        40,
    ),
    rows_target("log: rows of numbers", NUMBERS, NUMBER_ROW, 3),
    rows_target("log: rows of decimals", DECIMALS, DECIMAL_ROW, 3),
    rows_target("log: rows of times", TIMES, TIME_ROW, 3),
    rows_target("log: rows of texts", TEXTS, TEXT_ROW, 3),
    rows_target("log: rows of JSON", JSON, JSON_ROW, 3),
    Target(
        "GTIDs",
        (UUID + b":1-5:7," + UUID + b":tag:1",),
        lambda d: str(parse_gtids(d.decode("utf-8", "replace"), MYSQL)),
        60,
        (b"-", b":", b","),
    ),
    Target(
        "GTIDs of MariaDB",
        (b"0-1-7,1-2-9",),
        lambda d: str(parse_gtids(d.decode("utf-8", "replace"), MARIADB)),
        80,
        (b"-", b","),
    ),
    Target("result sets", PACKETS, result_set, 8, kernel=True),
    Target("range pages", (page(),), pages, 40, kernel=True),
    Target(
        "range rows",
        tuple(bytes([len(a)]) + a + b for a, b in zip(KEYS, VALUES, strict=True)),
        stored_row,
        4,
        kernel=True,
    ),
)
