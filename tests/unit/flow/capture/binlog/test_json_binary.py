from __future__ import annotations

import struct

import numpy as np
import pytest

from rowferry.columnar.addresses import BAD_DIFF, BAD_JSON, JSON_TOO_DEEP
from rowferry.columnar.json_binary import MYSQL, json_texts
from rowferry.flow.capture.binlog.decode.json_changes import apply_changes
from rowferry.testing.slow_binlog import packed


def texts(*documents: bytes | None) -> list[str | None]:
    offsets = np.cumsum([0, *(len(d or b"") for d in documents)], dtype=np.int64)
    present = np.array([d is not None for d in documents])
    raw = np.frombuffer(b"".join(d or b"" for d in documents), np.uint8)
    data, begins, row, why = json_texts(MYSQL, raw, offsets[:-1], np.diff(offsets), present)
    if why:
        raise ValueError(row, why)
    found = [data[a:b].tobytes().decode() for a, b in zip(begins[:-1], begins[1:], strict=True)]
    return [f if d is not None else None for f, d in zip(found, documents, strict=True)]


def double(number: float) -> bytes:
    return b"\x0b" + struct.pack("<d", number)


def array(*entries: bytes, tail: bytes = b"") -> bytes:
    """A small array; entries have a type byte and two more."""
    size = 4 + 3 * len(entries) + len(tail)
    return b"\x02" + struct.pack("<HH", len(entries), size) + b"".join(entries) + tail


ONE = b"\x05\x01\x00"  # an entry: 1


def test_scalars() -> None:
    assert texts(b"\x04\x00", b"\x04\x01", b"\x04\x02", b"\x05\xff\xff", b"\x06\xff\xff") == [
        "null",
        "true",
        "false",
        "-1",
        "65535",
    ]
    assert texts(b"\x09" + b"\xff" * 8, b"\x0a" + b"\xff" * 8) == ["-1", "18446744073709551615"]
    assert texts(b'\x0c\x02"\x01', b"\x0c\x00") == ['"\\"\\u0001"', '""']


def test_rows_without_a_document_have_no_text() -> None:
    assert texts(None, array(ONE), None, b"") == [None, "[1]", None, "null"]


def test_numbers_are_shortest() -> None:
    given = [0.0, -0.0, 0.1, 1e14, 1e15, 1.5e-5, 1e-14, 1e-15, 1e300]
    assert texts(*map(double, given)) == [
        "0.0",
        "-0.0",
        "0.1",
        "100000000000000.0",
        "1e15",
        "0.000015",
        "0.00000000000001",
        "0.000000000000001",
        "1e300",
    ]


def test_large_numbers_keep_their_tenths() -> None:
    given = [1.2345678901234568e15, -1.0000000000000001e15, 2.0**53, 1.2345678901234568e16]
    assert texts(*map(double, given)) == [
        "1234567890123456.8",
        "-1000000000000000.1",
        "9.007199254740992e15",
        "1.2345678901234568e16",
    ]


def test_many_documents_grow_the_room() -> None:
    document = b"\x0c\x64" + b"\x01" * 100  # each byte takes six characters
    assert texts(*[document] * 500) == ['"' + "\\u0001" * 100 + '"'] * 500


@pytest.mark.parametrize(
    "document",
    [
        b"\x04",
        b"\x04\x03",
        b"\x05\x01",
        b"\x0b\x00",
        b"\x0b" + b"\xff" * 8,  # not a number
        b"\x0c\x05abc",
        b"\x0c\xff\xff\xff\xff\xff",
        b"\x0d\x00",
        b"\x0f",
        b"\x0f\xf6\x02\x05\x02",
        b"\x0f\xf6\x03\x42\x00\x80",
        b"\x0f\x0c\x04abcd",
        b"\x02\x01\x00\x04\x00",
        b"\x02\x01\x00\xff\x00\x05\x01\x00",
        b"\x00\x01\x00\x0b\x00\x00\x00\xff\xff\x05\x01\x00",
        array(b"\x0c\xff\xff"),
        array(b"\x02\x00\x00"),  # holds itself
    ],
)
def test_damaged_documents_are_refused(document: bytes) -> None:
    with pytest.raises(ValueError) as found:
        texts(array(ONE), document)
    assert found.value.args in ((1, BAD_JSON), (1, JSON_TOO_DEEP))


def test_depth_is_limited() -> None:
    def nested(depth: int) -> bytes:
        document = array(ONE)
        for _ in range(depth - 1):
            document = array(b"\x02\x07\x00", tail=document[1:])
        return document

    assert texts(nested(100)) == ["[" * 100 + "1" + "]" * 100]
    with pytest.raises(ValueError) as found:
        texts(nested(101))
    assert found.value.args == (0, JSON_TOO_DEEP)


