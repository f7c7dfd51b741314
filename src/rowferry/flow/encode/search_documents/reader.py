"""Reading items of a `_bulk` request back as rows, one by one: for tests and repairs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column
from rowferry.errors import DecodeError
from rowferry.flow.encode.search_documents.document_id import key_texts
from rowferry.flow.encode.search_documents.mapping import field_name
from rowferry.flow.encode.sql_rows.frame import RowFrame

_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_TEXTS: Final = frozenset({Kind.JSON, Kind.VECTOR})


def read_items(frame: RowFrame) -> Rows:
    """Return the changes of a frame.

    Raises:
        DecodeError: an item is not one of ours; names its row (the first is 1).
    """
    keyed = [frame.table.column(name) for name in frame.table.handle_key]
    before: list[dict[str, Any] | None] = []
    after: list[dict[str, Any] | None] = []
    for row, (op, item) in enumerate(zip(frame.op, frame.rows.to_pylist(), strict=True)):
        try:
            head, *rest = item.decode().splitlines()
            action = json.loads(head)
            if op == Op.DELETE:
                before.append(_key(keyed, action["delete"]["_id"]))
                after.append(None)
            else:
                before.append(None)
                after.append(_row(frame.table.visible, json.loads(rest[0])))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as err:
            raise DecodeError(f"row {row + 1}: it is no item of a bulk request ({err})") from err
    present = {name for image in after if image is not None for name in image}
    columns = [c for c in frame.table.visible if c.name in present]
    return make_rows(
        frame.table,
        pa.array(frame.op),
        pa.array(frame.commit_ts),
        pa.array(frame.seq),
        pa.array(before, pa.struct([pa.field(c.name, c.type.arrow) for c in keyed])),
        pa.array(after, pa.struct([pa.field(c.name, c.type.arrow) for c in columns])),
    )


def _key(keyed: list[Column], document_id: str) -> dict[str, Any]:
    texts = key_texts(document_id)
    if texts is None:
        raise ValueError("its id is a digest")
    return {c.name: _of_text(c.type, text) for c, text in zip(keyed, texts, strict=True)}


def _row(columns: tuple[Column, ...], document: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for column in columns:
        name = field_name(column.name)
        if name in document:
            values[column.name] = _value(column.type, document[name])
    return values


def _value(kind: SqlType, value: Any) -> Any:
    if kind.kind in _TEXTS:  # a JSON null is a value of the column, or its NULL
        return None if value is None else json.dumps(value, ensure_ascii=False)
    return None if value is None else _of_text(kind, str(value))


def _of_text(kind: SqlType, text: str) -> Any:
    if kind.kind is Kind.BINARY:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as err:
            raise ValueError("it is not base64") from err
    if kind.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return text.replace("T", " ").removesuffix("Z")
    if kind.kind is Kind.ENUM:
        return kind.elements.index(text) + 1 if text else 0
    if kind.kind is Kind.SET:
        return sum(1 << kind.elements.index(name) for name in text.split(",") if name)
    reads: Callable[[str], Any] = str
    if kind.kind in _NUMBERS:
        reads = int
    elif kind.kind in (Kind.FLOAT, Kind.DOUBLE):
        reads = float
    return reads(text)
