"""Reading messages of the simple protocol: definitions are remembered, rows are read by them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import Change, Op, SchemaChange, Watermark
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadInput, DecodeError
from rowferry.flow.encode.canal_json.reader import DDL_KIND
from rowferry.flow.encode.message_rows import Image, MessageRow, chunk_of
from rowferry.flow.encode.simple.schema import to_table

_OPS: Final = {"INSERT": Op.INSERT, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE}
_WHOLE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_VERSION: Final = 1


class SimpleReader:
    """Reads messages one after the other.

    A row's message has no types. They come with the definition of its table, in a BOOTSTRAP or DDL
    message before it.
    """

    def __init__(
        self,
        fetch: Callable[[str], bytes],
        load: Callable[[bytes], dict[str, Any]] | None = None,
    ) -> None:
        """Begin without any table.

        Args:
            fetch: returns the message that was left at a claim check's location.
            load: makes of a message's bytes what its JSON form says; None: they are JSON.
        """
        self._fetch = fetch
        self._load = load or _json
        self._tables: dict[tuple[str, str], TableSchema] = {}
        self._versions: dict[tuple[str, str, int], TableSchema] = {}

    def read(self, text: bytes) -> Iterator[Change]:
        """Yield what one message holds.

        Raises:
            DecodeError: it is none of this format, or a row before its table's definition.
        """
        message = self._loaded(text)
        if location := message.get("claimCheckLocation"):
            message = self._loaded(self._fetch(str(location)))
        try:
            yield from self._changes(message)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, BadInput) as err:
            raise DecodeError(f"row 1: it is no message of the simple protocol ({err})") from None

    def _loaded(self, text: bytes) -> dict[str, Any]:
        message = self._load(text)
        if message.get("version") != _VERSION:
            raise DecodeError("row 1: it is no message of version 1 of the simple protocol")
        return message

    def _changes(self, message: dict[str, Any]) -> Iterator[Change]:
        kind, commit_ts = str(message["type"]), int(message["commitTs"])
        if not 0 <= commit_ts < 1 << 64:
            raise ValueError(f"a commitTs of {commit_ts}")
        if kind == "WATERMARK":
            yield Watermark(commit_ts)
        elif kind in _OPS:
            yield from self._row(_OPS[kind], commit_ts, message)
        else:
            table = self._learn(message.get("tableSchema"))
            if kind == "BOOTSTRAP":
                return
            if kind not in DDL_KIND:
                raise ValueError(f"type {kind!r}")
            name = table.id if table else TableId("", "")
            yield SchemaChange(commit_ts, DDL_KIND[kind], str(message["sql"]), name)

    def _learn(self, definition: Any) -> TableSchema | None:
        if not definition:
            return None
        table = to_table(definition)
        version = int(definition.get("version") or 0)
        self._tables[table.id.database, table.id.table] = table
        self._versions[table.id.database, table.id.table, version] = table
        return table

    def _row(self, op: Op, commit_ts: int, message: dict[str, Any]) -> Iterator[Change]:
        name = (str(message["database"]), str(message["table"]))
        # Partitions are read at different speeds: a newer definition may have come by another one.
        version = int(message.get("schemaVersion") or 0)
        table = self._versions.get((*name, version)) or self._tables.get(name)
        if table is None:
            raise DecodeError(
                f"row 1: the definition of {'.'.join(name)} has not come yet: read the topic from "
                "a BOOTSTRAP message of the table on"
            )
        before, after = _image(table, message.get("old")), _image(table, message.get("data"))
        if (before is None) if op is Op.DELETE else (after is None):
            raise ValueError("it lacks the row image that its type needs")
        row = MessageRow(op, commit_ts, before, after)
        key_only = bool(message.get("handleKeyOnly"))
        yield chunk_of(row.shape(table, key_only=key_only), [row], 0)


def _json(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise DecodeError("row 1: it is no JSON object of the simple protocol")
    return message


def _image(table: TableSchema, values: Any) -> Image | None:
    if values is None:
        return None
    return {c.name: _value(c, values[c.name]) for c in table.columns if c.name in values}


def _value(column: Column, value: Any) -> Any:
    """Return a value as chunks hold it."""
    if value is None:
        return None
    kind = column.type.kind
    if kind is Kind.TIMESTAMP:
        return str(value["value"])
    if not isinstance(value, str):
        raise ValueError(f"column {column.name!r}: {str(value)[:40]!r} is no text")
    if kind in _WHOLE:
        number = int(value)
        return number % (1 << 64) if column.type.arrow == pa.uint64() else number
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return float(value)
    return b64decode(value, validate=True) if kind is Kind.BINARY else value
