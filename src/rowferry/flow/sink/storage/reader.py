"""What a consumer of a storage directory sees, in the order in which it would replay it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rowferry.change.chunk import Watermark
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SinkDamaged
from rowferry.flow.sink.storage.compress import uncompressed
from rowferry.flow.sink.storage.files import Files, walk
from rowferry.flow.sink.storage.index_file import read_any_index, read_metadata
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.paths import (
    INDEX_NAME,
    META,
    METADATA,
    Directory,
    IndexFile,
    SchemaFile,
    database_directory,
    escape,
    parse_data_name,
    parse_path,
    schema_directory,
)
from rowferry.flow.sink.storage.schema_file import SchemaDocument, read_document


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema file. `document.query` is the DDL, or "" where it only describes a table version.

    `schema` is None for a database, and for a table that is gone.
    """

    path: str
    document: SchemaDocument
    schema: TableSchema | None


@dataclass(frozen=True, slots=True)
class StoredData:
    """A visible data file with its content, uncompressed, and the table version of its rows."""

    path: str
    directory: Directory
    number: int
    schema: TableSchema
    content: bytes


_NODE_INDEX = re.compile(r"CDC_[0-9a-zA-Z-]+\.index")
_NODE_FILE = re.compile(r"CDC_[0-9a-zA-Z-]+_(\d+\..+)")

Step: TypeAlias = StoredSchema | StoredData | Watermark


def read_storage(root: Path | Files) -> Iterator[Step]:
    """Yield schema files and visible data files by version, then the checkpoint of `metadata`.

    At each version: databases before tables, a table's schema file before its data, and data by
    partition, date and number. Rows that move between partitions of one table are in commit order
    only within each partition. Files above CDC.index are not visible and are passed over. May run
    while a feed writes: everything at or below the checkpoint was visible when reading began.
    `root` is a directory, or what a sink's `files_of` gives.

    Several nodes of TiCDC may share a table; each counts files of its own then, `CDC_<id>_<number>`
    by `CDC_<id>.index`. Such files follow each other by id.

    Raises:
        SinkDamaged: a number at or below CDC.index is missing, a table version has no schema file,
            or a schema, index or metadata file cannot be read.
    """
    files = LocalFiles(root) if isinstance(root, Path) else root
    stored = files.get(METADATA)
    checkpoint = read_metadata(stored.data, files.shown(METADATA)) if stored else None
    schemas: list[tuple[str, SchemaFile]] = []
    indexes: list[tuple[str, Directory]] = []
    for path, kind in walk(files, named=without_node):
        if isinstance(kind, SchemaFile):
            schemas.append((path, kind))
        elif isinstance(kind, IndexFile):
            indexes.append((path, kind.directory))
    yield from _steps(files, schemas, indexes)
    if checkpoint is not None:
        yield Watermark(checkpoint)


def without_node(path: str) -> str:
    """Return the path that an index of one node would have if the table had but one."""
    home, _, name = path.rpartition("/")
    return f"{home}/{INDEX_NAME}" if _NODE_INDEX.fullmatch(name) else path


def plain_name(name: str) -> str:
    """Return the name of a data file without the node that counted it."""
    return _NODE_FILE.sub(r"CDC\1", name)


def _steps(
    files: Files, schemas: list[tuple[str, SchemaFile]], indexes: list[tuple[str, Directory]]
) -> Iterator[Step]:
    # (version, rank): a database's DDL, then a table's schema, then its data.
    order: list[tuple[tuple[int, int, str, str, int, str], str, SchemaFile | Directory]] = []
    for path, file in schemas:
        rank = 1 if file.table else 0
        order.append(((file.version, rank, file.database, file.table, 0, ""), path, file))
    for path, where in indexes:
        key = (where.version, 2, where.database, where.table, where.physical_id or 0, where.date)
        order.append((key, path, where))
    known: dict[tuple[str, str, int], TableSchema] = {}
    for _, path, kind in sorted(order, key=lambda o: (o[0], o[1])):
        if isinstance(kind, SchemaFile):
            step = _read_schema(files, path, kind)
            if step.schema is not None:
                known[kind.database, kind.table, kind.version] = step.schema
            yield step
            continue
        schema = known.get((kind.database, kind.table, kind.version))
        if schema is None:
            raise SinkDamaged(
                f"{files.shown(kind.path)} has data, but version {kind.version} of "
                f"{kind.database}.{kind.table} has no schema file; restore it from a copy"
            )
        yield from _read_data(files, path, kind, schema)


