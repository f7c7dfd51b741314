"""Table definitions as messages of the simple protocol carry them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.mysql.type_facts import TYPE_FACTS, display_width

# GEOMETRY is BLOB, INET4, INET6 and UUID are TEXT, as in every codec.
_WRITTEN_AS: Final = {"geometry": "longblob", "inet4": "text", "inet6": "text", "uuid": "text"}
_COLLATIONS: Final = {"utf8mb4": "utf8mb4_bin", "utf8": "utf8_bin", "latin1": "latin1_bin"}
_SECONDS: Final = {Kind.DATETIME: 19, Kind.TIMESTAMP: 19, Kind.TIME: 10}
_LENGTHS: Final = {Kind.DATE: 10, Kind.JSON: 4294967295}
_SIZED: Final = frozenset({"char", "varchar", "binary", "varbinary", "decimal", "bit"})
# Types with digits behind a point; readers round values to as many as the definition tells.
FRACTIONS: Final = frozenset({Kind.DECIMAL, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})


def of_table(table: TableSchema) -> dict[str, Any]:
    """Return a table's definition as JSON has it."""
    name = table.written_as
    return {
        "schema": name.database,
        "table": name.table,
        "tableID": table.table_id,
        "version": table.version,
        "columns": [_column(column) for column in table.columns],
        "indexes": [_index(table, index) for index in table.indexes],
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "dataType": _data_type(column.type),
        "nullable": column.nullable,
        "default": column.default,
    }


def _data_type(kind: SqlType) -> dict[str, Any]:
    form: dict[str, Any] = {
        "mysqlType": _WRITTEN_AS.get(kind.name, kind.name),
        "charset": kind.charset,
        "collate": kind.collation or _COLLATIONS.get(kind.charset, kind.charset),
    }
    if length := column_length(kind):
        form["length"] = length
    if kind.kind in FRACTIONS and kind.scale:
        form["decimal"] = kind.scale
    if kind.elements:
        form["elements"] = list(kind.elements)
    if kind.unsigned:
        form["unsigned"] = True
    if kind.zerofill:
        form["zerofill"] = True
    return form


def column_length(kind: SqlType) -> int:
    """Return how long values are as TiDB counts it; 0: not known."""
    if kind.kind in _SECONDS:
        return _SECONDS[kind.kind] + (kind.scale + 1 if kind.scale else 0)
    return _LENGTHS.get(kind.kind) or display_width(kind) or 0


def _index(table: TableSchema, index: Index) -> dict[str, Any]:
    return {
        "name": "primary" if index.primary else index.name,
        "unique": index.unique,
        "primary": index.primary,
        "nullable": any(table.column(name).nullable for name in index.columns),
        "columns": list(index.columns),
    }


def to_table(definition: dict[str, Any]) -> TableSchema:
    """Return the table of a definition.

    Raises:
        KeyError, TypeError, ValueError, BadInput: it is none.
    """
    columns = tuple(_read_column(place, one) for place, one in enumerate(definition["columns"], 1))
    indexes = tuple(
        Index(
            place,
            str(one["name"]),
            tuple(map(str, one["columns"])),
            unique=bool(one["unique"]),
            primary=bool(one["primary"]),
        )
        for place, one in enumerate(definition["indexes"] or (), 1)
    )
    name = TableId(str(definition["schema"]), str(definition["table"]))
    made = TableSchema(name, 0, 0, columns, indexes, inferred=True)
    return made


def _scale(kind: SqlType, form: dict[str, Any]) -> int:
    """Return the digits after the point; TiCDC's Avro tells some times' by the length alone."""
    given = form.get("decimal")
    if given is None and kind.kind in _SECONDS:
        return max(int(form.get("length") or 0) - _SECONDS[kind.kind] - 1, 0)
    return int(given or 0)


def _read_column(place: int, definition: dict[str, Any]) -> Column:
    kind_form = definition["dataType"]
    name = str(kind_form["mysqlType"])
    if name not in TYPE_FACTS:
        raise ValueError(f"mysqlType {name!r}")
    kind = SqlType(
        name,
        unsigned=bool(kind_form.get("unsigned")),
        zerofill=bool(kind_form.get("zerofill")),
        elements=tuple(map(str, kind_form.get("elements") or ())),
    )
    if name in _SIZED and kind_form.get("length"):
        kind = replace(kind, length=int(kind_form["length"]))
    if kind.kind in FRACTIONS:
        kind = replace(kind, scale=_scale(kind, kind_form))
    nullable, default = bool(definition["nullable"]), definition.get("default")
    return Column(place, str(definition["name"]), kind, nullable=nullable, default=default)
