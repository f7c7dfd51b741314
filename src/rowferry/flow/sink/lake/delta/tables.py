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
            # Also those that a removal has emptied before it was cut off.
            for folder in sorted(self._folders(directory), key=len, reverse=True):
                self._files.prune(folder)
            self._files.prune(directory.rpartition("/")[0])

    def _folders(self, directory: str) -> Iterator[str]:
        """Yield a directory and all that are below it."""
        moment("list folders of lake table")
        yield directory
        for entry in self._files.entries(directory):
            if entry.is_directory:
                yield from self._folders(f"{directory}/{entry.name}")

    def rename(self, old: str, new: str, guard: Guard) -> None:
        """Move a table's directory, its log last."""
        moment("move lake table")
        with guard():
            self._files.move(old, new, last=LOG)

    def shown(self, directory: str) -> str:
        """Return the directory as users know it."""
        return self._files.shown(directory)
