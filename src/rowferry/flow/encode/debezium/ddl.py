"""Schema changes as events of Debezium's schema change topic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.flow.encode.debezium.schema import Schema, key_columns, plain, source_schema, struct
from rowferry.mysql.type_facts import display_width

KEY_SCHEMA: Final = struct(
    [plain("string", "databaseName")], "io.debezium.connector.mysql.SchemaChangeKey", 1
)
# java.sql.Types, as Debezium's parser of DDL assigns them.
_JDBC: Final = {
    "tinyint": 5,
    "smallint": 5,
    "mediumint": 4,
    "int": 4,
    "bigint": -5,
    "float": 6,
    "double": 8,
    "decimal": 3,
    "bit": -7,
    "year": 4,
    "date": 91,
    "datetime": 93,
    "timestamp": 2014,
    "time": 92,
    "char": 1,
    "binary": -2,
    "varbinary": -3,
    "enum": 1,
    "set": 1,
    "json": 1111,
    "vector": 1111,
    "geometry": 1111,
}
_BLOB, _VARCHAR = 2004, 12
_NO_LENGTH: Final = frozenset({Kind.YEAR, Kind.DATE, Kind.JSON})
_SECONDS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_EPOCH: Final = "1970-01-01 00:00:00"
_CREATED: Final = frozenset({DdlKind.CREATE_TABLE, DdlKind.CREATE_VIEW})
_DROPPED: Final = frozenset({DdlKind.DROP_TABLE, DdlKind.DROP_VIEW})
_NO_CHANGES: Final = frozenset(
    {
        DdlKind.CREATE_DATABASE,
        DdlKind.DROP_DATABASE,
        DdlKind.DATABASE_CHARSET,
        DdlKind.TRUNCATE_TABLE,
    }
)


def value_schema(extension: bool) -> Schema:
    """Return the schema of a schema change's value."""
    text, number, truth = "string", "int32", "boolean"
    column = struct(
        [
            plain(text, "name"),
            plain(number, "jdbcType"),
            plain(number, "nativeType", optional=True),
            plain(text, "typeName"),
            plain(text, "typeExpression", optional=True),
            plain(text, "charsetName", optional=True),
            plain(number, "length", optional=True),
            plain(number, "scale", optional=True),
            plain(number, "position"),
            plain(truth, "optional", optional=True),
            plain(truth, "autoIncremented", optional=True),
            plain(truth, "generated", optional=True),
            plain(text, "comment", optional=True),
            plain(text, "defaultValueExpression", optional=True),
            _array(plain(text), "enumValues", optional=True),
        ],
        "io.debezium.connector.schema.Column",
        1,
    )
    table = struct(
        [
            plain(text, "defaultCharsetName", optional=True),
            _array(plain(text), "primaryKeyColumnNames", optional=True),
            _array(column, "columns"),
            plain(text, "comment", optional=True),
        ],
        "io.debezium.connector.schema.Table",
        1,
        optional=True,
        field="table",
    )
    change = struct(
        [plain(text, "type"), plain(text, "id"), table], "io.debezium.connector.schema.Change", 1
    )
    fields = [
        source_schema(extension),
        plain("int64", "ts_ms"),
        plain(text, "databaseName", optional=True),
        plain(text, "schemaName", optional=True),
        plain(text, "ddl", optional=True),
        _array(change, "tableChanges"),
    ]
    return struct(fields, "io.debezium.connector.mysql.SchemaChangeValue", 1)


def _array(items: Schema, field: str, optional: bool = False) -> Schema:
    return {"type": "array", "items": items, "optional": optional, "field": field}


def payload(change: SchemaChange, source: dict[str, Any], planned_at_ms: int) -> dict[str, Any]:
    """Return the payload of a schema change."""
    return {
        "source": source,
        "ts_ms": planned_at_ms,
        "databaseName": change.written_as.database,
        "schemaName": None,
        "ddl": change.query,
        "tableChanges": _changes(change),
    }


def _changes(change: SchemaChange) -> list[dict[str, Any]]:
    if change.kind in _NO_CHANGES or not change.table.table:
        return []
    name = _id(change.written_as)
    if change.kind in _DROPPED:
        return [{"type": "DROP", "id": name, "table": None}]
    if change.schema is None:
        return []
    what = "CREATE" if change.kind in _CREATED else "ALTER"
    return [{"type": what, "id": name, "table": _table(change.schema)}]


def _id(name: TableId) -> str:
    return f'"{name.database}"."{name.table}"'


def _table(table: TableSchema) -> dict[str, Any]:
    return {
        "defaultCharsetName": table.charset or None,
        "primaryKeyColumnNames": [c.name for c in key_columns(table)],
        "columns": [_column(place, c) for place, c in enumerate(table.columns, 1)],
        "comment": None,  # Debezium tells comments on request only
    }


def _column(place: int, column: Column) -> dict[str, Any]:
    kind = column.type
    name = kind.name.upper()
    name += " UNSIGNED" if kind.unsigned else ""
    name += " ZEROFILL" if kind.zerofill else ""
    return {
        "name": column.name,
        "jdbcType": _jdbc(kind),
        "nativeType": None,
        "typeName": name,
        "typeExpression": name,
        "charsetName": kind.charset if kind.kind in (Kind.TEXT, Kind.ENUM, Kind.SET) else None,
        "length": _length(kind),
        "scale": kind.fraction_digits if kind.kind is Kind.DECIMAL else _scale(kind),
        "position": place,
        "optional": column.nullable,
        "autoIncremented": column.auto_increment,
        "generated": column.auto_increment,
        "comment": None,
        "defaultValueExpression": _default(column),
        "enumValues": [f"'{e.replace(chr(39), chr(39) * 2)}'" for e in kind.elements] or None,
    }


def _jdbc(kind: SqlType) -> int:
    code = _JDBC.get(kind.name)
    if code is None:
        code = _BLOB if kind.kind is Kind.BINARY else _VARCHAR
    return code


def _length(kind: SqlType) -> int | None:
    if kind.kind in _SECONDS:
        return kind.scale or None
    if kind.kind in _NO_LENGTH:
        return None
    if kind.kind is Kind.ENUM:
        return 1
    if kind.kind is Kind.SET:
        return max(2 * len(kind.elements) - 1, 1)
    if kind.kind in (Kind.DECIMAL, Kind.BIT):
        return kind.size
    if kind.kind is Kind.INTEGER and kind.length == display_width(replace(kind, length=None)):
        return None  # the server's own width, which no statement needs to name
    return kind.length


def _scale(kind: SqlType) -> int | None:
    return kind.scale if kind.kind in (Kind.FLOAT, Kind.DOUBLE) else None


def _default(column: Column) -> str | None:
    value = column.default
    if value is None:
        return None
    if column.type.kind in _SECONDS and str(value).startswith("CURRENT_TIMESTAMP"):
        return _EPOCH
    if column.type.kind is Kind.BIT:
        return f"{int(value):b}"
    return str(value)
