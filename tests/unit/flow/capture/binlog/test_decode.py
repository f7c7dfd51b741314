from __future__ import annotations

import struct
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from binlog_event_kit import mapped, row_events

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog, EventUnknown, SourceUnsupported, TableVersionUnknown
from rowferry.flow.capture.binlog.decode import rows_events as decode
from rowferry.flow.capture.binlog.decode.rows_events import (
    RowEvents,
    RowsDecoder,
    Scratch,
    partition_of,
)
from rowferry.flow.capture.binlog.decode.table_map import MappedColumn, MappedTable, infer_schema
from rowferry.mysql.session import Flavour
from rowferry.testing.slow_binlog import rows_body

INT = MappedColumn("", 3, 0)
TEXT = MappedColumn("", 15, 40, collation=45)
TABLE = mapped(INT, TEXT)


def number(value: int) -> bytes:
    return struct.pack("<i", value)


def text(value: str) -> bytes:
    return bytes([len(value.encode())]) + value.encode()


def image(value: int, words: str | None = "x") -> list[bytes | None]:
    return [number(value), None if words is None else text(words)]


def event(code: int, *images: list[bytes | None], extra: bytes = b"") -> tuple[int, bytes]:
    return code, rows_body(code, len(images[0]) if images else 2, list(images), extra)


def decoder(table: MappedTable = TABLE, **more: Any) -> RowsDecoder:
    return RowsDecoder(table, infer_schema(table, None), Flavour.MYSQL, **more)


def run(events: RowEvents, table: MappedTable = TABLE, **more: Any) -> list[Rows]:
    return list(decoder(table, **more).decode(events))


def flat(chunks: list[Rows]) -> list[tuple[Any, ...]]:
    found = []
    for chunk in chunks:
        chunk.batch.validate(full=True)
        found += [tuple(row.values()) for row in chunk.batch.to_pylist()]
    return found


MIXED = row_events(
    event(23, image(1), image(2, None)),
    event(24, image(1), image(3)),
    event(25, image(2, "gone")),
    event(30, image(4, "é")),
)
MIXED_ROWS = [
    (0, 1, 0, None, {"c0": 1, "c1": "x"}),
    (0, 1, 1, None, {"c0": 2, "c1": None}),
    (1, 2, 1000, {"c0": 1, "c1": "x"}, {"c0": 3, "c1": "x"}),
    (2, 3, 2000, {"c0": 2, "c1": "gone"}, None),
    (0, 4, 3000, None, {"c0": 4, "c1": "é"}),
]


def test_ops_places_and_images() -> None:
    (chunk,) = run(MIXED)
    assert flat([chunk]) == MIXED_ROWS
    assert chunk.table.id == ("db", "t")
    assert chunk.physical_id is None
    assert chunk.batch.schema.types[:3] == ["int8", "uint64", "int64"]


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 100])
def test_a_chunk_may_end_anywhere(room: int) -> None:
    small = decoder()
    small._room = room
    chunks = list(small.decode(MIXED))
    assert flat(chunks) == MIXED_ROWS
    assert max(len(c) for c in chunks) <= room


def test_chunks_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_BYTES", 2000)
    big = row_events(*(event(23, *[image(i, "y" * 30)] * 20) for i in range(10)))
    chunks = run(big)
    assert len(chunks) == 4
    assert [row[2] for row in flat(chunks)] == [e * 1000 + i for e in range(10) for i in range(20)]


def test_decoding_again_gives_the_same() -> None:
    reader = decoder()
    assert flat(list(reader.decode(MIXED))) == flat(list(reader.decode(MIXED)))


def test_chunks_do_not_share_what_is_written_later() -> None:
    reader = decoder()
    reader._room = 1
    chunks = list(reader.decode(MIXED))
    list(reader.decode(row_events(event(23, *[image(9, "later")] * 5))))
    assert flat(chunks) == MIXED_ROWS


def test_no_events_and_empty_events_give_no_chunk() -> None:
    assert run(MIXED.part(0, 0)) == []
    assert run(row_events(event(23), event(24))) == []


def test_extra_data_is_passed_over() -> None:
    assert flat(run(row_events(event(31, image(1), image(2), extra=b"\x00\x04\x00ab")))) == [
        (1, 1, 0, {"c0": 1, "c1": "x"}, {"c0": 2, "c1": "x"})
    ]


