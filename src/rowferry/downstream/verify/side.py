"""The two sides of a comparison: a database server, or what a changefeed wrote elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId, TableSchema
from rowferry.downstream.consume.storage import is_storage
from rowferry.downstream.rebuild.stored_feed import StoredFeed, open_storage
from rowferry.downstream.rebuild.table import TablePlan, plan_tables
from rowferry.downstream.verify.lake import LakeSide, LakeTable, is_lake
from rowferry.downstream.verify.masks import RowMasks
from rowferry.downstream.verify.views import Views
from rowferry.errors import BadUri
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.flow.sink.postgresql.options import SCHEMES as POSTGRESQL_SCHEMES
from rowferry.mysql import session
from rowferry.mysql.catalog import read_tables
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.mysql.key_ranges import Chunk, next_chunks, split_chunk
from rowferry.mysql.range_read import prepare, read_chunk, read_view
from rowferry.mysql.session import LOGIN_SCHEMES, Connection, Flavour, Login
from rowferry.registry import SINKS, extras_named
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.uri import Uri

if TYPE_CHECKING:  # its library comes with an extra
    from rowferry.downstream.verify.postgresql import PostgresqlSide, PostgresqlTable

_CHUNKS_AT_ONCE: Final = 64


@dataclass(frozen=True)
class DatabaseTable:
    """A table on a server, cut into key ranges; small enough to be sent to tasks.

    Attributes:
        chunks: its ranges; (None,): it has no usable key and is read in one piece; (): not cut.
        views: connections that show an earlier moment; None: it is read as it is now.
        masks: what a changefeed makes of its rows; `schema` is then what readers see.
        source: the table on the server itself, where there are masks.
    """

    login: Login
    flavour: Flavour
    schema: TableSchema
    chunks: tuple[Chunk | None, ...]
    views: Views | None = None
    masks: RowMasks | None = None
    source: TableSchema | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.schema.handle_key

    @property
    def pieces(self) -> int:
        """How many parts it is read in: its key ranges."""
        return len(self.chunks)

    def read(self, numbers: Sequence[int], wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some ranges, these columns of them, in blocks of some MB."""
        source, names = self.on_server, set(wanted)
        if self.masks is not None:
            names = self.masks.needed(source, wanted)
        columns = tuple(c for c in source.columns if c.name in names)
        narrow = replace(source, columns=columns)
        for number in numbers:
            for rows in self._read(narrow, self.chunks[number]):
                if self.masks is None:
                    yield pa.Table.from_struct_array(rows.after)
                else:
                    yield self.masks.made(source, rows.after, wanted)

    @property
    def on_server(self) -> TableSchema:
        """The table as the server has it."""
        return self.schema if self.source is None else self.source

    def _read(self, schema: TableSchema, chunk: Chunk | None) -> Iterator[Rows]:
        if self.views is None:
            yield from read_chunk(self.login, schema, chunk, 0, 0, self.flavour)
            return
        with self.views.lent(self.login, self.flavour) as connection:
            yield from read_view(connection, self.login, schema, chunk)

    @contextmanager
    def connected(self) -> Iterator[Connection[Any]]:
        """Connect for questions about rows."""
        if self.views is not None:
            with self.views.lent(self.login, self.flavour) as connection:
                yield connection
            return
        with session.connected(self.login) as connection:
            prepare(connection, self.login, self.flavour)
            yield connection


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


SideTable: TypeAlias = "DatabaseTable | StoredTable | LakeTable | PostgresqlTable"


