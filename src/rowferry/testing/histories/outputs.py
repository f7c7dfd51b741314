"""What a feed delivered, read by the descriptions of the formats alone.

Nothing of the product is used here: text is parsed by json, csv by a few lines of our own (NULL
and a quoted text differ), Avro by fastavro with the schemas that the registry has.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import fastavro

Op = Literal["insert", "update", "delete"]
Cells = dict[str, Any]

_DATA_FILE = re.compile(r"CDC(\d+)\.(csv|json)(\.gz|\.zst)?$")


@dataclass(frozen=True, slots=True)
class DeliveredRow:
    """A row change as it was delivered; an image that the format does not carry is None."""

    where: str
    table: tuple[str, str]
    op: Op
    ts: int
    before: Cells | None
    after: Cells | None
    raw: str


@dataclass(frozen=True, slots=True)
class Ddl:
    """A schema change as it was delivered."""

    where: str
    table: tuple[str, str]
    ts: int
    kind: str
    query: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class WatermarkMark:
    """A watermark."""

    where: str
    ts: int


Event = DeliveredRow | Ddl | WatermarkMark


# --- files ---------------------------------------------------------------------------------------


class StoredFiles:
    """A storage prefix; `list_all` gives the paths below it, `get` the bytes of one."""

    def __init__(
        self,
        list_all: Callable[[], Sequence[str]],
        get: Callable[[str], bytes],
        protocol: str,
        old_values: bool,
    ) -> None:
        self._list_all, self._get = list_all, get
        self._protocol, self._old_values = protocol, old_values
        self.sights: list[tuple[int, dict[str, int]]] = []

    @classmethod
    def below(cls, root: Path, protocol: str, old_values: bool) -> StoredFiles:
        """Read a directory."""

        def names() -> list[str]:
            return [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]

        return cls(names, lambda name: (root / name).read_bytes(), protocol, old_values)

    def look(self) -> None:
        """Note the checkpoint, and which files could be seen at that moment."""
        names = set(self._list_all())
        if "metadata" not in names:
            return
        checkpoint = int(json.loads(self._get("metadata"))["checkpoint-ts"])
        if self.sights and self.sights[-1][0] == checkpoint:
            return
        indexes = [n for n in names if n.endswith("/meta/CDC.index")]
        seen = {n.removesuffix("/meta/CDC.index"): self._last(n) for n in indexes}
        self.sights.append((checkpoint, seen))

    def _last(self, index: str) -> int:
        match = _DATA_FILE.match(self._get(index).decode().strip())
        if match is None:
            raise ValueError(f"{index} names no data file")
        return int(match[1])

    def events(self) -> Iterator[Event]:
        """Yield schema files, then rows; a table's rows are in order."""
        names = sorted(self._list_all())
        columns: dict[tuple[str, str], dict[int, list[str]]] = {}
        places: dict[str, list[tuple[int, str]]] = {}
        ends = {}
        for name in names:
            parts = name.split("/")
            if name.endswith("/meta/CDC.index"):
                ends[name.removesuffix("/meta/CDC.index")] = self._last(name)
            elif len(parts) >= 3 and parts[-2] == "meta" and parts[-1].startswith("schema_"):
                schema = self._schema(name, parts)
                if schema.columns is not None:
                    versions = columns.setdefault(schema.table, {})
                    versions[int(parts[-1].split("_")[1])] = list(schema.columns)
                yield schema
            elif len(parts) >= 4 and (file := _DATA_FILE.match(parts[-1])):
                places.setdefault("/".join(parts[:-1]), []).append((int(file[1]), name))

        def order(place: str) -> tuple[str, str, int, str]:
            parts = place.split("/")
            return parts[0], parts[1], int(parts[2]), "/".join(parts[3:])

        for place in sorted(places, key=order):
            parts = place.split("/")
            table, version = (unquote(parts[0]), unquote(parts[1])), int(parts[2])
            visible = [(n, f) for n, f in sorted(places[place]) if n <= ends.get(place, 0)]
            if [n for n, _ in visible] != list(range(1, ends.get(place, 0) + 1)):
                raise ValueError(f"{place}: numbers have a gap: {[n for n, _ in visible]}")
            for number, name in visible:
                text = self._unpacked(name)
                for row in self._rows(name, text, table, columns.get(table, {}).get(version)):
                    self._check_sights(place, number, row)
                    yield row

    def _check_sights(self, place: str, number: int, row: DeliveredRow) -> None:
        for checkpoint, seen in self.sights:
            if number > seen.get(place, 0) and row.ts <= checkpoint:
                raise ValueError(f"{row} came after the checkpoint {checkpoint} had been shown")

    def _unpacked(self, name: str) -> str:
        raw = self._get(name)
        if name.endswith(".gz"):
            raw = gzip.decompress(raw)
        return raw.decode()

    def _schema(self, name: str, parts: Sequence[str]) -> Ddl:
        document = json.loads(self._get(name))
        listed = document.get("TableColumns")
        return Ddl(
            "files",
            (document["Schema"], document["Table"]) if len(parts) > 3 else (document["Schema"], ""),
            int(document["TableVersion"]),
            str(document["Type"]),
            document["Query"],
            tuple(c["ColumnName"] for c in listed) if listed else None,
        )

    def _rows(
        self, name: str, text: str, table: tuple[str, str], columns: list[str] | None
    ) -> Iterator[DeliveredRow]:
        if self._protocol == "canal-json":
            for line in text.split("\r\n"):
                if line:
                    event = canal_json(name, line)
                    if not isinstance(event, DeliveredRow) or event.table != table:
                        raise ValueError(f"{name}: {line[:200]}")
                    yield event
            return
        if columns is None:
            raise ValueError(f"{name}: no schema file tells its columns")
        yield from self._csv(name, text, table, columns)

    def _csv(
        self, name: str, text: str, table: tuple[str, str], columns: list[str]
    ) -> Iterator[DeliveredRow]:
        old: Cells | None = None
        head = 5 if self._old_values else 4
        for cells in csv_records(text):
            op, own, database, ts = cells[:4]
            if (database, own) != table:
                raise ValueError(f"{name}: a row of {database}.{own}")
            if len(cells) != head + len(columns):
                raise ValueError(f"{name}: {len(cells) - head} values for {columns}")
            image = dict(zip(columns, cells[head:], strict=True))
            stamp, raw = int(ts or ""), repr(cells)
            if self._old_values and cells[4] == "true":
                if op == "D":
                    old = image
                    continue
                if old is None:
                    raise ValueError(f"{name}: an update without its old row")
                yield DeliveredRow(name, table, "update", stamp, old, image, repr(old) + raw)
                old = None
            elif op == "D":
                yield DeliveredRow(name, table, "delete", stamp, image, None, raw)
            else:
                kind: Op = "insert" if op == "I" else "update"
                yield DeliveredRow(name, table, kind, stamp, None, image, raw)


