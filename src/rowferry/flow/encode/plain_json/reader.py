"""Reading plain JSON back: blocks of messages column by column, or one message by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.columnar.memory import Bytes, Ints
from rowferry.errors import DecodeError
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.plain_json import tokenizer as tokens
from rowferry.flow.encode.read_back import Flags, ImageSpans, Style, column_cuts, refuse_empty

_ROOM = 1 << 20  # values in a block
_MOST, _LEAST = 65536, 256  # messages in a block
_STYLE: Final = Style(
    text=kernels_spans.JSON, binary=kernels_spans.JSON, names=True, packed="base64"
)
_AS_IT_IS: Final = Style(text=kernels_spans.PLAIN, binary=kernels_spans.PLAIN)
_KINDS: Final = {kind.name.lower().replace("_", " "): kind for kind in DdlKind}


def read_messages(
    data: bytes, table: TableSchema, terminator: bytes, embeds: bool
) -> Iterator[Change]:
    """Yield rows as chunks, schema changes and watermarks, in the data's order.

    `data` is messages, each with the terminator, or one array of them. `embeds`: JSON columns stand
    as values.

    Raises:
        DecodeError: a message that is malformed; names its row (the first is 1).
    """
    if data[:1] == b"[":
        data, terminator = _elements(data), b","
    forms = np.array([_form(c, embeds) for c in table.visible], np.int64)
    reader = _Reader(np.frombuffer(data, np.uint8), table, forms)
    encoded = [c.name.encode() for c in table.visible]
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(e) for e in encoded], out=bounds[1:])
    names = np.frombuffer(b"".join(encoded), np.uint8)
    scratch = np.empty(6 * max((len(e) for e in encoded), default=0), np.uint8)
    end = np.frombuffer(terminator, np.uint8)
    room = max(_LEAST, min(_MOST, _ROOM // max(len(encoded), 1), len(data) // 64 + 1))
    at, row = 0, 1
    while at < len(data):
        facts = np.empty((4, room), np.int64)
        spans = np.empty((4, len(encoded), room), np.int64)
        before, after = (spans[0], spans[1]), (spans[2], spans[3])
        count, at, status, stop = tokens.tokenize(
            reader.data, at, names, bounds, forms, end, scratch, facts, before, after
        )
        if count:
            yield from reader.chunks(facts[:, :count], spans[:, :, :count], row)
        row += count
        if status == tokens.OTHER:
            yield _note(data[at:stop], row)
            at, row = stop + len(terminator), row + 1
        elif status != tokens.OK:
            raise DecodeError(f"row {row}: {tokens.WORDS[status]}")


def read_message(value: bytes | None) -> Iterator[Change]:
    """Yield the change of one message (or of each in an array); the table is made of what it has.

    Raises:
        DecodeError: it is not such a message.
    """
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError) as err:
        raise DecodeError(f"row 1: it is not JSON ({err})") from err
    for number, one in enumerate(document if isinstance(document, list) else [document]):
        if not isinstance(one, dict):
            raise DecodeError(f"row {number + 1}: {tokens.WORDS[tokens.MALFORMED]}")
        # With escapes: half a character has no other form.
        text = json.dumps(one).encode() if isinstance(document, list) else value
        yield from read_messages(text or b"", _guessed(one, number + 1), b"", embeds=True)


def _elements(data: bytes) -> bytes:
    """Return an array's inside, each element with a comma behind it."""
    whole = data.rstrip()
    if not whole.endswith(b"]"):
        raise DecodeError("row 1: the array does not end (is it cut short?)")
    inside = whole[1:-1].strip()
    return inside + b"," if inside else b""


def _form(column: Column, embeds: bool) -> int:
    kind = column.type.kind
    if kind is Kind.VECTOR:
        return tokens.ANY
    if kind is Kind.JSON and embeds:
        return tokens.ANY if column.nullable else tokens.ANY_OR_NULL
    return tokens.SCALAR


