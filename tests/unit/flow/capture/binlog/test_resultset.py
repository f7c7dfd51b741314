"""Result sets: packets in any pieces become columns; damage is refused by name, never followed."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import (
    CorruptLog,
    LoginRefused,
    SnapshotOutdated,
    SourceUnavailable,
)
from rowferry.mysql import resultset_kernels as kernels
from rowferry.mysql.resultset import ResultSet, row_images
from rowferry.mysql.session import Login
from rowferry.mysql.type_facts import TYPE_FACTS

LOGIN = Login("h", 1, "u", "", read_timeout_s=20)
FULL = 0xFFFFFF
Row = list[bytes | None]


def table(*types: SqlType) -> TableSchema:
    columns = tuple(Column(i + 1, f"c{i}", t) for i, t in enumerate(types))
    return TableSchema(TableId("d", "t"), 1, 1, columns)


TWO = table(SqlType("bigint"), SqlType("varbinary", length=9))


def value(raw: bytes | None) -> bytes:
    if raw is None:
        return b"\xfb"
    size = len(raw)
    if size < 251:
        return bytes([size]) + raw
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + raw
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little") + raw
    return b"\xfe" + size.to_bytes(8, "little") + raw


class Wire:
    """Writes a server's side of an answer."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.number = 1

    def packet(self, payload: bytes) -> Wire:
        while True:
            piece, payload = payload[:FULL], payload[FULL:]
            self.sent += len(piece).to_bytes(3, "little") + bytes([self.number]) + piece
            self.number = (self.number + 1) % 256
            if len(piece) < FULL:
                return self

    def head(self, columns: int) -> Wire:
        self.packet(bytes([columns]) if columns < 251 else b"\xfc" + columns.to_bytes(2, "little"))
        for _ in range(columns):
            self.packet(b"\x03def" + bytes(20))
        return self.end()

    def rows(self, rows: list[Row]) -> Wire:
        for row in rows:
            self.packet(b"".join(value(v) for v in row))
        return self

    def end(self) -> Wire:
        return self.packet(b"\xfe\x00\x00\x02\x00")

    def error(self, number: int, words: str) -> Wire:
        return self.packet(b"\xff" + number.to_bytes(2, "little") + b"#HY000" + words.encode())


class FakeConnection:
    """A connection whose server answers any statement with given bytes, in pieces."""

    def __init__(self, answer: bytes, pieces: random.Random | None = None) -> None:
        self._sock, self._server = socket.socketpair()
        self._answer = answer
        self._pieces = pieces
        self.statement = b""
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _execute_command(self, command: int, body: bytes) -> None:
        assert command == 3
        self.statement = body
        self._thread.start()

    def check_status(self, status: int) -> None:
        assert status == 2, "as `end` has it"

    def _send(self) -> None:
        at = 0
        while at < len(self._answer):
            size = self._pieces.randint(1, 40) if self._pieces else len(self._answer)
            try:
                self._server.sendall(self._answer[at : at + size])
            except OSError:
                return
            at += size
        self._server.close()

    def close(self) -> None:
        self._sock.close()
        self._thread.join()
        self._server.close()


def read(
    answer: bytes, schema: TableSchema, pieces: random.Random | None = None, **more: Any
) -> list[dict[str, Any]]:
    connection = FakeConnection(answer, pieces)
    try:
        result = ResultSet(connection, LOGIN, "SELECT", more.get("meanings", {}))  # type: ignore[arg-type]
        return [row for images in result.read(schema) for row in images.to_pylist()]
    finally:
        connection.close()


def images(schema: TableSchema, rows: list[Row]) -> pa.StructArray:
    payloads = [b"".join(value(v) for v in row) for row in rows]
    ends = np.cumsum([len(p) for p in payloads], dtype=np.int64)
    starts = ends - np.array([len(p) for p in payloads], np.int64)
    raw = np.frombuffer(bytearray(b"".join(payloads)), np.uint8)
    return row_images(schema, raw, starts, ends)


# --- packets -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.binary(max_size=300) | st.integers(250, 70000).map(lambda n: b"x" * n),
        ),
        max_size=30,
    ),
    pieces=st.integers(0, 1000).map(random.Random),
)
def test_rows_arrive_whatever_the_pieces(rows: list[Any], pieces: random.Random) -> None:
    wire = Wire().head(2)
    wire.rows([[None if n is None else str(n).encode(), raw] for n, raw in rows]).end()
    found = read(bytes(wire.sent), TWO, pieces if len(wire.sent) < 4000 else None)
    assert [(row["c0"], row["c1"]) for row in found] == rows


