"""Reading one canal-json message of a queue: its table is made of what the message says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from rowferry.change.chunk import Change, Op
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, DecodeError
from rowferry.flow.encode.canal_json.reader import read_note
from rowferry.flow.encode.message_rows import Image, MessageRow, chunk_of, text_value
from rowferry.mysql.ddl.statement import parse_type
from rowferry.mysql.type_facts import TYPE_FACTS

_FRACTION: Final = 6  # the type's name does not tell how many digits a second has
_OPS: Final = {op.name: op for op in Op}
_LONE_BACKSLASH: Final = re.compile(r"\\(?![0nr])")  # elements' backslashes stand once


def read_message(text: bytes, fill_old: bool, fetch: Callable[[str], bytes]) -> Iterator[Change]:
    """Yield what one message holds.

    Args:
        text: the message.
        fill_old: columns that an old image lacks are those of the new one.
        fetch: returns the message that was left at a claim check's location.

    Raises:
        DecodeError: it is no message of this format.
    """
    message, extension = _loaded(text)
    if location := extension.get("claimCheckLocation"):
        text = fetch(location)
        message, extension = _loaded(text)
    op = _OPS.get(str(message.get("type")))
    if op is None or message.get("isDdl"):
        yield read_note(text, 1)
        return
    key_only = bool(extension.get("onlyHandleKey"))
    data = _image(message.get("data"))
    if data is None:
        raise DecodeError("row 1: it has no data")
    table = _table(message, data, key_only)
    image = {name: _value(table.column(name), text) for name, text in data.items()}
    commit_ts = _commit_ts(message, extension)
    if op is Op.DELETE:
        row = MessageRow(op, commit_ts, image, None)
    else:
        before = _before(table, image, _image(message.get("old")), fill_old)
        row = MessageRow(op, commit_ts, before, image)
    yield chunk_of(row.shape(table, key_only=key_only), [row], 0)


def _loaded(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message and its extension."""
    try:
        message = json.loads(text)
        extension = message.get("_tidb") or {}
        if isinstance(extension, dict):
            return message, extension
    except (ValueError, AttributeError, RecursionError):
        pass
    raise DecodeError("row 1: it is not a canal-json object")


def _image(images: Any) -> dict[str, str | None] | None:
    """Return `null` or `[{…}]`, checked."""
    if images is None:
        return None
    if isinstance(images, list) and len(images) == 1 and isinstance(images[0], dict):
        values = images[0].values()
        if all(value is None or isinstance(value, str) for value in values):
            return dict(images[0])
    raise DecodeError("row 1: a row image is no list of one object with texts")


def _before(
    table: TableSchema, image: Image, old: dict[str, str | None] | None, fill: bool
) -> Image | None:
    if old is None:
        return None
    known = {n: _value(table.column(n), text) for n, text in old.items() if n in image}
    values = image | known if fill else known
    return {name: values[name] for name in image if name in values}


def _commit_ts(message: dict[str, Any], extension: dict[str, Any]) -> int:
    exact, millisecond = extension.get("commitTs"), message.get("es")
    if type(exact) is int and 0 <= exact < 1 << 64:
        return exact
    if type(millisecond) is int and 0 <= millisecond < 1 << (64 - PHYSICAL_SHIFT):
        return millisecond << PHYSICAL_SHIFT
    raise DecodeError("row 1: it has neither commitTs nor es")


def _value(column: Column, text: str | None) -> Any:
    try:
        return text_value(column, text)
    except ValueError as err:
        raise DecodeError(f"row 1, {err}") from None


def _table(message: dict[str, Any], data: dict[str, str | None], key_only: bool) -> TableSchema:
    try:
        types = message["mysqlType"]
        columns = tuple((name, types[name]) for name in data)
        keys = tuple(message["pkNames"] or ())
        return _made(message["database"], message["table"], columns, keys, key_only)
    except BadInput as err:
        raise DecodeError(f"row 1: mysqlType: {err.words}") from None
    except (KeyError, TypeError, AttributeError):
        raise DecodeError("row 1: it does not tell its columns' types") from None


@lru_cache(maxsize=1024)
def _made(
    database: str,
    table: str,
    columns: tuple[tuple[str, str], ...],
    keys: tuple[str, ...],
    key_only: bool,
) -> TableSchema:
    """Return the table of messages with these columns; `key_only`: all of them are its key."""
    primary = {k.lower() for k in keys}
    made = tuple(
        Column(i, name, type_of(kind), nullable=name.lower() not in primary)
        for i, (name, kind) in enumerate(columns, 1)
    )
    names = keys or (tuple(name for name, _ in columns) if key_only else ())
    index = Index(1, "PRIMARY" if keys else "handle", names, unique=True, primary=bool(keys))
    indexes = (index,) if names else ()
    return TableSchema(TableId(database, table), 0, 0, made, indexes, inferred=True)


@lru_cache(maxsize=1024)
def type_of(text: str) -> SqlType:
    """Return a type from its whole text or, where that is all there is, its bare name."""
    name, *signs = text.split(" ")
    if name in TYPE_FACTS:
        kind = SqlType(name, unsigned="unsigned" in signs, zerofill="zerofill" in signs)
    else:
        kind = parse_type(_LONE_BACKSLASH.sub(r"\\\\", text))
    if kind.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and kind.scale is None:
        return replace(kind, scale=_FRACTION)
    return kind