def csv_records(text: str) -> Iterator[list[str | None]]:
    """Yield the fields of each record; an unquoted null sign is None."""
    at, fields = 0, []
    while at < len(text):
        field: str | None
        if text[at] == '"':
            pieces, start = [], at + 1
            while True:
                end = text.index('"', start)
                pieces.append(text[start:end])
                if text[end + 1 : end + 2] != '"':
                    break
                pieces.append('"')
                start = end + 2
            field, at = "".join(pieces), end + 1
        else:
            end = min(e for e in (text.find(",", at), text.find("\r\n", at), len(text)) if e >= 0)
            field, at = text[at:end], end
            field = None if field == "\\N" else field
        fields.append(field)
        if text.startswith("\r\n", at):
            yield fields
            fields, at = [], at + 2
        elif text.startswith(",", at):
            at += 1
        else:
            raise ValueError(f"csv: {text[at : at + 40]!r} follows a field")


# --- messages ------------------------------------------------------------------------------------


def canal_json(where: str, text: str) -> Event:
    """Read one canal-json message."""
    message = json.loads(text)
    if message["type"] == "TIDB_WATERMARK":
        return WatermarkMark(where, int(message["_tidb"]["watermarkTs"]))
    table = (message["database"], message["table"])
    ts = int(message["_tidb"]["commitTs"])
    if int(message["es"]) != ts >> 18:
        raise ValueError(f"{where}: es {message['es']} is not that of {ts}")
    if message["isDdl"]:
        return Ddl(where, table, ts, message["type"], message["sql"])
    (image,) = message["data"]
    if list(message["mysqlType"]) != list(image) or list(message["sqlType"]) != list(image):
        raise ValueError(f"{where}: types do not name the columns: {text[:300]}")
    raw = re.sub(r'"ts":\d+', "", text, count=1)
    match message["type"]:
        case "INSERT":
            return DeliveredRow(where, table, "insert", ts, None, image, raw)
        case "UPDATE":
            return DeliveredRow(where, table, "update", ts, message["old"][0], image, raw)
        case "DELETE":
            return DeliveredRow(where, table, "delete", ts, image, None, raw)
    raise ValueError(f"{where}: {text[:200]}")


