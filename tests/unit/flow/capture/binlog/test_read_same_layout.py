"""Reading a segment of tables that are made alike: decoded together, and each as by itself."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from binlog_event_kit import names, table_map

from rowferry.change.chunk import Rows
from rowferry.change.plan import Segment, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog import read as reading
from rowferry.flow.capture.binlog.decode import decoders
from rowferry.flow.capture.binlog.decode.decoders import Decoders
from rowferry.flow.capture.binlog.decode.table_map import parse_table_map
from rowferry.flow.capture.binlog.frame import segment_join
from rowferry.flow.capture.binlog.frame.kept_log import (
    ROOM,
    KeptBytes,
    LogKeeper,
    _Room,
    joined_run,
)
from rowferry.flow.capture.binlog.frame.scan import Maps
from rowferry.flow.capture.binlog.read import _held_bytes, _Reader, read_log
from rowferry.mysql.session import Flavour, Login
from rowferry.testing.slow_binlog import packed

NOWHERE = Login("nowhere", 1, "u", "")
INT, VARCHAR, SHORT = 3, 15, 2
WRITE = 30
FROM = 1000


def schema(number: int, name: str, second: str = "varchar") -> TableSchema:
    kind = SqlType("varchar", length=9) if second == "varchar" else SqlType(second)
    columns = (Column(1, "id", SqlType("int"), nullable=False), Column(2, "v", kind))
    return TableSchema(TableId("db", name), number, 1, columns, (Index(1, "PRIMARY", ("id",)),))


def body_of(number: int, name: str, second: str = "varchar", nullable: int = 2) -> bytes:
    kinds = [(INT, b""), (VARCHAR, (36).to_bytes(2, "little"))]
    if second != "varchar":
        kinds[1] = (SHORT, b"")
    metadata = {4: names("id", "v"), 1: b"\0", 2: packed(255)}
    if second != "varchar":
        del metadata[2]
    written = table_map(kinds, metadata, nullable, table=name)
    return number.to_bytes(6, "little") + written[6:]


def packet(code: int, body: bytes, at: int) -> bytes:
    """An event as it comes over the network, without a checksum."""
    size = 19 + len(body)
    header = b"\0" * 4 + bytes([code]) + b"\0" * 4 + size.to_bytes(4, "little")
    header += (at + size).to_bytes(4, "little") + b"\0\0"
    return (size + 1).to_bytes(3, "little") + b"\0\0" + header + body


def write_rows(number: int, rows: Sequence[tuple[int, bytes | int]]) -> bytes:
    body = number.to_bytes(6, "little") + b"\0\0\2\0" + b"\2" + b"\3"
    for key, value in rows:
        second = value.to_bytes(2, "little") if isinstance(value, int) else packed(len(value))
        body += b"\0" + key.to_bytes(4, "little") + second
        body += value if isinstance(value, bytes) else b""
    return body


def segment(
    tables: Sequence[TableSchema], maps: Sequence[bytes], events: Sequence[tuple[int, bytes]]
) -> Segment:
    payload, at = b"", FROM
    for code, body in events:
        payload += packet(code, body, at)
        at += 19 + len(body)
    read = {
        "kind": "log",
        "server": "s",
        "file": "log.1",
        "from": FROM,
        "to": at,
        "last_ts": 1 << 18,
        "txn_ts": 1 << 18,
        "clamp_ms": 1 << 40,
        "fixed_ts": 0,
        "maria": False,
        "tail": 0,
        "maps": [m.hex() for m in maps],
        "names": [[*t.id, 0, place] for place, t in enumerate(tables)],
    }
    slices = tuple(TableSlice(t.id, t.table_id, t.version) for t in tables)
    return Segment(0, read, slices, 1 << 18, 1 << 18, at - FROM, payload=payload)


def read(tables: Sequence[TableSchema], one: Segment) -> list[Rows]:
    return list(read_log(NOWHERE, one, dict(zip(one.slices, tables, strict=True))))


def by_table(found: Sequence[Rows]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        assert one.batch.num_rows == len(one)
        rows.setdefault(one.table.id.table, []).extend(one.batch.to_pylist())
    return rows


TABLES = [schema(1, "a"), schema(2, "b"), schema(3, "x", "smallint"), schema(4, "c")]
MAPS = [body_of(11, "a"), body_of(12, "b"), body_of(13, "x", "smallint"), body_of(14, "c")]
EVENTS = [
    (WRITE, write_rows(14, [(1, b"c1"), (2, b"c2")])),
    (WRITE, write_rows(11, [(1, b"a1")])),
    (WRITE, write_rows(13, [(7, 70), (8, 80)])),
    (WRITE, write_rows(12, [(1, b"b1"), (2, b""), (3, b"b3")])),
    (WRITE, write_rows(11, [(2, b"a2"), (3, b"a3")])),
    (WRITE, write_rows(14, [(3, b"c3")])),
]


def test_rows_of_tables_made_alike_are_parts_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    one = segment(TABLES, MAPS, EVENTS)
    found = read(TABLES, one)
    cuts = {rows.table.id.table: rows.cut for rows in found}
    joined = [cuts[name] for name in "abc"]
    assert [cut.first for cut in joined if cut] == [0, 3, 6]
    assert len({id(cut.whole) for cut in joined if cut}) == 1
    assert cuts["x"] is None
    rows = by_table(found)
    assert [r["after"] for r in rows["a"]] == [{"id": n, "v": f"a{n}"} for n in (1, 2, 3)]
    assert [r["after"] for r in rows["c"]] == [{"id": n, "v": f"c{n}"} for n in (1, 2, 3)]
    assert [r["after"] for r in rows["x"]] == [{"id": 7, "v": 70}, {"id": 8, "v": 80}]

    def alone(self: _Reader, place: int, form: int) -> None:
        self._forms.append(-1 - place)

    monkeypatch.setattr(_Reader, "_note_form", alone)
    separate = read(TABLES, one)
    assert all(r.cut is None for r in separate)
    assert by_table(separate) == rows


def test_other_keys_are_not_alike() -> None:
    tables = [TABLES[0], replace(TABLES[1], indexes=())]
    events = [EVENTS[1], EVENTS[3]]
    assert [r.cut for r in read(tables, segment(tables, MAPS[:2], events))] == [None, None]


def test_a_table_that_is_mapped_in_two_ways_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_DECODERS", Decoders())
    other = [schema(9, "z")]
    events = [(WRITE, write_rows(19, [(1, b"z1")]))]
    read(other, segment(other, [body_of(19, "z", nullable=0)], events))
    tables = [TABLES[0], TABLES[1]]
    events = [
        EVENTS[1],
        EVENTS[3],
        (19, body_of(21, "b", nullable=0)),  # made like the table that was met first
        (WRITE, write_rows(21, [(4, b"b4")])),
        (19, body_of(9, "c")),  # not captured here
        (WRITE, write_rows(9, [(4, b"c4")])),
        (WRITE, write_rows(21, [(6, b"b6")])),
    ]
    rows = by_table(read(tables, segment(tables, MAPS[:2], events)))
    assert [r["after"]["v"] for r in rows["b"]] == ["b1", "", "b3", "b4", "b6"]
    assert list(rows) == ["b", "a"]


def test_what_a_process_has_read_before_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay by another process has the same order: sinks count messages."""
    one = segment(TABLES, MAPS, EVENTS)
    orders = []
    for earlier in ([], [2], [0]):
        monkeypatch.setattr(reading, "_DECODERS", Decoders())
        for place in earlier:
            tables, events = [TABLES[place]], [EVENTS[2] if place == 2 else EVENTS[1]]
            read(tables, segment(tables, [MAPS[place]], events))
        orders.append([(r.table.id.table, len(r)) for r in read(TABLES, one)])
    assert orders[0] == orders[1] == orders[2]


