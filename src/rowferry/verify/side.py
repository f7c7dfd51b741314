"""The two sides of a comparison: a database server, or a storage that a changefeed wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadUri, NotSupported, OptionsConflict
from rowferry.flow.capture.binlog import session
from rowferry.flow.capture.binlog.catalog import read_tables
from rowferry.flow.capture.binlog.chunk_read import read_chunk
from rowferry.flow.capture.binlog.chunks import Chunk, next_chunks, split_chunk
from rowferry.flow.capture.binlog.options import BINLOG_OPTIONS
from rowferry.flow.capture.binlog.session import Connection, Flavour, Login
from rowferry.flow.decide.table_filter import is_system_database
from rowferry.rebuild.stored_feed import open_storage
from rowferry.rebuild.table import TablePlan, plan_tables
from rowferry.registry import SINKS
from rowferry.spec.option import read_options
from rowferry.spec.uri import Uri

DATABASES: Final = ("mysql", "mariadb", "tidb")
_STORAGES: Final = ("file", "s3", "gcs", "gs", "azblob", "azure")
_CHUNKS_AT_ONCE: Final = 64
_SYNC_POINTS: Final = (
    "SELECT TABLE_NAME FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = 'tidb_cdc' AND TABLE_NAME = 'syncpoint_v1'"
)


@dataclass(frozen=True)
class DatabaseTable:
    """A table on a server, cut into key ranges; small enough to be sent to tasks.

    Attributes:
        chunks: its ranges; (None,): it has no usable key and is read in one piece; (): not cut.
        collations: of the key's columns, as the server orders them.
    """

    login: Login
    flavour: Flavour
    schema: TableSchema
    chunks: tuple[Chunk | None, ...]
    collations: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.schema.handle_key

    def read(self, numbers: Sequence[int], wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some ranges, these columns of them, in blocks of some MB."""
        columns = tuple(c for c in self.schema.columns if c.name in wanted)
        narrow = replace(self.schema, columns=columns)
        for number in numbers:
            found = read_chunk(self.login, narrow, self.chunks[number], 0, 0, self.flavour)
            for rows in found:
                yield pa.Table.from_struct_array(rows.after)


@dataclass(frozen=True)
class StoredTable:
    """A table that is rebuilt from a storage's files."""

    plan: TablePlan

    @property
    def schema(self) -> TableSchema:
        """Its last version."""
        return self.plan.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.plan.key


SideTable: TypeAlias = DatabaseTable | StoredTable


class DatabaseSide:
    """A MySQL, MariaDB or TiDB server, as it is now."""

    is_database = True

    def __init__(self, uri: Uri, chunk_rows: int) -> None:
        """Connect once, to know whose server it is.

        Raises:
            BadUri: no host or user, or the URI names a database.
            UnknownOption, BadOption: a parameter is not known, or has a wrong value.
            LoginRefused, SourceUnavailable: the server does not let us in, or does not answer.
        """
        self._chunk_rows = chunk_rows
        self.login = Login.of(uri, read_options(BINLOG_OPTIONS, dict(uri.parameters)))
        with session.connected(self.login) as connection:
            self._facts = session.facts(connection, self.login)

    def schemas(self, keeps: Callable[[TableId], bool]) -> dict[TableId, TableSchema]:
        """Return the tables that are kept, by name; those of system databases never."""
        with session.connected(self.login) as connection:
            found = read_tables(
                connection,
                self.login,
                self._facts,
                lambda name: not is_system_database(name.database) and keeps(name),
                lambda: 0,
            )
        return {schema.id: schema for schema in found}

    def table(self, schema: TableSchema) -> DatabaseTable:
        """Return a table, not cut yet; one without a usable key is read in one piece."""
        flavour = self._facts.flavour
        if schema.handle_index is None:
            return DatabaseTable(self.login, flavour, schema, (None,))
        with session.connected(self.login) as connection:
            collations = _collations(connection, self.login, schema)
        return DatabaseTable(self.login, flavour, schema, (), collations)

    def cut(self, table: SideTable) -> SideTable:
        """Cut a table into key ranges, as many as it needs; once is enough."""
        if not isinstance(table, DatabaseTable) or table.chunks:
            return table
        with session.connected(self.login) as connection:
            return replace(table, chunks=tuple(self._cut(connection, table.schema)))

    def _cut(self, connection: Connection[Any], schema: TableSchema) -> Iterator[Chunk]:
        login, rows = self.login, self._chunk_rows
        if "tidb" in self._facts.version_text.lower():
            # TiDB's estimates have another form: it is cut by counting keys.
            rest = Chunk(None, None, 0)
            while halves := split_chunk(connection, login, schema, rest, rows):
                yield replace(halves[0], rows=rows)
                rest = halves[1]
            yield replace(rest, rows=rows)
            return
        last: Chunk | None = None
        while last is None or last.upper is not None:
            after = last.upper if last else None
            found = next_chunks(connection, login, schema, after, rows, _CHUNKS_AT_ONCE)
            yield from found
            last = found[-1]

    def sync_point(self) -> int | None:
        """Return the upstream's commit-ts of the newest sync point; None: there are none."""
        with closing(session.connect(self.login)) as connection:
            if not session.rows(connection, self.login, _SYNC_POINTS):
                return None
            newest = session.rows(
                connection,
                self.login,
                "SELECT MAX(CAST(primary_ts AS UNSIGNED)) FROM tidb_cdc.syncpoint_v1",
            )
        return int(newest[0][0]) if newest and newest[0][0] is not None else None

    def __str__(self) -> str:
        return str(self.login)


