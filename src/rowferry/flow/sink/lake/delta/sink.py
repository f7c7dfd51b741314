"""The Delta sink on a directory and on object stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from rowferry.flow.sink.lake.commit import Guard
from rowferry.flow.sink.lake.delta.history import DeltaHistory
from rowferry.flow.sink.lake.delta.log import LOG, DeltaLog
from rowferry.flow.sink.lake.delta.table_upkeep import DeltaTableUpkeep
from rowferry.flow.sink.lake.delta.target import DeltaTarget
from rowferry.flow.sink.lake.delta.upkeep import DeltaUpkeep
from rowferry.flow.sink.lake.layout import table_directories, tree
from rowferry.flow.sink.lake.sink import LakeSink
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles, local_root
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri_form import DIRECTORY, UriForm


class DeltaSink(LakeSink):
    """Delta tables in a directory."""

    TRAITS: ClassVar[SinkTraits] = replace(
        LakeSink.TRAITS,
        form=UriForm("Delta tables in a directory", address=None, path=DIRECTORY, login=False),
    )

    HAS_TRANSFORMS: ClassVar[bool] = False
    EMPTY_IS_NULL: ClassVar[bool] = True

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the directory."""
        return LocalFiles(local_root(spec.sink), fsync)

    def target_at(self, directory: str) -> DeltaTarget:
        """Return the Delta table of a directory."""
        return DeltaTarget(self._files, directory, self._settings)

    def tables(self) -> DeltaTables:
        """Return all tables."""
        return DeltaTables(self._files)

    def history(self, directory: str) -> DeltaHistory:
        """Return the versions of the Delta table of a directory."""
        return DeltaHistory(self._files, self.target_at(directory))

    def table_upkeep(self, target: DeltaTarget) -> DeltaTableUpkeep:
        """Return what keeps a Delta table in shape."""
        return DeltaTableUpkeep(self._files, target, self._settings)

    def upkeep(self) -> DeltaUpkeep:
        """Return what looks after the tables without a feed."""
        return DeltaUpkeep(self._files, self._settings, self.table_upkeep)


class DeltaTables:
    """Lists, removes and renames directories of tables."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def directories(self, database: str = "") -> Iterator[str]:
        """Yield the directories that have a log."""
        return table_directories(self._files, LOG, database)

    def remove(self, directory: str, guard: Guard) -> None:
        """Delete a table, its log first: what is left of it then is no table any more."""
        paths = list(tree(self._files, directory))
        log = DeltaLog(self._files, directory)
        moment("delete lake table")
        with guard():
            log.delete(p.rpartition("/")[2] for p in paths if p.startswith(f"{directory}/{LOG}/"))
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
