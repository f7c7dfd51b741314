"""The columns of a lake's table, and what becomes of them when the source's table changes.

Their JSON form is that of a Delta schema; tables of other formats keep it in a property.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

import pyarrow as pa

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.change.typed_columns import typed
from rowferry.errors import BadInput, SchemaChangeRefused
from rowferry.flow.sink.lake.columns import BEFORE, LakeColumns, is_wider, keeps_values

_NOT_PLAIN: Final = frozenset(" ,;{}()\n\t=")  # in names of columns without a mapping
_CHOICES: Final = (
    "the lake's table cannot follow; choose: rowferry changefeed reset --snapshot, which fills it "
    "anew with the new type, or leave the column or the table out by a rule"
)
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_SOURCE, _SCALE, _TYPE = "rowferry.column", "rowferry.scale", "rowferry.type"
_IMPLICIT: Final[dict[Kind, Any]] = {
    Kind.INTEGER: 0,
    Kind.YEAR: 0,
    Kind.BIT: 0,
    Kind.FLOAT: 0.0,
    Kind.DOUBLE: 0.0,
    Kind.DECIMAL: "0",
    Kind.TEXT: "",
    Kind.BINARY: b"",
    Kind.ENUM: 1,
    Kind.SET: 0,
}


@dataclass(frozen=True, slots=True)
class StoredField:
    """One column.

    Attributes:
        kind: the name of the type, as Delta has it.
        source: the column's number in the source's table; 0: it is ours.
        scale: digits of a second's fraction in the source.
        physical: its name in data files.
        id: its number in the table's mapping; 0: the table has none.
        source_type: its type in the source, as JSON; empty: not noted.
    """

    name: str
    kind: str
    source: int
    scale: int
    physical: str
    id: int = 0
    comment: str = ""
    source_type: str = ""


@dataclass(frozen=True, slots=True)
class Filled:
    """A column that rows from before it was added have a value in."""

    physical: str
    column: Column


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """All columns of a table version; `mapped`: names in data files are other than readers'."""

    fields: tuple[StoredField, ...]
    mapped: bool = False
    max_id: int = 0

    @property
    def physical(self) -> dict[str, str]:
        """Names in data files, by the names that readers see."""
        return {f.name: f.physical for f in self.fields}

    @property
    def kinds(self) -> set[str]:
        """The names of all types."""
        return {f.kind for f in self.fields}

    def schema_text(self) -> str:
        """Return the JSON form that a table's metadata holds."""
        plain = [f for f in self.fields if f.source]
        top = []
        for field in self.fields:
            kind: Any = field.kind
            if field.kind == "struct":
                # Fields of old rows have their columns' names; their numbers follow all others.
                inner = [replace(f, id=self.max_id + 1 + i) for i, f in enumerate(plain)]
                kind = {"type": "struct", "fields": [self._form(f, f.kind) for f in inner]}
            top.append(self._form(field, kind))
        return json.dumps({"type": "struct", "fields": top}, ensure_ascii=False)

    @property
    def last_id(self) -> int:
        """The highest number in the mapping."""
        nested = any(f.kind == "struct" for f in self.fields)
        return self.max_id + (sum(1 for f in self.fields if f.source) if nested else 0)

    def _form(self, field: StoredField, kind: Any) -> dict[str, Any]:
        about: dict[str, Any] = {_SOURCE: field.source, _SCALE: field.scale}
        if field.comment:
            about["comment"] = field.comment
        if field.source_type:
            about[_TYPE] = field.source_type
        if self.mapped:
            about |= {_ID: field.id, _PHYSICAL: field.physical}
        return {"name": field.name, "type": kind, "nullable": True, "metadata": about}

    @classmethod
    def read(cls, text: str, mapped: bool, max_id: int) -> StoredColumns | None:
        """Read what `schema_text` gave; None: these are columns of somebody else.

        `max_id` is the highest number that any column of the table ever had, as far as is noted.

        Raises:
            ValueError: these are no columns at all.
        """
        try:
            all_fields = [_read_field(form) for form in json.loads(text)["fields"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("no columns of a table") from None
        fields = tuple(field for field in all_fields if field is not None)
        if len(fields) < len(all_fields):
            return None
        return cls(fields, mapped, max([max_id, *(f.id for f in fields)]))


def _read_field(form: dict[str, Any]) -> StoredField | None:
    """Return a column; None: it is not ours.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    about = form.get("metadata") or {}
    if _SOURCE not in about:
        return None
    kind = form["type"] if isinstance(form["type"], str) else "struct"
    name = form["name"]
    numbers = (about[_SOURCE], about.get(_SCALE, 0), about.get(_ID, 0))
    texts = (name, about.get(_PHYSICAL, name), about.get("comment", ""), about.get(_TYPE, ""))
    if not all(type(n) is int for n in numbers) or not all(isinstance(t, str) for t in texts):
        raise ValueError
    return StoredField(
        name,
        kind,
        source=numbers[0],
        scale=numbers[1],
        physical=texts[1],
        id=numbers[2],
        comment=texts[2],
        source_type=texts[3],
    )


@dataclass(frozen=True, slots=True)
class Evolution:
    """The next columns of a table, and what old rows need: nothing, or to be written anew."""

    columns: StoredColumns
    filled: tuple[Filled, ...] = ()
    casts: tuple[str, ...] = ()  # physical names

    @property
    def rewrites(self) -> bool:
        """Whether rows that are there must be written anew."""
        return bool(self.filled or self.casts)


def lake_kind(kind: pa.DataType) -> str:
    """Return the name of a type, as Delta has it."""
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return {
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.date32(): "date",
    }[kind]


def evolve(
    old: StoredColumns | None,
    table: TableSchema,
    lake: LakeColumns,
    mapped: bool = False,
    emptied: StoredColumns | None = None,
) -> Evolution:
    """Return the columns that a table's version has in the lake, after those that it had.

    Columns keep their names in data files: a renamed one is the same, and one that was dropped and
    added again is another. `mapped`: columns have numbers from the beginning. `emptied`: those of a
    table that begins anew; what its history says of their numbers stays true.

    Raises:
        SchemaChangeRefused: old rows cannot be made to fit; the text has the choices.
    """
    wanted = _wanted(table, lake)
    if old is None:
        strange = any(set(f.name) & _NOT_PLAIN for f in wanted)
        ids, last = _fresh_ids(wanted, emptied)
        fields = [
            replace(f, id=i, physical=f"col-{i}" if strange and f.source else f.name)
            for i, f in zip(ids, wanted, strict=True)
        ]
        return Evolution(_settled(fields, mapped or strange, last))
    matched = _matched(old, wanted)
    gone = {f.physical for f in old.fields} - {m.physical for m in matched if m}
    renamed = any(m and m.name != w.name for m, w in zip(matched, wanted, strict=True))
    added = [w for m, w in zip(matched, wanted, strict=True) if m is None]
    mapped = old.mapped or bool(gone) or renamed or any(set(w.name) & _NOT_PLAIN for w in added)
    max_id = old.max_id or len(old.fields)
    known = {f.physical: f.id or i for i, f in enumerate(old.fields, 1)}
    fields, filled, casts = [], [], []
    for match, want in zip(matched, wanted, strict=True):
        if match is None:
            max_id += 1
            physical = _new_physical(max_id) if mapped else want.name
            fields.append(replace(want, physical=physical, id=max_id))
            column = table.column(want.name)
            if _fills(column, table):
                filled.append(Filled(physical, column))
            continue
        if _needs_cast(match, want, table, lake):
            casts.append(match.physical)
        if table.inferred:  # the log's own description does not have every type by its name
            want = replace(want, source_type=match.source_type)
        elif want.source and not lake.changelog:
            _require_values(match, want, table)
        fields.append(replace(want, physical=match.physical, id=known[match.physical]))
    return Evolution(_settled(fields, mapped, max_id), tuple(filled), tuple(casts))


def _fresh_ids(
    wanted: Sequence[StoredField], emptied: StoredColumns | None
) -> tuple[list[int], int]:
    """Return the numbers of a new table's columns, and the highest one that any ever had."""
    known = {(f.name, f.kind): f.id for f in emptied.fields} if emptied is not None else {}
    last = emptied.max_id if emptied is not None else 0
    ids = []
    for field in wanted:
        number = known.get((field.name, field.kind), 0)
        if not number:
            last = number = last + 1
        ids.append(number)
    return ids, last


def _new_physical(number: int) -> str:
    """Return the name in data files of a column that was added.

    Names of the source stand there, too, also of columns that were dropped: no source has this one.
    """
    return f"col-{uuid5(NAMESPACE_OID, str(number))}"


def _settled(fields: Sequence[StoredField], mapped: bool, max_id: int) -> StoredColumns:
    return StoredColumns(tuple(f if mapped else replace(f, id=0) for f in fields), mapped, max_id)


def _wanted(table: TableSchema, lake: LakeColumns) -> list[StoredField]:
    fields = []
    for field in lake.schema(table):
        own = lake.changelog and field.name.lower() not in table.by_name
        column = None if own else table.column(field.name)
        fields.append(
            StoredField(
                field.name,
                lake_kind(field.type),
                column.id if column else 0,
                column.type.fraction_digits if column else 0,
                field.name,
                comment=column.comment if column else "",
                source_type=json.dumps(column.type.to_json(), sort_keys=True) if column else "",
            )
        )
    return fields


def _matched(old: StoredColumns, wanted: list[StoredField]) -> list[StoredField | None]:
    by_name = {f.name: f for f in old.fields}
    by_source = {f.source: f for f in old.fields if f.source}
    return [by_source.get(w.source) if w.source else by_name.get(w.name) for w in wanted]


def _fills(column: Column, table: TableSchema) -> bool:
    """Return whether older rows have something other than NULL in a column that was added."""
    if column.untold:
        raise SchemaChangeRefused(
            f"{table.id}: no statement that could be read tells what older rows have in the column "
            f"{column.name!r}: it may be an earlier column by another name; {_CHOICES}"
        )
    if column.auto_increment:
        raise SchemaChangeRefused(
            f"{table.id}: the source has numbered older rows in the new column {column.name!r}, "
            f"which the log does not hold; {_CHOICES}"
        )
    if column.generated or (column.expression and column.filled is None):
        raise SchemaChangeRefused(
            f"{table.id}: older rows have computed values in the new column {column.name!r}, which "
            f"the log does not hold; {_CHOICES}"
        )
    if column.filled is not None:
        return True
    if column.nullable:
        return False
    if column.type.kind in _IMPLICIT:
        return True
    raise SchemaChangeRefused(
        f"{table.id}: what older rows have in the new column {column.name!r} ({column.type.sql} "
        f"NOT NULL without a default) is not known; {_CHOICES}"
    )


def fill_value(filled: Filled, table: TableSchema, lake: LakeColumns) -> pa.Scalar:
    """Return what older rows have in a column that was added.

    Raises:
        SchemaChangeRefused: that is not known.
    """
    column = filled.column
    given = column.filled if column.filled is not None else _IMPLICIT[column.type.kind]
    try:
        raw = pa.array([given])
        if pa.types.is_string(raw.type) and column.type.kind in (Kind.ENUM, Kind.SET):
            return pa.scalar(given, pa.string())
        plain = (
            raw.cast(pa.large_string()).cast(column.type.arrow) if raw.type == pa.string() else raw
        )
        values = typed(plain.cast(column.type.arrow), column, table, lake.native)
        if values.null_count:
            raise ValueError(given)
        return values[0]
    except (pa.ArrowException, ValueError, TypeError):
        raise SchemaChangeRefused(
            f"{table.id}: what older rows have in the new column {column.name!r} (default "
            f"{given!r}) is not known; {_CHOICES}"
        ) from None


def _needs_cast(old: StoredField, new: StoredField, table: TableSchema, lake: LakeColumns) -> bool:
    """Return whether values must be written anew for a column whose type has changed."""
    if new.kind == old.kind:
        if old.scale == new.scale or not new.source or old.kind.startswith("decimal"):
            return False
        if new.kind in ("timestamp", "timestamp_ntz") and new.scale > old.scale:
            return False
        timed = table.column(new.name).type.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
        if not timed:
            return False
    elif is_wider(old.kind, new.kind) and not lake.changelog:
        return True
    raise SchemaChangeRefused(
        f"{table.id}: the type of column {new.name!r} changed to {table.column(new.name).type.sql} "
        f"(in the lake from {old.kind} to {new.kind}); {_CHOICES}"
    )


def _require_values(old: StoredField, new: StoredField, table: TableSchema) -> None:
    """Raise where the source has changed the values of older rows with their column's type."""
    column = table.column(new.name)
    try:
        before = SqlType.from_json(json.loads(old.source_type))
    except (ValueError, RecursionError, BadInput):
        return  # of a table, or with a type, that another version wrote
    if not keeps_values(before, column.type, new.kind):
        raise SchemaChangeRefused(
            f"{table.id}: the type of column {new.name!r} changed from {before.sql} to "
            f"{column.type.sql}, by which the source may have changed older rows; {_CHOICES}"
        )


def arrow_type(kind: str) -> pa.DataType:
    """Return the type that a column of a data file has; of our own structs, none."""
    if kind.startswith("decimal("):
        return pa.decimal128(*(int(n) for n in kind[8:-1].split(",")))
    return {
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[kind]


NESTED: Final = BEFORE
