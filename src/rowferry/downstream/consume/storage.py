"""What a storage sink wrote, as a feed: its schema files, data files and checkpoint as changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rowferry.change.chunk import Change, DdlKind, Rows, SchemaChange, Watermark
from rowferry.change.table import TableId
from rowferry.downstream.consume.arrival import Where
from rowferry.errors import BadInput, BadUri, MissingLibrary, UnknownOption
from rowferry.flow.assemble import format_class, sink_traits
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.options import read_settings
from rowferry.flow.sink.storage.reader import StoredData, StoredSchema, read_storage
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.mysql.ddl.clauses import read_renames
from rowferry.registry import SINKS, SOURCES
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.option import OptionTable


def written_spec(sink_uri: str, config: Path | None) -> tuple[ChangefeedSpec, list[str]]:
    """Return the settings by which a changefeed wrote, whatever its source was, and notices.

    Sources whose library is not installed are left out: what was written does not depend on them.

    Raises:
        BadInput: the URI or the configuration cannot be understood.
        MissingLibrary: of the sink, or of a source that may know what nobody else knows.
    """
    try:
        return build_spec(NO_PLACE, sink_uri, config, tables=stage_tables, sinks=sink_traits)
    except UnknownOption:
        for name in SOURCES.names():  # the key may be one of a source that was left out
            SOURCES.load(name)
        raise


def stage_tables(spec: ChangefeedSpec) -> list[OptionTable]:
    """Return the tables of all that a configuration may speak of."""
    tables: list[OptionTable] = []
    for name in SOURCES.names():
        with suppress(MissingLibrary):
            tables += SOURCES.load(name).TABLES
    tables += [*Decisions.TABLES, *format_class(spec).TABLES]
    tables += SINKS.load(spec.sink.scheme).TABLES
    return list(dict.fromkeys(tables))


def is_storage(scheme: str) -> bool:
    """Return whether sinks of such a URI write files."""
    return scheme in SINKS.names() and issubclass(SINKS.load(scheme), StorageSink)


def stored_files(spec: ChangefeedSpec) -> Files:
    """Return the files that a changefeed wrote, to read them; asks no object store.

    Raises:
        BadUri: no storage has such a scheme, or there is no such directory.
        BadOption, OptionsConflict: an option of the storage cannot be used.
    """
    sink = SINKS.load(spec.sink.scheme)
    if not issubclass(sink, StorageSink):
        known = ", ".join(SINKS.installed(is_storage))
        raise BadUri(f"{spec.sink.scheme}:// is no storage; known: {known}")
    if sink.in_directory and not Path(spec.sink.path).is_dir():
        raise BadUri(f"{spec.sink.path} is not there; check the storage URI")
    return sink.files_of(spec, read_settings(spec))


def storage_changes(root: Path | Files, codec: Format) -> Iterator[Change]:
    """Yield a storage's changes in replay order: by version, then date, then number.

    A schema file comes before its version's rows; one that only describes a version has the kind
    NONE and no query. The checkpoint, if there is one, is the last watermark.
    """
    for _, change in placed_changes(root, codec):
        yield change


def placed_changes(root: Path | Files, codec: Format) -> Iterator[tuple[Where, Change]]:
    """Yield what `storage_changes` does, with the file and line of each."""
    for step in read_storage(root):
        match step:
            case StoredSchema():
                yield Where(step.path), _schema_change(step)
            case StoredData():
                line = 1
                for change in codec.decode(step.content, step.schema):
                    yield Where(step.path, line), change
                    line += len(change) if isinstance(change, Rows) else 1
            case Watermark():
                yield Where("metadata"), step


def renamed_from(query: str, to: TableId) -> TableId:
    """Return the name that a table had before the RENAME in a DDL text.

    A table may be renamed more than once in it: `RENAME TABLE a TO c, b TO a, c TO b`.

    Raises:
        BadInput: the text does not rename anything to that name.
    """
    name = to
    for old, new in reversed(read_renames(query)):
        if new.within(to.database) == name:
            name = old.within(to.database)
    if name == to:
        raise BadInput(f"the rename to {to} cannot be followed: {query}")
    return name


def _schema_change(step: StoredSchema) -> SchemaChange:
    document = step.document
    table = TableId(document.database, document.table)
    try:
        kind = DdlKind(document.kind)
    except ValueError:
        kind = DdlKind.NONE  # one that our sources have not; its statement says what it does
    renames = kind is DdlKind.RENAME_TABLE and document.query
    return SchemaChange(
        document.table_version,
        kind,
        document.query,
        table,
        step.schema,
        previous=renamed_from(document.query, table) if renames else None,
    )