def test_decoders_of_replaced_versions_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_KEPT", 20)
    kept = Decoders()
    for version in range(500):
        keys = (Index(1, f"key{version}", ("id",)),)
        one = replace(TABLES[0], version=version, indexes=keys)
        body = body_of(1000 + version, one.id.table)
        assert kept.of(body, one, Flavour.MYSQL, False).schema is one
        held = (kept._known, kept._mapped, kept._of_form, kept._forms, kept._form_of)
        assert all(len(found) <= 20 for found in held)


def test_a_damaged_row_is_told_with_its_own_table() -> None:
    events = list(EVENTS)
    code, body = events[3]
    events[3] = code, body[:-1]  # the last value of b is cut short
    one = segment(TABLES, MAPS, events)
    reader = _Reader(one, dict(zip(one.slices, TABLES, strict=True)), False, False)
    with pytest.raises(CorruptLog, match=r"db\.b, WRITE_ROWS_EVENT 0 of 1, column 'v'"):
        list(reader.held(_held_bytes(one)))


def test_rows_of_a_table_that_was_mapped_before_the_segment_and_is_not_captured() -> None:
    """A trigger's table, where a segment begins in the middle of a statement."""
    tables, maps = TABLES[:1], MAPS[:1]
    events = [(WRITE, write_rows(12, [(1, b"b1")])), EVENTS[1], EVENTS[3], EVENTS[4]]
    one = segment(tables, maps, events)
    with pytest.raises(CorruptLog, match="table number 12 at log.1:1000 have no TABLE_MAP"):
        list(_Reader(one, {one.slices[0]: TABLES[0]}, False, False).held(_held_bytes(one)))
    known = replace(one, read={**one.read, "others": [12]})
    assert [r["after"]["id"] for r in by_table(read(tables, known))["a"]] == [1, 2, 3]


