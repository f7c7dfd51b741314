"""Keys as people write them, ranges between two of them, and keys that a table does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadInput
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.key_ranges import (
    SETTINGS,
    Bound,
    Chunk,
    compared,
    condition,
    exact,
    fetched,
    key_order,
    keyed_table,
    literal_of,
    table_name,
)
from rowferry.mysql.range_read import prepare
from rowferry.mysql.session import Connection, Flavour, Login

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,80}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?")
_TIME: Final = re.compile(r"[0-9:. T+-]{1,40}")
_HEX: Final = re.compile(r"0[xX](?:[0-9a-fA-F]{2}){0,4096}")
_PLAIN: Final = re.compile(r"[0-9a-fA-F:.-]{1,64}")
_KEYS_AT_ONCE: Final = 200


def key_bound(schema: TableSchema, values: Sequence[str]) -> Bound:
    """Return a key that somebody wrote as SQL literals, one for each column of the handle key.

    Nothing of the text reaches a statement as it is: numbers and times have only their own
    characters, and all else is written in hexadecimal.

    Raises:
        BadInput: the table has no usable key, or a value does not fit its column.
    """
    index = schema.handle_index
    if index is None:
        raise BadInput(f"{schema.id} has no usable key, so that no range of it can be named")
    if len(values) != len(index.columns):
        raise BadInput(
            f"the key of {schema.id} is ({', '.join(index.columns)}); a bound needs "
            f"{len(index.columns)} values, and {len(values)} are given"
        )
    columns = (schema.column(name) for name in index.columns)
    return tuple(
        _literal(schema, column, value) for column, value in zip(columns, values, strict=True)
    )


def _literal(schema: TableSchema, column: Column, text: str) -> str:
    kind = column.type.kind
    match kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT | Kind.SET if _WHOLE.fullmatch(text):
            return str(int(text))
        case Kind.ENUM:
            elements = column.type.elements
            if text in elements:
                return str(elements.index(text) + 1)
        case Kind.FLOAT | Kind.DOUBLE | Kind.DECIMAL if _NUMBER.fullmatch(text):
            return text
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME if _TIME.fullmatch(text):
            return f"'{text}'"
        case Kind.BINARY:
            if _HEX.fullmatch(text):
                return f"x'{text[2:]}'"
            return f"x'{text.encode().hex()}'"
        case Kind.TEXT if literal_of(column, "") != "''":
            return f"_utf8mb4 x'{text.encode().hex()}'"
        case Kind.TEXT if _PLAIN.fullmatch(text):  # addresses and UUIDs
            return f"'{text}'"
    raise BadInput(f"{text!r} is no value of {schema.id}, column {column.name} ({column.type.sql})")


def next_within(
    connection: Connection[Any],
    login: Login,
    schema: TableSchema,
    lower: Bound | None,
    closed: bool,
    last: Bound | None,
    wish_rows: int,
    partition: str = "",
) -> tuple[Chunk, bool]:
    """Return the next chunk of a range, about so many rows, and whether the range ends with it.

    `last` is the range's own end, which belongs to it; None: the table's. The chunk at the table's
    end has no upper bound.

    Raises:
        SnapshotOutdated: the table, the partition or the key is not as `schema` says.
    """
    moment("cut range")
    session.rows(connection, login, SETTINGS)
    table = keyed_table(schema, partition=partition)
    where = condition(schema, lower, last, closed)
    index = schema.handle_index
    key = [schema.column(name) for name in index.columns] if index else []
    values = ", ".join(fetched(c) for c in key)
    rows = session.rows_of_table(
        connection,
        login,
        f"SELECT {values} FROM {table}{where} ORDER BY {key_order(schema)} "
        f"LIMIT 2 OFFSET {max(1, wish_rows) - 1}",
    )
    if len(rows) == 2:
        upper = tuple(literal_of(c, v) for c, v in zip(key, rows[0], strict=True))
        return Chunk(lower, upper, wish_rows, partition, closed), False
    count = wish_rows
    if not rows:
        few = f"SELECT 1 FROM {table}{where} LIMIT {wish_rows}"
        answer = session.rows_of_table(connection, login, f"SELECT COUNT(*) FROM ({few}) AS few")
        count = int(answer[0][0])
    return Chunk(lower, last, count, partition, closed), True


def estimate_range(
    connection: Connection[Any],
    login: Login,
    schema: TableSchema,
    first: Bound | None,
    last: Bound | None,
) -> int:
    """Return about how many rows a range has, as the server estimates; at least 1."""
    moment("estimate range")
    session.rows(connection, login, SETTINGS)
    where = condition(schema, first, last, closed=True)
    row = session.rows_of_table(
        connection,
        login,
        f"EXPLAIN FORMAT=TRADITIONAL SELECT {key_order(schema)} "
        f"FROM {keyed_table(schema, 'USE')}{where}",
    )[0]
    rows = row[-3] if len(row) == 12 else row[-2]  # MySQL has `filtered` after `rows`
    return max(1, int(rows or 0))


def missing_keys(
    login: Login, schema: TableSchema, keys: pa.StructArray, flavour: Flavour, server: str = ""
) -> pa.StructArray:
    """Return those of some keys of which a table has no row now; the server compares.

    `keys` has a field for each column of the handle key, as images have them.

    Raises:
        SourceMoved: not `server` answers, but another one, which may lack rows.
        SnapshotOutdated: the table or its key is not as `schema` says.
        SourceUnavailable: no answer.
    """
    moment("look for missing rows")
    gone: list[pa.StructArray] = []
    with closing(session.connect_to(login, server)) as connection:
        prepare(connection, login, flavour)
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys.slice(at, _KEYS_AT_ONCE)
            gone.append(_missing(connection, login, schema, some))
    return pa.concat_arrays(gone) if gone else keys


def _missing(
    connection: Connection[Any], login: Login, schema: TableSchema, keys: pa.StructArray
) -> pa.StructArray:
    """Number the keys in the statement, and let the server say which of them it has."""
    columns = [schema.column(name) for name in schema.handle_key]
    texts = [_texts(column, keys.field(column.name)) for column in columns]
    lines = []
    for place, values in enumerate(zip(*texts, strict=True)):
        tests = (f"{_exactly(c)} = {value}" for c, value in zip(columns, values, strict=True))
        lines.append(
            f"SELECT {place} FROM (SELECT 1 FROM {table_name(schema)} WHERE {' AND '.join(tests)} "
            f"LIMIT 1) AS k{place}"
        )
    there = session.rows_of_table(connection, login, " UNION ALL ".join(lines))
    present = pa.array([int(row[0]) for row in there], pa.int64())
    places = pa.array(range(len(keys)), pa.int64())
    return keys.filter(pc.invert(pc.is_in(places, value_set=present)))


def _exactly(column: Column) -> str:
    """Return what equals a value as it was read: a FLOAT by itself is not its own text."""
    return exact(column) if column.type.kind in (Kind.FLOAT, Kind.DOUBLE) else compared(column)


def _texts(column: Column, values: pa.Array) -> list[str]:
    """Return key values as literals: a few hundred at a time, and only of rows in doubt."""
    kind = column.type.kind
    shown = values.to_pylist()
    match kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT | Kind.ENUM | Kind.SET:
            return [str(int(v)) for v in shown]
        case Kind.BINARY:
            return [f"x'{v.hex()}'" for v in shown]
        case Kind.TEXT if literal_of(column, "") != "''":
            return [f"_utf8mb4 x'{v.encode().hex()}'" for v in shown]
        case Kind.FLOAT | Kind.DOUBLE:
            return [repr(float(v)) for v in shown]
        case Kind.DECIMAL:
            return [str(v) for v in shown]
    return [f"'{v}'" for v in shown]
