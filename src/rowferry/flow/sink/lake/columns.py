"""The image of every column type in a lake, and columns of rows in these types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.change.typed_columns import (
    COMMIT_TS,
    OP,
    OP_NAMES,
    SEQ,
    SRID_BYTES,
    column_type,
    place_in_batch,
    typed,
)
from rowferry.errors import BadInput, EncodeError, SchemaChangeRefused

BEFORE: Final = "_before"
CHOICES: Final = (
    "the lake's table cannot follow; choose: rowferry changefeed reset --snapshot, which fills it "
    "anew with the new type, or leave the column or the table out by a rule"
)
IMPLICIT: Final[dict[Kind, Any]] = {
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
_WITH_SPACES: Final = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})


class LakeColumns:
    """How the rows of tables become columns of a lake's tables.

    Attributes:
        changelog: each change is a row, with four columns of our own.
        native: dates and times have types of their own, and are not texts.
    """

    def __init__(self, mode: str, zero_date: str) -> None:
        self.changelog = mode == "changelog"
        self.native = zero_date != "string"
        self._zero_is_null = zero_date == "null"

    def type_of(self, kind: SqlType) -> pa.DataType:
        """Return the type that a column's values have in a lake."""
        return column_type(kind, self.native)

    def check(self, table: TableSchema) -> None:
        """Raise BadInput where a table cannot be one of a lake; the text has the cure."""
        if not self.changelog:
            if not table.handle_key:
                raise BadInput(
                    f"{table.id} has no primary key and no unique key without NULL, so that a "
                    "changed row cannot be found in a lake's table; give it a key, set "
                    "sink.lake.mode = 'changelog', or leave it out by a filter rule"
                )
            hidden = {c.name.lower() for c in table.columns} - set(self._written(table))
            if any(name.lower() in hidden for name in table.handle_key):
                raise BadInput(
                    f"{table.id} has a generated column in its key, which the log does not hold; "
                    "set sink.lake.mode = 'changelog', or leave it out by a filter rule"
                )
            return
        for name in (OP, COMMIT_TS, SEQ, BEFORE):
            if name in table.by_name:
                raise BadInput(
                    f"{table.id} has a column {name!r}, a name that the mode changelog needs "
                    "itself; rename the column, or leave the table out by a filter rule"
                )

    def _written(self, table: TableSchema) -> list[str]:
        return [c.name.lower() for c in table.visible]

    def schema(self, table: TableSchema) -> pa.Schema:
        """Return the columns of a lake's table, named as in the source."""
        fields = [pa.field(c.name, self.type_of(c.type)) for c in table.visible]
        if not self.changelog:
            return pa.schema(fields)
        own = [pa.field(OP, pa.string()), pa.field(COMMIT_TS, pa.int64())]
        own += [pa.field(SEQ, pa.int64()), pa.field(BEFORE, pa.struct(fields))]
        return pa.schema([*own, *fields])

    def changes(self, rows: Rows) -> list[pa.Array]:
        """Return the columns of a change log: ours, then the row as it is (or, deleted, was)."""
        table = rows.table
        own = [OP_NAMES.take(rows.batch.column("op")), rows.batch.column("commit_ts")]
        own[1] = own[1].cast(pa.int64())
        own.append(place_in_batch(rows.batch.column("op"), rows.batch.column("seq")))
        fields = [pa.field(c.name, self.type_of(c.type)) for c in table.visible]
        if rows.before.null_count == len(rows):
            old: pa.Array = pa.nulls(len(rows), pa.struct(fields))
        else:
            images = self._image(table, rows.before)
            old = pa.StructArray.from_arrays(images, fields=fields, mask=rows.before.is_null())
        return [*own, old, *self.rows(rows)]

    def rows(self, rows: Rows) -> list[pa.Array]:
        """Return the columns of rows as they are; of deleted ones, as they were."""
        deletes = rows.op == Op.DELETE
        if deletes.all():
            return self._image(rows.table, rows.before)
        columns = self._image(rows.table, rows.after)
        if not deletes.any():
            return columns
        gone, old = pa.array(deletes), self._image(rows.table, rows.before)
        return [pc.if_else(gone, b, a) for b, a in zip(old, columns, strict=True)]

    def key(self, table: TableSchema, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the key's columns of what `rows` gave.

        Raises:
            EncodeError: a date in the key is one that the lake's type cannot hold.
        """
        wanted = {name.lower() for name in table.handle_key}
        key_columns = []
        for column, values in zip(table.visible, columns, strict=True):
            if column.name.lower() not in wanted:
                continue
            if values.null_count:
                raise EncodeError(
                    f"{table.id}, column {column.name!r}: a key with a day that is in no calendar "
                    "(0000-00-00); set sink.lake.zero-date = 'string' in a new changefeed"
                )
            key_columns.append(values)
        return key_columns

    def _image(self, table: TableSchema, image: pa.StructArray) -> list[pa.Array]:
        held = dict(zip((f.name for f in image.type), image.flatten(), strict=True))
        missing = [c.name for c in table.visible if c.name not in held]
        if missing:
            raise EncodeError(
                f"{table.id}: a lake's table needs whole rows; missing: {', '.join(missing)}"
            )
        return [self._typed(table, c, held[c.name]) for c in table.visible]

    def _typed(self, table: TableSchema, column: Column, values: pa.Array) -> pa.Array:
        converted = typed(values, column, table, self.native)
        if column.type.name == "geometry":
            converted = pc.binary_replace_slice(converted, 0, SRID_BYTES, b"")
        if converted.null_count > values.null_count and not self._zero_is_null:
            lost = pc.and_(converted.is_null(), values.is_valid())
            raise EncodeError(
                f"{table.id}, column {column.name!r}: {values.filter(lost)[0].as_py()!r} is in no "
                "calendar, so the lake's types do not have it; set sink.lake.zero-date = 'null' or "
                "'string' in a new changefeed"
            )
        return converted


def keeps_values(old: SqlType, new: SqlType, kind: str) -> bool:
    """Return whether every value of a type is the same in another that the lake can follow."""
    match new.kind:
        case Kind.FLOAT | Kind.DOUBLE:  # FLOAT(7,2) rounds
            return new.scale is None or (old.scale is not None and new.scale >= old.scale)
        case Kind.DECIMAL:
            same = old.kind is Kind.DECIMAL and old.fraction_digits == new.fraction_digits
            return same or kind != "string"
        case Kind.BINARY if new.name == "binary":  # filled with zeros
            return old.name == "binary" and old.size == new.size
        case Kind.BINARY:
            return (old.name == "geometry") == (new.name == "geometry")
        case Kind.TEXT if new.name == "char":  # without spaces at the end
            return old.kind is not Kind.TEXT or old.name not in _WITH_SPACES
        case Kind.ENUM | Kind.SET:
            return old.kind is new.kind and _keeps_names(old, new)
        case Kind.INTEGER | Kind.BIT:
            return True
        case Kind.TEXT if new.name in _WITH_SPACES:
            return True
    return old.name == new.name


def _keeps_names(old: SqlType, new: SqlType) -> bool:
    """Return whether the elements of an ENUM or SET are written as before, a SET's in their order.

    One that is there no more was in no row, unless it is spelled otherwise now.
    """
    spelled = {name.casefold() for name in new.elements}
    if any(name.casefold() in spelled for name in set(old.elements) - set(new.elements)):
        return False
    left = [name for name in old.elements if name in new.elements]
    return new.kind is Kind.ENUM or left == [name for name in new.elements if name in old.elements]


def is_wider(old: str, new: str) -> bool:
    """Return whether every value of a type has an equal one in another."""
    if old == "float" and new == "double":
        return True
    narrow, wide = _digits(old), _digits(new)
    if narrow is None or wide is None:
        return False
    (digits, scale), (more, behind) = narrow, wide
    return behind >= scale and more - behind >= digits - scale


def _digits(kind: str) -> tuple[int, int] | None:
    if kind == "long":
        return 19, 0
    if not kind.startswith("decimal("):
        return None
    digits, scale = kind[8:-1].split(",")
    return int(digits), int(scale)


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


def fill_value(column: Column, table: TableSchema, lake: LakeColumns) -> pa.Scalar:
    """Return what older rows have in a column that was added.

    Raises:
        SchemaChangeRefused: that is not known.
    """
    given = column.filled if column.filled is not None else IMPLICIT[column.type.kind]
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
            f"{given!r}) is not known; {CHOICES}"
        ) from None
