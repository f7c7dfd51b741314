"""Avro binary by its schema, value by value: for messages that are no rows, and for readers."""

from __future__ import annotations

import struct
from typing import Any, Final

from rowferry.errors import DecodeError
from rowferry.flow.encode.avro.reader import BinaryCursor

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_DEEPEST: Final = 64  # of types in types; a schema may name itself


def long_bytes(value: int) -> bytes:
    """Return a whole number as Avro's zig-zag integer."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def text_bytes(value: str | bytes) -> bytes:
    """Return a text or bytes with their count of bytes."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return long_bytes(len(data)) + data


class AvroSchema:
    """A schema whose names are known, so that values can be written and read with it."""

    def __init__(self, form: Any) -> None:
        """Read a schema's JSON.

        Raises:
            KeyError, TypeError, AttributeError: it is none.
        """
        self.form = form
        self._named: dict[str, Any] = {}
        self._collect(form, "")

    def resolved(self, form: Any, space: str = "") -> Any:
        """Return what a name stands for; other types as they are."""
        if isinstance(form, str) and form not in _PRIMITIVE:
            return self._named[form if "." in form or not space else f"{space}.{form}"]
        return form

    def encode(self, value: Any) -> bytes:
        """Return a value's binary; a pair (place, value) chooses the branch of a union."""
        out: list[bytes] = []
        self._write(out, self.form, "", value)
        return b"".join(out)

    def decode(self, data: bytes) -> Any:
        """Return the value that is all of `data`.

        Raises:
            DecodeError: it is no value of this schema.
        """
        cursor = BinaryCursor(data)
        value = self._read(cursor, self.form, "", 0)
        if not cursor.at_end:
            raise DecodeError(f"{len(data) - cursor.at} bytes are left after the last field")
        return value

    def _collect(self, form: Any, space: str) -> None:
        if isinstance(form, list):
            for one in form:
                self._collect(one, space)
        if not isinstance(form, dict):
            return
        kind = form["type"]
        if kind in ("record", "enum", "fixed"):
            space, name = names_of(form, space)
            self._named[f"{space}.{name}" if space else name] = form
        for member in form["fields"] if kind == "record" else ():
            self._collect(member["type"], space)
        self._collect(form.get("items"), space)
        self._collect(form.get("values"), space)
        if not isinstance(kind, str):
            self._collect(kind, space)

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, out: list[bytes], form: Any, space: str, value: Any) -> None:
        form = self.resolved(form, space)
        if isinstance(form, list):
            place, inner = value if isinstance(value, tuple) else (_branch(form, value), value)
            out.append(long_bytes(place))
            self._write(out, form[place], space, inner)
            return
        kind = form if isinstance(form, str) else form["type"]
        match kind:
            case "record":
                space, _ = names_of(form, space)
                for member in form["fields"]:
                    self._write(out, member["type"], space, value.get(member["name"]))
            case "enum":
                out.append(long_bytes(form["symbols"].index(value)))
            case "array" | "map":
                if value:
                    out.append(long_bytes(len(value)))
                for one in value:
                    if kind == "map":
                        out.append(text_bytes(one))
                        self._write(out, form["values"], space, value[one])
                    else:
                        self._write(out, form["items"], space, one)
                out.append(b"\0")
            case "string" | "bytes":
                out.append(text_bytes(value))
            case "int" | "long":
                out.append(long_bytes(value))
            case "boolean":
                out.append(b"\1" if value else b"\0")
            case "float":
                out.append(_FLOAT.pack(value))
            case "double":
                out.append(_DOUBLE.pack(value))

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, cursor: BinaryCursor, form: Any, space: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise DecodeError(f"its types are nested more than {_DEEPEST} deep")
        form = self.resolved(form, space)
        if isinstance(form, list):
            place = cursor.long()
            if not 0 <= place < len(form):
                raise DecodeError(f"a union has no branch {place}")
            return self._read(cursor, form[place], space, depth + 1)
        kind = form if isinstance(form, str) else form["type"]
        if kind == "record":
            space, _ = names_of(form, space)
            return {
                member["name"]: self._read(cursor, member["type"], space, depth + 1)
                for member in form["fields"]
            }
        if kind == "enum":
            place, symbols = cursor.long(), form["symbols"]
            if not 0 <= place < len(symbols):
                raise DecodeError(f"an enum has no symbol {place}")
            return symbols[place]
        if kind == "array":
            return [
                self._read(cursor, form["items"], space, depth + 1)
                for count in _blocks(cursor)
                for _ in range(count)
            ]
        if kind == "map":
            return {
                cursor.text(): self._read(cursor, form["values"], space, depth + 1)
                for count in _blocks(cursor)
                for _ in range(count)
            }
        read = _PRIMITIVE.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise DecodeError(f"a type {str(kind)[:40]!r} is none that is read here")
        return read(cursor)


def names_of(form: Any, space: str) -> tuple[str, str]:
    """Return the namespace and the name of a type that has one."""
    name = str(form["name"])
    if "." in name:
        own, _, name = name.rpartition(".")
        return own, name
    return str(form.get("namespace", space)), name


def _branch(union: list[Any], value: Any) -> int:
    """Return the place of null, or of the first branch that is not."""
    return next(i for i, one in enumerate(union) if (one == "null") == (value is None))


def _blocks(cursor: BinaryCursor) -> Any:
    """Yield how many items each block of an array or map has."""
    while count := cursor.long():
        if count < 0:
            count = -count
            cursor.long()  # the block's bytes
        if count > len(cursor.data) - cursor.at:
            raise DecodeError(f"an array at byte {cursor.at} has more items than bytes follow")
        yield count


def _boolean(cursor: BinaryCursor) -> bool:
    return cursor.take(1) != b"\0"


def _float(cursor: BinaryCursor) -> float:
    return float(_FLOAT.unpack(cursor.take(4))[0])


_PRIMITIVE: Final = {
    "null": lambda cursor: None,
    "boolean": _boolean,
    "int": BinaryCursor.long,
    "long": BinaryCursor.long,
    "float": _float,
    "double": BinaryCursor.double,
    "string": BinaryCursor.text,
    "bytes": BinaryCursor.bytes_,
}
