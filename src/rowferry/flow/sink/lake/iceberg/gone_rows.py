"""Which rows of data files count no more, as the position deletes of a snapshot say."""

from __future__ import annotations

import numpy as np

from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.position_deletes import Positions, deletes_in
from rowferry.flow.sink.lake.iceberg.state import IcebergState
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_NONE: Positions = np.zeros(0, np.int64)


class GoneRows:
    """Rows by data file. Files of position deletes never change: each is read once."""

    def __init__(self, files: Files, io: FilesIO) -> None:
        self._files = files
        self._io = io
        self._read: set[str] = set()
        self._rows: dict[str, Positions] = {}

    def of(self, state: IcebergState, location: str) -> Positions:
        """Return the rows of a data file that are gone in a state, ascending."""
        present = {e.data_file.file_path for e in state.deletes}
        if present != self._read:
            if not self._read <= present:
                self._read, self._rows = set(), {}
            for one in sorted(present - self._read):
                self._add(one)
            self._read = present
        return self._rows.get(location, _NONE)

    def _add(self, deletes: str) -> None:
        moment("read position deletes")
        stored = self._files.get(self._io.path(deletes))
        if stored is None:
            raise TargetLost(f"{deletes} is gone, a file of position deletes; {RESTORE}")
        for location, rows in deletes_in(stored.data, deletes).items():
            known = self._rows.get(location)
            self._rows[location] = rows if known is None else np.union1d(known, rows)
