"""The fast decoder gives what a slow, plain one gives, also for damaged events."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowferry.change.table import TableId
from rowferry.columnar.json_binary import MYSQL, json_texts
from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.decode.rows_events import RowEvents, RowsDecoder
from rowferry.flow.capture.binlog.decode.table_map import MappedColumn, MappedTable, infer_schema
from rowferry.mysql.session import Flavour
from rowferry.testing.slow_binlog import SlowRow, rows_body, slow_json, slow_rows

PLAIN = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
Encoded = st.SearchStrategy[bytes]


# --- JSON documents ------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.sampled_from([b"\x0f\x02ab", b"\xf6\x04\x04\x02\x8c\x22", b"\xf6\x04\x04\x02\x73\xdd"]),
    st.tuples(st.sampled_from([7, 10, 11, 12]), st.integers(0, 23), st.integers(0, 59)).map(
        lambda t: (
            bytes([t[0], 8]) + (2024 * 13 << 46 | t[1] << 36 | t[2]).to_bytes(8, "little")
            if t[0] != 11
            else bytes([11, 8]) + (-(t[1] << 36 | t[2])).to_bytes(8, "little", signed=True)
        )
    ),
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), inner)
    ),
    max_leaves=25,
)


def encoded_json(value: Any, large: bool) -> bytes:
    """Write a document in binary form: its type, then its value."""
    kind, data = _json_value(value, large)
    return bytes([kind]) + data


def _json_value(value: Any, large: bool) -> tuple[int, bytes]:
    match value:
        case None | True | False:
            return 4, bytes([{None: 0, True: 1, False: 2}[value]])
        case int():
            forms = ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"), (10, "<Q"))
            for kind, form in forms:
                try:
                    return kind, struct.pack(form, value)
                except struct.error:
                    continue
            raise AssertionError(value)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            text = value.encode()
            return 12, _varied(len(text)) + text
        case bytes():
            return 15, value
        case dict():
            keys = sorted((k.encode() for k in value), key=lambda k: (len(k), k))
            return (1 if large else 0), _json_container(
                keys, [value[k.decode()] for k in keys], large
            )
        case _:
            return (3 if large else 2), _json_container(None, value, large)


def _varied(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def _json_container(keys: list[bytes] | None, values: list[Any], large: bool) -> bytes:
    wide = 4 if large else 2
    place = 2 * wide + len(keys or ()) * (2 + wide) + len(values) * (1 + wide)
    names, entries, tail = b"", b"", b""
    for key in keys or ():
        names += (place + len(tail)).to_bytes(wide, "little") + len(key).to_bytes(2, "little")
        tail += key
    for value in values:
        kind, data = _json_value(value, large)
        if kind in (4, 5, 6) or (large and kind in (7, 8)):
            entries += bytes([kind]) + data.ljust(wide, b"\0")
        else:
            entries += bytes([kind]) + (place + len(tail)).to_bytes(wide, "little")
            tail += data
    size = place + len(tail)
    sizes = len(values).to_bytes(wide, "little") + size.to_bytes(wide, "little")
    return sizes + names + entries + tail


def fast_json(document: bytes) -> str | None:
    raw = np.frombuffer(document, np.uint8)
    data, offsets, _, why = json_texts(
        MYSQL, raw, np.zeros(1, np.int64), np.array([len(raw)]), np.ones(1, np.bool_)
    )
    return None if why else data[: offsets[-1]].tobytes().decode("utf-8", "surrogateescape")


def _has_opaque(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bytes) or any(map(_has_opaque, inner))


@PLAIN
@given(documents, st.booleans())
def test_documents_are_written_alike(value: Any, large: bool) -> None:
    document = encoded_json(value, large)
    text = fast_json(document)
    assert text == slow_json(document)
    if not _has_opaque(value):
        assert json.loads(text or "") == value


@PLAIN
@given(documents, st.booleans(), st.data())
def test_damaged_documents_are_refused_alike(value: Any, large: bool, data: st.DataObject) -> None:
    document = bytearray(encoded_json(value, large))
    for _ in range(data.draw(st.integers(1, 3))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(document[: data.draw(st.integers(1, len(document)))])
    found = fast_json(cut)
    try:
        wanted = slow_json(cut)
    except UnicodeDecodeError:
        return  # strings are checked after the walk
    except (ValueError, IndexError):
        wanted = None
    if wanted is not None and found is None:
        # A damaged document may be far longer than any whole one of its size: only then.
        assert len(wanted) > 6 * len(cut)
        return
    assert found == wanted


# --- rows ----------------------------------------------------------------------------------------


def _little(size: int) -> Encoded:
    return st.binary(min_size=size, max_size=size)


def _counted(size: int, content: Encoded) -> Encoded:
    return content.map(lambda c: len(c).to_bytes(size, "little") + c)


def _text(codec: str, characters: str) -> Encoded:
    return st.text(st.sampled_from(characters), max_size=20).map(lambda t: t.encode(codec))


def _decimal(digits: int, scale: int) -> Encoded:
    def pack(number: int) -> bytes:
        text = str(abs(number)).zfill(digits)
        whole, fraction = text[: digits - scale], text[digits - scale :]
        odd = len(whole) % 9
        groups = [whole[:odd]] * bool(odd) + [whole[i : i + 9] for i in range(odd, len(whole), 9)]
        groups += [fraction[i : i + 9] for i in range(0, scale, 9)]
        sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
        raw = bytearray(b"".join(int(g).to_bytes(sizes[len(g)], "big") for g in groups))
        if number < 0:
            raw = bytearray(b ^ 0xFF for b in raw)
        raw[0] ^= 0x80
        return bytes(raw)

    most = 10**digits - 1
    return st.integers(-most, most).map(pack)


def _moment(digits: int) -> Encoded:
    size = (digits + 1) // 2
    fields = st.tuples(
        st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 23)
    )
    rest = st.tuples(st.integers(0, 59), st.integers(0, 59), st.integers(0, 100**size - 1))

    def pack(both: tuple[tuple[int, ...], tuple[int, ...]]) -> bytes:
        (year, month, day, hour), (minute, second, fraction) = both
        bits = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
        return (bits + (1 << 39)).to_bytes(5, "big") + fraction.to_bytes(size, "big")

    return st.tuples(fields, rest).map(pack)


def _time(digits: int) -> Encoded:
    size = (digits + 1) // 2
    clock = st.tuples(st.integers(0, 838), st.integers(0, 59), st.integers(0, 59))
    rest = st.tuples(st.integers(0, 100**size - 1), st.booleans())

    def pack(both: tuple[tuple[int, int, int], tuple[int, bool]]) -> bytes:
        (hour, minute, second), (fraction, negative) = both
        number = (hour << 12 | minute << 6 | second) << 8 * size | fraction
        offset = 0x800000 << 8 * size
        return (offset - number if negative else offset + number).to_bytes(3 + size, "big")

    return st.tuples(clock, rest).map(pack)


def _stamp(digits: int) -> Encoded:
    size = (digits + 1) // 2
    return st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, 100**size - 1)).map(
        lambda t: t[0].to_bytes(4, "big") + t[1].to_bytes(size, "big")
    )


def _old_moment() -> Encoded:
    return st.tuples(
        st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 235959)
    ).map(
        lambda t: (
            (t[0] * 10000 + t[1] * 100 + t[2]) * 1000000
            + t[3] // 10000 * 10000
            + t[3] // 100 % 60 * 100
            + t[3] % 60
        ).to_bytes(8, "little")
    )


C = MappedColumn
NUMBERS: list[tuple[MappedColumn, Encoded]] = [
    *(
        (C("", code, 0, unsigned), _little(size))
        for unsigned in (False, True)
        for code, size in ((1, 1), (2, 2), (9, 3), (3, 4), (8, 8))
    ),
    (C("", 4, 4), _little(4)),
    (C("", 5, 8), _little(8)),
    *(
        (C("", 246, d << 8 | s), _decimal(d, s))
        for d, s in (
            (1, 0),
            (1, 1),
            (9, 0),
            (10, 2),
            (18, 9),
            (19, 10),
            (65, 30),
            (65, 0),
            (30, 30),
        )
    ),
    *((C("", 16, bits), _little((bits + 7) // 8)) for bits in (1, 8, 9, 64)),
    *((C("", 247, size, elements=("a",)), _little(size)) for size in (1, 2)),
    *((C("", 248, size, elements=("a",)), _little(size)) for size in (1, 2, 3, 4, 8)),
    (C("", 13, 0), _little(1)),
    (
        C("", 10, 0),
        st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)).map(
            lambda t: (t[0] << 9 | t[1] << 5 | t[2]).to_bytes(3, "little")
        ),
    ),
    *((C("", 18, digits), _moment(digits)) for digits in range(7)),
    *((C("", 19, digits), _time(digits)) for digits in range(7)),
    *((C("", 17, digits), _stamp(digits)) for digits in range(7)),
    (C("", 7, 0), _little(4)),
    (C("", 12, 0), _old_moment()),
    (
        C("", 11, 0),
        st.integers(-838, 838).map(lambda h: (h * 10000).to_bytes(3, "little", signed=True)),
    ),
    (C("", 254, 9, collation=63), _counted(1, st.binary(max_size=9))),
    (C("", 254, 300, collation=63), _counted(2, st.binary(max_size=300))),
    (C("", 15, 255, collation=63), _counted(1, st.binary(max_size=255))),
    (C("", 15, 256, collation=63), _counted(2, st.binary(max_size=256))),
    *(
        (C("", 252, size, collation=63), _counted(size, st.binary(max_size=200)))
        for size in (1, 2, 3, 4)
    ),
    (C("", 255, 4), _counted(4, st.binary(max_size=40))),
]
TEXTS: list[tuple[MappedColumn, Encoded]] = [
    (C("", 15, 400, collation=45), _counted(2, _text("utf-8", "aé中😀\0"))),
    (C("", 254, 60, collation=33), _counted(1, _text("utf-8", "aé中"))),
    (C("", 15, 100, collation=8), _counted(1, _text("cp1252", "aé€ÿ"))),
    (C("", 252, 2, collation=28), _counted(2, _text("gbk", "a中文"))),
    (C("", 15, 100, collation=35), _counted(1, _text("utf-16-be", "aé中"))),
    (
        C("", 245, 4),
        _counted(4, st.tuples(documents, st.booleans()).map(lambda t: encoded_json(*t))),
    ),
]


@st.composite
def events(draw: st.DrawFn, kinds: list[tuple[MappedColumn, Encoded]]) -> Any:
    """Draw a table and a few rows events of it."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=20))
    columns = tuple(
        MappedColumn(f"c{i}", c.code, c.meta, c.unsigned, True, c.collation, c.elements)
        for i, (c, _) in enumerate(chosen)
    )
    table = MappedTable(77, TableId("d", "t"), columns)
    image = st.tuples(*(st.none() | strategy for _, strategy in chosen)).map(list)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        code = draw(st.sampled_from([23, 24, 25, 30, 31, 32]))
        images = draw(st.lists(image, max_size=5))
        if code in (24, 31) and len(images) % 2:
            images.pop()
        extra = draw(st.sampled_from([b"", b"\x01\x05\x00", b"\x00\x03\x00x"]))
        found.append((code, rows_body(code, len(columns), images, extra)))
    return table, found


