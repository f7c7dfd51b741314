"""Which files make a table: its versions since it was last empty, and their visible data files.

Schema files are followed in the order of versions. DROP and TRUNCATE end what was before, RENAME
takes it along, every other schema change makes the next step of the same table.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from rowferry.change.chunk import DdlKind
from rowferry.change.table import TableId, TableSchema
from rowferry.downstream.consume.storage import renamed_from
from rowferry.downstream.rebuild.evolve import altered_from
from rowferry.errors import BadInput, NoSuchTable, SinkDamaged
from rowferry.flow.sink.storage.files import Files, each, walk
from rowferry.flow.sink.storage.index_file import read_metadata
from rowferry.flow.sink.storage.paths import METADATA, Directory, IndexFile, SchemaFile
from rowferry.flow.sink.storage.reader import counted_files, without_node
from rowferry.flow.sink.storage.schema_file import SchemaDocument, read_document


@dataclass(frozen=True, slots=True)
class VersionStep:
    """One version in a table's life, under the name that it had then; `query` led to it."""

    schema: TableSchema
    query: str = ""
    kind: DdlKind = DdlKind.NONE


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A visible data file; files apply by `ordinal`, `step` is the version that wrote it."""

    path: str
    step: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """All that makes one table.

    Attributes:
        shared: several nodes have written files of one directory. By their names nobody can tell
            how rows of two nodes follow each other.
    """

    table: TableId
    steps: tuple[VersionStep, ...]
    files: tuple[SourceFile, ...]
    shared: bool = False

    @property
    def schema(self) -> TableSchema:
        """The last version."""
        return self.steps[-1].schema


@dataclass(slots=True)
class StoredCatalog:
    """What a storage directory holds, up to some commit-ts: tables, and where their data is."""

    tables: dict[TableId, list[VersionStep]] = field(default_factory=dict)
    indexes: dict[tuple[TableId, int], list[tuple[str, Directory]]] = field(default_factory=dict)

    def lineage(self, files: Files, table: TableId) -> Lineage:
        """Return what makes a table.

        Raises:
            NoSuchTable: there is none of that name; the text lists those that are.
            SinkDamaged: a file that an index counts is missing.
        """
        steps = self.tables.get(table)
        if steps is None:
            known = ", ".join(str(t) for t in sorted(self.tables)) or "none"
            raise NoSuchTable(f"{table} is not in the storage; tables there: {known}")
        source_files: list[SourceFile] = []
        shared = False
        for place, step in enumerate(steps):
            indexes = self.indexes.get((step.schema.id, step.schema.version), [])
            shared = shared or len({where for _, where in indexes}) < len(indexes)
            # By date, then partition: a key never leaves its partition.
            for path, _ in sorted(indexes, key=lambda i: (i[1].date, i[1].physical_id or 0)):
                for file in counted_files(files, path):
                    source_files.append(SourceFile(file, place, len(source_files)))
        return Lineage(table, tuple(steps), tuple(source_files), shared)


def read_checkpoint(files: Files) -> int | None:
    """Return up to where all is stored; None: the feed has not come to its first checkpoint.

    Read it before the catalog: what it promises is visible from then on.

    Raises:
        SinkDamaged: `metadata` cannot be read.
    """
    stored = files.get(METADATA)
    return read_metadata(stored.data, files.shown(METADATA)) if stored else None


def read_catalog(files: Files, as_of: int | None = None, date_separator: str = "") -> StoredCatalog:
    """Read every schema file, and list the index files.

    Args:
        files: the storage.
        as_of: leave out what was defined later.
        date_separator: the changefeed's; "" where it is not known.

    Raises:
        SinkDamaged: a schema file cannot be read.
        BadInput: a schema change cannot be followed.
    """
    catalog = StoredCatalog()
    documents: list[tuple[SchemaFile, str]] = []
    for path, kind in walk(files, date_separator, without_node):
        if isinstance(kind, SchemaFile) and (as_of is None or kind.version <= as_of):
            documents.append((kind, path))
        elif isinstance(kind, IndexFile):
            where = kind.directory
            name = (TableId(where.database, where.table), where.version)
            catalog.indexes.setdefault(name, []).append((path, where))
    documents.sort(key=lambda d: (d[0].version, bool(d[0].table), d[0].database, d[0].table, d[1]))
    read = each(files, lambda entry: _document(files, *entry), documents)
    for _, group in groupby(read, lambda document: document.table_version):
        _follow(catalog.tables, group)
    return catalog


def _document(files: Files, file: SchemaFile, path: str) -> SchemaDocument:
    content = files.get(path)
    if content is None:
        raise SinkDamaged(f"{files.shown(path)} vanished while it was read")
    return read_document(content.data, file, files.shown(path))


def _follow(tables: dict[TableId, list[VersionStep]], documents: Iterable[SchemaDocument]) -> None:
    """Apply the schema files of one version: first all that goes, then all that comes."""
    coming: list[tuple[TableId, list[VersionStep]]] = []
    for document in _whole(list(documents)):
        table, kind = TableId(document.database, document.table), _kind(document)
        schema = document.table_schema()
        if kind is DdlKind.DROP_DATABASE:
            for name in [t for t in tables if t.database == document.database]:
                del tables[name]
        elif kind in (DdlKind.DROP_TABLE, DdlKind.TRUNCATE_TABLE, DdlKind.CREATE_TABLE):
            tables.pop(table, None)
        before: list[VersionStep] = []
        origin = _origin(document.query, kind, table)
        if origin != table:
            before = tables.pop(origin, [])
        elif schema is not None:
            before = tables.get(table, [])
        if schema is not None and kind is not DdlKind.DROP_TABLE:
            coming.append((table, [*before, VersionStep(schema, document.query, kind)]))
    tables.update(coming)


def _origin(query: str, kind: DdlKind, table: TableId) -> TableId:
    """Return the name that a table had before a statement."""
    if kind is DdlKind.RENAME_TABLE and query:
        return renamed_from(query, table)
    if kind is DdlKind.MULTI_SCHEMA_CHANGE:
        with suppress(BadInput):  # who reads its rows is told
            return altered_from(query, table)
    return table


def _whole(documents: list[SchemaDocument]) -> list[SchemaDocument]:
    """Give both tables of an exchange of partitions its statement: only one file has it."""
    exchange = next((d for d in documents if d.kind == DdlKind.EXCHANGE_PARTITION), None)
    if exchange is None:
        return documents
    query, kind = exchange.query, exchange.kind
    return [d if d.query else replace(d, query=query, kind=kind) for d in documents]


def _kind(document: SchemaDocument) -> DdlKind:
    try:
        return DdlKind(document.kind)
    except ValueError:
        raise BadInput(f"{document.path} has the unknown DDL type {document.kind}") from None
