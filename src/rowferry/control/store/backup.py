"""The whole meta database as one file, and back, also into another kind of database.

The file is JSON lines, gzipped: a first line that says what it is, one for each row, and a last one
with their number. Secrets in it are as the database has them: encrypted, or as they are.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Row,
    Table,
    and_,
    func,
    insert,
    inspect,
    or_,
    select,
)

from rowferry.control.store.connection import Database, has_database
from rowferry.control.store.rows import to_ms, to_text
from rowferry.control.store.tables import REVISIONS, VERSION_TABLE, MetaTable
from rowferry.errors import BadInput, MetaDamaged, MetaUnavailable
from rowferry.spec.sealing import key_ids

FORMAT = 1
EPOCH_STEP = 1_000_000  # above what can have been claimed since the backup
# What servers say of themselves is of no use later.
_LEFT_OUT = ("servers", "samples", "log_lines")
_AT_ONCE = 200  # rows in one statement


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup file holds.

    Attributes:
        schema: the schema version of the database that it is of.
        at: when it was made, in seconds since 1970.
        keys: the ids of the keys with which secrets in it are encrypted.
    """

    schema: str
    at: float
    changefeeds: int
    rows: int
    keys: tuple[str, ...] = ()


def back_up(url: str, file: Path, now: float) -> Backup:
    """Write all that is stored to a new file, as it is at one moment; nobody is disturbed.

    On return: the file is complete and durable, and only its owner can read it. On raise: there is
    no file.

    Raises:
        BadInput: there is no meta database at this URL, or the file exists or cannot be written.
    """
    if not has_database(url):
        raise BadInput("there is no meta database at this URL to back up; check it")
    with closing(Database(url, migrate=False)) as database:
        schema = database.version() or ""
        try:
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as err:
            raise BadInput(
                f"backup file {file} cannot be made: {err.strerror}; name another"
            ) from None
        try:
            with open(number, "wb") as raw:
                with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed:
                    backup = _write(database, packed, schema, now)
                raw.flush()
                os.fsync(raw.fileno())
        except OSError as err:
            file.unlink(missing_ok=True)
            raise MetaUnavailable(f"backup file {file} cannot be written: {err.strerror}") from err
        except BaseException:
            file.unlink(missing_ok=True)
            raise
    return backup


def _write(database: Database, packed: gzip.GzipFile, schema: str, now: float) -> Backup:
    first = {"rowferry_meta_backup": FORMAT, "schema": schema, "at": to_ms(now)}
    packed.write(to_text(first).encode() + b"\n")
    counts: dict[str, int] = {}
    keys: set[str] = set()
    with database.reading("back up") as session:
        connection = session.connection()
        # As the database has them, which may be older than this version's.
        tables = _reflected(connection)
        for table in tables.sorted_tables:
            for row in _rows(connection, table):
                form = {"table": table.name, "row": dict(row._mapping)}
                packed.write(to_text(form).encode() + b"\n")
                keys |= key_ids(str(row._mapping.get("spec", "")))
                counts[table.name] = counts.get(table.name, 0) + 1
    total = sum(counts.values())
    packed.write(to_text({"rows": total}).encode() + b"\n")
    return Backup(
        schema, to_ms(now) / 1000, counts.get("changefeeds", 0), total, tuple(sorted(keys))
    )


