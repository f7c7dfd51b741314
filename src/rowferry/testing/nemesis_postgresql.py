"""PostgreSQL tables under the nemesis: beside every watermark, and at the end.

A table holds one state only, and rows may run ahead of the watermark. So a row that was seen beside
a watermark must be what the source had at that watermark, or at some moment after it; a row that
was missing must have been missing then. At the end the tables equal the source's.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from psycopg.types.json import set_json_loads

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.refstore.client import Store
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.model import History, HistoryReplay, Key, Row, TableStates
from rowferry.testing.nemesis_output import ProgressWatch, Written, differences
from rowferry.testing.nemesis_watch import OutputWatch

_MOST: Final = 12
_NO_DAY: Final = "0000-00-00"
_NOT_OURS: Final = ("pg_catalog", "information_schema", "rowferry")
# What a row was, and since when; None: it was not there.
_Past: TypeAlias = list[tuple[int, Row | None]]
_Connection: TypeAlias = psycopg.Connection[Row]


@dataclass(frozen=True, slots=True)
class TableSight:
    """What tables held after the changefeed's watermark was `checkpoint_ts`."""

    checkpoint_ts: int
    rows: dict[TableId, list[Row]]


class PostgresqlOutput:
    """A database whose tables equal the source's.

    Days that PostgreSQL does not have become NULL.

    Args:
        url: the database, with the password.
        kept: tables that are there from the start on, keep their names and are never emptied:
            these are looked at beside every watermark.
        meta_url: the meta database, which has the watermark.
    """

    config = ""

    def __init__(self, url: str, kept: Collection[TableId], meta_url: str) -> None:
        self.sink = f"{url}?create-tables=true&zero-dates=null"
        self._url, self._kept, self._meta_url = url, kept, meta_url
        self._meta: MetaStore | None = None
        self._sights: list[TableSight] = []

    def checkpoint(self) -> int:
        """Return the watermark of the meta database."""
        feeds = self._meta.feeds() if self._meta is not None else ()
        return max((feed.watermark for feed in feeds), default=0)

    def watch(self) -> OutputWatch:
        """Begin to look at the kept tables."""
        self._meta = open_store(self._meta_url)
        return ProgressWatch(self._look)

    def judge(self, spec: ChangefeedSpec, written: Written) -> list[str]:
        """Hold every row that was seen against the source."""
        if self._meta is not None:
            self._meta.close()
        return list(judge_sights(self._sights, written))[:_MOST]

    def compare(self, spec: ChangefeedSpec, store: Store, tables: list[TableId]) -> list[str]:
        """Read each table as it is now; others must be gone."""
        with closing(self._connected()) as connection:
            there = _tables(connection)
            extra = sorted(there - {*tables})
            failures = [f"{name} is there, and the source has it no more" for name in extra]
            for name in tables:
                schema = store.table(name)
                have = _rows(connection, name) if name in there else []
                want = [in_postgresql(schema, row) for row in store.scan(name).to_pylist()]
                failures += differences(f"{name} at the end", have, want, schema.handle_key)
        return failures

    def _look(self) -> int:
        """Return the watermark; what tables hold beside a new one is remembered."""
        watermark = self.checkpoint()
        if watermark > (self._sights[-1].checkpoint_ts if self._sights else 0):
            with closing(self._connected()) as connection:
                self._sights.append(TableSight(watermark, _seen(connection, self._kept)))
        return watermark

    def _connected(self) -> _Connection:
        connection = psycopg.connect(self._url, autocommit=True, row_factory=dict_row)
        set_json_loads(_document, connection)
        return connection


def _tables(connection: _Connection) -> set[TableId]:
    query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname <> ALL (%s)"
    rows = connection.execute(query, ([*_NOT_OURS],)).fetchall()
    return {TableId(one["schemaname"], one["tablename"]) for one in rows}


def _rows(connection: _Connection, name: TableId) -> list[Row]:
    return connection.execute(SQL("SELECT * FROM {}").format(Identifier(*name))).fetchall()


def _seen(connection: _Connection, names: Collection[TableId]) -> dict[TableId, list[Row]]:
    """Return the rows of tables at one moment; a table that is not made yet has none."""
    there = _tables(connection) & {*names}
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for name in sorted(there):
            # A table that is altered behind the transaction's view would look empty.
            connection.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(Identifier(*name)))
        return {name: _rows(connection, name) if name in there else [] for name in names}