def open_protocol(where: str, key: bytes, value: bytes) -> Iterator[Event]:
    """Read one open-protocol message, which holds several rows."""
    if struct.unpack(">Q", key[:8]) != (1,):
        raise ValueError(f"{where}: version {key[:8].hex()}")
    keys, values = list(_framed(key[8:])), list(_framed(value))
    if len(keys) != len(values):
        raise ValueError(f"{where}: {len(keys)} keys, {len(values)} values")
    for head, body in zip(keys, values, strict=True):
        message = json.loads(head)
        ts = int(message["ts"])
        if message["t"] == 3:
            yield WatermarkMark(where, ts)
            continue
        table = (message["scm"], message["tbl"])
        content = json.loads(body, parse_int=_integer)
        if message["t"] == 2:
            yield Ddl(where, table, ts, str(content["t"]), content["q"])
            continue
        raw = f"{head!r}{body!r}"
        if "d" in content:
            yield DeliveredRow(where, table, "delete", ts, content["d"], None, raw)
        elif "p" in content:
            yield DeliveredRow(where, table, "update", ts, content["p"], content["u"], raw)
        else:
            yield DeliveredRow(where, table, "insert", ts, None, content["u"], raw)


def _framed(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        (length,) = struct.unpack_from(">Q", raw, at)
        yield raw[at + 8 : at + 8 + length]
        at += 8 + length


class AvroMessages:
    """Reads Avro messages; `schema` gives the text of one by its id."""

    def __init__(self, schema: Callable[[int], str]) -> None:
        self._schema = schema
        self._parsed: dict[int, Any] = {}

    def read(
        self, where: str, table: tuple[str, str], key: bytes | None, value: bytes | None
    ) -> Event:
        """Read one message of a table's topic."""
        if value is not None and value[:1] == b"\x02":
            return WatermarkMark(where, struct.unpack(">Q", value[1:9])[0])
        if value is not None and value[:1] == b"\x01":
            message = json.loads(value[1:])
            named = (message["schema"], message["table"])
            return Ddl(
                where, named, int(message["commitTs"]), str(message["type"]), message["query"]
            )
        if key is None or value is None:
            raise ValueError(f"{where}: a message without its key or value")
        raw = f"{key!r}{value!r}"
        if value[:1] == b"\x03":
            stamp = struct.unpack(">Q", value[1:9])[0]
            return DeliveredRow(where, table, "delete", stamp, self._record(key), None, raw)
        image = self._record(value)
        op, ts = image.pop("_tidb_op"), image.pop("_tidb_commit_ts")
        if image.pop("_tidb_commit_physical_time") != ts >> 18:
            raise ValueError(f"{where}: its physical time is not that of {ts}")
        named_key = self._record(key)
        if any(image[n] != v for n, v in named_key.items()):
            raise ValueError(f"{where}: the key {named_key!r} is not that of {image!r}")
        kinds: Mapping[str, Op] = {"c": "insert", "u": "update"}
        return DeliveredRow(where, table, kinds[op], ts, None, image, raw)

    def _record(self, raw: bytes) -> Cells:
        number = struct.unpack(">bI", raw[:5])[1]
        if number not in self._parsed:
            self._parsed[number] = fastavro.parse_schema(json.loads(self._schema(number)))
        stream = io.BytesIO(raw[5:])
        record = fastavro.schemaless_reader(stream, self._parsed[number], None)
        if stream.read():
            raise ValueError(f"bytes are left behind the record {record!r}")
        if not isinstance(record, dict):
            raise ValueError(f"{record!r} is no record")
        return record


def _integer(text: str) -> int | float:
    """Return a number; JSON's -0 has a sign, which no int has."""
    return -0.0 if text == "-0" else int(text)


def http_json(where: str, body: bytes) -> Iterator[Event]:
    """Read the body of one request."""
    for message in json.loads(body, parse_float=Decimal, parse_int=_integer):
        table = (message.get("database", ""), message.get("table", ""))
        ts = int(message["commitTs"])
        if message.get("type") == "watermark":
            yield WatermarkMark(where, ts)
        elif message.get("type") == "ddl":
            yield Ddl(where, table, ts, message["kind"], message["query"])
        else:
            image = message["after"] if message["after"] is not None else message["before"]
            key = message["key"]
            if key is not None and any(image[n] != v for n, v in key.items()):
                raise ValueError(f"{where}: the key {key} is not that of {image}")
            raw = json.dumps(message, default=str)
            yield DeliveredRow(
                where, table, message["op"], ts, message["before"], message["after"], raw
            )


def go_unquoted(text: str) -> bytes:
    """Return the bytes of what Go's strconv.Quote wrote, without its quotes."""
    simple = {
        "a": 7,
        "b": 8,
        "f": 12,
        "n": 10,
        "r": 13,
        "t": 9,
        "v": 11,
        "\\": 92,
        '"': 34,
        "'": 39,
    }
    content, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            content += text[at].encode()
            at += 1
            continue
        sign = text[at + 1]
        size = {"x": 2, "u": 4, "U": 8}.get(sign)
        if size is None:
            content.append(simple[sign])
            at += 2
            continue
        number = int(text[at + 2 : at + 2 + size], 16)
        content += bytes([number]) if sign == "x" else chr(number).encode()
        at += 2 + size
    return bytes(content)


def from_base64(text: str) -> bytes:
    """Return the bytes; refuse what is not exactly base64."""
    return base64.b64decode(text, validate=True)