@pytest.mark.parametrize("size", [FULL - 7, FULL - 6, FULL - 5, 2 * FULL + 7])
def test_a_row_in_several_packets_is_joined(size: int) -> None:
    big = random.Random(size).randbytes(size)
    wire = Wire().head(2).rows([[b"1", b"a"], [b"2", big], [b"3", None], [b"4", big], [b"5", b""]])
    found = read(bytes(wire.end().sent), TWO)
    assert [row["c0"] for row in found] == [1, 2, 3, 4, 5]
    assert [row["c1"] for row in found] == [b"a", big, None, big, b""]


def test_many_rows_come_in_blocks_and_in_order() -> None:
    count = 150_000
    wire = Wire().head(2).rows([[b"%d" % i, b"abc"] for i in range(count)]).end()
    connection = FakeConnection(bytes(wire.sent))
    result = ResultSet(connection, LOGIN, "SELECT", {})  # type: ignore[arg-type]
    blocks = list(result.read(TWO))
    connection.close()
    assert [len(b) for b in blocks] == [1 << 16, 1 << 16, count - (2 << 16)]
    numbers = np.concatenate([b.field(0).to_numpy() for b in blocks])
    assert (numbers == np.arange(count)).all()


def test_a_wide_table_comes_in_smaller_blocks() -> None:
    wide = table(*[SqlType("int")] * 1000)
    wire = Wire().head(1000).rows([[None] * 1000] * 5000).end()
    connection = FakeConnection(bytes(wire.sent))
    blocks = list(ResultSet(connection, LOGIN, "SELECT", {}).read(wide))  # type: ignore[arg-type]
    connection.close()
    assert sum(map(len, blocks)) == 5000
    assert max(map(len, blocks)) < 2200
    assert blocks[0].field(999).null_count == len(blocks[0])


def test_an_empty_result_has_no_rows() -> None:
    assert read(bytes(Wire().head(2).end().sent), TWO) == []


def test_a_refused_statement_is_an_error_by_its_number() -> None:
    with pytest.raises(LoginRefused, match="1142.*SELECT command denied"):
        read(bytes(Wire().error(1142, "SELECT command denied").sent), TWO)
    with pytest.raises(SnapshotOutdated, match="1146: no table"):
        answer = bytes(Wire().error(1146, "no table").sent)
        read(answer, TWO, meanings={1146: SnapshotOutdated})


def test_an_error_amid_the_rows_is_raised() -> None:
    wire = Wire().head(2).rows([[b"1", b"a"]]).error(1317, "Query execution was interrupted")
    with pytest.raises(SourceUnavailable, match="1317"):
        read(bytes(wire.sent), TWO)


def test_a_lost_connection_is_raised_wherever_it_ends() -> None:
    whole = bytes(Wire().head(2).rows([[b"1", b"abc"], [b"2", None]]).end().sent)
    assert len(read(whole, TWO)) == 2
    for size in range(len(whole)):
        with pytest.raises(SourceUnavailable, match="closed the connection"):
            read(whole[:size], TWO)


def test_packets_out_of_order_are_refused() -> None:
    wire = Wire().head(2).rows([[b"1", b"abc"]])
    wire.number += 1
    wire.rows([[b"2", b"abc"]]).end()
    with pytest.raises(CorruptLog, match="out of order"):
        read(bytes(wire.sent), TWO)


def test_a_row_with_too_few_or_too_many_values_is_refused() -> None:
    for row in ([b"1"], [b"1", b"a", b"b"]):
        with pytest.raises(CorruptLog, match=r"d\.t, column 'c1', row 1 "):
            read(bytes(Wire().head(2).rows([[b"1", None], row]).end().sent), TWO)


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(CorruptLog, match="3 columns for 2"):
        read(bytes(Wire().head(3).end().sent), TWO)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_rows_never_crash(data: st.DataObject) -> None:
    good = b"".join(map(value, [b"12", b"abc" * 100, b"x" * 70000, None]))
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 12) | st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from([0, 1, 250, 251, 252, 253, 254, 255]))
    cut = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
    schema = table(SqlType("int"), SqlType("blob"), SqlType("longblob"), SqlType("date"))
    buffer = np.frombuffer(raw, np.uint8)
    try:
        row_images(schema, buffer, np.array([0]), np.array([cut]))
    except CorruptLog as err:
        assert "d.t, column 'c" in str(err)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=5),
    st.sampled_from(sorted(TYPE_FACTS)),
)
def test_any_bytes_are_a_value_or_refused(values: list[bytes | None], name: str) -> None:
    schema = table(SqlType(name, elements=("a",) if name in ("enum", "set") else ()))
    try:
        images(schema, [[v] for v in values]).validate(full=True)
    except CorruptLog as err:
        assert "d.t, column 'c0', row " in str(err)


