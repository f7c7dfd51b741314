"""Changes inside binary JSON documents, as `binlog_row_value_options=PARTIAL_JSON` logs them.

Rare, and small: documents are taken apart into Python objects here. An object is a dict from key
bytes, an array a list, and a scalar its type and bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from rowferry.flow.capture.binlog import json_binary as b
from rowferry.flow.capture.binlog.decode_kernels_memory import BAD_DIFF, BAD_JSON

_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_FIXED: Final = {b.LITERAL: 1, b.INT16: 2, b.UINT16: 2, b.INT32: 4, b.UINT32: 4}
_WIDE: Final = {b.INT64: 8, b.UINT64: 8, b.DOUBLE: 8}
_STEP = re.compile(r'\[(\d+)\]|\."((?:[^"\\]|\\.)*)"|\.([^.\["]+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Scalar:
    kind: int
    value: bytes


_Node: TypeAlias = "dict[bytes, _Node] | list[_Node] | _Scalar"


class _BadError(Exception):
    """The bytes cannot be read."""


def apply_changes(document: bytes, changes: bytes) -> tuple[bytes, int]:
    """Return the document after its changes, and why that cannot be had (0: it can)."""
    try:
        root = _parse(document, 0, len(document), 0) if document else _Scalar(b.LITERAL, b"\0")
    except (_BadError, IndexError):
        return b"", BAD_JSON
    try:
        place = 0
        while place < len(changes):
            root, place = _apply(root, changes, place)
    except (_BadError, IndexError, UnicodeDecodeError, ValueError):
        return b"", BAD_DIFF
    kind, value = _written(root)
    return bytes([kind]) + value, 0


def _apply(root: _Node, changes: bytes, place: int) -> tuple[_Node, int]:
    """Apply the change at `place`; return the document and the place after the change."""
    what = changes[place]
    path, place = _counted(changes, place + 1)
    node: _Node | None = None
    if what in (_REPLACE, _INSERT):
        value, place = _counted(changes, place)
        node = _parse(value, 0, len(value), 0)
    elif what != _REMOVE:
        raise _BadError
    steps = _steps(path.decode())
    if not steps:
        if node is None:
            raise _BadError
        return node, place
    parent = root
    for step in steps[:-1]:
        parent = _child(parent, step)
    _change(parent, steps[-1], what, node)
    return root, place


def _change(parent: _Node, step: int | bytes, what: int, node: _Node | None) -> None:
    if isinstance(parent, list) and isinstance(step, int):
        if what == _INSERT and node is not None:
            parent.insert(step, node)
        elif step >= len(parent):
            raise _BadError
        elif node is None:
            del parent[step]
        else:
            parent[step] = node
    elif isinstance(parent, dict) and isinstance(step, bytes):
        if (step in parent) == (what == _INSERT):
            raise _BadError
        if node is None:
            del parent[step]
        else:
            parent[step] = node
    else:
        raise _BadError


def _child(node: _Node, step: int | bytes) -> _Node:
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    if isinstance(node, dict) and isinstance(step, bytes) and step in node:
        return node[step]
    raise _BadError


def _steps(path: str) -> list[int | bytes]:
    """Read a path: `$`, then `[3]`, `.key` or `."any key"`."""
    if not path.startswith("$"):
        raise _BadError
    found: list[int | bytes] = []
    place = 1
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise _BadError
        if step[1] is not None:
            found.append(int(step[1]))
        elif step[2] is not None:
            found.append(str(json.loads(f'"{step[2]}"', strict=False)).encode())
        else:
            found.append(step[3].encode())
        place = step.end()
    return found


def _counted(data: bytes, place: int) -> tuple[bytes, int]:
    """Read bytes with a packed length in front."""
    first = data[place]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if first == 251 or first == 255 or place + 1 + size > len(data):
        raise _BadError
    length = int.from_bytes(data[place + 1 : place + 1 + size], "little") if size else first
    begin = place + 1 + size
    if begin + length > len(data):
        raise _BadError
    return data[begin : begin + length], begin + length


def _number(data: bytes, place: int, size: int, end: int) -> int:
    if place + size > end:
        raise _BadError
    return int.from_bytes(data[place : place + size], "little")


def _parse(data: bytes, place: int, end: int, depth: int) -> _Node:
    """Take apart a value with its type byte in front."""
    return _value(data, data[place], place + 1, end, depth)


def _value(data: bytes, kind: int, place: int, end: int, depth: int) -> _Node:
    if kind <= b.LARGE_ARRAY:
        return _container(data, kind, place, end, depth + 1)
    if kind in _FIXED or kind in _WIDE:
        size = _FIXED.get(kind) or _WIDE[kind]
        if place + size > end:
            raise _BadError
        return _Scalar(kind, data[place : place + size])
    if kind not in (b.STRING, b.OPAQUE):
        raise _BadError
    at = place + (kind == b.OPAQUE)
    size, shift = 0, 0
    while True:
        if at >= end or shift > 28:
            raise _BadError
        size |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            break
    if at + size > end:
        raise _BadError
    return _Scalar(kind, data[place : at + size])


def _container(data: bytes, kind: int, place: int, end: int, depth: int) -> _Node:
    large = kind in (b.LARGE_OBJECT, b.LARGE_ARRAY)
    wide = 4 if large else 2
    count, size = _number(data, place, wide, end), _number(data, place + wide, wide, end)
    is_object = kind <= b.LARGE_OBJECT
    entries = place + 2 * wide + (count * (2 + wide) if is_object else 0)
    if depth > b.MAX_DEPTH or place + size > end or entries + count * (1 + wide) > place + size:
        raise _BadError
    end = place + size
    nodes: list[_Node] = []
    for i in range(count):
        entry = entries + i * (1 + wide)
        inline = _FIXED.get(data[entry], 9) <= (4 if large else 2)
        at = entry + 1 if inline else place + _number(data, entry + 1, wide, end)
        nodes.append(_value(data, data[entry], at, end, depth))
    if not is_object:
        return nodes
    keys = []
    for i in range(count):
        entry = place + 2 * wide + i * (2 + wide)
        at, length = place + _number(data, entry, wide, end), _number(data, entry + wide, 2, end)
        if at + length > end:
            raise _BadError
        keys.append(data[at : at + length])
    return dict(zip(keys, nodes, strict=True))


def _written(node: _Node) -> tuple[int, bytes]:
    """Put a value together again: its type and its bytes, containers in their large form."""
    if isinstance(node, _Scalar):
        return node.kind, node.value
    keys: list[bytes] = []
    values = node if isinstance(node, list) else []
    if isinstance(node, dict):
        keys = sorted(node, key=lambda key: (len(key), key))
        values = [node[key] for key in keys]
    head = 8 + 6 * len(keys) + 5 * len(values)
    place = head + sum(map(len, keys))
    entries, tail = b"", b""
    for value in values:
        kind, text = _written(value)
        if kind in _FIXED:
            entries += bytes([kind]) + text.ljust(4, b"\0")
        else:
            entries += bytes([kind]) + (place + len(tail)).to_bytes(4, "little")
            tail += text
    names, at = b"", head
    for key in keys:
        names += at.to_bytes(4, "little") + len(key).to_bytes(2, "little")
        at += len(key)
    whole = names + entries + b"".join(keys) + tail
    sizes = len(values).to_bytes(4, "little") + (8 + len(whole)).to_bytes(4, "little")
    return (b.LARGE_OBJECT if isinstance(node, dict) else b.LARGE_ARRAY), sizes + whole
