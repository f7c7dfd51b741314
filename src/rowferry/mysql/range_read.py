"""Rows of a snapshot: a key range of a table, or a whole table, as inserts.

Each read has a consistent view of its own, opened when the read begins. `low_position` and
`high_position` frame the views of a table; `read_exact` knows its view's place exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableSchema
from rowferry.errors import (
    BadInput,
    CorruptLog,
    SnapshotGone,
    SnapshotOutdated,
    SourceUnsupported,
)
from rowferry.moment import moment
from rowferry.mysql import key_ranges as chunks
from rowferry.mysql import session
from rowferry.mysql import snapshot_position as positions
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.type import read_type
from rowferry.mysql.key_ranges import Chunk
from rowferry.mysql.refusals import ALTERED
from rowferry.mysql.resultset import Meanings, ResultSet
from rowferry.mysql.session import Connection, Flavour, Login
from rowferry.mysql.snapshot_position import Place, high_position, low_position
from rowferry.mysql.type_facts import display_width

__all__ = [
    "high_position",
    "low_position",
    "prepare",
    "read_chunk",
    "read_exact",
    "read_view",
]

T = TypeVar("T")

_MEANINGS: Final[Meanings] = {
    **dict.fromkeys(ALTERED, SnapshotOutdated),
    1412: SnapshotGone,  # altered since the view was opened
}
_VIEWS: Final = 10  # tries to open a view between two changes of the table
_QUIET_TRIES: Final = 50
_SESSION: Final = (
    "SET SESSION transaction_isolation = 'REPEATABLE-READ', net_write_timeout = 3600, "
    "sql_select_limit = 18446744073709551615, lock_wait_timeout = 30, "
)
_UNLIMITED: Final = {
    Flavour.MYSQL: "max_execution_time = 0",
    Flavour.MARIADB: "max_statement_time = 0",
    Flavour.TIDB: "max_execution_time = 0",
}
_SIZED: Final = frozenset({Kind.TEXT, Kind.BINARY, Kind.DECIMAL, Kind.BIT, Kind.YEAR, Kind.VECTOR})


def read_chunk(
    login: Login,
    schema: TableSchema,
    chunk: Chunk | None,
    commit_ts: int,
    first_seq: int,
    flavour: Flavour,
    server: str = "",
) -> Iterator[Rows]:
    """Yield a key range's rows as inserts, in key order; with None all rows, in any order.

    `seq` counts up from `first_seq`. Memory holds one block of rows (some MB), however many there
    are. The table may have more columns than `schema`.

    Raises:
        SourceMoved: not `server` answers, but another one, which may lack what lies before the
            place that the rows are given; not looked at when it is empty.
        SnapshotOutdated: the table, one of its columns or the key is not as `schema` says, or its
            rows have another order than when the range was cut.
        SourceUnavailable: no answer, or the connection was lost; nothing is promised about the
            rows that came before, a new call begins anew.
    """
    moment("read chunk")
    with closing(session.connect_to(login, server)) as connection:
        prepare(connection, login, flavour)
        _open_view(connection, login, schema, lambda: None, flavour=flavour)
        if chunk is not None:
            _check_order(connection, login, schema, chunk)
        moment("select rows")
        result = ResultSet(connection, login, _select(schema, chunk), _MEANINGS)
        yield from _judged(_inserts(result, schema, commit_ts, first_seq), login, schema)


def prepare(connection: Connection[Any], login: Login, flavour: Flavour) -> None:
    """Make a connection fit for reading rows: exact values, no limits but the login's."""
    moment("prepare reading")
    settings = _SESSION + _UNLIMITED[flavour]
    if flavour is Flavour.MARIADB:
        settings = settings.replace("transaction_isolation", "tx_isolation")
    session.rows(connection, login, settings)
    tidb = flavour is Flavour.TIDB
    session.rows(connection, login, chunks.TIDB_SETTINGS if tidb else chunks.SETTINGS)


def read_view(
    connection: Connection[Any], login: Login, schema: TableSchema, chunk: Chunk | None
) -> Iterator[Rows]:
    """Yield a key range's rows (None: all) in the view that a prepared connection has open.

    Until the last one has come, the connection is good for nothing else.

    Raises:
        SnapshotGone: the table was altered since the view was opened.
        SnapshotOutdated, SourceUnavailable: as `read_chunk`.
    """
    moment("read view")
    result = ResultSet(connection, login, _select(schema, chunk), _MEANINGS)
    yield from _judged(_inserts(result, schema, 0, 0), login, schema)


