"""The Iceberg tables of one catalog whose files are below one prefix."""

from __future__ import annotations

from collections.abc import Iterator

from rowferry.change.table import TableId
from rowferry.errors import SinkUnwritable, TargetUnfit
from rowferry.flow.sink.lake.commit import Guard
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.layout import table_at, table_directory, tree
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class IcebergTables:
    """Lists, removes and renames tables; those of other prefixes are left alone."""

    def __init__(self, files: Files, catalog: IcebergCatalog) -> None:
        self._files = files
        self._catalog = catalog

    def directories(self, database: str = "") -> Iterator[str]:
        """Yield the tables that have their files below the prefix."""
        name = table_at(f"{database}/x").database if database else ""
        for one in self._catalog.tables(name):
            directory = table_directory(TableId(*one))
            try:
                root = self._root(directory)
            except SinkUnwritable:
                continue  # what this login may not read, it has not made
            if root is not None:
                yield directory

    def roots(self) -> dict[str, str]:
        """Return where each table below the prefix has its files, by the table's directory.

        Raises:
            SinkUnwritable: there are tables that the login may not see.
        """
        every = [table_directory(TableId(*one)) for one in self._catalog.tables(whole=True)]
        places = {directory: self._root(directory) for directory in every}
        return {directory: root for directory, root in places.items() if root is not None}

    def _root(self, directory: str) -> str | None:
        """Return where a table has its files; None: not below the prefix, or there is none."""
        try:
            table = self._catalog.load(directory)
            return None if table is None else self._catalog.io.path(table.metadata.location)
        except TargetUnfit:  # also where the catalog's own library reads its metadata
            return None

    def remove(self, directory: str, guard: Guard) -> None:
        """Forget a table, then delete its files."""
        root = self._root(directory)
        if root is None:
            return
        paths = list(tree(self._files, root))
        with guard():
            self._catalog.drop(directory)
        moment("delete files of iceberg table")
        with guard():
            for path in paths:
                self._files.delete(path)
            folders = {p.rpartition("/")[0] for p in paths} | {root}
            for folder in sorted(folders, key=len, reverse=True):
                self._files.prune(folder)
            self._files.prune(root.rpartition("/")[0])

    def rename(self, old: str, new: str, guard: Guard) -> None:
        """Rename a table in the catalog; its files stay where they are."""
        with guard():
            self._catalog.rename(old, new)

    def shown(self, directory: str) -> str:
        """Return a table's name as users know it."""
        return f"the Iceberg table {table_at(directory)} of {self._catalog.shown}"
