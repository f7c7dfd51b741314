"""The fields of an index that fit a table's documents."""

from __future__ import annotations

from typing import Any, Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.flow.encode.search_documents.options import DocumentOptions

# Names that the servers keep for themselves; a document that has one is refused.
_RESERVED: Final = frozenset(
    "_data_stream_timestamp _doc _doc_count _feature _field_names _id _ignored _index "
    "_nested_path _primary_term _routing _seq_no _size _source _tier _tsid _type _uid "
    "_version".split()
)
_MOST_LETTERS: Final = 8191  # of a keyword: four bytes each at most, and Lucene takes 32766
_EXACT_DIGITS: Final = 15  # decimal numbers of so many digits have a double of their own each
_KEYWORD: Final = {"type": "keyword", "ignore_above": _MOST_LETTERS}
_STORED: Final = {"type": "object", "enabled": False}


def field_name(column: str) -> str:
    """Return a column's field: its name, with `%` for what servers would take as something else.

    A point would make an object, and some names are the servers' own.
    """
    name = column.replace("%", "%25").replace(".", "%2e")
    return f"%5f{name[1:]}" if name in _RESERVED else name


def mapping(table: TableSchema, options: DocumentOptions, flattened: str) -> dict[str, Any]:
    """Return the mapping of an index for a table; `flattened` is the server's word for that type.

    Other fields are kept, and not indexed.
    """
    fields = {field_name(c.name): field_type(c, options, flattened) for c in table.visible}
    return {"dynamic": False, "properties": fields}


def field_type(column: Column, options: DocumentOptions, flattened: str) -> dict[str, Any]:
    """Return how a column's values are indexed."""
    kind = column.type
    match kind.kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT:
            return {"type": "long"} if fits_long(kind) else _unsigned(options)
        case Kind.FLOAT | Kind.DOUBLE:
            return {"type": "double"}
        case Kind.DECIMAL | Kind.NUMERIC:
            return _decimal(kind, options.decimal_columns)
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return {"type": "date", "format": "strict_date_optional_time"}
        case Kind.TIME | Kind.ENUM | Kind.SET:
            return dict(_KEYWORD)
        case Kind.BINARY:
            return {"type": "binary"}
        case Kind.JSON:
            return _json(options.json_columns, flattened)
        case Kind.VECTOR:
            return dict(_STORED)
        case _:
            return {"type": "text", "fields": {"keyword": dict(_KEYWORD)}}


def fits_long(kind: SqlType) -> bool:
    """Return whether each value of a whole type is below 2^63."""
    if kind.kind is Kind.BIT:
        return (kind.length or 1) < 64
    return not (kind.name == "bigint" and kind.unsigned)


def _unsigned(options: DocumentOptions) -> dict[str, Any]:
    return dict(_KEYWORD) if options.unsigned_bigint == "keyword" else {"type": "unsigned_long"}


def _decimal(kind: SqlType, how: str) -> dict[str, Any]:
    digits = 10 if kind.kind is Kind.DECIMAL and kind.length is None else kind.length or 1000
    if how == "keyword" or (how == "auto" and digits > _EXACT_DIGITS):
        return dict(_KEYWORD)
    if how == "scaled-float" and digits <= _EXACT_DIGITS:
        return {"type": "scaled_float", "scaling_factor": 10 ** (kind.scale or 0)}
    return {"type": "double"}


def _json(how: str, flattened: str) -> dict[str, Any]:
    if how == "object":
        return {"type": "object", "dynamic": True}
    if how == "flattened":
        return {"type": flattened}
    return dict(_KEYWORD) if how == "keyword" else dict(_STORED)