def test_room_is_kept_for_a_few_threads_only() -> None:
    """A server has a thread for each changefeed; each of them meets a long stretch once."""
    scratch, meet = Scratch(), threading.Barrier(10)

    def decode() -> None:
        with scratch.lent(1000, 5) as room:
            room[:] = 7
            meet.wait()

    threads = [threading.Thread(target=decode) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(scratch._free) == 2
    with scratch.lent(10, 3) as small, scratch.lent(2000, 5) as large:
        assert small.shape == (2, 10, 3) and large.shape == (2, 2000, 5)
        assert not np.shares_memory(small, large)
    with pytest.raises(ValueError), scratch.lent(1, 1):
        raise ValueError
    assert len(scratch._free) == 2


def test_a_version_with_other_columns_is_refused() -> None:
    schema = infer_schema(TABLE, None)
    other = replace(schema.columns[0], type=SqlType("bigint"))
    wrong = replace(schema, columns=(other, schema.columns[1]), version=9)
    with pytest.raises(TableVersionUnknown, match=r"db\.t, version 9: column 'c0' is int in the"):
        RowsDecoder(TABLE, wrong, Flavour.MYSQL)


def test_values_take_the_versions_form() -> None:
    """The log does not tell INET6 from BINARY(16); the version does."""
    table = mapped(MappedColumn("", 254, 16, collation=63), MappedColumn("", 254, 16, collation=63))
    schema: TableSchema = infer_schema(table, None)
    kinds = (SqlType("inet6"), SqlType("uuid"))
    columns = tuple(replace(c, type=k) for c, k in zip(schema.columns, kinds, strict=True))
    reader = RowsDecoder(table, replace(schema, columns=columns), Flavour.MARIADB)
    value = b"\x02\x20\x01"
    rows = flat(list(reader.decode(row_events(event(23, [value, value], [None, value])))))
    assert [tuple(row[4].values()) for row in rows] == [
        ("2001::", "20010000-0000-0000-0000-000000000000"),
        (None, "20010000-0000-0000-0000-000000000000"),
    ]


def test_fractions_in_mariadbs_old_form_are_refused() -> None:
    table = mapped(MappedColumn("when", 12, 0))
    schema = infer_schema(table, None)
    column = replace(schema.columns[0], type=SqlType("datetime", scale=3))
    with pytest.raises(EventUnknown, match=r"column 'when'.*mysql56_temporal_format = ON"):
        RowsDecoder(table, replace(schema, columns=(column,)), Flavour.MARIADB)


# --- partial images ------------------------------------------------------------------------------


def partial(code: int, before: int, after: int, rows: bytes) -> tuple[int, bytes]:
    """An event whose images have the columns of these bitmaps."""
    maps = {23: bytes([after]), 24: bytes([before, after]), 25: bytes([before])}[code]
    return code, (77).to_bytes(6, "little") + b"\1\0\x02" + maps + rows


PARTIAL = row_events(
    event(23, image(1)),
    partial(24, 0b01, 0b10, b"\0" + number(1) + b"\0" + text("new")),
    partial(25, 0b01, 0, b"\0" + number(1)),
    partial(24, 0b01, 0b01, b"\0" + number(1) + b"\0" + number(2)),
)


def test_partial_images_are_refused_unless_allowed() -> None:
    with pytest.raises(CorruptLog, match=r"UPDATE_ROWS_EVENT_V1 1 of 4, .*lacks columns; SET GLOB"):
        run(PARTIAL)


def test_columns_that_images_lack_are_absent() -> None:
    chunks = run(PARTIAL, allow_partial=True)
    assert flat(chunks) == [
        (0, 1, 0, None, {"c0": 1, "c1": "x"}),
        (1, 2, 1000, {"c0": 1}, {"c0": 1, "c1": "new"}),
        (2, 3, 2000, {"c0": 1}, None),
        (1, 4, 3000, {"c0": 1}, {"c0": 2}),
    ]
    assert [len(c) for c in chunks] == [1, 2, 1]


def test_images_without_any_column_are_refused() -> None:
    with pytest.raises(CorruptLog, match="no columns at all"):
        run(row_events(partial(23, 0, 0, b"\0\0")), allow_partial=True)


# --- partitions ----------------------------------------------------------------------------------


def test_rows_are_given_by_partition() -> None:
    events = row_events(
        event(30, image(1), image(2), extra=b"\x01\x05\x00"),
        event(30, image(3), extra=b"\x00\x03\x00x\x01\x07\x00"),
        event(32, image(4), extra=b"\x01\x05\x00"),
    )
    chunks = list(decoder().decode(events, by_partition=True))
    assert [(c.physical_id, c.batch.column("seq").to_pylist()) for c in chunks] == [
        (5, [0, 1, 2000]),
        (7, [1000]),
    ]


def test_an_event_without_partition_is_named() -> None:
    with pytest.raises(CorruptLog, match=r"WRITE_ROWS_EVENT_V1 0 of 1.*which partition"):
        list(decoder().decode(row_events(event(23, image(1))), by_partition=True))


def test_mariadbs_log_tells_no_partitions() -> None:
    reader = RowsDecoder(TABLE, infer_schema(TABLE, None), Flavour.MARIADB)
    with pytest.raises(SourceUnsupported, match=r"db\.t: MariaDB's log does not say"):
        list(reader.decode(MIXED, by_partition=True))


def test_partition_of_damaged_extra_data() -> None:
    assert partition_of(b"\0" * 8 + b"\x03\x00\x00", 30) is None
    assert partition_of(b"\0" * 8 + b"\x05\x00\x01\x09\x00", 30) == 9
    assert partition_of(b"\0" * 9, 30) is None
    assert partition_of(b"\0" * 20, 23) is None


# --- compressed events ---------------------------------------------------------------------------


def squeezed(code: int, body: bytes, head: int) -> tuple[int, bytes]:
    rows = body[head:]
    packed = bytes([0x82]) + len(rows).to_bytes(2, "big") + zlib.compress(rows)
    return code, body[:head] + packed


def test_compressed_events_among_plain_ones() -> None:
    events = row_events(
        squeezed(166, event(23, image(1), image(2, None))[1], 10),
        squeezed(167, event(24, image(1), image(3))[1], 11),
        event(25, image(2, "gone")),
        squeezed(169, event(30, image(4, "é"))[1], 12),
    )
    assert flat(run(events)) == MIXED_ROWS


def test_compressed_events_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_BYTES", 100)
    one = squeezed(166, event(23, *[image(7)] * 10)[1], 10)
    chunks = run(row_events(*[one] * 5))
    assert len(chunks) > 3
    assert [row[1:3] for row in flat(chunks)] == [
        (e + 1, e * 1000 + i) for e in range(5) for i in range(10)
    ]


def test_damaged_compression_is_named() -> None:
    code, body = squeezed(168, event(25, image(1))[1], 10)
    with pytest.raises(CorruptLog, match=r"db\.t, DELETE_ROWS_COMPRESSED_EVENT_V1"):
        run(row_events((code, body[:-3])))


# --- damage --------------------------------------------------------------------------------------


def test_events_that_hold_no_rows_are_refused() -> None:
    with pytest.raises(EventUnknown, match=r"db\.t: event code 19"):
        run(row_events((19, b"")))


@pytest.mark.parametrize("code", [23, 24, 25, 30, 31, 32])
def test_every_cut_is_an_error_with_a_place(code: int) -> None:
    images = [image(1), image(2)] if code in (24, 31) else [image(1)]
    good, body = event(23, image(5)), event(code, *images)[1]
    whole = {len(rows_body(code, 2, [])), len(body)}
    for size in range(len(body)):
        if size in whole:
            continue
        with pytest.raises(CorruptLog, match=r"db\.t, \w+ 1 of 2.*, byte \d+ after its header: "):
            run(row_events(good, (code, body[:size])))


def test_a_fault_names_column_and_byte() -> None:
    head = len(rows_body(23, 2, []))
    body = event(23, image(1, "abc"))[1][:-1]
    with pytest.raises(CorruptLog) as found:
        run(row_events((23, body)))
    assert found.value.words == (
        f"db.t, WRITE_ROWS_EVENT_V1 0 of 1, column 'c1', byte {head + 5} after its header: "
        "the event is cut short"
    )


def test_another_number_of_columns_is_an_error() -> None:
    body = rows_body(23, 3, [[number(1), text("x"), number(2)]])
    with pytest.raises(CorruptLog, match="another number of columns"):
        run(row_events((23, body)))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (MappedColumn("", 10, 0), b"\xff\xff\xff", "not a date or time"),
        (MappedColumn("", 18, 0), b"\xff" * 5, "not a date or time"),
        (MappedColumn("", 18, 6), b"\x80" + b"\0" * 4 + b"\xff" * 3, "not a date or time"),
        (MappedColumn("", 19, 0), b"\xff" * 3, "not a date or time"),
        (MappedColumn("", 11, 0), b"\x3f\x00\x00", "not a date or time"),
        (MappedColumn("", 12, 0), b"\xff" * 8, "not a date or time"),
        (MappedColumn("", 17, 2), b"\0" * 4 + b"\xff", "not a date or time"),
        (MappedColumn("", 246, 9 << 8), b"\xff" * 4, "not a decimal"),
        (MappedColumn("", 254, 2, collation=63), b"\x03abc", "longer than its type"),
        (MappedColumn("", 245, 4), b"\x01\0\0\0\x09", "not binary JSON"),
        (MappedColumn("", 242, 4, vector_dimensions=1), b"\x03\0\0\0abc", "not a vector"),
        (MappedColumn("", 242, 4, vector_dimensions=1), b"\x04\0\0\0\0\0\x80\x7f", "not a vector"),
        (MappedColumn("", 140, 2, collation=63), b"\x04\0\x81\x05ab", "not a compressed value"),
        (MappedColumn("", 140, 2, collation=63), b"\x02\0\x15a", "not a compressed value"),
    ],
)
def test_values_that_cannot_be_are_named(column: MappedColumn, value: bytes, words: str) -> None:
    table = mapped(INT, column)
    events = row_events(event(23, [number(1), None]), event(23, [number(2), value]))
    with pytest.raises(CorruptLog, match=rf"EVENT_V1 1 of 2, column 'c1', byte 15 .*{words}"):
        run(events, table)


def test_places_outside_the_buffer_are_an_error() -> None:
    for start, end in ((-5, 10), (0, 1 << 40), (20, 10)):
        events = replace(
            row_events(event(23, image(1))), start=np.array([start]), end=np.array([end])
        )
        with pytest.raises(CorruptLog, match="cut short"):
            run(events)


def test_warm_compiles_all_that_is_used() -> None:
    script = Path(__file__).with_name("decode_warm_script.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout == ""
