"""Rows that the downstream holds, as columns: read to be compared with those of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from rowferry.change.table import TableSchema
from rowferry.errors import SinkUnavailable, SourceError
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.key_ranges import Chunk, condition, exact, table_name
from rowferry.mysql.login import Login
from rowferry.mysql.range_read import prepare
from rowferry.mysql.resultset import ResultSet


def held_rows(
    login: Login, table: TableSchema, part: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[pa.StructArray]:
    """Yield columns of the rows in a key range, as the downstream compares keys.

    Raises:
        SinkUnavailable: it does not answer, or cannot be read; a later try may work.
    """
    moment("read rows downstream")
    chunk = Chunk.from_json(part)
    there = replace(table, id=table.written_as, target=None)
    wanted = tuple(c for c in table.columns if c.name in columns)
    shown = replace(there, columns=wanted, indexes=())
    where = condition(there, chunk.lower, chunk.upper, chunk.closed)
    values = ", ".join(exact(c) for c in wanted)
    try:
        with closing(session.connect(login)) as connection:
            prepare(connection, login, session.facts(connection, login).flavour)
            sql = f"SELECT {values} FROM {table_name(there)}{where}"
            yield from ResultSet(connection, login, sql, {}).read(shown)
    except SourceError as err:
        raise SinkUnavailable(
            f"rows of {table.written_as} that are to be replaced cannot be read: {err.words}"
        ) from None
