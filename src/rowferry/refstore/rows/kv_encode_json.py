"""JSON texts and vectors in binary form, one value at a time: for the store only."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NoReturn

from rowferry.columnar.json_binary import (
    DOUBLE,
    INT64,
    LARGE_ARRAY,
    LARGE_OBJECT,
    LITERAL,
    MAX_DEPTH,
    STRING,
    UINT64,
)

_MAX_NAME = 65535


def encode_json(text: str) -> bytes:
    """Return a document's binary form; ValueError: the text is not JSON, or cannot be stored."""
    try:
        kind, body = _value(json.loads(text, parse_constant=_no_constant), 0)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return bytes((kind,)) + body


def encode_vector(text: str) -> bytes:
    """Return a vector's binary form; ValueError: the text is not a list of finite numbers."""
    numbers = json.loads(text, parse_constant=_no_constant)
    if not isinstance(numbers, list) or any(type(n) not in (int, float) for n in numbers):
        raise ValueError("not a list of numbers")
    try:
        return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
    except (struct.error, OverflowError):
        raise ValueError("a number is too large for a float") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _value(value: Any, depth: int) -> tuple[int, bytes]:
    """Return type code and bytes of one value."""
    match value:
        case None:
            return LITERAL, b"\0"
        case bool():
            return LITERAL, b"\1" if value else b"\2"
        case int() if -(1 << 63) <= value < 1 << 63:
            return INT64, struct.pack("<q", value)
        case int() if 0 <= value < 1 << 64:
            return UINT64, struct.pack("<Q", value)
        case int() | float():
            return DOUBLE, _double(value)
        case str():
            return STRING, _string(value)
    if depth == MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return LARGE_ARRAY, _container([], value, depth)
    names = sorted((name.encode(), inner) for name, inner in value.items())
    return LARGE_OBJECT, _container([name for name, _ in names], [v for _, v in names], depth)


def _double(value: float) -> bytes:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a number is too large for a double")
    return struct.pack("<d", number)


def _string(value: str) -> bytes:
    body = value.encode()
    size, head = len(body), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + body


def _container(names: list[bytes], values: list[Any], depth: int) -> bytes:
    """Return an object's bytes, or without names an array's."""
    entries, bodies = bytearray(), bytearray(b"".join(names))
    start = 8 + 6 * len(names) + 5 * len(values)
    name_at = start
    for name in names:
        if len(name) > _MAX_NAME:
            raise ValueError("a name is longer than 65535 bytes")
        entries += struct.pack("<IH", name_at, len(name))
        name_at += len(name)
    for value in values:
        kind, body = _value(value, depth + 1)
        if kind == LITERAL:
            entries += bytes((kind, body[0], 0, 0, 0))
        else:
            entries += struct.pack("<BI", kind, start + len(bodies))
            bodies += body
    return struct.pack("<II", len(values), start + len(bodies)) + bytes(entries + bodies)