def read_exact(
    login: Login,
    schema: TableSchema,
    commit_ts: int,
    first_seq: int,
    flavour: Flavour,
    lock: bool,
    server: str = "",
) -> tuple[Place, Iterator[Rows]]:
    """Return the exact place of a view of a whole table, and all its rows as inserts.

    The table may have no more columns than `schema`: nothing of its log before that place follows.
    MariaDB knows the place. On MySQL a moment is waited for in which the log stands still; if none
    comes and `lock` allows it, writers to this table are held up while the view is opened. A table
    whose engine has no transactions is locked until all its rows are read.

    Raises:
        SourceUnsupported: a lock is needed and not allowed.
        SourceMoved, SnapshotOutdated, SourceUnavailable: as `read_chunk`.
    """
    moment("read whole table")
    with ExitStack() as opened:
        connection = opened.enter_context(closing(session.connect_to(login, server)))
        prepare(connection, login, flavour)
        place, locker = _exact_view(connection, login, schema, flavour, lock)
        if locker:
            opened.enter_context(closing(locker))
        moment("select all rows")
        result = ResultSet(connection, login, _select(schema, None), _MEANINGS)
        inserts = _judged(_inserts(result, schema, commit_ts, first_seq), login, schema)
        return place, _closing(opened.pop_all(), inserts)


def _closing(opened: ExitStack, row_chunks: Iterator[Rows]) -> Iterator[Rows]:
    with opened:
        yield from row_chunks


def _select(schema: TableSchema, chunk: Chunk | None) -> str:
    values = ", ".join(chunks.exact(c) for c in schema.columns)
    if chunk is None:
        return f"SELECT {values} FROM {chunks.table_name(schema)}"
    where = chunks.condition(schema, chunk.lower, chunk.upper, chunk.closed)
    table = chunks.keyed_table(schema, partition=chunk.partition)
    return f"SELECT {values} FROM {table}{where} ORDER BY {chunks.key_order(schema)}"


def _inserts(
    result: ResultSet, schema: TableSchema, commit_ts: int, first_seq: int
) -> Iterator[Rows]:
    for after in result.read(schema):
        count = len(after)
        yield make_rows(
            schema,
            pa.array(np.full(count, int(Op.INSERT), np.int8)),
            pa.array(np.full(count, commit_ts, np.uint64)),
            pa.array(np.arange(first_seq, first_seq + count)),
            pa.nulls(count, schema.image),
            after,
        )
        first_seq += count


def _judged(row_chunks: Iterator[Rows], login: Login, schema: TableSchema) -> Iterator[Rows]:
    """Yield rows; what cannot be read of a table that is another one by now is outdated.

    MySQL renames columns at once, and a view goes on under the new names, while its catalog has the
    old ones: a column that has another one's name was not found out when the view was opened. Where
    the values of both can be read, the log tells, which names the columns anew.
    """
    try:
        yield from row_chunks
    except CorruptLog:
        with closing(session.connect(login)) as connection:
            _check_columns(connection, login, schema, False)
        raise


# --- views ---------------------------------------------------------------------------------------


def _open_view(
    connection: Connection[Any],
    login: Login,
    schema: TableSchema,
    look: Callable[[], T],
    exactly: bool = False,
    flavour: Flavour = Flavour.MYSQL,
) -> T:
    """Open a view in which the table is as `schema` says; return what `look` saw right after.

    From here to the view's end nobody can alter the table. Unless `exactly`, it may have more
    columns than `schema`.
    """
    moment("open view")
    touch = f"SELECT 1 FROM {chunks.table_name(schema)} LIMIT 1"
    for again in range(_VIEWS - 1, -1, -1):
        session.rows(connection, login, positions.snapshot(flavour))
        moment("look from view")
        seen = look()
        moment("touch table")
        try:
            ResultSet(connection, login, touch, _MEANINGS).finish()
        except SnapshotGone:
            if not again:
                raise
        else:
            break
    _check_columns(connection, login, schema, exactly)
    return seen


