"""Reads TABLE_MAP events: a table's columns as the log describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeAlias

from rowferry.change.table import TableId
from rowferry.errors import CorruptLog, EventUnknown
from rowferry.mysql.charsets import charset_of, decoded
from rowferry.mysql.session import Flavour

# Column type codes of the log.
TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = (
    242,
    245,
    246,
    247,
    248,
    252,
    253,
    254,
    255,
)
INTEGERS: Final = {
    TINY: "tinyint",
    SHORT: "smallint",
    INT24: "mediumint",
    LONG: "int",
    LONGLONG: "bigint",
}
# Types with a bit in the list of signs.
_NUMERIC: Final = frozenset({*INTEGERS, FLOAT, DOUBLE, NEWDECIMAL, YEAR})
STRINGS: Final = frozenset({VARCHAR, VAR_STRING, STRING, VARCHAR_COMPRESSED})
BLOBS: Final = frozenset({BLOB, BLOB_COMPRESSED})
# Bytes of a column's metadata; types that are not here have none.
_META_BYTES: Final = {
    **dict.fromkeys((FLOAT, DOUBLE, *BLOBS, JSON, GEOMETRY, VECTOR), 1),
    **dict.fromkeys((TIMESTAMP2, DATETIME2, TIME2), 1),
    **dict.fromkeys((*STRINGS, BIT, NEWDECIMAL, ENUM, SET), 2),
}
_NO_META: Final = frozenset({*INTEGERS, TIMESTAMP, DATE, TIME, DATETIME, YEAR, NEWDATE})

# Kinds of optional metadata.
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_ELEMENTS, _ENUM_ELEMENTS = range(1, 7)
_GEOMETRY_TYPE, _SIMPLE_KEY, _PREFIX_KEY, _ENUM_DEFAULT_CHARSET, _ENUM_CHARSET = range(7, 12)
_VISIBILITY, _VECTOR_DIMENSIONS = 12, 13


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """One column as the log describes it.

    Attributes:
        code: its type; ENUM and SET are told apart from STRING already.
        meta: length in bytes of strings, digits << 8 | scale of decimals, bits of BIT, bytes of
            a value of ENUM and SET, bytes of the length of BLOBs and their like, fraction digits
            of times.
        unsigned: of numbers; false without metadata.
        collation: number of its collation; 0: not known or none.
        elements: of ENUM and SET.
    """

    name: str
    code: int
    meta: int
    unsigned: bool = False
    nullable: bool = True
    collation: int = 0
    elements: tuple[str, ...] = ()
    visible: bool = True
    vector_dimensions: int = 0


@dataclass(frozen=True, slots=True)
class MappedTable:
    """A table as the log describes it.

    Attributes:
        number: the log's own number of the table; it changes with every DDL and restart.
        primary_key: places of the columns of the key that the server takes for primary.
        has_metadata: names and all else are there (`binlog_row_metadata=FULL`).
    """

    number: int
    table: TableId
    columns: tuple[MappedColumn, ...]
    primary_key: tuple[int, ...] = ()
    has_metadata: bool = True


_Facts: TypeAlias = tuple[tuple[MappedColumn, ...], tuple[int, ...], bool]


class _Reader:
    """Reads a TABLE_MAP's fields; a read beyond its end is an error that names the table."""

    def __init__(self, body: bytes, table: str) -> None:
        self._body = body
        self.place = 0
        self.table = table

    @property
    def more(self) -> bool:
        return self.place < len(self._body)

    def fail(self, words: str) -> NoReturn:
        raise CorruptLog(f"TABLE_MAP_EVENT of {self.table}, byte {self.place}: {words}")

    def take(self, size: int) -> bytes:
        if size > len(self._body) - self.place:
            self.fail("it is cut short")
        self.place += size
        return self._body[self.place - size : self.place]

    def packed(self) -> int:
        first = self.take(1)[0]
        if first < 251:
            return first
        sizes = {252: 2, 253: 3, 254: 8}
        if first not in sizes:
            self.fail("a length cannot be read")
        return int.from_bytes(self.take(sizes[first]), "little")

    def all_packed(self) -> list[int]:
        numbers = []
        while self.more:
            numbers.append(self.packed())
        return numbers

    def text(self) -> bytes:
        return self.take(self.packed())