def fast(table: MappedTable, found: list[tuple[int, bytes]], room: int) -> list[SlowRow]:
    decoder = RowsDecoder(table, infer_schema(table, None), Flavour.MYSQL)
    decoder._room = room  # a chunk may end anywhere
    end = np.cumsum([len(body) for _, body in found], dtype=np.int64)
    given = RowEvents(
        data=np.frombuffer(b"".join(body for _, body in found), np.uint8),
        start=np.concatenate((np.zeros(1, np.int64), end[:-1])),
        end=end,
        code=np.array([code for code, _ in found], np.uint8),
        commit_ts=np.arange(len(found), dtype=np.uint64) + 7,
        seq=np.arange(len(found), dtype=np.int64) * 100,
    )
    rows, places = [], []
    for chunk in decoder.decode(given):
        chunk.batch.validate(full=True)
        images = zip(
            chunk.op.tolist(), chunk.before.to_pylist(), chunk.after.to_pylist(), strict=True
        )
        for op, before, after in images:
            rows.append(
                SlowRow(op, before and list(before.values()), after and list(after.values()))
            )
        places += zip(chunk.commit_ts.tolist(), chunk.batch.column("seq").to_pylist(), strict=True)
    wanted = [
        (e + 7, e * 100 + i)
        for e, (code, body) in enumerate(found)
        for i, _ in enumerate(slow_rows(table, code, body))
    ]
    assert places == wanted
    return rows


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and type(one) is type(other)


