"""The Iceberg sink on a directory and on object stores."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rowferry.errors import BadOption
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.glue.calls import AwsGiven
from rowferry.flow.sink.lake.iceberg.history import IcebergHistory
from rowferry.flow.sink.lake.iceberg.options import IcebergOptions
from rowferry.flow.sink.lake.iceberg.table_upkeep import IcebergTableUpkeep
from rowferry.flow.sink.lake.iceberg.tables import IcebergTables
from rowferry.flow.sink.lake.iceberg.target import IcebergTarget
from rowferry.flow.sink.lake.iceberg.upkeep import IcebergUpkeep
from rowferry.flow.sink.lake.sink import LakeSink
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles, local_root
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.uri_form import DIRECTORY, UriForm


class IcebergSink(LakeSink):
    """Iceberg tables in a directory."""

    TRAITS: ClassVar[SinkTraits] = replace(
        LakeSink.TRAITS,
        form=UriForm("Iceberg tables in a directory", address=None, path=DIRECTORY, login=False),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (*LakeSink.TABLES, IcebergOptions.TABLE)

    HAS_TRANSFORMS: ClassVar[bool] = True
    EMPTY_IS_NULL: ClassVar[bool] = False

    def __init__(self, spec: ChangefeedSpec, codec: object) -> None:
        super().__init__(spec, codec)
        options = spec.options(IcebergOptions)
        self._history = options.history
        io = FilesIO(self._files, self.location_of(spec))
        self._catalog = IcebergCatalog(options, io, self.folder_of(spec), self.login_of(spec))

    @classmethod
    def files_of(cls, spec: ChangefeedSpec, workers: int, fsync: bool) -> Files:
        """Return access to the directory."""
        return LocalFiles(local_root(spec.sink), fsync)

    @classmethod
    def folder_of(cls, spec: ChangefeedSpec) -> str:
        """Return the directory; empty: the tables are in an object store."""
        return str(local_root(spec.sink))

    @classmethod
    def login_of(cls, spec: ChangefeedSpec) -> AwsGiven:
        """Return the storage's login at Amazon; empty: it has none."""
        return AwsGiven()

    @classmethod
    def location_of(cls, spec: ChangefeedSpec) -> str:
        """Return how readers of Iceberg name the prefix."""
        root = str(local_root(spec.sink))
        if set("#?%") & set(root):
            raise BadOption(
                f"the directory {root} has one of # ? % in its name, by which readers of Iceberg "
                "do not find files; choose another directory"
            )
        return f"file://{root}"

    def probe(self, owner: Owner) -> None:
        """Ask whether this owner may write here; writes nothing."""
        super().probe(owner)
        self._catalog.check()

    def close(self) -> None:
        """Let connections and local space go."""
        self._catalog.close()
        super().close()

    def target_at(self, directory: str) -> IcebergTarget:
        """Return the Iceberg table of a directory's name."""
        return IcebergTarget(self._files, directory, self._settings, self._catalog, self._history)

    def tables(self) -> IcebergTables:
        """Return all tables."""
        return IcebergTables(self._files, self._catalog)

    def history(self, directory: str) -> IcebergHistory:
        """Return the snapshots of the Iceberg table of a directory's name."""
        return IcebergHistory(self._files, self._catalog, directory)

    def table_upkeep(self, target: IcebergTarget) -> IcebergTableUpkeep:
        """Return what keeps an Iceberg table in shape."""
        return IcebergTableUpkeep(self._files, self._catalog.io, target, self._settings)

    def upkeep(self) -> IcebergUpkeep:
        """Return what looks after the tables without a feed."""
        return IcebergUpkeep(
            self._files, self.tables(), self._catalog, self.target_at, self.table_upkeep
        )
