"""Reading open-protocol messages back: frames, keys, rows, and the table that they tell."""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from rowferry.change.chunk import Change, DdlKind, Op, SchemaChange, Watermark
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import DecodeError
from rowferry.flow.encode.message_rows import ChunkShape, MessageRow, chunk_of
from rowferry.flow.encode.open_protocol.column import PACKED, Flag, sql_type
from rowferry.mysql.type_facts import type_code as mysql_code

Pair = tuple[bytes, bytes]
_VERSION: Final = 1
_JSON: Final = json.JSONDecoder(object_pairs_hook=tuple)
_LETTERS: Final = dict(zip(b"abfnrtv\\\"'", b"\a\b\f\n\r\t\v\\\"'", strict=True))
_ESCAPE: Final = re.compile(
    rb"\\(?:([abfnrtv\\\"'])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|)"
)
_WHOLE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})


def read_message(
    key: bytes,
    value: bytes,
    fill_old: bool,
    decompress: Callable[[bytes], bytes],
    fetch: Callable[[str], tuple[bytes | None, bytes]],
) -> Iterator[Change]:
    """Yield what one message holds; rows of one table with the same columns come as one chunk.

    Args:
        key: the message's key, with its frame.
        value: the message's value, with its frame.
        fill_old: columns that an old image lacks are those of the new one.
        decompress: returns what was compressed.
        fetch: returns the framed key and value that were left at a claim check's location.

    Raises:
        DecodeError: it is no message of this format; names the row (the first is 1).
    """
    reader = _Reader(fill_old, decompress, fetch)
    shape: ChunkShape | None = None
    held: list[MessageRow] = []
    first = 0
    for row, pair in enumerate(_pairs(key, value), 1):
        change = reader.read(row, *pair)
        other = change[0] if isinstance(change, tuple) else None
        if shape is not None and other != shape:
            yield chunk_of(shape, held, first)
            held = []
        if isinstance(change, tuple):
            first = first if held else row - 1
            held.append(change[1])
        else:
            yield change
        shape = other
    if shape is not None:
        yield chunk_of(shape, held, first)


def _pairs(key: bytes, value: bytes) -> list[Pair]:
    if len(key) < 8 or struct.unpack_from(">Q", key)[0] != _VERSION:
        raise DecodeError("row 1: the key does not begin with version 1")
    keys, values = _split(key, 8, "key"), _split(value, 0, "value")
    if len(keys) != len(values) or not keys:
        raise DecodeError(f"row 1: {len(keys)} keys and {len(values)} values")
    return list(zip(keys, values, strict=True))


def _split(data: bytes, at: int, what: str) -> list[bytes]:
    parts: list[bytes] = []
    while at < len(data):
        if at + 8 > len(data):
            raise DecodeError(f"row {len(parts) + 1}: the {what} is cut short")
        (size,) = struct.unpack_from(">Q", data, at)
        at += 8
        if size > len(data) - at:
            raise DecodeError(f"row {len(parts) + 1}: the {what} is cut short")
        parts.append(data[at : at + size])
        at += size
    return parts