def _note(message: bytes, row: int) -> Change:
    """Read a message that is no row change."""
    try:
        note = json.loads(message)
        if note["type"] == "ddl":
            return SchemaChange(
                commit_ts=int(note["commitTs"]),
                kind=_KINDS.get(note["kind"], DdlKind.NONE),
                query=note["query"],
                table=TableId(note["database"], note["table"]),
            )
        if note["type"] == "watermark":
            return Watermark(int(note["commitTs"]))
    except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
        pass
    raise DecodeError(f"row {row}: it is neither a row change, nor a DDL, nor a watermark")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes chunks of tokens."""

    data: Bytes
    table: TableSchema
    forms: Ints

    def chunks(self, facts: Ints, spans: Ints, first_row: int) -> Iterator[Rows]:
        """Yield chunks in each of which all rows have the same columns."""
        op = facts[tokens.OP]
        has_before = (facts[tokens.HAS_BEFORE] == 1) & (op != Op.INSERT)
        has_after = op != Op.DELETE
        before, after = spans[:2], spans[2:]
        for image, have in ((before, has_before), (after, has_after)):
            refuse_empty(self.table, image[0], have, first_row)
        cuts = column_cuts(before[0], has_before) | column_cuts(after[0], has_after)
        edges = [0, *np.flatnonzero(cuts).tolist(), len(op)]
        for start, stop in zip(edges, edges[1:], strict=False):
            part = slice(start, stop)
            yield make_rows(
                self.table,
                pa.array(op[part].astype(np.int8)),
                pa.array(facts[tokens.COMMIT_TS, part].view(np.uint64)),
                pa.array(np.arange(first_row - 1 + start, first_row - 1 + stop)),
                self._struct(before[:, :, part], has_before[part], first_row + start),
                self._struct(after[:, :, part], has_after[part], first_row + start),
            )

    def _struct(self, image: Ints, have: Flags, first_row: int) -> pa.StructArray:
        """Return one image of some rows, with the columns that the first of them has."""
        places = ImageSpans(self.data, self.table, image[0], image[1], have, first_row)
        return places.read(lambda i: _STYLE if self.forms[i] == tokens.SCALAR else _AS_IT_IS)


# --- a table from a message -----------------------------------------------------------------------


def _guessed(message: Mapping[str, Any], row: int) -> TableSchema:
    """Return a table with the columns of a message; types are as far as JSON tells them."""
    name = TableId(str(message.get("database", "")), str(message.get("table", "")))
    images = [i for i in (message.get("after"), message.get("before")) if isinstance(i, dict)]
    if "op" in message and not images:
        raise DecodeError(f"row {row}: {tokens.WORDS[tokens.NO_IMAGE]}")
    values: dict[str, list[Any]] = {}
    for image in images:
        for column, value in image.items():
            values.setdefault(column, []).append(value)
    try:
        "".join([*name, *values]).encode()
    except UnicodeEncodeError:
        raise DecodeError(f"row {row}: a name holds half a character") from None
    keys = message.get("key")
    key = tuple(keys) if isinstance(keys, dict) else ()
    columns = tuple(
        Column(place + 1, column, _type_of(held), nullable=column not in key)
        for place, (column, held) in enumerate(values.items())
    )
    index = Index(1, "PRIMARY", key, unique=True, primary=True)
    return TableSchema(name, 0, 0, columns, (index,) if key else (), inferred=True)


def _type_of(values: Sequence[Any]) -> SqlType:
    """Return a type that holds what a column has in all images: `1` may be one of 1.0 and 1.5."""
    held = [v for v in values if v is not None]
    kinds = {type(v) for v in held}
    if kinds <= {str}:
        return SqlType("longtext")
    if not kinds <= {int, float}:
        return SqlType("json")
    least, most = min(held), max(held)
    for unsigned, low, high in ((False, -(1 << 63), 1 << 63), (True, 0, 1 << 64)):
        if kinds == {int} and low <= least and most < high:
            return SqlType("bigint", unsigned=unsigned)
    return SqlType("double")
