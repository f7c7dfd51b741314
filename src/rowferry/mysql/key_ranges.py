"""A table cut into key ranges, so that its rows can be read in parallel and in parts.

All comparing is the server's: a bound is a key as SQL literals, strings in the column's own bytes.
So collations, padding and odd types order rows in one way only, that of the table's key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.session import Connection, Login

Bound: TypeAlias = tuple[str, ...]

_PLAIN_TEXT: Final = frozenset({"uuid", "inet4", "inet6"})  # compared as values, not as strings
_TUNINGS: Final = 130  # tries to find a range of 64-bit integers with the wished number of rows
# MySQL refuses a day like 2024-02-31 in a comparison, although rows may hold it, unless told so.
# For MySQL only: fresh statistics, and hints may name invisible keys.
SETTINGS: Final = (
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES' /*!80000 , information_schema_stats_expiry = 0, "
    "optimizer_switch = 'use_invisible_indexes=on' */"
)
# TiDB carries out what MySQL's comments hold. With soft delete it would hide rows that are marked.
TIDB_SETTINGS: Final = (
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES' "
    "/*T![softdelete] , tidb_translate_softdelete_sql = 0 */"
)


@dataclass(frozen=True, slots=True)
class Chunk(JsonForm):
    """The rows with `lower` < key <= `upper`, as the server compares; None: no bound.

    Attributes:
        lower: SQL literals of the key's columns, in index order, exact in every type.
        rows: how many there are, estimated.
        partition: the name of the table partition that it lies in; empty: the whole table.
        closed: the row at `lower` belongs to it, too.
        order: the `order_of_key` in which it was cut; empty: nobody has noted it.
    """

    FORM = FormRules(brief=True, kept=("partition",))

    lower: Bound | None
    upper: Bound | None
    rows: int
    partition: str = ""
    closed: bool = False
    order: str = ""


# --- SQL -----------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Return a name as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def table_name(schema: TableSchema, partition: str = "") -> str:
    """Return the table's qualified name as SQL, or one partition of it."""
    name = f"{quoted(schema.id.database)}.{quoted(schema.id.table)}"
    return f"{name} PARTITION ({quoted(partition)})" if partition else name


def keyed_table(schema: TableSchema, how: str = "FORCE", partition: str = "") -> str:
    """Return the table (or one partition of it) as SQL, read through its key."""
    index = schema.handle_index
    if index is None:
        raise BadInput(f"{schema.id} has no usable key and cannot be read in key ranges")
    return f"{table_name(schema, partition)} {how} INDEX ({quoted(index.name)})"


def key_order(schema: TableSchema) -> str:
    """Return the key's columns as ORDER BY takes them."""
    return ", ".join(quoted(c.name) for c in _key(schema))


def condition(
    schema: TableSchema, lower: Bound | None, upper: Bound | None, closed: bool = False
) -> str:
    """Return the WHERE clause of a key range, with the word and a blank; empty for all rows.

    It is written as nested ORs, which both servers read as a range of the key; a comparison of
    whole rows they would not.
    """
    parts = []
    columns = [compared(c) for c in _key(schema)]
    if lower is not None:
        parts.append(_beyond(columns, lower, ">", ">=" if closed else ">"))
    if upper is not None:
        parts.append(_beyond(columns, upper, "<", "<="))
    return " WHERE " + " AND ".join(parts) if parts else ""


def _beyond(columns: list[str], bound: Bound, strict: str, last: str) -> str:
    if len(columns) != len(bound):
        raise BadInput(f"a key of {len(columns)} columns cannot end at {len(bound)} values")
    beyond = f"{columns[-1]} {last} {bound[-1]}"
    for column, value in zip(columns[-2::-1], bound[-2::-1], strict=True):
        beyond = f"({column} {strict} {value} OR ({column} = {value} AND {beyond}))"
    return beyond


def _key(schema: TableSchema) -> list[Column]:
    index = schema.handle_index
    return [schema.column(name) for name in index.columns] if index else []


def compared(column: Column) -> str:
    """Return what is compared: a SET beside a number would be rounded to 53 bits."""
    name = quoted(column.name)
    return f"CAST({name} AS UNSIGNED)" if column.type.kind is Kind.SET else name


def exact(column: Column) -> str:
    """Return the expression whose text holds the column's value without loss."""
    name = quoted(column.name)
    match column.type.kind:
        case Kind.BIT | Kind.ENUM | Kind.SET:
            return f"CAST({name} AS UNSIGNED)"
        case Kind.FLOAT | Kind.DOUBLE:
            return f"{name} * 1e0"  # a FLOAT by itself is printed with six digits; -0 stays -0
        case Kind.DECIMAL if column.type.zerofill:
            return f"{name} + 0"
        case Kind.YEAR if column.type.length == 2:  # MariaDB prints two digits
            return f"{name} + IF({name} < 70, 2000, 1900)"
    return name