# --- judging --------------------------------------------------------------------------------------


def judge_sights(sights: Sequence[TableSight], written: Written) -> Iterator[str]:
    """Yield which rows were what the source had neither at a watermark nor after it."""
    first = max((w.high for w in written.windows), default=0)
    names = {name for sight in sights for name in sight.rows}
    keys = {e.id: e.handle_key for e in written.history.entries() if isinstance(e, TableSchema)}
    pasts = _pasts(written.history, names)
    for sight in sights:
        if sight.checkpoint_ts < first:
            continue  # of what a snapshot brings until then, nothing is said
        for name, rows in sight.rows.items():
            here = {tuple(row[c] for c in keys[name]): row for row in rows}
            wrong = [
                (key, here.get(key))
                for key in here.keys() | pasts[name].keys()
                if not _was(pasts[name].get(key, []), sight.checkpoint_ts, here.get(key))
            ]
            if wrong:
                yield (
                    f"P4: {name} at {sight.checkpoint_ts}: {len(wrong)} rows are what the source "
                    f"had neither then nor later: {wrong[:2]}"
                )


def _pasts(history: History, names: Collection[TableId]) -> dict[TableId, dict[Key, _Past]]:
    """Return all that rows ever were, as PostgreSQL has it."""
    pasts: dict[TableId, dict[Key, _Past]] = {name: {} for name in names}
    replay = HistoryReplay([])
    for entry in history.entries():
        touched: dict[TableId, set[Key] | None] = {}
        replay.play(entry, touched)
        if isinstance(entry, TableSchema):
            continue
        for name in touched.keys() & pasts.keys():
            chosen = touched[name]
            for key in {*pasts[name], *replay.states.rows[name]} if chosen is None else chosen:
                now = _state(replay.states, name, key)
                pasts[name].setdefault(key, []).append((entry.commit_ts, now))
    return pasts


def _state(states: TableStates, name: TableId, key: Key) -> Row | None:
    row = states.rows[name].get(key)
    return None if row is None else in_postgresql(states.schemas[name], row)


def _was(past: _Past, since: int, row: Row | None) -> bool:
    """Return whether a row was this at a moment, or after it."""
    place = bisect_right(past, since, key=lambda one: one[0])
    states = past[place - 1 :] if place else [(0, None), *past]
    return any(_same(row, state) for _, state in states)


def _same(row: Row | None, state: Row | None) -> bool:
    """Return whether a row is in a state, by the columns that both have."""
    if row is None or state is None:
        return row is state
    return all(row[name] == value for name, value in state.items() if name in row)


# --- values ---------------------------------------------------------------------------------------


def in_postgresql(schema: TableSchema, row: Row) -> Row:
    """Return a canonical row with the values that PostgreSQL's client reads."""
    return {c.name: _value(c.type, row[c.name]) for c in schema.visible}


def _value(kind: SqlType, value: Any) -> Any:
    if value is None:
        return None
    match kind.kind:
        case Kind.FLOAT:
            return float(str(np.float32(value)))
        case Kind.DECIMAL:
            return Decimal(value)
        case Kind.BIT:
            return f"{value:0{kind.size}b}"
        case Kind.ENUM:
            return kind.elements[value - 1]
        case Kind.SET:
            return ",".join(e for place, e in enumerate(kind.elements) if value >> place & 1)
        case Kind.DATE:
            return None if value.startswith(_NO_DAY) else date.fromisoformat(value)
        case Kind.DATETIME:
            return None if value.startswith(_NO_DAY) else datetime.fromisoformat(value)
        case Kind.TIMESTAMP:
            no_day = value.startswith(_NO_DAY)
            return None if no_day else datetime.fromisoformat(value).replace(tzinfo=UTC)
        case Kind.TIME:
            return _duration(value)
        case Kind.JSON:
            return _document(value)
        case _:
            return value


def _duration(text: str) -> timedelta:
    hours, minutes, seconds = text.removeprefix("-").split(":")
    whole, _, fraction = seconds.partition(".")
    length = timedelta(
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(whole),
        microseconds=int(fraction.ljust(6, "0")),
    )
    return -length if text.startswith("-") else length


def _document(text: str | bytes) -> tuple[Any]:
    """Return a JSON document; its own null is not that of SQL."""
    return (json.loads(text),)
