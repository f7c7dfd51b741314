"""Reading Debezium's events back, one by one: the table is made of what the message tells."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from rowferry.change.chunk import Change, DdlKind, Op, SchemaChange, Watermark
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import DecodeError
from rowferry.flow.encode.debezium.schema import DECIMAL, GEOMETRY, VECTOR
from rowferry.flow.encode.message_rows import Image, MessageRow, chunk_of

_OPS: Final = {"c": Op.INSERT, "r": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE}
_DDL: Final = {
    "CREATE": DdlKind.CREATE_TABLE,
    "ALTER": DdlKind.MULTI_SCHEMA_CHANGE,
    "DROP": DdlKind.DROP_TABLE,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMMA: Final = re.compile(r"(?<!\\),")
# Of each schema name: the column's type, and how many digits of a second its numbers count.
_MOMENTS: Final = {
    "io.debezium.time.Timestamp": 3,
    "org.apache.kafka.connect.data.Timestamp": 3,
    "io.debezium.time.MicroTimestamp": 6,
    "io.debezium.time.NanoTimestamp": 9,
}
_CLOCKS: Final = {
    "io.debezium.time.Time": 3,
    "org.apache.kafka.connect.data.Time": 3,
    "io.debezium.time.MicroTime": 6,
    "io.debezium.time.NanoTime": 9,
}
_DATES: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_TEXT_TIMES: Final = {
    "io.debezium.time.IsoDate": "date",
    "io.debezium.time.IsoTimestamp": "datetime",
    "io.debezium.time.IsoTime": "time",
    "io.debezium.time.ZonedTimestamp": "timestamp",
}
_PLAIN: Final = {
    "boolean": SqlType("bit", length=1),
    "int8": SqlType("tinyint"),
    "int16": SqlType("smallint"),
    "int32": SqlType("int"),
    "int64": SqlType("bigint"),
    "float": SqlType("float"),
    "double": SqlType("double"),
    "bytes": SqlType("longblob"),
    "string": SqlType("longtext"),
}
_BIG: Final = "BIGINT UNSIGNED"
_LONG: Final = 1 << 63


def read_message(key: bytes | None, value: bytes | None) -> Iterator[Change]:
    """Yield what one message holds.

    Raises:
        DecodeError: it is no message of this format.
    """
    if value is None:
        if key is None:
            raise DecodeError("row 1: a message without key and value is none of this format")
        _loaded(key)  # a tombstone
        return
    schema, payload = _loaded(value)
    yield from event_changes(_loaded(key)[1] if key else {}, schema, payload)


def event_changes(
    key: dict[str, Any], schema: dict[str, Any] | None, payload: dict[str, Any]
) -> Iterator[Change]:
    """Yield what an event tells whose parts were read.

    Raises:
        DecodeError: it is no event of Debezium.
    """
    try:
        source = payload.get("source") or {}
        if "ddl" in payload:
            yield _ddl(payload, source)
        elif payload.get("op") == "m":
            yield Watermark(int(source["commit_ts"]))
        else:
            yield from _row(key, schema, payload, source)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as err:
        raise DecodeError(f"row 1: it is no event of Debezium ({err})") from None


def _loaded(text: bytes) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return a message's schema, where it has one, and its payload."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        if set(document) == {"schema", "payload"}:
            schema, payload = document["schema"], document["payload"]
            if isinstance(schema, dict) and isinstance(payload, dict):
                return schema, payload
        else:
            return None, document
    raise DecodeError("row 1: it is not a JSON object with a payload")


def _commit_ts(source: dict[str, Any]) -> int:
    commit_ts = source.get("commit_ts")
    stamp = int(commit_ts) if commit_ts is not None else int(source["ts_ms"]) << PHYSICAL_SHIFT
    if not 0 <= stamp < 1 << 64:
        raise ValueError(f"a commit-ts of {stamp}")
    return stamp


def _ddl(payload: dict[str, Any], source: dict[str, Any]) -> SchemaChange:
    changes = payload.get("tableChanges") or []
    kind = _DDL.get(changes[0]["type"], DdlKind.NONE) if changes else DdlKind.NONE
    name = TableId(str(payload.get("databaseName") or ""), str(source.get("table") or ""))
    return SchemaChange(_commit_ts(source), kind, str(payload["ddl"] or ""), name)


def _row(
    key: dict[str, Any],
    schema: dict[str, Any] | None,
    payload: dict[str, Any],
    source: dict[str, Any],
) -> Iterator[Change]:
    op = _OPS.get(str(payload.get("op")))
    if op is None:
        raise ValueError(f"op {payload.get('op')!r}")
    images = (payload.get("before"), payload.get("after"))
    facts = _facts(schema, images)
    name = TableId(str(source["db"]), str(source.get("table") or ""))
    table = _table(name, facts, tuple(key))
    before, after = (_image(table, facts, one) for one in images)
    if (before is None) if op is Op.DELETE else (after is None):
        raise ValueError("it lacks the row image that its op needs")
    if op is Op.INSERT:
        before = None
    if op is Op.DELETE:
        after = None
    row = MessageRow(op, _commit_ts(source), before, after)
    yield chunk_of(row.shape(table), [row], 0)


_Fact = tuple[str, str, str, tuple[tuple[str, str], ...], bool, str]


def _facts(schema: dict[str, Any] | None, images: tuple[Any, Any]) -> tuple[_Fact, ...]:
    """Return (column, type, meaning, parameters, nullable, own type) of each column."""
    if schema is None:
        values: dict[str, list[Any]] = {}
        for image in reversed(images):
            for column, value in (image or {}).items():
                values.setdefault(column, []).append(value)
        return tuple((c, _guess(v), "", (), True, "") for c, v in values.items())
    (members,) = (f["fields"] for f in schema["fields"] if f.get("field") == "after")
    return tuple(
        (
            f["field"],
            f["type"],
            f.get("name") or "",
            tuple(sorted((f.get("parameters") or {}).items())),
            bool(f.get("optional")),
            f.get("tidb_type") or "",
        )
        for f in members
    )


def _guess(values: list[Any]) -> str:
    """Return a type that holds what a column has in all images: `1` may be one of 1.0 and 1.5."""
    held = [v for v in values if v is not None]
    if not held or not all(isinstance(v, int | float) for v in held):
        return "string"
    if all(isinstance(v, bool) for v in held):
        return "boolean"
    whole = all(isinstance(v, int) and -_LONG <= v < _LONG for v in held)
    return "int64" if whole else "double"


@lru_cache(maxsize=1024)
def _table(name: TableId, facts: tuple[_Fact, ...], keys: tuple[str, ...]) -> TableSchema:
    columns = tuple(
        Column(place, f[0], _type(*f[1:4], f[5]), nullable=f[4]) for place, f in enumerate(facts, 1)
    )
    index = Index(1, "PRIMARY", keys, unique=True, primary=True)
    return TableSchema(name, 0, 0, columns, (index,) if keys else (), inferred=True)


def _type(kind: str, name: str, parameters: tuple[tuple[str, str], ...], own: str) -> SqlType:
    facts = dict(parameters)
    if name == DECIMAL:
        if own == _BIG:
            return SqlType("bigint", unsigned=True)
        precision = int(facts.get("connect.decimal.precision", 65))
        return SqlType("decimal", length=precision, scale=int(facts["scale"]))
    if name == "io.debezium.data.Bits":
        return SqlType("bit", length=int(facts["length"]))
    if name in ("io.debezium.data.Enum", "io.debezium.data.EnumSet"):
        elements = tuple(e.replace("\\,", ",") for e in _COMMA.split(facts["allowed"]))
        return SqlType("enum" if name.endswith("Enum") else "set", elements=elements)
    if name in _MOMENTS:
        return SqlType("datetime", scale=min(_MOMENTS[name], 6))
    if name in _CLOCKS:
        return SqlType("time", scale=min(_CLOCKS[name], 6))
    if name in _DATES:
        return SqlType("date")
    if name in _TEXT_TIMES:
        return SqlType(_TEXT_TIMES[name], scale=6)
    if name == "io.debezium.time.Year":
        return SqlType("year")
    if name == "io.debezium.data.Json":
        return SqlType("json")
    if name == GEOMETRY:
        return SqlType("geometry")
    if name == VECTOR:
        return SqlType("vector")
    if kind == "int64" and own == _BIG:
        return SqlType("bigint", unsigned=True)
    known = _PLAIN.get(kind)
    if known is None:
        raise ValueError(f"a field of type {kind!r}")
    return known


def _image(table: TableSchema, facts: tuple[_Fact, ...], values: Any) -> Image | None:
    if values is None:
        return None
    meanings = {fact[0]: fact for fact in facts}
    return {n: _value(table.column(n).type, meanings[n], v) for n, v in values.items()}


def _value(kind: SqlType, fact: _Fact, value: Any) -> Any:
    """Return a value as chunks hold it."""
    if value is None:
        return None
    name = fact[2]
    match kind.kind:
        case Kind.INTEGER if name == DECIMAL:
            return int.from_bytes(b64decode(value, validate=True), "big", signed=True)
        case Kind.INTEGER if kind.unsigned and value < 0:
            return int(value) + (1 << 64)
        case Kind.YEAR:
            return 0 if value == 1900 else int(value)
        case Kind.DECIMAL:
            return _decimal(b64decode(value, validate=True), kind.fraction_digits)
        case Kind.BIT:
            if isinstance(value, bool):
                return int(value)
            return int.from_bytes(b64decode(value, validate=True), "little")
        case Kind.ENUM:
            text = value.replace("\\,", ",")
            return kind.elements.index(text) + 1 if text or "" in kind.elements else 0
        case Kind.SET:
            return sum(1 << kind.elements.index(n) for n in value.split(",") if n)
        case Kind.DATE:
            if isinstance(value, str):
                return value.removesuffix("Z")
            return f"{_EPOCH + timedelta(days=value):%Y-%m-%d}".zfill(10)
        case Kind.DATETIME | Kind.TIMESTAMP:
            if isinstance(value, str):
                return value.removesuffix("Z").replace("T", " ")
            return _moment(value, _MOMENTS[name])
        case Kind.TIME:
            return (
                value.removesuffix("Z") if isinstance(value, str) else _clock(value, _CLOCKS[name])
            )
        case Kind.BINARY:
            if kind.name == "geometry":
                wkb = b64decode(value["wkb"], validate=True)
                return int(value.get("srid") or 0).to_bytes(4, "little") + wkb
            return b64decode(value, validate=True)
        case Kind.VECTOR:
            return "[" + ",".join(str(v) for v in value) + "]"
        case Kind.FLOAT | Kind.DOUBLE:
            return float(value)
        case Kind.INTEGER:
            return value if type(value) is int else int(value)
        case _:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _decimal(data: bytes, scale: int) -> str:
    number = int.from_bytes(data, "big", signed=True)
    digits = str(abs(number)).zfill(scale + 1)
    sign = "-" if number < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _moment(number: int, digits: int) -> str:
    micros = number * 10 ** (6 - digits) if digits <= 6 else number // 10 ** (digits - 6)
    whole, rest = divmod(micros, 1_000_000)
    moment = _EPOCH + timedelta(seconds=whole)
    shown = min(digits, 6)
    return f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}.{rest:06d}"[: 20 + shown]


def _clock(number: int, digits: int) -> str:
    micros = abs(number) * 10 ** (6 - digits) if digits <= 6 else abs(number) // 10 ** (digits - 6)
    whole, rest = divmod(micros, 1_000_000)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if number < 0 else ""
    shown = f".{rest:06d}"[: 1 + min(digits, 6)]
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{shown}"
