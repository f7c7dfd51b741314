"""The messages that are not rows: DDL, watermarks, and deletes that carry their commit-ts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.table import TableId
from rowferry.errors import DecodeError
from rowferry.flow.encode.avro.schema import json_text

ROW, DDL, WATERMARK, DELETE = 0, 1, 2, 3  # a value's first byte
_NUMBER: Final = struct.Struct(">Q")


def head_of(schema_id: int) -> bytes:
    """Return what stands before a row's binary."""
    return struct.pack(">bI", ROW, schema_id)


def split_head(message: bytes, what: str) -> tuple[int, bytes]:
    """Return the schema id and the binary of a row's key or value."""
    if len(message) < 5 or message[0] != ROW:
        raise DecodeError(f"the {what} does not begin as Avro with a schema id does")
    return int.from_bytes(message[1:5], "big"), message[5:]


def ddl_message(change: SchemaChange) -> bytes:
    """Return a DDL's value."""
    name = change.written_as
    text = {
        "query": change.query,
        "type": int(change.kind),
        "schema": name.database,
        "table": name.table,
        "commitTs": change.commit_ts,
    }
    return bytes([DDL]) + json_text(text).encode("utf-8", "replace")


def watermark_message(mark: Watermark) -> bytes:
    """Return a watermark's value."""
    return bytes([WATERMARK]) + _NUMBER.pack(mark.commit_ts)


def read_note(value: bytes) -> Iterator[SchemaChange | Watermark]:
    """Read a DDL or a watermark."""
    if value[0] == WATERMARK:
        yield Watermark(read_number(value, "watermark"))
        return
    try:
        form = json.loads(value[1:])
        table = TableId(form["schema"], form["table"])
        known = form["type"] in {int(k) for k in DdlKind}  # TiDB has more than our sources
        kind = DdlKind(form["type"]) if known else DdlKind.NONE
        yield SchemaChange(form["commitTs"], kind, form["query"], table)
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise DecodeError(f"a DDL message cannot be read: {err}") from None


def read_number(value: bytes, what: str) -> int:
    """Return the number after a value's first byte."""
    if len(value) != 1 + _NUMBER.size:
        raise DecodeError(f"a {what} message has {len(value)} bytes, not {1 + _NUMBER.size}")
    return int(_NUMBER.unpack(value[1:])[0])
