"""Schema files: a table version (or a database's DDL) as JSON, its checksum, and back.

Key order, texts and checksum are TiCDC's, so that its consumers accept the files. `ColumnLength`
stands beside `ColumnPrecision` for string types and is no part of the checksum.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import KINDS, Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, SinkDamaged
from rowferry.flow.sink.storage.go_json import Raw, marshal_indent, marshal_inside
from rowferry.flow.sink.storage.paths import SchemaFile, schema_path
from rowferry.mysql.type_facts import TYPE_FACTS, display_width

_VERSION = 1
# Types that other systems do not know are written as what every codec writes their values as.
_WRITTEN_AS = {"geometry": "blob", "inet4": "text", "inet6": "text", "uuid": "text"}
_READ_AS = {"numeric": "decimal", "var_string": "varchar", "integer": "int"}
_SECONDS = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_STRINGS = (Kind.TEXT, Kind.BINARY)
_WITHOUT_PRECISION = (*_SECONDS, Kind.DATE, Kind.JSON, Kind.ENUM, Kind.SET, Kind.VECTOR)
_NEVER_UNSIGNED = (Kind.BIT, Kind.YEAR)
_EXACT = 1 << 53  # up to here a float holds every whole number
_TORN = re.compile("[\ud800-\udfff]")  # a byte that is no text, as definitions keep it
LOST_BYTE = "\ufffd"  # stands for it in a file


@dataclass(frozen=True, slots=True)
class _Texts:
    """Column objects as text, the way both places have them: to make it takes longest."""

    written: Raw
    hashed: Raw

    @classmethod
    def of(cls, columns: Sequence[Mapping[str, Any]]) -> _Texts:
        hashed = [{k: v for k, v in c.items() if k != "ColumnLength"} for c in columns]
        hashed.sort(key=lambda c: str(c["ColumnName"]).encode())
        return cls(marshal_inside(list(columns) or None), marshal_inside(hashed))


@dataclass(frozen=True, slots=True)
class SchemaDocument:
    """One schema file's content.

    Attributes:
        table: empty for a database.
        table_version: commit-ts of the DDL, or of where the feed first met the table version.
        query, kind: the DDL; "" and 0 where the file only describes a table version.
        columns: the column objects as written.
    """

    database: str
    table: str
    table_version: int
    query: str = ""
    kind: int = 0
    columns: tuple[dict[str, Any], ...] = ()
    texts: _Texts | None = field(default=None, compare=False)  # of the columns, where known

    @property
    def checksum(self) -> int:
        """TiCDC's CRC-32 over names and columns; equal for versions that differ in nothing else."""
        form = {
            "Table": self.table,
            "Schema": self.database,
            "Version": 0,
            "TableColumns": (self.texts or _Texts.of(self.columns)).hashed,
            "TableColumnsTotal": len(self.columns),
        }
        return zlib.crc32(marshal_indent(form).encode())

    @property
    def path(self) -> str:
        """Where the file is."""
        return schema_path(self.database, self.table, self.table_version, self.checksum)

    def content(self) -> bytes:
        """Return the file's bytes."""
        form = {
            "Table": self.table,
            "Schema": self.database,
            "Version": _VERSION,
            "TableVersion": self.table_version,
            "Query": self.query,
            "Type": self.kind,
            "TableColumns": (self.texts or _Texts.of(self.columns)).written,
            "TableColumnsTotal": len(self.columns),
        }
        return marshal_indent(form).encode()

    def table_schema(self) -> TableSchema | None:
        """Return the table version that the file describes; None: no columns (a database).

        Raises:
            BadInput: a column type that this version does not know.
        """
        if not self.columns:
            return None
        columns = tuple(_read_column(n, c) for n, c in enumerate(self.columns, 1))
        primary = tuple(c["ColumnName"] for c in self.columns if c.get("ColumnIsPk") == "true")
        indexes = (Index(1, "PRIMARY", primary, unique=True, primary=True),) if primary else ()
        return TableSchema(
            TableId(self.database, self.table), 0, self.table_version, columns, indexes
        )