def _check_columns(
    connection: Connection[Any], login: Login, schema: TableSchema, exactly: bool
) -> None:
    moment("check columns")
    columns = session.rows(
        connection,
        login,
        "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        tuple(schema.id),
    )
    present = {name.lower(): (kind, charset or "binary") for name, kind, charset in columns}
    if exactly and len(present) > len(schema.columns):
        raise SnapshotOutdated(f"{schema.id} has more columns than before")
    for column in schema.columns:
        if column.name.lower() not in present:
            raise SnapshotOutdated(f"{schema.id} has no column {column.name!r} any more")
        text, charset = present[column.name.lower()]
        if not _same_type(column.type, text, charset):
            raise SnapshotOutdated(
                f"{schema.id}, column {column.name!r} was {column.type.sql} ({column.type.charset})"
                f" and is {text} ({charset}) now"
            )


def _check_order(
    connection: Connection[Any], login: Login, schema: TableSchema, chunk: Chunk
) -> None:
    """Refuse a range whose bounds are of another order of rows than the view has."""
    if chunk.order and chunk.order != chunks.order_of_key(connection, login, schema):
        raise SnapshotOutdated(f"the key of {schema.id} orders rows otherwise than before")


def _same_type(known: SqlType, text: str, charset: str) -> bool:
    """Return whether values of a type, as the server names it, are read and written as `known`."""
    try:
        present, _ = read_type(TokenCursor(text), charset)
    except BadInput:
        return False
    return _shape(known) == _shape(present)


def _shape(kind: SqlType) -> tuple[Any, ...]:
    """Return what matters of a type; display widths do not, and servers drop or add them."""
    sized = display_width(kind) if kind.kind in _SIZED else None
    charset = "utf8mb3" if kind.charset == "utf8" else kind.charset
    return kind.name, kind.unsigned, sized, kind.fraction_digits, kind.elements, charset


def _exact_view(
    connection: Connection[Any], login: Login, schema: TableSchema, flavour: Flavour, lock: bool
) -> tuple[Place, Connection[Any] | None]:
    """Return the view's place, and the connection that must hold a lock until the end, if any."""
    if not _is_transactional(connection, login, schema):
        if not lock:
            raise _needs_lock(schema, "its engine has no transactions")
        return _locked_view(connection, login, schema, flavour, hold=True)
    if flavour is Flavour.MARIADB:
        look = partial(positions.snapshot_place, connection, login)
        return _open_view(connection, login, schema, look, exactly=True), None
    for attempt in range(_QUIET_TRIES):
        quiet = positions.QuietMoment(connection, login)
        still = partial(quiet.place, connection, login)
        if place := _open_view(connection, login, schema, still, exactly=True):
            return place, None
        session.rows(connection, login, "ROLLBACK")
        time.sleep(attempt % 10 * 0.003)
    if not lock:
        raise _needs_lock(schema, "the log never stood still while its rows were to be read")
    return _locked_view(connection, login, schema, flavour, hold=False)


def _locked_view(
    connection: Connection[Any], login: Login, schema: TableSchema, flavour: Flavour, hold: bool
) -> tuple[Place, Connection[Any] | None]:
    """Open the view under a read lock: whoever wrote to the table has committed by then."""
    moment("lock table")
    with ExitStack() as opened:
        same = session.facts(connection, login).identity
        locker = opened.enter_context(closing(session.connect_to(login, same)))
        prepare(locker, login, flavour)
        session.rows_of_table(locker, login, f"LOCK TABLES {chunks.table_name(schema)} READ")
        look = partial(positions.place_now, connection, login, flavour)
        place = _open_view(connection, login, schema, look, exactly=True)
        if hold:
            opened.pop_all()
            return place, locker
    return place, None


def _needs_lock(schema: TableSchema, why: str) -> SourceUnsupported:
    return SourceUnsupported(
        f"{schema.id} has no usable key and {why}; set snapshot-lock=table, or give it a key"
    )


def _is_transactional(connection: Connection[Any], login: Login, schema: TableSchema) -> bool:
    moment("look at engine")
    engines = session.rows(
        connection,
        login,
        "SELECT e.TRANSACTIONS FROM information_schema.TABLES t JOIN information_schema.ENGINES e "
        "ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
        tuple(schema.id),
    )
    return not engines or engines[0][0] == "YES"
