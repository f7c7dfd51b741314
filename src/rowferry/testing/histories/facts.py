"""What the database itself says of a table: its columns, its keys, and exact values of its rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Name = tuple[str, str]
Value = Any  # int, float, str, bytes, Named, tuple of floats, or None
Image = dict[str, Value]
Ask = Callable[[str], Sequence[Sequence[Any]]]

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit")
TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
SHAPES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geomcollection",
    "geometrycollection",
)


@dataclass(frozen=True, slots=True)
class Named:
    """A value of an ENUM or SET: its number and its name."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column as information_schema tells it."""

    name: str
    type: str  # its base type, such as `varchar`
    full: str  # its whole type, such as `varchar(20)`
    charset: str
    nullable: bool
    generated: bool
    virtual: bool
    invisible: bool
    auto_increment: bool
    default: str | None
    family: str  # int, float, double, decimal, text, bytes, named, json, vector, time, other

    @property
    def unsigned(self) -> bool:
        """Whether it takes no sign."""
        return "unsigned" in self.full

    @property
    def length(self) -> int:
        """The number in brackets; 0 without one."""
        inside = self.full.partition("(")[2].partition(")")[0].partition(",")[0]
        return int(inside) if inside.isdigit() else 0

    def expressions(self) -> list[str]:
        """Return what to select for an exact value."""
        name = quoted(self.name)
        match self.family:
            case "int" | "float" | "double":
                # a product, not a sum: 0 added to -0 is 0
                return [f"{name} + 0" if self.family == "int" else f"{name} * 1e0"]
            case "bytes" | "vector":
                return [f"HEX({name})"]
            case "named":
                return [f"{name} + 0", f"HEX(CONVERT({name} USING utf8mb4))"]
            case "text" | "json":
                return [f"HEX(CONVERT({name} USING utf8mb4))"]
            case _:
                return [f"CAST({name} AS CHAR)"]

    def value(self, parts: Sequence[Any]) -> Value:
        """Return the value of what was selected."""
        first = parts[0]
        if first is None:
            return None
        match self.family:
            case "int":
                return int(first)
            case "float" | "double":
                return float(first)
            case "bytes":
                return bytes.fromhex(_text(first))
            case "vector":
                raw = bytes.fromhex(_text(first))
                return struct.unpack(f"<{len(raw) // 4}f", raw)
            case "named":
                return Named(int(first), bytes.fromhex(_text(parts[1])).decode())
            case "text" | "json":
                return bytes.fromhex(_text(first)).decode()
            case _:
                return _text(first)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table's definition at one moment."""

    name: Name
    columns: tuple[ColumnFacts, ...]
    primary: tuple[str, ...]
    uniques: tuple[tuple[str, tuple[str, ...]], ...]  # also the primary key; by index name
    indexes: tuple[str, ...]
    partitions: tuple[str, ...]
    partitioned_by: str
    parts: frozenset[str] = frozenset()  # unique indexes over beginnings of columns
    triggers: int = 0
    parents: int = 0  # foreign keys from or to it

    @property
    def sent(self) -> list[str]:
        """The names of the columns that a feed carries, in order."""
        return [c.name for c in self.columns if not c.virtual]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none: nothing does."""
        if self.primary:
            return self.primary
        known = {c.name: c for c in self.columns}
        for index, names in self.uniques:
            if index in self.parts:  # it compares beginnings only
                continue
            if names and all(n in known and not known[n].nullable for n in names):
                return names
        return ()

    @property
    def unique_columns(self) -> set[str]:
        """The columns whose change splits an update."""
        return {n for index, names in self.uniques if index not in self.parts for n in names}

    def column(self, name: str) -> ColumnFacts:
        """Return a column."""
        return next(c for c in self.columns if c.name == name)


Rows = dict[Any, Image]  # by key; of a table without one, by image with a counter
State = Mapping[Name, Rows]


def quoted(name: str) -> str:
    """Return a name in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def full_name(name: Name) -> str:
    """Return database and table in back quotes."""
    return f"{quoted(name[0])}.{quoted(name[1])}"


def literal(text: str) -> str:
    """Return a text as SQL that means the same in every sql_mode."""
    return f"CONVERT(0x{text.encode().hex()} USING utf8mb4)" if text else "''"