def of_table(schema: TableSchema, column_ids: bool = False) -> SchemaDocument:
    """Return the schema file of a table version that no DDL of the feed made."""
    # An int equals a float, but is written in another way.
    kinds = tuple(type(c.default) for c in schema.columns)
    columns, texts = _known_columns(schema.columns, kinds, schema.primary_key, column_ids)
    return SchemaDocument(*schema.written_as, schema.version, columns=columns, texts=texts)


def of_change(change: SchemaChange, column_ids: bool = False) -> SchemaDocument:
    """Return the schema file of a DDL, under the name after it (a rename's new one).

    That of a DROP TABLE has the columns that the table had.
    """
    schema = change.schema or change.last_schema
    return SchemaDocument(
        *change.written_as,
        change.commit_ts,
        change.query,
        int(change.kind),
        _columns(schema, column_ids) if schema and change.table.table else (),
    )


def of_changes(changes: Sequence[SchemaChange], column_ids: bool = False) -> list[SchemaDocument]:
    """Return the schema files of DDLs.

    EXCHANGE PARTITION changes two tables, of which only the first's file has the statement: who
    replays files must not exchange twice.
    """
    documents: list[SchemaDocument] = []
    first: SchemaChange | None = None
    for change in changes:
        document = of_change(change, column_ids)
        exchange = change.kind is DdlKind.EXCHANGE_PARTITION
        if exchange and (not change.query or _is_other_half(change, first)):
            document, first = replace(document, query="", kind=0), None
        else:
            first = change if exchange else None
        documents.append(document)
    return documents


def _is_other_half(change: SchemaChange, first: SchemaChange | None) -> bool:
    """Return whether a change tells the exchange before it again, of the other table."""
    return first is not None and first.query == change.query and first.table != change.table


# --- writing columns -----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _known_columns(
    columns: tuple[Column, ...],
    kinds: tuple[type, ...],
    primary_key: tuple[str, ...],
    column_ids: bool,
) -> tuple[tuple[dict[str, Any], ...], _Texts]:
    """Return the columns of a table, and as text: there are often many tables of the same ones."""
    primary = Index(1, "PRIMARY", primary_key, unique=True, primary=True)
    indexes = (primary,) if primary_key else ()
    forms = _columns(TableSchema(TableId("", ""), 0, 0, columns, indexes), column_ids)
    return forms, _Texts.of(forms)


def _columns(schema: TableSchema, column_ids: bool) -> tuple[dict[str, Any], ...]:
    """Return the columns that rows hold: a reader of csv counts on them, so no virtual ones."""
    primary = {name.lower() for name in schema.primary_key}
    return tuple(
        column_form(c, in_primary_key=c.name.lower() in primary, with_id=column_ids)
        for c in schema.visible
    )


def column_form(column: Column, in_primary_key: bool, with_id: bool = False) -> dict[str, Any]:
    """Return the JSON object of one column, its keys in the order of the file."""
    sql_type, name = column.type, _WRITTEN_AS.get(column.type.name, column.type.name)
    kind = sql_type.kind
    # A type written under another name has that one's default width, not its own.
    width = display_width(sql_type) if name == sql_type.name else TYPE_FACTS[name].width
    form: dict[str, Any] = {}
    if with_id:
        form["ColumnId"] = str(column.id)
    form["ColumnName"] = column.name
    unsigned = sql_type.unsigned and kind not in _NEVER_UNSIGNED
    form["ColumnType"] = name.upper() + (" UNSIGNED" if unsigned else "")
    if column.default is not None:
        form["ColumnDefault"] = _written_default(column.default)
    if kind not in _WITHOUT_PRECISION and width is not None:
        form["ColumnPrecision"] = str(width)
        if kind in _STRINGS:
            form["ColumnLength"] = str(width)
    if kind is Kind.DECIMAL:
        form["ColumnScale"] = str(sql_type.scale or 0)
    elif kind in (*_SECONDS, Kind.FLOAT, Kind.DOUBLE) and sql_type.scale:
        form["ColumnScale"] = str(sql_type.scale)
    if not column.nullable:
        form["ColumnNullable"] = "false"
    if in_primary_key:
        form["ColumnIsPk"] = "true"
    if sql_type.elements:
        form["ColumnElems"] = list(sql_type.elements)
    return form