def _read_schema(files: Files, path: str, file: SchemaFile) -> StoredSchema:
    stored = files.get(path)
    if stored is None:
        raise SinkDamaged(f"{files.shown(path)} vanished while it was read")
    document = read_document(stored.data, file, files.shown(path))
    return StoredSchema(path, document, document.table_schema())


def _read_data(
    files: Files, index: str, directory: Directory, schema: TableSchema
) -> Iterator[StoredData]:
    paths = counted_files(files, index)
    for number, path in enumerate(paths, 1):
        content = files.get(path)
        if content is None:
            raise _missing(files, index, number, len(paths))
        data = uncompressed(path.rpartition(".")[2], content.data, files.shown(path))
        yield StoredData(path, directory, number, schema, data)


def counted_files(files: Files, index: str) -> list[str]:
    """Return the paths of the data files that an index counts, in order; none: it has expired.

    Raises:
        SinkDamaged: one is missing, or the index cannot be read.
    """
    stored = files.get(index)
    if stored is None:
        return []
    home, _, name = index.rsplit("/", 2)
    node = name.removeprefix("CDC").removesuffix(".index")
    start = f"CDC{node}_" if node else "CDC"
    counted = stored.data.replace(start.encode(), b"CDC", 1)
    last, extension = read_any_index(counted, files.shown(index))
    # Listed after the index was read, so that whatever it counts is in the list.
    paths: dict[int, str] = {}
    for entry in files.entries(home):
        if entry.name.startswith(start):
            named = parse_data_name(f"CDC{entry.name.removeprefix(start)}")
            if named is not None and named[1] == extension:
                paths[named[0]] = f"{home}/{entry.name}"
    missing = next((n for n in range(1, last + 1) if n not in paths), None)
    if missing is not None:
        raise _missing(files, index, missing, last)
    return [paths[n] for n in range(1, last + 1)]


def _missing(files: Files, index: str, number: int, last: int) -> SinkDamaged:
    return SinkDamaged(
        f"{files.shown(index.rsplit('/', 2)[0])} has no data file of number {number}, but "
        f"{files.shown(index)} counts {last}; restore it from a copy"
    )


# --- one table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VisibleFile:
    """A data file that CDC.index counts; it may have expired since."""

    path: str
    directory: Directory
    number: int
    extension: str


def visible_files(files: Files, table: TableId, date_separator: str = "") -> list[VisibleFile]:
    """Return the visible data files of one table; no other table's directories are listed."""
    home = f"{database_directory(table.database)}/{escape(table.table)}"
    return [
        one
        for version in files.entries(home)
        if version.is_directory and version.name.isdecimal()
        for one in _visible_below(files, f"{home}/{version.name}", date_separator, 2)
    ]


def _visible_below(
    files: Files, home: str, date_separator: str, depth: int
) -> Iterator[VisibleFile]:
    kind = parse_path(f"{home}/{META}/{INDEX_NAME}", date_separator)
    stored = files.get(f"{home}/{META}/{INDEX_NAME}")
    entries = files.entries(home)  # after the index: whatever it counts is in the list
    if stored is not None and isinstance(kind, IndexFile):
        last, extension = read_any_index(stored.data, files.shown(home))
        for entry in entries:
            named = parse_data_name(entry.name)
            if named is not None and named[1] == extension and named[0] <= last:
                yield VisibleFile(f"{home}/{entry.name}", kind.directory, *named)
    for entry in entries:
        if depth and entry.is_directory and entry.name != META:
            yield from _visible_below(files, f"{home}/{entry.name}", date_separator, depth - 1)


def file_content(files: Files, file: VisibleFile) -> bytes | None:
    """Return what a data file holds, uncompressed; None: it has expired."""
    stored = files.get(file.path)
    if stored is None:
        return None
    return uncompressed(file.extension, stored.data, files.shown(file.path))


def table_schemas(files: Files, table: TableId) -> dict[int, TableSchema]:
    """Return the versions of a table that schema files tell, by version."""
    home = schema_directory(table.database, table.table)
    schemas: dict[int, TableSchema] = {}
    for entry in files.entries(home):
        kind = parse_path(f"{home}/{entry.name}")
        if isinstance(kind, SchemaFile):
            schema = _read_schema(files, f"{home}/{entry.name}", kind).schema
            if schema is not None:
                schemas[kind.version] = schema
    return schemas