# --- values --------------------------------------------------------------------------------------


def test_integers_have_their_whole_range() -> None:
    signed, unsigned = SqlType("bigint"), SqlType("bigint", unsigned=True)
    low, high, most = -(2**63), 2**63 - 1, 2**64 - 1
    rows: list[Row] = [[b"%d" % low, b"%d" % most], [b"%d" % high, b"0"], [None, b"00000000005"]]
    found = images(table(signed, unsigned), rows)
    assert found.field(0).to_pylist() == [low, high, None]
    assert found.field(1).to_pylist() == [most, 0, 5]


@pytest.mark.parametrize("text", [b"%d" % 2**63, b"%d" % (-(2**63) - 1), b"", b"-", b"1.5", b"1e3"])
def test_what_is_no_signed_integer_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"d\.t, column 'c1', row 1 "):
        images(table(SqlType("int"), SqlType("bigint")), [[b"1", b"1"], [b"1", text]])


@pytest.mark.parametrize("text", [b"%d" % 2**64, b"-1", b"9" * 20, b"1" * 21, b" 1"])
def test_what_is_no_unsigned_integer_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptLog, match="column 'c0', row 0 "):
        images(table(SqlType("bigint", unsigned=True)), [[text]])


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_doubles_keep_every_bit(numbers: list[float | None]) -> None:
    rows: list[Row] = [[None if n is None else repr(n).encode()] for n in numbers]
    found = images(table(SqlType("double")), rows).field(0).to_pylist()
    assert [None if n is None else n.hex() for n in found] == [
        None if n is None else n.hex() for n in numbers
    ]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_keep_every_bit(number: float) -> None:
    found = images(table(SqlType("float")), [[repr(number).encode()]]).field(0)
    assert found.type == pa.float32()
    assert found[0].as_py().hex() == number.hex()


def test_what_is_no_float_is_refused() -> None:
    with pytest.raises(CorruptLog, match="column 'c0', row 2 "):
        images(table(SqlType("double")), [[None], [b"1.5"], [b"1.5x"]])


def test_texts_and_bytes_are_copied_as_they_are() -> None:
    text = "grüße 😀".encode()
    rows: list[Row] = [[text, b"\x00\xff"], [None, b""], [b"", None]]
    found = images(table(SqlType("varchar", length=9), SqlType("blob")), rows)
    assert found.field(0).to_pylist() == ["grüße 😀", None, ""]
    assert found.field(1).to_pylist() == [b"\x00\xff", b"", None]
    assert found.type == table(SqlType("varchar", length=9), SqlType("blob")).image


def test_bytes_that_are_no_text_become_question_marks() -> None:
    found = images(table(SqlType("text")), [[b"ok"], [b"a\xffb"], [None]])
    assert found.field(0).to_pylist() == ["ok", "a?b", None]


def test_vectors_are_texts() -> None:
    one = np.array([1, -2.5, 0.1], "<f4").tobytes()
    found = images(table(SqlType("vector", length=3)), [[one], [None], [b""]])
    assert found.field(0).to_pylist() == ["[1,-2.5,0.1]", None, "[]"]


@pytest.mark.parametrize("raw", [b"\0\0\0", b"\0\0\x80\x7f"])
def test_what_is_no_vector_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptLog, match="column 'c0', row 0 "):
        images(table(SqlType("vector", length=1)), [[raw]])


def test_warming_compiles_for_the_types_that_reading_uses() -> None:
    kernels.warm()
    compiled = [k for k in vars(kernels).values() if hasattr(k, "nopython_signatures")]
    before = [len(k.nopython_signatures) for k in compiled]
    kinds = [SqlType("int"), SqlType("text"), SqlType("vector", length=1), SqlType("float")]
    wire = Wire().head(4).rows([[b"1", b"a", bytes(4), b"1.5"]]).end()
    assert len(read(bytes(wire.sent), table(*kinds))) == 1
    assert [len(k.nopython_signatures) for k in compiled] == before
