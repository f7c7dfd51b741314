"""The Delta sink on a directory and on object stores."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rowferry.flow.sink.lake.delta.history import DeltaHistory
from rowferry.flow.sink.lake.delta.table_upkeep import DeltaTableUpkeep
from rowferry.flow.sink.lake.delta.tables import DeltaTables
from rowferry.flow.sink.lake.delta.target import DeltaTarget
from rowferry.flow.sink.lake.delta.upkeep import DeltaUpkeep
from rowferry.flow.sink.lake.sink import LakeSink
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles, local_root
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
