"""Looking after Iceberg tables from outside of a feed: their state, leftovers, small files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from pyiceberg.table.metadata import TableMetadata

from rowferry.errors import BadInput, TargetUnfit
from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.state import CHANGEFEED
from rowferry.flow.sink.lake.iceberg.tables import IcebergTables
from rowferry.flow.sink.lake.iceberg.target import IcebergTarget, older_than
from rowferry.flow.sink.lake.layout import OWN_FILES, tree
from rowferry.flow.sink.lake.runs import run_path
from rowferry.flow.sink.lake.table_upkeep import TableUpkeep
from rowferry.flow.sink.lake.upkeep import LakeUpkeep, is_pending
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_METADATA: Final = ".metadata.json"


class IcebergUpkeep(LakeUpkeep):
    """The Iceberg tables of a lake, one after the other."""

    def __init__(
        self,
        files: Files,
        tables: IcebergTables,
        catalog: IcebergCatalog,
        target_at: Callable[[str], IcebergTarget],
        upkeep_of: Callable[[IcebergTarget], TableUpkeep],
    ) -> None:
        super().__init__(files)
        self._upkeep_of = upkeep_of
        self._tables = tables
        self._catalog = catalog
        self._target_at = target_at

    def status(self) -> Iterator[TableStatus]:
        """Yield the state of each table."""
        for target in self._targets():
            if status := self._upkeep_of(target).status():
                yield status

    def optimize(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Merge small files of each table; yield how many files were replaced."""
        for target in self._targets():
            owner = target.refreshed().properties.get(CHANGEFEED, "")
            note = self.note(owner, now_ms)
            yield (
                target.directory,
                self._upkeep_of(target).optimize(note, self._files.locked),
            )

    def orphans(self) -> Iterator[str]:
        """Yield the files that no snapshot reaches, nor a plan that is still to be carried out.

        Raises:
            BadInput: files of a table are there that the catalog does not know.
            SinkUnwritable: the catalog has tables that the login may not see.
        """
        roots = self._tables.roots()
        number, known = self.progress().number, self._reached(roots, 0)
        others = tuple(
            f"{root}/" for one, root in roots.items() if not self._target_at(one).owner()
        )
        moment("list files of iceberg lake")
        paths = [
            path
            for entry in self._files.entries("")
            if entry.is_directory and not entry.name.startswith(OWN_FILES)
            for path in tree(self._files, entry.name)
        ]
        self._require_known(paths, roots.values())
        for path in paths:
            if path in known or path.startswith(others) or self._is_catalog(path):
                continue
            if not is_pending(path, number):
                yield path

    def _require_known(self, paths: Iterable[str], roots: Collection[str]) -> None:
        """Raise where there is a table that the catalog does not know: it would be all orphans."""
        for path in paths:
            folder, _, name = path.rpartition("/")
            root, _, last = folder.rpartition("/")
            if last == "metadata" and name.endswith(_METADATA) and root not in roots:
                raise BadInput(
                    f"{self._files.shown(root)} has the metadata of an Iceberg table that "
                    f"{self._catalog.shown} does not know, so what is left over cannot be told; "
                    "give the changefeed's own catalog and catalog-name in the URI, or delete that "
                    "directory if its table was dropped"
                )

    def _is_catalog(self, path: str) -> bool:
        """Return whether a path is that of the catalog itself, or of its journal."""
        file = self._catalog.file
        return bool(file) and self._files.shown(path).startswith(file)

    def expired(self, before_ms: int, now_ms: int) -> Iterator[str]:
        """Yield the files that only snapshots from before a moment reach."""
        directories = [target.directory for target in self._targets()]
        kept, every = self._reached(directories, before_ms), self._reached(directories, 0)
        yield from sorted(every - kept)

    def forget(self, before_ms: int) -> None:
        """Take snapshots from before a moment out of the tables."""
        for target in self._targets():
            target.forget(before_ms, self._files.locked)

    def _targets(self) -> Iterator[IcebergTarget]:
        """Yield the tables that changefeeds have made; those of others are none of ours."""
        for directory in self._tables.directories():
            target = self._target_at(directory)
            if target.owner():
                yield target

    def _reached(self, directories: Iterable[str], since_ms: int) -> set[str]:
        """Return the files that the present snapshots reach, and others that are not older."""
        known: set[str] = set()
        for directory in directories:
            table = self._catalog.load(directory)
            if table is not None:
                known |= self._reached_by(table.metadata, table.metadata_location, since_ms)
        return known

    def _reached_by(self, metadata: TableMetadata, location: str, since_ms: int) -> set[str]:
        io = self._catalog.io
        named = {location} | {e.metadata_file for e in metadata.metadata_log}
        named |= {s.statistics_path for s in metadata.statistics}
        named |= {s.statistics_path for s in metadata.partition_statistics}
        old = set(older_than(metadata, since_ms))
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id in old:
                continue
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(io):
                named.add(manifest.manifest_path)
                named |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(io)}
        paths = {path for one in named if (path := self._path(one))}
        runs = {run_path(*_split(p)) for p in paths if p.endswith(".parquet")}
        return paths | runs

    def _path(self, location: str) -> str:
        """Return a file's path; empty: it is not below the prefix, as tables of others may be."""
        try:
            return self._catalog.io.path(location)
        except TargetUnfit:
            return ""


def _split(path: str) -> tuple[str, str]:
    root, _, name = path.rpartition("/")
    return root, name