def _rows(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    """Yield all rows by their key, some at a time: no answer is longer than one may be."""
    key = list(table.primary_key)
    first = select(table).order_by(*key).limit(_AT_ONCE)
    rows = connection.execute(first).all()
    yield from rows
    while len(rows) == _AT_ONCE:
        last = [rows[-1]._mapping[column] for column in key]
        rows = connection.execute(first.where(_behind(key, last))).all()
        yield from rows


def _behind(key: Sequence[Column[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """Return the condition that a row comes after one, in a form for which indexes are used."""
    column, value = key[0], last[0]
    above: ColumnElement[bool] = column > value
    if len(key) == 1:
        return above
    return and_(column >= value, or_(above, _behind(key[1:], last[1:])))


def restore(url: str, file: Path, now: float) -> Backup:
    """Fill an empty database from a backup file, and bring it to the newest schema version.

    Every changefeed comes back as it was, owned by nobody, and with an epoch far above that of
    the backup: whoever ran it before is fenced at the sinks. On raise: nothing was stored.

    Raises:
        BadInput: the file cannot be read, is not a whole backup, or one of a newer Rowferry; or
            the database is not empty.
    """
    backup = _examined(file)
    with closing(Database(url, migrate=False)) as database:
        empty = f"meta database {database.name} is not empty; restore into a new one"
        if database.version() not in (None, backup.schema):
            raise BadInput(empty)
        database.migrate(backup.schema)
        with database.writing("restore") as session:
            connection = session.connection()
            tables = _reflected(connection)
            for table in tables.sorted_tables:
                if connection.scalar(select(func.count()).select_from(table)):
                    raise BadInput(empty)
            _fill(connection, tables, file, now)
        database.migrate()
    return backup


def _examined(file: Path) -> Backup:
    """Read a whole file without storing anything, so that a damaged one is refused early."""
    first: dict[str, Any] = {}
    feeds = rows = 0
    keys: set[str] = set()
    complete = False
    known = {table.name for table in MetaTable.metadata.sorted_tables}
    for form in _lines(file):
        if not first:
            first = form
            if form.get("rowferry_meta_backup") != FORMAT or form.get("schema") not in REVISIONS:
                raise BadInput(
                    f"{file} is no backup of a meta database that this version of Rowferry knows"
                )
        elif "rows" in form:
            complete = form["rows"] == rows
        else:
            if form.get("table") not in known or not isinstance(form.get("row"), dict):
                raise BadInput(f"{file}: row {rows + 1} is of no table that is known")
            rows += 1
            keys |= key_ids(str(form["row"].get("spec", "")))
            feeds += form["table"] == "changefeeds"
            complete = False
    if not complete:
        raise BadInput(f"{file} is not complete: it ends after {rows} rows; use another backup")
    return Backup(first["schema"], first["at"] / 1000, feeds, rows, tuple(sorted(keys)))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                form = json.loads(line)
                if not isinstance(form, dict):
                    raise ValueError("a line is no object")
                yield form
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as err:
        why = getattr(err, "strerror", None) or err
        raise BadInput(f"{file} cannot be read as a backup: {why}") from None


def _fill(connection: Connection, tables: MetaData, file: Path, now: float) -> None:
    waiting: dict[str, list[dict[str, Any]]] = {}

    def store(name: str) -> None:
        rows = waiting.pop(name, [])
        if rows:
            connection.execute(insert(tables.tables[name]), rows)

    note = {"what": "restored", "at": to_ms(now), "details": to_text({"from": file.name})}
    feeds = []
    for form in _lines(file):
        name = form.get("table")
        if name is None:
            continue
        for other in [t for t in waiting if t != name]:
            store(other)  # rows come table by table, those that others refer to first
        row = _as_restored(name, form["row"], now)
        waiting.setdefault(name, []).append(row)
        if name == "changefeeds":
            feeds.append(row["id"])
        if len(waiting[name]) >= _AT_ONCE:
            store(name)
    waiting.setdefault("history", []).extend({"changefeed": feed, **note} for feed in feeds)
    for name in list(waiting):
        store(name)


def _as_restored(table: str, row: dict[str, Any], now: float) -> dict[str, Any]:
    """Return a row as it is stored again: nobody owns anything, and all epochs are new."""
    match table:
        case "changefeeds":
            return {**row, "epoch": _raised(row["epoch"], now)}
        case "leases":
            free = {"holder": None, "expires_at": 0}
            return {**row, **free, "epoch": _raised(row["epoch"], now)}
        case "subscribe":
            return {**row, "owner": ""}
        case "history" | "schema_changes":  # numbered anew: PostgreSQL counts only what it numbers
            return {name: value for name, value in row.items() if name != "id"}
        case _:
            return row


def _raised(epoch: int, now: float) -> int:
    # Also above that of the same backup when it was restored before.
    return max(epoch + EPOCH_STEP, int(now))


def _reflected(connection: Connection) -> MetaData:
    """Return the tables as the database has them."""
    known = {table.name for table in MetaTable.metadata.sorted_tables}
    names = known.intersection(inspect(connection).get_table_names())
    metadata = MetaData()
    metadata.reflect(connection, only=sorted(names.difference(_LEFT_OUT)))
    if not names:
        raise MetaDamaged(f"the meta database has no tables but {VERSION_TABLE}")
    return metadata
