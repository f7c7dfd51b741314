"""Reading Canal's packets: entries, their row changes and statements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from rowferry.change.chunk import Change, DdlKind, Op, SchemaChange
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, DecodeError
from rowferry.flow.encode.canal.wire import first, read_fields
from rowferry.flow.encode.canal_json.message import type_of
from rowferry.flow.encode.canal_json.reader import DDL_KIND
from rowferry.flow.encode.message_rows import Image, MessageRow, chunk_of, text_value

MESSAGES: Final = 7  # of PacketType
ROW_DATA: Final = 2  # of EntryType
EVENT_TYPES: Final = {
    name: number
    for number, name in enumerate(
        "INSERT UPDATE DELETE CREATE ALTER ERASE QUERY TRUNCATE RENAME CINDEX DINDEX".split(), 1
    )
}
_NAMES: Final = {number: name for name, number in EVENT_TYPES.items()}
_OPS: Final = {1: Op.INSERT, 2: Op.UPDATE, 3: Op.DELETE}


def read_packet(data: bytes) -> Iterator[Change]:
    """Yield what a packet holds, in its order.

    Raises:
        DecodeError: it is no packet of messages.
    """
    packet = read_fields(data)
    if first(packet, 3, 0) != MESSAGES:
        raise DecodeError("row 1: it is no packet of messages")
    count = 0
    for entry in read_fields(first(packet, 5, b"")).get(2, ()):
        if not isinstance(entry, bytes):
            raise DecodeError(f"row {count + 1}: an entry is no message")
        for change in _entry(entry, count):
            count += 1
            yield change


def _entry(data: bytes, count: int) -> Iterator[Change]:
    entry = read_fields(data)
    if first(entry, 2, ROW_DATA) != ROW_DATA:
        return  # where a transaction begins or ends
    header = read_fields(first(entry, 1, b""))
    change = read_fields(first(entry, 3, b""))
    name = TableId(_text(header, 8), _text(header, 9))
    milliseconds = first(header, 6, 0)
    if milliseconds >= 1 << (64 - PHYSICAL_SHIFT):
        raise DecodeError(f"row {count + 1}: its time is out of range")
    commit_ts = milliseconds << PHYSICAL_SHIFT
    kind = first(change, 2, 2)
    if first(change, 10, 0):
        word = DDL_KIND.get(_NAMES.get(kind, ""), DdlKind.NONE)
        yield SchemaChange(commit_ts, word, _text(change, 11), name)
        return
    op = _OPS.get(kind)
    if op is None:
        raise DecodeError(f"row {count + 1}: event type {kind} of a row")
    for place, row in enumerate(change.get(12, ())):
        yield _row(op, commit_ts, name, row, count + place)


def _text(message: dict[int, list[Any]], number: int) -> str:
    try:
        return str(first(message, number, b""), "utf-8")
    except UnicodeDecodeError:
        raise DecodeError(f"row 1: field {number} is no text") from None


_Fact = tuple[str, str, bool]


def _row(op: Op, commit_ts: int, name: TableId, data: Any, place: int) -> Change:
    if not isinstance(data, bytes):
        raise DecodeError(f"row {place + 1}: it is no message")
    change = read_fields(data)
    old, new = (_columns(change.get(number, ())) for number in (1, 2))
    if not (old if op is Op.DELETE else new):
        raise DecodeError(f"row {place + 1}: it lacks the row image that its type needs")
    try:
        table = _table(name, tuple(fact for fact, _ in new or old))
        before, after = (_image(table, image) if image else None for image in (old, new))
    except (ValueError, BadInput) as err:
        raise DecodeError(f"row {place + 1}: {err}") from None
    row = MessageRow(op, commit_ts, before, after)
    return chunk_of(row.shape(table), [row], place)


def _columns(column_messages: Any) -> list[tuple[_Fact, str | None]]:
    columns = []
    for one in column_messages:
        if not isinstance(one, bytes):
            raise DecodeError("row 1: a column is no message")
        column = read_fields(one)
        value = None if first(column, 6, 0) else _text(column, 8)
        fact = (_text(column, 3), _text(column, 10), bool(first(column, 4, 0)))
        columns.append((fact, value))
    return columns


@lru_cache(maxsize=1024)
def _table(name: TableId, facts: tuple[_Fact, ...]) -> TableSchema:
    columns = tuple(
        Column(place, column, type_of(kind), nullable=not is_key)
        for place, (column, kind, is_key) in enumerate(facts, 1)
    )
    keys = tuple(column for column, _, is_key in facts if is_key)
    index = Index(1, "PRIMARY", keys, unique=True, primary=True)
    return TableSchema(name, 0, 0, columns, (index,) if keys else (), inferred=True)


def _image(table: TableSchema, columns: list[tuple[_Fact, str | None]]) -> Image:
    return {fact[0]: text_value(table.column(fact[0]), value) for fact, value in columns}