def test_a_statement_leaves_captured_maps_and_the_numbers_of_others() -> None:
    maps = Maps()
    maps.put(body_of(11, "a"), captured=True)
    maps.put(body_of(12, "b"), captured=False)
    maps.put(body_of(5, "mark"), captured=False, mark=True)
    maps.put(body_of(11, "a", nullable=0), captured=True)  # its number has another meaning now
    bodies, others = maps.in_force()
    assert sorted(bodies) == sorted([body_of(11, "a", nullable=0).hex(), body_of(5, "mark").hex()])
    assert others == [12]


def test_kept_bytes_are_read_in_any_process_and_given_back() -> None:
    one = segment(TABLES, MAPS, EVENTS)
    keeper = LogKeeper()
    used = ROOM.used
    run = keeper.begin()
    assert run is not None and run.append(memoryview(b"before"))
    run = keeper.begin()
    assert run is not None and run.append(memoryview(one.payload))
    piece = pickle.loads(pickle.dumps(run.finished(one.read["from"], one.read["to"])))
    kept = replace(one, payload=b"", near=(piece,))
    assert by_table(read(TABLES, kept)) == by_table(read(TABLES, one))
    assert ROOM.used == used + 6 + len(one.payload)
    keeper.turn()
    del run
    assert ROOM.used == used
    assert piece.packets() is None
    assert not _held_bytes(kept)


def test_a_file_may_be_forgotten_while_room_is_taken() -> None:
    """As the collector does, in whatever line this thread is."""
    room = _Room(10)
    with room._lock:
        assert room._lock.acquire(blocking=False)
        room._lock.release()
        room.give_back(-3)
    assert room.used == 3 and room.take(7) and not room.take(1)


def test_pieces_with_something_between_them_are_not_one_stretch() -> None:
    first, second = KeptBytes(10, 20, b"a"), KeptBytes(20, 30, b"b")
    assert joined_run([first, second]) == (first, second)
    assert joined_run([first, replace(second, start=21)]) == ()


def test_readers_of_one_stretch_share_its_tables() -> None:
    one = segment(TABLES, MAPS, EVENTS)
    of = dict(zip(one.slices, TABLES, strict=True))
    sizes = {piece: 1 << 20 if piece.table_id == 3 else 1 for piece in one.slices}
    parts = segment_join._divided(one, sizes, 2)
    found = [by_table(list(read_log(NOWHERE, part, of))) for part in parts]
    assert [sorted(rows) for rows in found] == [["x"], ["a", "b", "c"]]
    whole = by_table(read(TABLES, one))
    for name, rows in (found[0] | found[1]).items():
        assert [r["after"] for r in rows] == [r["after"] for r in whole[name]]


def test_what_follows_a_name_is_read_once() -> None:
    one, other = (
        parse_table_map(body_of(n, name), Flavour.MYSQL) for n, name in ((5, "p"), (6, "q"))
    )
    assert (one.number, one.table, other.number, other.table) == (
        5,
        TableId("db", "p"),
        6,
        TableId("db", "q"),
    )
    assert other.columns is one.columns
    with pytest.raises(CorruptLog, match=r"TABLE_MAP_EVENT of db\.q"):
        parse_table_map(body_of(6, "q")[:-1], Flavour.MYSQL)
    with pytest.raises(CorruptLog, match=r"TABLE_MAP_EVENT of db\.p"):
        parse_table_map(body_of(6, "p")[:-1], Flavour.MYSQL)