def _is_hex(column: Column) -> bool:
    kind = column.type.kind
    return kind is Kind.BINARY or (kind is Kind.TEXT and column.type.name not in _PLAIN_TEXT)


def fetched(column: Column) -> str:
    """Return the expression whose text `literal_of` makes a literal of."""
    return f"HEX({quoted(column.name)})" if _is_hex(column) else exact(column)


def literal_of(column: Column, text: str) -> str:
    """Return a literal that the column equals, given what `fetched` gave."""
    match column.type.kind:
        case Kind.TEXT if _is_hex(column):
            return f"_{column.type.charset} x'{text}'"
        case Kind.BINARY:
            return f"x'{text}'"
        case Kind.INTEGER | Kind.YEAR | Kind.BIT | Kind.ENUM | Kind.SET:
            return str(int(text))
        case Kind.FLOAT | Kind.DOUBLE | Kind.DECIMAL:
            return text
    return f"'{text}'"


# --- order ---------------------------------------------------------------------------------------


def order_of_key(connection: Connection[Any], login: Login, schema: TableSchema) -> str:
    """Return a short text that is another one where bounds may part the table's rows otherwise.

    Then bounds of before mean nothing: behind one of them lie rows that lay before it, and the
    other way round. The order comes from which columns the key has, from their types, and from the
    collation by which the server compares text now; a definition may be older than that.
    """
    key = _key(schema)
    collations: dict[str, str] = {}
    if any(column.type.kind is Kind.TEXT and _is_hex(column) for column in key):
        moment("look at collations of key")
        listed = session.rows(
            connection,
            login,
            "SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLLATION_NAME IS NOT NULL",
            tuple(schema.id),
        )
        # One collation has two names, by the server's version.
        collations = {n.lower(): re.sub("^utf8mb3_", "utf8_", named) for n, named in listed}
    key_facts = [
        (c.id, c.name, c.type.written(), c.type.charset, collations.get(c.name.lower()))
        for c in key
    ]
    return hashlib.sha256(json.dumps(key_facts).encode()).hexdigest()[:16]


# --- cutting -------------------------------------------------------------------------------------


def estimate_rows(connection: Connection[Any], login: Login, schema: TableSchema) -> int:
    """Return about how many rows a table has, as the server's statistics say; at least 1."""
    return max(1, _statistics(connection, login, schema)[0])


def estimate_many(
    connection: Connection[Any], login: Login, names: Sequence[TableId]
) -> dict[TableId, int]:
    """Return about how many rows each of some tables has; those that are gone are left out."""
    if not names:
        return {}
    moment("estimate rows of tables")
    session.rows(connection, login, SETTINGS)
    wanted = ", ".join(["(%s, %s)"] * len(names))
    stats = session.rows(
        connection,
        login,
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES "
        f"WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({wanted})",
        tuple(part for name in names for part in name),
    )
    return {TableId(database, table): max(1, int(rows or 0)) for database, table, rows in stats}


def row_bytes(connection: Connection[Any], login: Login, schema: TableSchema) -> int:
    """Return about how many bytes a row has in its table; at least 1."""
    return max(1, _statistics(connection, login, schema)[1])


def _statistics(connection: Connection[Any], login: Login, schema: TableSchema) -> tuple[int, int]:
    moment("estimate rows")
    session.rows(connection, login, SETTINGS)
    statistics = session.rows(
        connection,
        login,
        "SELECT TABLE_ROWS, AVG_ROW_LENGTH FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        tuple(schema.id),
    )
    rows, size = statistics[0] if statistics else (None, None)
    return int(rows or 0), int(size or 0)


def next_chunks(
    connection: Connection[Any],
    login: Login,
    schema: TableSchema,
    after: Bound | None,
    wish_rows: int,
    count: int,
    partition: str = "",
) -> list[Chunk]:
    """Return the next `count` chunks behind a bound, of about `wish_rows` rows each.

    At least one is returned; the last one of the table (or of the given partition) has no upper
    bound, so that rows which are added behind the end belong to it. Takes no locks. Fewer than
    `count` only at the end.

    `after` is the upper bound of the chunk before; None: from the beginning. Settings of the
    connection's session are changed.

    Raises:
        BadInput: the table has no usable key.
        SnapshotOutdated: the table, the partition or the key is not as `schema` says.
    """
    moment("cut chunks")
    session.rows(connection, login, SETTINGS)
    key = _key(schema)
    table = _Table(connection, login, schema, partition)
    by_number = len(key) == 1 and key[0].type.kind is Kind.INTEGER
    cut = _Arithmetic(table, wish_rows) if by_number else _Walk(table, wish_rows)
    chunks: list[Chunk] = []
    while len(chunks) < count and (not chunks or chunks[-1].upper is not None):
        chunks.append(cut.behind(chunks[-1].upper if chunks else after))
    return [replace(chunk, partition=partition) for chunk in chunks]


