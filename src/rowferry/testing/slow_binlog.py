"""A slow, plain decoder (and writer) of rows events: what the fast one is compared with.

It reads one value after the other, straight from the format's description, with Python's own
numbers, dates and codecs, and shares no code with the fast decoder. Damaged input raises
`ValueError` or `IndexError`. It knows the plain events with full images.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from rowferry.flow.capture.binlog.decode.table_map import MappedColumn, MappedTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CODECS = {8: "cp1252", 28: "gbk", 33: "utf-8", 35: "utf-16-be", 45: "utf-8", 46: "utf-8"}


class SlowRow(NamedTuple):
    """One row change: 0 insert, 1 update, 2 delete; images are lists of values."""

    op: int
    before: list[Any] | None
    after: list[Any] | None


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) < size:
            raise ValueError(f"{size} bytes wanted at {self.at}, {len(taken)} left")
        self.at += size
        return taken

    def little(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def big(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def packed(self) -> int:
        first = self.little(1)
        if first in (251, 255):
            raise ValueError("no length")
        return first if first < 251 else self.little({252: 2, 253: 3, 254: 8}[first])

    def bits(self, count: int) -> list[bool]:
        word = self.little((count + 7) // 8)
        return [bool(word >> i & 1) for i in range(count)]


def packed(number: int) -> bytes:
    """Write a packed integer."""
    if number < 251:
        return bytes([number])
    for first, size in ((252, 2), (253, 3), (254, 8)):
        if number < 1 << 8 * size:
            return bytes([first]) + number.to_bytes(size, "little")
    raise ValueError(number)


def rows_body(
    code: int, columns: int, images: list[list[bytes | None]], extra: bytes = b""
) -> bytes:
    """Write a rows event (what follows its 19-byte header), given images of encoded values."""
    bitmap = ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
    head = (77).to_bytes(6, "little") + b"\1\0"
    if code >= 30:
        head += (2 + len(extra)).to_bytes(2, "little") + extra
    head += packed(columns) + bitmap * (2 if code in (24, 31) else 1)
    return head + b"".join(map(_written_image, images))


def _written_image(values: list[bytes | None]) -> bytes:
    nulls = sum(1 << i for i, value in enumerate(values) if value is None)
    bitmap = nulls.to_bytes((len(values) + 7) // 8, "little")
    return bitmap + b"".join(value for value in values if value is not None)


def slow_rows(table: MappedTable, code: int, body: bytes) -> Iterator[SlowRow]:
    """Decode one rows event, given what follows its 19-byte header."""
    data = _Bytes(body)
    data.take(8)
    if code >= 30:
        extra = data.little(2)
        data.take(extra - 2)
    op = (code - 23) if code < 30 else (code - 30)
    count = data.packed()
    if count != len(table.columns):
        raise ValueError("another number of columns")
    for _ in range(2 if op == 1 else 1):
        if not all(data.bits(count)):
            raise ValueError("a partial image")
    while data.at < len(body):
        first = _image(table, data)
        if op == 1:
            yield SlowRow(1, first, _image(table, data))
        else:
            yield SlowRow(op, None, first) if op == 0 else SlowRow(op, first, None)


def _image(table: MappedTable, data: _Bytes) -> list[Any]:
    nulls = data.bits(len(table.columns))
    return [
        None if null else slow_value(column, data)
        for column, null in zip(table.columns, nulls, strict=True)
    ]


def slow_value(column: MappedColumn, data: _Bytes) -> Any:
    """Read one value in its canonical form."""
    code, meta = column.code, column.meta
    if code in (1, 2, 3, 8, 9):
        return data.little({1: 1, 2: 2, 3: 4, 8: 8, 9: 3}[code], not column.unsigned)
    if code == 4:
        return struct.unpack("<f", data.take(4))[0]
    if code == 5:
        return struct.unpack("<d", data.take(8))[0]
    if code == 246:
        return _decimal(data, meta >> 8, meta & 255)
    if code == 16:
        return data.big((meta + 7) // 8)
    if code in (247, 248):
        return data.little(meta)
    if code == 13:
        year = data.little(1)
        return year + 1900 if year else 0
    if code in (10, 14):
        return _date(data.little(3))
    if code in (7, 11, 12, 17, 18, 19):
        return _time(code, meta, data)
    if code in (15, 253, 254):
        return _string(column, data.take(data.little(1 if meta < 256 else 2)))
    if code == 252:
        return _string(column, data.take(data.little(meta)))
    content = data.take(data.little(meta))
    if code == 245:
        return slow_json(content)
    return content


def _string(column: MappedColumn, content: bytes) -> str | bytes:
    if column.collation == 63:
        return content.ljust(column.meta, b"\0") if column.code == 254 else content
    return content.decode(_CODECS[column.collation])


def _decimal(data: _Bytes, digits: int, scale: int) -> str:
    def size(count: int) -> int:
        return count // 9 * 4 + (count % 9 + 1) // 2

    raw = bytearray(data.take(size(digits - scale) + size(scale)))
    negative = not raw[0] & 0x80
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(b ^ 0xFF for b in raw)
    rest = _Bytes(bytes(raw))

    def side(count: int, odd_first: bool) -> str:
        groups = [9] * (count // 9)
        odd = [count % 9] if count % 9 else []
        text = ""
        for group in odd + groups if odd_first else groups + odd:
            digits = str(rest.big(size(group))).zfill(group)
            if len(digits) > group:
                raise ValueError("no decimal")
            text += digits
        return text

    whole, fraction = side(digits - scale, True), side(scale, False)
    number = Decimal(f"{whole or 0}.{fraction or 0}")
    text = (whole.lstrip("0") or "0") + ("." + fraction if scale else "")
    return "-" + text if negative and number else text


def _date(bits: int) -> str:
    year, month, day = bits >> 9, bits >> 5 & 15, bits & 31
    if month > 12 or year > 9999:
        raise ValueError("no date")
    return f"{year:04}-{month:02}-{day:02}"


def _time(code: int, digits: int, data: _Bytes) -> str:
    if code == 7:
        return _moment(data.little(4), 0, 0)
    if code == 12:
        text = f"{data.little(8):014}"
        if len(text) > 14 or int(text[4:6]) > 12:
            raise ValueError("no time")
        date = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
        return f"{date} {_clock(int(text[8:10]), int(text[10:12]), int(text[12:]), 23)}"
    if code == 11:
        number = data.little(3, signed=True)
        text = _clock(abs(number) // 10000, abs(number) // 100 % 100, abs(number) % 100, 838)
        return "-" + text if number < 0 else text
    size = (digits + 1) // 2
    if code == 19:
        number = data.big(3 + size) - (0x800000 << 8 * size)
        clock, fraction = divmod(abs(number), 1 << 8 * size)
        text = _clock(clock >> 12, clock >> 6 & 63, clock & 63, 838)
        return ("-" if number < 0 else "") + text + _fraction(fraction, size, digits)
    if code == 17:
        seconds = data.big(4)
        return _moment(seconds, data.big(size), digits)
    bits = data.big(5) - (1 << 39)
    if bits < 0 or bits >> 22 >= 130000:
        raise ValueError("no time")
    fraction = data.big(size)
    year, month = divmod(bits >> 22, 13)
    text = _clock(bits >> 12 & 31, bits >> 6 & 63, bits & 63, 23)
    date = f"{year:04}-{month:02}-{bits >> 17 & 31:02}"
    return f"{date} {text}{_fraction(fraction, size, digits)}"


def _clock(hour: int, minute: int, second: int, most: int) -> str:
    if hour > most or minute > 59 or second > 59:
        raise ValueError("no time")
    return f"{hour:02}:{minute:02}:{second:02}"


def _fraction(number: int, size: int, digits: int) -> str:
    if not digits:
        return ""
    text = str(number).zfill(2 * size)
    if len(text) > 2 * size:
        raise ValueError("no fraction")
    return "." + text[:digits]


def _moment(seconds: int, fraction: int, digits: int) -> str:
    text = _fraction(fraction, (digits + 1) // 2, digits)
    if seconds == 0 and fraction == 0:
        return "0000-00-00 00:00:00" + text
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S") + text


# --- JSON ----------------------------------------------------------------------------------------


def slow_json(document: bytes) -> str:
    """Write a binary document as the server does."""
    if not document:
        return "null"
    return _json(document[0], document[1:], 1)


def _json(kind: int, data: bytes, depth: int) -> str:
    if kind <= 3:
        return _container(kind, data, depth)
    if kind == 4:
        return ("null", "true", "false")[data[0]]
    if kind in (5, 6, 7, 8, 9, 10):
        return str(_Bytes(data).little({5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8}[kind], kind % 2 == 1))
    if kind == 11:
        return _double(struct.unpack("<d", _Bytes(data).take(8))[0])
    if kind == 12:
        return _quoted(_counted(data))
    if kind != 15:
        raise ValueError(f"no type {kind}")
    return _opaque(data[0], _counted(data[1:]))


def _counted(data: bytes) -> bytes:
    size = 0
    for i in range(5):
        size |= (data[i] & 127) << 7 * i
        if data[i] < 128:
            return _Bytes(data[i + 1 :]).take(size)
    raise ValueError("no length")


def _quoted(text: bytes) -> str:
    # The server leaves DEL and everything beyond ASCII as they are, as Python does.
    return json.dumps(text.decode(), ensure_ascii=False)


def _double(number: float) -> str:
    if number != number or abs(number) == float("inf"):
        raise ValueError("no number")
    if number == 0:
        return "-0.0" if str(number).startswith("-") else "0.0"
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # the number is 0.TEXT * 10 ** point
    if -15 < point <= 15 or 15 < point < len(text):
        if point <= 0:
            text = "0." + "0" * -point + text
        elif point >= len(text):
            text = text + "0" * (point - len(text)) + ".0"
        else:
            text = f"{text[:point]}.{text[point:]}"
    else:
        text = text[0] + ("." + text[1:] if len(text) > 1 else "") + f"e{point - 1}"
    return "-" * sign + text


def _opaque(kind: int, value: bytes) -> str:
    if kind == 246:
        if len(value) < 3 or not 1 <= value[0] <= 65 or value[1] > value[0]:
            raise ValueError("no decimal")
        rest = _Bytes(value[2:])
        text = _decimal(rest, value[0], value[1])
        if rest.at != len(rest.data):
            raise ValueError("no decimal")
        return text
    if kind not in (7, 10, 11, 12):
        lines = base64.encodebytes(value).decode().rstrip("\n").replace("\n", "\\n")
        return f'"base64:type{kind}:{lines}"'
    if len(value) != 8:
        raise ValueError("no time")
    bits = int.from_bytes(value, "little", signed=True)
    negative, bits = bits < 0, abs(bits) if kind == 11 else bits
    if bits < 0 or bits & 0xFFFFFF > 999_999:
        raise ValueError("no time")
    clock, day = bits >> 24 & 0x1FFFF, bits >> 41
    fraction = f".{bits & 0xFFFFFF:06}"
    if kind == 11:
        time = _clock(bits >> 36 & 0x3FF, clock >> 6 & 63, clock & 63, 838)
        return f'"{"-" if negative else ""}{time}{fraction}"'
    time = _clock(clock >> 12, clock >> 6 & 63, clock & 63, 23)
    if day >> 5 >= 130000:
        raise ValueError("no date")
    date = f"{(day >> 5) // 13:04}-{(day >> 5) % 13:02}-{day & 31:02}"
    return f'"{date}"' if kind == 10 else f'"{date} {time}{fraction}"'


def _container(kind: int, data: bytes, depth: int) -> str:
    if depth > 100:
        raise ValueError("too deep")
    wide = 4 if kind in (1, 3) else 2
    head = _Bytes(data)
    count, size = head.little(wide), head.little(wide)
    if size > len(data):
        raise ValueError("cut short")
    head = _Bytes(data[:size])
    head.take(2 * wide)
    keys = []
    if kind <= 1:
        for _ in range(count):
            begin, length = head.little(wide), head.little(2)
            if begin + length > size:
                raise ValueError("a key outside")
            keys.append(data[begin : begin + length])
    parts = []
    for _ in range(count):
        entry = head.take(1 + wide)
        inline = entry[0] in (4, 5, 6) or (wide == 4 and entry[0] in (7, 8))
        begin = int.from_bytes(entry[1:], "little")
        parts.append(_json(entry[0], entry[1:] if inline else data[begin:size], depth + 1))
    if kind > 1:
        return f"[{', '.join(parts)}]"
    return "{" + ", ".join(f"{_quoted(k)}: {v}" for k, v in zip(keys, parts, strict=True)) + "}"
