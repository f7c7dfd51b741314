"""A storage directory as a feed for validators, and its single files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rowferry.change.chunk import Change, Rows, SchemaChange, Watermark
from rowferry.change.table import TableSchema
from rowferry.downstream.consume.storage import placed_changes as placed_changes
from rowferry.downstream.consume.storage import renamed_from as renamed_from
from rowferry.downstream.consume.storage import storage_changes as storage_changes
from rowferry.errors import BadInput
from rowferry.flow.encode.contract import Format
from rowferry.flow.sink.storage.paths import DataFile, SchemaFile, parse_path, schema_directory
from rowferry.flow.sink.storage.schema_file import read_document
from rowferry.testing.feed import WatchedFeed, Where


def deliver_storage(root: Path, codec: Format, feed: WatchedFeed) -> None:
    """Note everything that a directory shows, as a consumer that reads it once."""
    deliver_changes(placed_changes(root, codec), feed)


def deliver_changes(changes: Iterable[tuple[Where, Change]], feed: WatchedFeed) -> None:
    """Note changes with their places, in their order."""
    for where, change in changes:
        match change:
            case Rows():
                feed.note_rows(change, where)
            case SchemaChange():
                if change.query:
                    feed.note_schema_change(change, where)
            case Watermark():
                feed.note_watermark(change.commit_ts)


class StorageDecoder:
    """Reads single data files of a directory, each with its own version's schema file."""

    def __init__(self, root: Path, codec: Format, date_separator: str = "day") -> None:
        self._root = root
        self._codec = codec
        self._date_separator = date_separator
        self._schemas: dict[tuple[str, str, int], TableSchema] = {}

    def __call__(self, path: Path) -> Iterator[Rows]:
        """Yield the rows of one data file."""
        kind = parse_path(path.relative_to(self._root).as_posix(), self._date_separator)
        if not isinstance(kind, DataFile):
            raise BadInput(f"{path} is not the name of a data file")
        here = kind.directory
        name = (here.database, here.table, here.version)
        if name not in self._schemas:
            self._schemas[name] = self._read_schema(*name)
        for change in self._codec.decode(path.read_bytes(), self._schemas[name]):
            if isinstance(change, Rows):
                yield change

    def _read_schema(self, database: str, table: str, version: int) -> TableSchema:
        directory = self._root / schema_directory(database, table)
        for path in directory.glob(f"schema_{version}_*.json"):
            file = parse_path(path.relative_to(self._root).as_posix())
            if isinstance(file, SchemaFile):
                schema = read_document(path.read_bytes(), file, str(path)).table_schema()
                if schema is not None:
                    return schema
        raise BadInput(f"version {version} of {database}.{table} has no schema file")
