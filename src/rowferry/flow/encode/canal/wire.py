"""Protocol buffers' wire form: fields made column by column, and read one message at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.columnar.render import text_array, text_buffers
from rowferry.errors import DecodeError

BINARY: Final = pa.large_binary()
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT: Final = 10


@compiled
def _varints(values: Any, places: Ints, out: Bytes) -> None:
    at = 0
    for row in range(len(values)):
        places[row] = at
        rest = values[row]
        while rest >= np.uint64(128):
            out[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
            at += 1
            rest >>= np.uint64(7)
        out[at] = np.uint8(rest)
        at += 1
    places[len(values)] = at


@compiled
def _latin1(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> None:
    at = 0
    for row in range(len(offsets) - 1):
        places[row] = at
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[i]
            if byte < 128:
                out[at] = byte
                at += 1
            else:
                out[at] = np.uint8(0xC0) | byte >> np.uint8(6)
                out[at + 1] = np.uint8(0x80) | byte & np.uint8(0x3F)
                at += 2
    places[len(offsets) - 1] = at


def varints(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return each number as a varint; a negative one has ten bytes."""
    numbers = frozen(values.astype(np.int64, copy=False).view(np.uint64))
    places = np.zeros(len(numbers) + 1, np.int64)
    out = np.empty(len(numbers) * _MOST_VARINT, np.uint8)
    _varints(numbers, places, out)
    return pa.LargeBinaryArray.from_buffers(
        BINARY, len(numbers), [None, pa.py_buffer(places), pa.py_buffer(out[: places[-1]])]
    )


def latin1_text(values: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return bytes as text: each byte is the character of that number."""
    offsets, data = text_buffers(values)
    places = np.zeros(len(offsets), np.int64)
    out = np.empty(2 * int(offsets[-1] - offsets[0]), np.uint8)
    _latin1(offsets, data, places, out)
    return text_array(places, out[: places[-1]])


def joined(*parts: Any) -> pa.LargeBinaryArray:
    """Return columns and literals one after the other, for each row."""
    whole = [pa.scalar(p, BINARY) if isinstance(p, bytes) else p for p in parts]
    return pc.binary_join_element_wise(*whole, pa.scalar(b"", BINARY))


def message_field(number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return a column as a field with its length."""
    sizes = np.diff(text_buffers(values)[0])
    return joined(bytes([number << 3 | _LENGTH]), varints(sizes), values)


# --- single messages ------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Return one number as a varint."""
    rest, written = value % (1 << 64), bytearray()
    while rest >= 128:
        written.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*written, rest])


def number_field(number: int, value: int) -> bytes:
    """Return one number as a field."""
    return bytes([number << 3 | _VARINT]) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return bytes as a field with their length."""
    return bytes([number << 3 | _LENGTH]) + varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """Return a text as a field; an empty one is left out."""
    return bytes_field(number, value.encode("utf-8", "replace")) if value else b""


Fields = dict[int, list[Any]]


def read_fields(data: bytes) -> Fields:
    """Return a message's fields by number: numbers, and bytes of what has a length.

    Raises:
        DecodeError: it is no message.
    """
    by_number: Fields = {}
    for number, value in _fields(data):
        by_number.setdefault(number, []).append(value)
    return by_number


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError(f"row 1: a field of wire type {kind}")
        if at + size > len(data) or not number:
            raise DecodeError("row 1: a field is longer than its message")
        yield number, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 7 * _MOST_VARINT, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number % (1 << 64), at
    raise DecodeError("row 1: a number does not end")


def first(message: Fields, number: int, default: Any) -> Any:
    """Return the last value of a field, which is the one that counts.

    Raises:
        DecodeError: it is of another kind than the default.
    """
    values: Sequence[Any] = message.get(number, ())
    if not values:
        return default
    if type(values[-1]) is not type(default):
        raise DecodeError(f"row 1: field {number} is of another kind")
    return values[-1]


def warm() -> None:
    """Compile every kernel of this module."""
    varints(np.array([1], np.int64))
    latin1_text(pa.array([b"\xff"], BINARY))