def read_tables(ask: Ask, databases: Sequence[str]) -> dict[Name, TableFacts]:
    """Return the tables of some databases."""
    if not databases:
        return {}
    places = ", ".join(literal(d) for d in databases)
    where = f"WHERE BINARY TABLE_SCHEMA IN ({places})"
    listed = ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
        f"{where} AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    )
    entries: dict[Name, dict[str, Any]] = {
        (_text(d), _text(t)): {"columns": [], "indexes": {}, "partitions": [], "parts": set()}
        for d, t in listed
    }
    (version,) = ask("SELECT VERSION()")[0]
    hides = "MariaDB" in _text(version) and int(_text(version).split(".")[0]) >= 11
    for row in ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, "
        "IS_NULLABLE, EXTRA, COLUMN_DEFAULT FROM information_schema.COLUMNS "
        f"{where} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
    ):
        parts = [None if v is None else _text(v) for v in row]
        if (entry := entries.get((str(parts[0]), str(parts[1])))) is not None:
            entry["columns"].append(_column(parts[2:], hides))
    for row in ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART FROM "
        f"information_schema.STATISTICS {where} "
        "ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
    ):
        parts = [None if v is None else _text(v) for v in row]
        database, table, index, plain, column, part = parts
        if (entry := entries.get((str(database), str(table)))) is not None:
            unique, names = entry["indexes"].setdefault(index, (plain == "0", []))
            names.append(column)
            if part is not None and index != "PRIMARY":
                entry["parts"].add(index)
    for row in ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, PARTITION_METHOD FROM "
        f"information_schema.PARTITIONS {where} AND PARTITION_NAME IS NOT NULL "
        "ORDER BY PARTITION_ORDINAL_POSITION"
    ):
        name = (_text(row[0]), _text(row[1]))
        if name in entries and (text := _text(row[2])) not in entries[name]["partitions"]:
            entries[name]["partitions"].append(text)
            entries[name]["method"] = _text(row[3])
    places_of = {
        "triggers": "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM "
        f"information_schema.TRIGGERS WHERE BINARY EVENT_OBJECT_SCHEMA IN ({places})",
        "parents": "SELECT CONSTRAINT_SCHEMA, TABLE_NAME FROM "
        f"information_schema.REFERENTIAL_CONSTRAINTS WHERE BINARY CONSTRAINT_SCHEMA IN ({places}) "
        "UNION ALL SELECT UNIQUE_CONSTRAINT_SCHEMA, REFERENCED_TABLE_NAME FROM "
        f"information_schema.REFERENTIAL_CONSTRAINTS WHERE BINARY CONSTRAINT_SCHEMA IN ({places})",
    }
    for what, sql in places_of.items():
        for row in ask(sql):
            name = (_text(row[0]), _text(row[1]))
            if name in entries:
                entries[name][what] = entries[name].get(what, 0) + 1
    return {name: _table(name, entry) for name, entry in entries.items()}


def read_rows(ask: Ask, table: TableFacts, known: Rows | None = None) -> Rows:
    """Return a table's rows by key; an image that did not change is the one of `known`."""
    expressions = [c.expressions() for c in table.columns]
    wanted = ", ".join(e for group in expressions for e in group)
    rows: Rows = {}
    for row in ask(f"SELECT {wanted} FROM {full_name(table.name)}"):
        image: Image = {}
        at = 0
        for column, group in zip(table.columns, expressions, strict=True):
            image[column.name] = column.value(row[at : at + len(group)])
            at += len(group)
        key: Any
        if table.key:
            key = tuple(image[n] for n in table.key)
        else:
            text, count = repr(image), 0
            while (text, count) in rows:
                count += 1
            key = (text, count)
        if known is not None and (old := known.get(key)) is not None and same(old, image):
            image = old
        rows[key] = image
    return rows


def same(one: Image | None, other: Image | None) -> bool:
    """Return whether two images are equal to the last bit: -0.0 is not 0.0."""
    if one is None or other is None:
        return one is other
    return one == other and repr(one) == repr(other)


def _column(parts: Sequence[str | None], hides: bool) -> ColumnFacts:
    """Make a column; `hides`: the server's log has no generated ones, so none of them is sent."""
    name, kind, full, charset, nullable, extra, default = parts
    base = str(kind).lower()
    more = str(extra).upper()
    made = "GENERATED" in more and "DEFAULT_GENERATED" not in more
    return ColumnFacts(
        name=str(name),
        type=base,
        full=str(full),
        charset=charset or "",
        nullable=nullable == "YES",
        generated=made,
        virtual=made if hides else "VIRTUAL GENERATED" in more,
        invisible="INVISIBLE" in more,
        auto_increment="AUTO_INCREMENT" in more,
        default=default,
        family=_family(base),
    )


def _family(base: str) -> str:
    if base in INTEGERS:
        return "int"
    if base in TEXTS:
        return "text"
    if base in BYTES or base in SHAPES:
        return "bytes"
    same_name = ("float", "double", "decimal", "json", "vector")
    if base in same_name:
        return base
    if base in ("enum", "set"):
        return "named"
    return "time" if base in ("date", "datetime", "timestamp", "time") else "other"


def _table(name: Name, entry: Mapping[str, Any]) -> TableFacts:
    uniques = [(n, tuple(c)) for n, (unique, c) in entry["indexes"].items() if unique]
    primary = next((c for n, c in uniques if n == "PRIMARY"), ())
    whole = [(n, c) for n, c in uniques if None not in c]
    whole.sort(key=lambda one: len(one[1]))  # stable: the fewest columns first
    return TableFacts(
        name=name,
        columns=tuple(entry["columns"]),
        primary=primary,
        uniques=tuple(whole),
        indexes=tuple(entry["indexes"]),
        partitions=tuple(entry["partitions"]),
        partitioned_by=entry.get("method", ""),
        parts=frozenset(entry["parts"]),
        triggers=entry.get("triggers", 0),
        parents=entry.get("parents", 0),
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