def test_a_document_that_explodes_is_refused() -> None:
    # Each level lists the one below twice: a text of 2**60 numbers from a few hundred bytes.
    bodies = [array(ONE)[1:]]
    for _ in range(60):
        inner = bodies[-1]
        bodies.append(array(b"\x02\x0a\x00", b"\x02\x0a\x00", tail=inner)[1:])
    with pytest.raises(ValueError) as found:
        texts(b"\x02" + bodies[-1])
    assert found.value.args == (0, BAD_JSON)


# --- changes -------------------------------------------------------------------------------------


def change(what: int, path: str, value: bytes | None = None) -> bytes:
    found = bytes([what]) + packed(len(path)) + path.encode()
    return found if value is None else found + packed(len(value)) + value


TREE = b"\x00\x01\x00\x14\x00\x0b\x00\x01\x00\x02\x0c\x00a\x01\x00\x08\x00\x05\x01\x00\x00"


def changed(document: bytes, *changes: bytes) -> str | int:
    whole, why = apply_changes(document, b"".join(changes))
    return why or str(texts(whole)[0])


def test_changes_are_applied_in_order() -> None:
    assert texts(TREE) == ['{"a": [1]}']
    assert changed(TREE, change(0, "$.a[0]", b"\x05\x02\x00")) == '{"a": [2]}'
    assert changed(TREE, change(1, "$.a[0]", b"\x0c\x01x")) == '{"a": ["x", 1]}'
    assert changed(TREE, change(1, "$.a[7]", b"\x04\x00")) == '{"a": [1, null]}'
    assert changed(TREE, change(2, "$.a[0]")) == '{"a": []}'
    assert changed(TREE, change(2, "$.a")) == "{}"
    assert changed(TREE, change(0, "$", b"\x04\x01")) == "true"
    both = change(1, '$."k \\"1\\""', array(ONE)), change(0, '$."k \\"1\\""[0]', b"\x04\x02")
    assert changed(TREE, *both) == '{"a": [1], "k \\"1\\"": [false]}'
    assert changed(TREE) == '{"a": [1]}'


def test_cells_are_counted_from_the_end_too() -> None:
    two = b"\x05\x02\x00"
    pair = change(1, "$.a[last]", two)  # before the last one
    assert changed(TREE, change(0, "$.a[last]", two)) == '{"a": [2]}'
    assert changed(TREE, pair) == '{"a": [2, 1]}'
    assert changed(TREE, pair, change(2, "$.a[last]")) == '{"a": [2]}'
    assert changed(TREE, pair, change(2, "$.a[last-1]")) == '{"a": [1]}'
    assert changed(TREE, pair, change(0, "$.a[last-1]", b"\x04\x00")) == '{"a": [null, 1]}'
    assert changed(TREE, change(1, "$.a[last-9]", two)) == '{"a": [2, 1]}'
    assert changed(TREE, change(2, "$.a[0]"), change(1, "$.a[last]", two)) == '{"a": [2]}'


def test_a_value_is_like_an_array_of_one() -> None:
    for path in ("$.a[0][0]", "$.a[0][last]", "$[0].a[0][0][0]"):
        assert changed(TREE, change(0, path, b"\x04\x01")) == '{"a": [true]}'
    assert changed(TREE, change(0, "$[last]", b"\x04\x01")) == "true"


@pytest.mark.parametrize(
    "diff",
    [
        change(0, "$.b", b"\x04\x00"),
        change(1, "$.a", b"\x04\x00"),
        change(2, "$.a[3]"),
        change(2, "$"),
        change(2, "$.a.b"),
        change(2, "$.a[last-1]"),
        change(0, "$.a[last-1]", b"\x04\x00"),
        change(0, "$.a[0][1]", b"\x04\x00"),
        change(1, "$.a[0][1]", b"\x04\x00"),
        change(1, "$", b"\x04\x00"),
        change(2, "$.a[first]"),
        change(2, "$[0]"),
        change(2, "a"),
        change(2, "$.a["),
        change(3, "$.a"),
        change(0, "$.a", b"\x0c\x09"),
        b"\x00\x05$.a",
        b"\x00\xff",
        b"\x00",
    ],
)
def test_changes_that_do_not_fit_are_refused(diff: bytes) -> None:
    assert changed(TREE, diff) == BAD_DIFF


def test_a_damaged_document_takes_no_changes() -> None:
    assert changed(TREE[:9], change(2, "$.a")) == BAD_JSON