def parse_table_map(body: bytes, flavour: Flavour) -> MappedTable:
    """Read a TABLE_MAP event, without its 19-byte header and its checksum.

    Without FULL metadata columns have no names, and `has_metadata` is false.

    Raises:
        CorruptLog: the bytes are damaged.
        EventUnknown: a column's type is not known here.
    """
    reader = _Reader(body, "a table")
    number = int.from_bytes(reader.take(6), "little")
    reader.take(2)  # flags
    names = []
    for _ in range(2):
        names.append(reader.take(reader.take(1)[0]).decode("utf-8", "replace"))
        reader.take(1)  # a zero byte
    table = TableId(*names)
    reader.table = str(table)
    rest = (body[reader.place :], flavour)
    facts = _KNOWN.get(rest)
    if facts is None:
        facts = _columns(reader, table, flavour)
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        _KNOWN[rest] = facts
    return MappedTable(number, table, *facts)


def _columns(reader: _Reader, table: TableId, flavour: Flavour) -> _Facts:
    """Read what follows the table's name: columns, key, and whether there is metadata."""
    count = reader.packed()
    codes = reader.take(count)
    metas = _Reader(reader.text(), reader.table)
    columns = [_column(code, metas, table) for code in codes]
    if metas.more:
        metas.fail("its columns have more metadata than their types need")
    nullable = reader.take((count + 7) // 8)
    nulls = [bool(nullable[i >> 3] >> (i & 7) & 1) for i in range(count)]
    fields: dict[int, bytes] = {}
    while reader.more:
        kind = reader.take(1)[0]
        fields[kind] = reader.text()
    metadata = _Metadata(fields, columns, nulls, table, flavour)
    return metadata.columns(), metadata.primary_key(), _NAMES in fields


# Many tables may be made alike: what follows their names is read once.
_REMEMBERED: Final = 1024
_KNOWN: Final[dict[tuple[bytes, Flavour], _Facts]] = {}


def _column(code: int, metas: _Reader, table: TableId) -> MappedColumn:
    if code not in _META_BYTES and code not in _NO_META:
        raise EventUnknown(f"TABLE_MAP_EVENT of {table}: column type {code} is not known here")
    raw = metas.take(_META_BYTES.get(code, 0))
    meta = int.from_bytes(raw, "little")
    if code == STRING:
        # The first byte is the real type, two of its bits are the upper bits of the length.
        kind, meta = raw[0], raw[1]
        if kind & 0x30 != 0x30:
            meta |= (kind & 0x30 ^ 0x30) << 4
            kind |= 0x30
        if kind not in (STRING, ENUM, SET):
            raise EventUnknown(f"TABLE_MAP_EVENT of {table}: column type {kind} is not known here")
        code = kind
    elif code == NEWDECIMAL:
        meta = raw[0] << 8 | raw[1]
    elif code == BIT:
        meta = raw[1] * 8 + raw[0]
    elif code in (ENUM, SET):
        meta = raw[1]
    column = MappedColumn("", code, meta)
    if not _is_possible(column):
        metas.fail(f"metadata {meta} does not fit column type {code}")
    return column


def _is_possible(column: MappedColumn) -> bool:
    code, meta = column.code, column.meta
    if code in BLOBS or code in (JSON, GEOMETRY, VECTOR):
        return 1 <= meta <= 4
    if code == NEWDECIMAL:
        return 1 <= meta >> 8 <= 65 and meta & 255 <= min(meta >> 8, 38)
    if code in (TIMESTAMP2, DATETIME2, TIME2):
        return meta <= 6
    if code == BIT:
        return 1 <= meta <= 64
    if code in (ENUM, SET):
        return 1 <= meta <= (2 if code == ENUM else 8)
    return True


class _Metadata:
    """The optional metadata of one TABLE_MAP, given to its columns."""

    def __init__(
        self,
        fields: dict[int, bytes],
        columns: list[MappedColumn],
        nulls: list[bool],
        table: TableId,
        flavour: Flavour,
    ) -> None:
        self._fields = fields
        # MariaDB counts geometries among the strings, and MySQL its vectors.
        self._strings = STRINGS | BLOBS | {GEOMETRY if flavour is Flavour.MARIADB else VECTOR}
        self._columns = columns
        self._facts: list[dict[str, Any]] = [{"nullable": n} for n in nulls]
        self._table = table

    def columns(self) -> tuple[MappedColumn, ...]:
        self._signs()
        self._collations(self._places(self._strings), _DEFAULT_CHARSET, _COLUMN_CHARSET)
        self._collations(self._places({ENUM, SET}), _ENUM_DEFAULT_CHARSET, _ENUM_CHARSET)
        self._elements(ENUM, _ENUM_ELEMENTS)
        self._elements(SET, _SET_ELEMENTS)
        if _NAMES in self._fields:
            reader = self._reader(_NAMES)
            for place in range(len(self._columns)):
                self._set(place, name=reader.text().decode("utf-8", "replace"))
            if reader.more:
                reader.fail("it has more names than columns")
        for place, count in self._numbers({VECTOR}, _VECTOR_DIMENSIONS):
            self._set(place, vector_dimensions=count)
        if _VISIBILITY in self._fields:
            everything = list(range(len(self._columns)))
            for place, visible in self._bits(everything, _VISIBILITY):
                self._set(place, visible=visible)
        return tuple(replace(c, **f) for c, f in zip(self._columns, self._facts, strict=True))

    def primary_key(self) -> tuple[int, ...]:
        if _PREFIX_KEY in self._fields:
            key = tuple(self._reader(_PREFIX_KEY).all_packed()[::2])  # place, prefix length
        elif _SIMPLE_KEY in self._fields:
            key = tuple(self._reader(_SIMPLE_KEY).all_packed())
        else:
            return ()
        if any(place >= len(self._columns) for place in key):
            self._reader(_SIMPLE_KEY).fail("its key has a column that is not there")
        return key

    def _reader(self, kind: int) -> _Reader:
        return _Reader(self._fields.get(kind, b""), f"{self._table}, metadata {kind}")

    def _set(self, place: int, **facts: object) -> None:
        self._facts[place].update(facts)

    def _places(self, codes: frozenset[int] | set[int]) -> list[int]:
        return [i for i, c in enumerate(self._columns) if c.code in codes]

    def _bits(self, places: list[int], kind: int) -> list[tuple[int, bool]]:
        bits = self._reader(kind).take((len(places) + 7) // 8)
        return [(p, bool(bits[i >> 3] & (0x80 >> (i & 7)))) for i, p in enumerate(places)]

    def _numbers(self, codes: set[int], kind: int) -> list[tuple[int, int]]:
        numbers = self._reader(kind).all_packed()
        return list(zip(self._places(codes), numbers, strict=False))

    def _signs(self) -> None:
        if _SIGNEDNESS in self._fields:
            for place, unsigned in self._bits(self._places(_NUMERIC), _SIGNEDNESS):
                self._set(place, unsigned=unsigned)

    def _collations(self, places: list[int], default: int, each: int) -> None:
        if each in self._fields:
            for place, collation in zip(places, self._reader(each).all_packed(), strict=False):
                self._set(place, collation=collation)
        if default in self._fields:
            numbers = self._reader(default).all_packed()
            others = dict(zip(numbers[1::2], numbers[2::2], strict=False))
            for i, place in enumerate(places):
                self._set(place, collation=others.get(i, numbers[0] if numbers else 0))

    def _elements(self, code: int, kind: int) -> None:
        if kind not in self._fields:
            return
        reader = self._reader(kind)
        for place in self._places({code}):
            texts = [reader.text() for _ in range(reader.packed())]
            charset = charset_of(self._facts[place].get("collation", 0))
            known = "utf8mb4" if charset in ("", "binary") else charset
            self._set(place, elements=decoded(known, texts))