def _written_default(default: Any) -> Any:
    """Return a default as readers keep it, who check a file by writing it again.

    One changed character, and they refuse it. So a number that 64-bit floats would change is text,
    and U+FFFD stands for each byte of a binary default that is no text.
    """
    if isinstance(default, str):
        return _TORN.sub(LOST_BYTE, default)
    is_whole = isinstance(default, int) and not isinstance(default, bool)
    return str(default) if is_whole and abs(default) > _EXACT else default


# --- reading -------------------------------------------------------------------------------------


def read_document(content: bytes, file: SchemaFile, shown: str) -> SchemaDocument:
    """Read a schema file; `shown` names it in errors.

    Also reads files whose numbers are texts and whose string types have a `ColumnLength` only.

    Raises:
        SinkDamaged: not a schema file, or its content does not fit its name.
    """
    try:
        form = json.loads(content, parse_int=_whole)
        document = SchemaDocument(
            database=_of_type(form["Schema"], str),
            table=_of_type(form["Table"], str),
            table_version=int(form["TableVersion"]),
            query=_of_type(form["Query"], str),
            kind=int(form["Type"]),
            columns=tuple(_checked_column(c) for c in form["TableColumns"] or ()),
        )
        total = int(form["TableColumnsTotal"])
        own_names = (document.database, document.table, document.table_version, document.checksum)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as err:
        raise SinkDamaged(f"{shown} is not a schema file ({err}); restore it from a copy") from None
    named = (file.database, file.table, file.version, file.checksum)
    if own_names != named or total != len(document.columns):
        raise SinkDamaged(
            f"{shown} was changed: its content belongs to {document.path} "
            f"({total} columns); restore it from a copy"
        )
    return document


def _whole(digits: str) -> int | float:
    """Return a number without a point: -0 is written for a DOUBLE, and no int."""
    return -0.0 if digits == "-0" else int(digits)


def _of_type(value: Any, wanted: type[str]) -> str:
    if not isinstance(value, wanted):
        raise TypeError(f"expected {wanted.__name__}, got {type(value).__name__}")
    return value


def _checked_column(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise TypeError("a column is not an object")
    _of_type(form["ColumnName"], str)
    _of_type(form["ColumnType"], str)
    _texts(form.get("ColumnElems") or ())
    for key in ("ColumnId", "ColumnPrecision", "ColumnLength", "ColumnScale"):
        int(form.get(key) or 0)
    return form


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(_of_type(v, str) for v in values)


def _read_column(number: int, form: Mapping[str, Any]) -> Column:
    words = str(form["ColumnType"]).lower().split()
    name = _READ_AS.get(words[0], words[0]) if words else ""
    if name not in KINDS:
        raise BadInput(
            f"column {form['ColumnName']!r} has the type {form['ColumnType']!r}; "
            f"known: {', '.join(KINDS)}"
        )
    # TiDB counts BIT and YEAR as unsigned, and TiCDC's files say so; no statement can.
    unsigned = "unsigned" in words[1:] and KINDS[name] not in _NEVER_UNSIGNED
    length = form.get("ColumnPrecision") or form.get("ColumnLength")
    scale = form.get("ColumnScale")
    return Column(
        id=int(form.get("ColumnId") or number),
        name=form["ColumnName"],
        type=SqlType(
            name,
            unsigned=unsigned,
            length=int(length) if length else None,
            scale=int(scale) if scale else None,
            elements=_texts(form.get("ColumnElems") or ()),
        ),
        nullable=form.get("ColumnNullable") != "false",
        default=form.get("ColumnDefault"),
    )
