"""Changes inside binary JSON documents, as `binlog_row_value_options=PARTIAL_JSON` logs them.

Rare, and small: documents are taken apart into Python objects here. An object is a dict from key
bytes, an array a list, and a scalar its type and bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rowferry.columnar import json_binary as b
from rowferry.columnar.addresses import BAD_DIFF, BAD_JSON

_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_FIXED: Final = {b.LITERAL: 1, b.INT16: 2, b.UINT16: 2, b.INT32: 4, b.UINT32: 4}
_WIDE: Final = {b.INT64: 8, b.UINT64: 8, b.DOUBLE: 8}
_STEP = re.compile(
    r"\[(?P<cell>\d+)\]|\[(?P<last>last)(?:-(?P<before>\d+))?\]"
    r'|\."(?P<quoted>(?:[^"\\]|\\.)*)"|\.(?P<key>[^.\["]+)',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Scalar:
    kind: int
    value: bytes


_Node: TypeAlias = "dict[bytes, _Node] | list[_Node] | _Scalar"


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of an array, counted from the first one or back from the last one."""

    index: int
    from_end: bool

    def of(self, size: int) -> tuple[int, bool]:
        """Return the place in an array of so many cells, and whether there is such a cell."""
        inside = self.index < size
        if self.from_end:
            return (size - 1 - self.index if inside else 0), inside
        return min(self.index, size), inside


_Step: TypeAlias = bytes | _Cell


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
    return _changed(root, _steps(path.decode()), what, node), place


def _changed(root: _Node, steps: list[_Step], what: int, node: _Node | None) -> _Node:
    """Return the document after one change; whoever holds the node at the path is changed."""
    whole: list[_Node] = [root]
    holder, key = _held(whole, steps if what != _INSERT else steps[:-1])
    if node is None:
        if holder is whole:
            raise _BadError
        del holder[key]
    elif what == _REPLACE:
        holder[key] = node
    elif not steps:
        raise _BadError
    else:
        _insert(holder[key], steps[-1], node)
    return whole[0]


def _insert(parent: _Node, step: _Step, node: _Node) -> None:
    if isinstance(parent, list) and isinstance(step, _Cell):
        parent.insert(step.of(len(parent))[0], node)
    elif isinstance(parent, dict) and isinstance(step, bytes) and step not in parent:
        parent[step] = node
    else:
        raise _BadError


def _held(whole: list[_Node], steps: list[_Step]) -> tuple[Any, Any]:
    """Return who holds the node at a path from the only one of `whole`, and as what."""
    holder: Any = whole
    key: Any = 0
    for step in steps:
        node = holder[key]
        if isinstance(step, bytes):
            if not isinstance(node, dict) or step not in node:
                raise _BadError
            holder, key = node, step
            continue
        place, inside = step.of(len(node) if isinstance(node, list) else 1)
        if not inside:
            raise _BadError
        if isinstance(node, list):  # anything else is like an array of which it is the only cell
            holder, key = node, place
    return holder, key


def _steps(path: str) -> list[_Step]:
    """Read a path: `$`, then `[3]`, `[last-3]`, `.key` or `."any key"`."""
    if not path.startswith("$"):
        raise _BadError
    steps: list[_Step] = []
    place = 1
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise _BadError
        if step["cell"] is not None:
            steps.append(_Cell(int(step["cell"]), False))
        elif step["last"] is not None:
            steps.append(_Cell(int(step["before"] or 0), True))
        elif step["quoted"] is not None:
            steps.append(str(json.loads(f'"{step["quoted"]}"', strict=False)).encode())
        else:
            steps.append(step["key"].encode())
        place = step.end()
    return steps


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