_ReadPart = tuple[ChunkShape, MessageRow] | SchemaChange | Watermark


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads pairs; see `read_message`."""

    fill_old: bool
    decompress: Callable[[bytes], bytes]
    fetch: Callable[[str], tuple[bytes | None, bytes]]

    def read(self, row: int, key: bytes, value: bytes) -> _ReadPart:
        head = _loaded(key, row)
        kind, commit_ts = head.get("t"), head.get("ts")
        if type(commit_ts) is not int or not 0 <= commit_ts < 1 << 64:
            raise DecodeError(f"row {row}: the key has no ts")
        if kind == 3:
            return Watermark(commit_ts)
        if kind == 2:
            return self._ddl(row, head, value)
        if kind != 1:
            raise DecodeError(f"row {row}: it is neither a row change, nor a DDL, nor a watermark")
        if location := head.get("ccl"):
            pairs = _pairs(*_with_key(*self.fetch(location), row))
            head, value = _loaded(pairs[0][0], row), pairs[0][1]
        return self._row(row, head, commit_ts, value)

    def _ddl(self, row: int, head: dict[str, Any], value: bytes) -> SchemaChange:
        body = _loaded(self.decompress(value), row)
        try:
            code = body["t"]
            known = {int(k) for k in DdlKind}
            kind = DdlKind(code) if code in known else DdlKind.NONE
            table = TableId(head.get("scm", ""), head.get("tbl", ""))
            return SchemaChange(head["ts"], kind, body["q"], table)
        except (KeyError, TypeError):
            raise DecodeError(f"row {row}: a DDL without its statement") from None

    def _row(
        self, row: int, head: dict[str, Any], commit_ts: int, value: bytes
    ) -> tuple[ChunkShape, MessageRow]:
        body = dict(_pairs_of(self.decompress(value), row))
        name = TableId(str(head.get("scm", "")), str(head.get("tbl", "")))
        shown = body.get("d") or body.get("u")
        if not shown:
            raise DecodeError(f"row {row}: it has no data")
        signature, values = _members(shown, row)
        table = _table_at(name, signature, row)
        image = {n: _value(table.column(n), v, row) for n, v in values.items()}
        old: dict[str, Any] | None = None
        if "p" in body:
            named, loose = _old(body["p"], row)
            old = {n: _value(table.column(n), v, row) for n, v in named.items() if n in values}
            old = self._completed(table, signature, image, old, loose, row)
        before, after = (image, None) if "d" in body else (old, image)
        op = Op.DELETE if after is None else Op.INSERT if before is None else Op.UPDATE
        message = MessageRow(op, commit_ts, before, after)
        return message.shape(table, head.get("ptn"), bool(head.get("ohk"))), message

    def _completed(
        self,
        table: TableSchema,
        signature: _Signature,
        image: dict[str, Any],
        old: dict[str, Any],
        loose: list[_Loose],
        row: int,
    ) -> dict[str, Any]:
        """Return the old image with values whose names were lost, and those that did not change.

        TiCDC writes no name where a column becomes NULL: a lost value belongs to a column that is
        NULL now. Where several columns could be the one, they are left out: what they held is not
        known.
        """
        if not self.fill_old and not loose:
            return old
        facts = {name: (code, flags) for name, code, flags, _ in signature}
        empty = [n for n, v in image.items() if v is None and n not in old]
        unknown: set[str] = set()
        for kind in {(code, flags) for code, flags, _ in loose}:
            fit = [n for n in empty if facts[n] == kind]
            lost = [v for code, flags, v in loose if (code, flags) == kind]
            if len(fit) < len(lost):
                raise DecodeError(f"row {row}: an old value belongs to no column")
            if len(fit) > len(lost):
                unknown.update(fit)
                continue
            old |= {n: _value(table.column(n), v, row) for n, v in zip(fit, lost, strict=True)}
        if self.fill_old:
            old = {n: v for n, v in image.items() if n not in unknown} | old
        return {n: old[n] for n in image if n in old}


_Signature = tuple[tuple[str, int, int, bool], ...]
_Loose = tuple[int, int, Any]


def _with_key(key: bytes | None, value: bytes, row: int) -> Pair:
    if key is None:
        raise DecodeError(f"row {row}: its claim check has no key")
    return key, value


def _loaded(text: bytes, row: int) -> dict[str, Any]:
    return dict(_pairs_of(text, row))


def _pairs_of(text: bytes, row: int) -> tuple[tuple[str, Any], ...]:
    """Return a JSON object as pairs: names may occur more than once."""
    try:
        pairs = _JSON.decode(text.decode())
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, tuple):
        raise DecodeError(f"row {row}: it is not an open-protocol object")
    return pairs


def _members(shown: Any, row: int) -> tuple[_Signature, dict[str, Any]]:
    """Return what an image says about its columns, and their values."""
    facts, values = [], {}
    try:
        for name, pairs in shown:
            member = dict(pairs)
            code, flags = int(member["t"]), int(member["f"])
            facts.append((name, code, flags, bool(member.get("h"))))
            values[name] = member["v"]
    except (ArithmeticError, KeyError, TypeError, ValueError):
        raise DecodeError(f"row {row}: a column without its type, flags or value") from None
    return tuple(facts), values


def _old(shown: Any, row: int) -> tuple[dict[str, Any], list[_Loose]]:
    """Return an update's old values: those with a name, and those that lost theirs."""
    named: list[tuple[str, Any]] = []
    loose: list[_Loose] = []
    member: dict[str, Any] = {}
    if not isinstance(shown, tuple):
        raise DecodeError(f"row {row}: the old row is no object")
    for name, value in shown:
        if isinstance(value, tuple):
            named.append((name, value))
            continue
        member[name] = value
        if name == "v":
            code, flags = member.get("t"), member.get("f")
            if not isinstance(code, int) or not isinstance(flags, int):
                raise DecodeError(f"row {row}: an old value without its type and flags")
            loose.append((code, flags, value))
            member = {}
    return _members(named, row)[1], loose


def _table_at(name: TableId, signature: _Signature, row: int) -> TableSchema:
    try:
        return _table(name, signature)
    except ValueError as err:
        raise DecodeError(f"row {row}, {err}") from None


@lru_cache(maxsize=1024)
def _table(name: TableId, signature: _Signature) -> TableSchema:
    """Return the table that a row's columns tell."""
    columns, handle = [], []
    for place, (column, code, bits, is_handle) in enumerate(signature, 1):
        flags = Flag(bits & 255)
        kind = sql_type(code, flags)
        if kind is None:
            raise ValueError(f"column {column!r}: {code} is no type")
        if is_handle:
            handle.append((column, bool(flags & Flag.PRIMARY_KEY)))
        generated = "stored" if flags & Flag.GENERATED else ""
        nullable = bool(flags & Flag.NULLABLE)
        columns.append(Column(place, column, kind, nullable=nullable, generated=generated))
    primary = bool(handle) and all(is_primary for _, is_primary in handle)
    keys = tuple(column for column, _ in handle)
    index = Index(1, "PRIMARY" if primary else "handle", keys, unique=True, primary=primary)
    indexes = (index,) if keys else ()
    return TableSchema(name, 0, 0, tuple(columns), indexes, inferred=True)


def _value(column: Column, value: Any, row: int) -> Any:
    """Return a value as chunks hold it."""
    if value is None:
        return None
    kind = column.type.kind
    try:
        if kind in _WHOLE:
            if type(value) is not int:
                raise ValueError("is no whole number")
            return value
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            return float(value)
        if not isinstance(value, str):
            raise ValueError("is no text")
        if mysql_code(column.type) in PACKED:
            data = b64decode(value, validate=True)
            return data if kind is Kind.BINARY else data.decode()
        return _unquoted(value) if kind is Kind.BINARY else value
    except (ValueError, TypeError) as err:
        shown = repr(value)[:40]
        raise DecodeError(f"row {row}, column {column.name!r}: {shown} {err}") from None


def _unquoted(text: str) -> bytes:
    """Return the bytes that Go would quote like this."""

    def plain(match: re.Match[bytes]) -> bytes:
        letter, byte, short, long = match.groups()
        if letter:
            return bytes([_LETTERS[letter[0]]])
        if byte:
            return bytes([int(byte, 16)])
        if short or long:
            return chr(int(short or long, 16)).encode()
        raise ValueError("has a malformed escape")

    return _ESCAPE.sub(plain, text.encode())