class DatabaseSide:
    """A MySQL, MariaDB or TiDB server, as it is now; or as its `views` show it, where it has some.

    Which tables there are, and how they are cut, is always told as of now.
    """

    is_database = True

    def __init__(self, uri: Uri, chunk_rows: int) -> None:
        """Connect once, to know whose server it is.

        Raises:
            BadUri: no host or user, or the URI names a database.
            UnknownOption, BadOption: a parameter is not known, or has a wrong value.
            LoginRefused, SourceUnavailable: the server does not let us in, or does not answer.
        """
        self._chunk_rows = chunk_rows
        self.views: Views | None = None
        self.masks: RowMasks | None = None
        self._sources: dict[TableId, TableSchema] = {}
        self.login = Login.of(uri, BinlogOptions.read(dict(uri.parameters)))
        with session.connected(self.login) as connection:
            self.facts = session.facts(connection, self.login)

    def schemas(self, keeps: Callable[[TableId], bool]) -> dict[TableId, TableSchema]:
        """Return the tables that are kept, by name; those of system databases never."""
        with session.connected(self.login) as connection:
            tables = read_tables(
                connection,
                self.login,
                self.facts,
                lambda name: not MYSQL_DIALECT.is_system_database(name.database) and keeps(name),
                lambda: 0,
            )
        if self.masks is None:
            return {schema.id: schema for schema in tables}
        self._sources = {schema.id: schema for schema in tables}
        return {schema.id: self.masks.seen(schema) for schema in tables}

    def table(self, schema: TableSchema) -> DatabaseTable:
        """Return a table, not cut yet; one without a usable key is read in one piece."""
        flavour = self.facts.flavour
        cuts = () if schema.handle_index else (None,)
        source = self._sources.get(schema.id)
        return DatabaseTable(self.login, flavour, schema, cuts, self.views, self.masks, source)

    def cut(self, table: SideTable) -> SideTable:
        """Cut a table into key ranges, as many as it needs; once is enough."""
        if not isinstance(table, DatabaseTable) or table.chunks:
            return table
        with session.connected(self.login) as connection:
            prepare(connection, self.login, self.facts.flavour)
            return replace(table, chunks=tuple(self._cut(connection, table.on_server)))

    def _cut(self, connection: Connection[Any], schema: TableSchema) -> Iterator[Chunk]:
        login, rows = self.login, self._chunk_rows
        if self.is_tidb:
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
            chunks = next_chunks(connection, login, schema, after, rows, _CHUNKS_AT_ONCE)
            yield from chunks
            last = chunks[-1]

    @property
    def is_tidb(self) -> bool:
        """Whether it keeps the past of its rows."""
        return self.facts.flavour is Flavour.TIDB

    def __str__(self) -> str:
        return str(self.login)


class StorageSide:
    """What a changefeed wrote to files or an object store, as of some commit-ts."""

    is_database = False

    def __init__(
        self,
        uri: str,
        as_of: int | None,
        config: Path | None,
        secrets: SecretSources = NO_STORE,
    ) -> None:
        """Open the storage.

        Raises:
            BadInput: the URI or the configuration cannot be understood, or nothing is there.
        """
        self._uri, self._config, self._secrets = uri, config, secrets
        self._as_of = as_of
        self._shown = str(Uri.parse(uri, "storage"))
        self._feed()

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
        return plan_tables(self._feed(), names, self._as_of)

    def _feed(self) -> StoredFeed:
        return open_storage(self._uri, self._config, secrets=self._secrets)

    def __str__(self) -> str:
        return self._shown


Side: TypeAlias = "DatabaseSide | StorageSide | LakeSide | PostgresqlSide"


def open_side(
    text: str,
    chunk_rows: int,
    as_of: int | None = None,
    config: Path | None = None,
    secrets: SecretSources = NO_STORE,
) -> Side:
    """Return the side at a URI.

    `as_of` is for storages and lakes, `config` for storages; a database is always read as it is
    now. `secrets` is where the values of references come from.

    Raises:
        BadInput: it is no side that could be compared.
    """
    uri = Uri.parse(text, "compared side's")
    if uri.scheme in LOGIN_SCHEMES:
        options = (BinlogOptions.TABLE,)
        whole = secrets.resolved_uri(uri, f"{uri.scheme}://{uri.address}", options)
        return DatabaseSide(whole, chunk_rows)
    if is_lake(uri.scheme):
        return LakeSide(text, as_of, secrets)
    if uri.scheme in POSTGRESQL_SCHEMES:
        with extras_named(f"comparing {uri.scheme}"):
            from rowferry.downstream.verify.postgresql import PostgresqlSide
        return PostgresqlSide(text, secrets)
    if not is_storage(uri.scheme):
        stored = [*SINKS.installed(is_storage), *SINKS.installed(is_lake)]
        known = [*LOGIN_SCHEMES, *stored, *POSTGRESQL_SCHEMES]
        raise BadUri(f"{uri}: cannot be compared; known: {', '.join(f'{k}://' for k in known)}")
    return StorageSide(text, as_of, config, secrets)
