"""The Delta tables below one prefix: each is a directory with a log in it."""

from __future__ import annotations

from collections.abc import Iterator

from rowferry.flow.sink.lake.commit import Guard
from rowferry.flow.sink.lake.delta.log import LOG
from rowferry.flow.sink.lake.layout import table_directories, tree
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class DeltaTables:
    """Lists, removes and renames directories of tables."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def directories(self, database: str = "") -> Iterator[str]:
        """Yield the directories that have a log."""
        return table_directories(self._files, LOG, database)

    def remove(self, directory: str, guard: Guard) -> None:
        """Delete a table, its log first: what is left of it then is no table any more."""
        paths = sorted(tree(self._files, directory), key=lambda p: f"/{LOG}/" not in p)
        moment("delete lake table")
        with guard():
            for path in paths:
                self._files.delete(path)
            folders = {p.rpartition("/")[0] for p in paths} | {directory}
            for folder in sorted(folders, key=len, reverse=True):
                self._files.prune(folder)
            self._files.prune(directory.rpartition("/")[0])

    def rename(self, old: str, new: str, guard: Guard) -> None:
        """Move a table's directory, its log last."""
        moment("move lake table")
        with guard():
            self._files.move(old, new, last=LOG)

    def shown(self, directory: str) -> str:
        """Return the directory as users know it."""
        return self._files.shown(directory)
