"""Position deletes: which rows of which data files count no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from rowferry.errors import SinkDamaged, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.draft import FIELD_ID
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.state import IcebergState
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

Positions = npt.NDArray[np.int64]
_PATH_ID, _POS_ID = 2147483546, 2147483545
_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(_POS_ID)}),
    ]
)


def deletes_content(gone: Mapping[str, Positions]) -> bytes:
    """Return a file that takes these rows away; keys are locations of data files."""
    places = sorted(gone)
    counts = [len(gone[place]) for place in places]
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(places), dtype=np.int32), counts)), pa.array(places)
    )
    rows = np.concatenate([np.sort(gone[place]) for place in places])
    target = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays([names.cast(pa.string()), pa.array(rows, pa.int64())], schema=_SCHEMA),
        target,
        compression="zstd",
        version="2.6",
        store_schema=False,
    )
    content: bytes = target.getvalue().to_pybytes()
    return content


def deletes_entry(
    location: str, gone: Mapping[str, Positions], size: int, partition: Record
) -> DataFile:
    """Return what a manifest says about such a file; its data files are all of one partition."""
    places = sorted(gone)
    count = sum(map(len, gone.values()))
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=count,
        file_size_in_bytes=size,
        column_sizes={},  # pyiceberg's own table of entries cannot be without
        value_counts={_PATH_ID: count, _POS_ID: count},
        null_value_counts={_PATH_ID: 0, _POS_ID: 0},
        lower_bounds={_PATH_ID: places[0].encode()},
        upper_bounds={_PATH_ID: places[-1].encode()},
    )


def deletes_in(content: Any, shown: str) -> dict[str, Positions]:
    """Return the rows that a file takes away, ascending, by the location of their data file.

    Raises:
        SinkDamaged: it is no such file.
    """
    try:
        rows = pq.read_table(pa.BufferReader(content), columns=["file_path", "pos"])
    except (pa.ArrowException, OSError, KeyError):
        raise SinkDamaged(f"{shown} is no file of position deletes; restore it as it was") from None
    names = rows.column("file_path").combine_chunks().dictionary_encode()
    if isinstance(names, pa.ChunkedArray):
        names = names.unify_dictionaries().combine_chunks()
    codes = names.indices.to_numpy(zero_copy_only=False)
    positions = rows.column("pos").to_numpy().astype(np.int64)
    order = np.lexsort((positions, codes))
    codes, positions = codes[order], positions[order]
    ends = np.searchsorted(codes, np.arange(len(names.dictionary)), "right")
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    places = names.dictionary.to_pylist()
    return {
        place: np.unique(positions[begin:end])
        for place, begin, end in zip(places, begins, ends, strict=True)
    }


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