@PLAIN
@given(events(NUMBERS + TEXTS), st.integers(1, 9))
def test_rows_are_read_alike(drawn: Any, room: int) -> None:
    table, found = drawn
    wanted = [row for code, body in found for row in slow_rows(table, code, body)]
    assert same(fast(table, found, room), wanted)


@PLAIN
@given(events(NUMBERS), st.data())
def test_damaged_events_are_refused_alike(drawn: Any, data: st.DataObject) -> None:
    """What the slow decoder cannot read is an error with a place, never a crash or a guess."""
    table, found = drawn
    which = data.draw(st.integers(0, len(found) - 1))
    code, body = found[which]
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    found = [*found[:which], (code, cut), *found[which + 1 :]]
    try:
        wanted = [row for code, body in found for row in slow_rows(table, code, body)]
    except (ValueError, IndexError):
        wanted = None
    try:
        rows = fast(table, found, 100)
    except CorruptLog as err:
        assert "d.t" in err.words and "byte" in err.words
        assert wanted is None or _has_a_long_value(table, wanted)
        return
    assert wanted is not None
    assert same(rows, wanted)


def _has_a_long_value(table: MappedTable, rows: list[SlowRow]) -> bool:
    """The fast decoder refuses BINARY values above their length; the slow one does not look."""
    for row in rows:
        for image in (row.before, row.after):
            for column, value in zip(table.columns, image or [], strict=False):
                if column.code == 254 and isinstance(value, bytes) and len(value) > column.meta:
                    return True
    return False