def split_chunk(
    connection: Connection[Any], login: Login, schema: TableSchema, chunk: Chunk, first_rows: int
) -> tuple[Chunk, Chunk] | None:
    """Return a chunk as two, so many rows in the first; None: the table has not more behind it.

    The chunk must hold more rows than `first_rows` on this server, else the second one begins
    behind its end.
    """
    moment("split chunk")
    cut = _Walk(_Table(connection, login, schema, chunk.partition), first_rows)
    first = replace(cut.behind(chunk.lower), partition=chunk.partition)
    if first.upper is None:
        return None
    return first, replace(chunk, lower=first.upper, rows=max(0, chunk.rows - first_rows))


class _Table:
    """A table on its server."""

    def __init__(
        self, connection: Connection[Any], login: Login, schema: TableSchema, partition: str
    ) -> None:
        self._connection, self._login = connection, login
        self.schema = schema
        self.name = keyed_table(schema, partition=partition)
        self.partition = partition
        self.key = _key(schema)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        moment("look at keys")
        return session.rows_of_table(self._connection, self._login, sql)


class _Walk:
    """Cuts any key: steps over the wished number of keys, which reads the index only."""

    def __init__(self, table: _Table, wish: int) -> None:
        self._table = table
        self._wish = wish

    def behind(self, lower: Bound | None) -> Chunk:
        """Return the chunk that begins after a bound."""
        table = self._table
        where = condition(table.schema, lower, None)
        values = ", ".join(fetched(c) for c in table.key)
        ends = table.ask(
            f"SELECT {values} FROM {table.name}{where} ORDER BY {key_order(table.schema)} "
            f"LIMIT 2 OFFSET {self._wish - 1}"
        )
        if len(ends) == 2:  # with one, the chunk ends at the table's last row
            upper = tuple(literal_of(c, v) for c, v in zip(table.key, ends[0], strict=True))
            return Chunk(lower, upper, self._wish)
        return Chunk(lower, None, self._wish if ends else self._count(where))

    def _count(self, where: str) -> int:
        inner = f"SELECT 1 FROM {self._table.name}{where} LIMIT {self._wish}"
        return int(self._table.ask(f"SELECT COUNT(*) FROM ({inner}) AS few")[0][0])


class _Arithmetic:
    """Cuts a single integer key by calculation, so that its cost does not grow with the table.

    The server's own estimate of a range (a look at two places of the index) corrects the width
    where keys are dense or sparse; each chunk begins at a row that is there, so gaps cost nothing.
    """

    def __init__(self, table: _Table, wish: int) -> None:
        self._table = table
        self._name = quoted(table.key[0].name)
        self._wish = wish
        last = table.ask(f"SELECT MAX({self._name}) FROM {table.name}")[0][0]
        self._last = None if last is None else int(last)
        self._width = 0
        self._suggested = keyed_table(table.schema, "USE", table.partition)  # FORCE: no estimate

    def behind(self, lower: Bound | None) -> Chunk:
        """Return the chunk that begins after a bound."""
        where = condition(self._table.schema, lower, None)
        least = self._table.ask(f"SELECT MIN({self._name}) FROM {self._table.name}{where}")[0][0]
        first = 0 if least is None else int(least)
        if least is None or self._last is None or first > self._last:
            return Chunk(lower, None, 0 if least is None else 1)
        span = self._last - first + 1
        if not self._width:
            rows = max(1, self._estimate(first, self._last))
            self._width = max(self._wish, span * self._wish // rows)
        rows = self._tune(first, self._last)
        if self._width >= span:
            return Chunk(lower, None, min(rows, span))
        return Chunk(lower, (str(first + self._width - 1),), min(rows, self._width))

    def _tune(self, first: int, last: int) -> int:
        """Bring the width to where it holds about as many rows as wished; return how many."""
        narrow = wide = few = rows = 0
        for _ in range(_TUNINGS):
            rows = self._estimate(first, first + self._width - 1)
            if rows > 2 * self._wish and self._width > self._wish:
                wide, guess = self._width, self._width * self._wish // rows
            elif 2 * rows < self._wish and first + self._width <= last:
                narrow, few, guess = self._width, rows, 2 * self._width
            else:
                return rows
            if narrow and wide:
                guess = (narrow + wide) // 2
                if guess == narrow:
                    break
            self._width = max(self._wish, guess)
        if narrow:  # keys are few here, and many just behind
            self._width = narrow
        return few if narrow else rows

    def _estimate(self, first: int, last: int) -> int:
        row = self._table.ask(
            f"EXPLAIN FORMAT=TRADITIONAL SELECT {self._name} FROM {self._suggested} "
            f"WHERE {self._name} >= {first} AND {self._name} <= {last}"
        )[0]
        rows = row[-3] if len(row) == 12 else row[-2]  # MySQL has `filtered` after `rows`
        return int(rows or 0)