class StorageSide:
    """What a changefeed wrote to files or an object store, as of some commit-ts."""

    is_database = False

    def __init__(self, uri: str, as_of: int | None, config: Path | None) -> None:
        """Open the storage.

        Raises:
            BadInput: the URI or the configuration cannot be understood, or nothing is there.
        """
        self._uri, self._config = uri, config
        self._as_of = as_of
        self._shown = str(Uri.parse(uri, "storage"))
        open_storage(uri, config)

    def schemas(self, keeps: Callable[[TableId], bool]) -> dict[TableId, TableSchema]:
        """Return the tables that are kept, by name."""
        return {p.schema.id: p.schema for p in self._plans() if keeps(p.schema.id)}

    def table(self, schema: TableSchema) -> StoredTable:
        """Find out what makes a table; what was written meanwhile counts, too."""
        return StoredTable(self._plans(schema.id)[0])

    def cut(self, table: SideTable) -> SideTable:
        """Return the table as it is: its rows are spread by the hash of their keys."""
        return table

    def _plans(self, *names: TableId) -> list[TablePlan]:
        return plan_tables(open_storage(self._uri, self._config), names, self._as_of)

    def __str__(self) -> str:
        return self._shown


Side: TypeAlias = DatabaseSide | StorageSide


def open_side(
    text: str, chunk_rows: int, as_of: int | None = None, config: Path | None = None
) -> Side:
    """Return the side at a URI.

    `as_of` and `config` are for storages; a database is always read as it is now.

    Raises:
        BadInput: it is no side that could be compared.
    """
    uri = Uri.parse(text, "compared side's")
    if uri.scheme in DATABASES:
        return DatabaseSide(uri, chunk_rows)
    if uri.scheme not in _STORAGES or uri.scheme not in SINKS.names():
        known = [*DATABASES, *(s for s in _STORAGES if s in SINKS.names())]
        raise BadUri(f"{uri}: cannot be compared; known: {', '.join(f'{k}://' for k in known)}")
    return StorageSide(text, as_of, config)


def refuse_sync_point(sides: Sequence[Side], as_of: int | None) -> None:
    """Say why a comparison at a sync point cannot be made, which is so for every server yet.

    Raises:
        OptionsConflict: a commit-ts is given, too, or no side is a database.
        NotSupported: there is no sync point, or there is one and old rows cannot be read.
    """
    servers = [side for side in sides if isinstance(side, DatabaseSide)]
    if as_of is not None or not servers:
        raise OptionsConflict("--sync-point needs a database as one side, and takes no --as-of")
    for server in servers:
        found = server.sync_point()
        if found is not None:
            raise NotSupported(
                f"{server} has a sync point at {found}, but its rows of that moment cannot be "
                "read; use --online, or stop the changefeed and compare with --as-of"
            )
    raise NotSupported(
        f"{servers[0]} has no sync points (no rows in tidb_cdc.syncpoint_v1); use --online"
    )


def _collations(connection: Connection[Any], login: Login, schema: TableSchema) -> tuple[str, ...]:
    index = schema.handle_index
    found = session.rows(
        connection,
        login,
        "SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        tuple(schema.id),
    )
    by_name = {name: collation or "" for name, collation in found}
    return tuple(by_name.get(name, "") for name in (index.columns if index else ()))
