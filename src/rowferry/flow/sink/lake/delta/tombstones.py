"""Files that were taken out of a Delta table not long ago, as its checkpoints have to name them.

A table with many small commits has millions of them: all but the latest are packed.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.sink.lake.delta.checkpoint import REMOVAL, action_array, plain_action

_BLOCK: Final = 1024  # that many are packed together
_GROUP: Final = 64  # blocks that are unpacked together
_PACKED: Final = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_DAY_MS: Final = 86_400_000
_RETENTION: Final = "delta.deletedFileRetentionDuration"
# Readers of older versions may need a removed file for the table's retention, and `lake expire`,
# which deletes what is older than that, finds it here for a week more.
_LISTED_MS: Final = 7 * _DAY_MS
_UNITS_MS: Final = {
    "week": 7 * _DAY_MS,
    "day": _DAY_MS,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
    "millisecond": 1,
    "microsecond": 0,
}
_PART: Final = re.compile(r"\s*([0-9]{1,15})\s+([a-z]+?)s?(?=\s|$)")


def retention_ms(configuration: Mapping[str, str]) -> int:
    """Return for how long a table's properties have removed files kept; a week where they do not.

    As Spark writes it: `interval 30 days`, `interval 1 week 12 hours`.
    """
    text = str(configuration.get(_RETENTION, "")).strip().lower().removeprefix("interval")
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip() or any(u not in _UNITS_MS for _, u in parts):
        return 7 * _DAY_MS
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def named_until(configuration: Mapping[str, str], now_ms: int) -> int:
    """Return the moment since which removed files are still named in checkpoints."""
    return now_ms - retention_ms(configuration) - _LISTED_MS


def file_key(action: Mapping[str, Any]) -> str:
    """Return what names a file in the log: its path, and its deletion vector."""
    vector = action.get("deletionVector")
    if not vector:
        return str(action["path"])
    return (
        f"{action['path']}#{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
    )


@dataclass(slots=True)
class _Block:
    """Removals, packed.

    Attributes:
        hashes: of what names their files.
        stays: which of them count; the others' files are in the table again, or removed again.
    """

    content: pa.Buffer
    hashes: npt.NDArray[np.int64]
    newest_ms: int
    stays: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: pa.StructArray, hashes: npt.NDArray[np.int64]) -> _Block:
        """Pack removals."""
        batch = pa.RecordBatch.from_arrays([rows], ["remove"])
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, batch.schema, options=_PACKED) as writer:
            writer.write_batch(batch)
        newest_ms = pc.max(pc.struct_field(rows, "deletionTimestamp")).as_py()
        return cls(target.getvalue(), hashes, newest_ms, np.ones(len(hashes), np.bool_))

    def rows(self) -> pa.StructArray:
        """Return those that count."""
        rows = pa.ipc.open_stream(self.content).read_next_batch().column(0)
        return rows if self.stays.all() else rows.filter(pa.array(self.stays))


class Tombstones:
    """The removals of a log, each file's last one, but for files that are there again."""

    def __init__(self) -> None:
        self._recent: dict[str, dict[str, Any]] = {}
        self._blocks: list[_Block] = []
        self._again = array("q")  # hashes of files that were named again,
        self._since = array("q")  # and how many blocks there were then: none of them counts

    def add(self, remove: dict[str, Any]) -> None:
        """Take a removal in; it has a whole number as its time.

        Raises:
            ValueError, TypeError, KeyError, OverflowError: one of the latest is no removal.
        """
        key = file_key(remove)
        self.discard(key)
        self._recent[key] = remove
        if len(self._recent) >= _BLOCK:
            self._pack()

    def add_rows(self, rows: pa.ChunkedArray, live: Container[str]) -> bool:
        """Take removals in as a checkpoint of ours has them.

        False, and nothing is done: it is another form, or paths of live files are among them.
        """
        if rows.type != REMOVAL or not len(rows):
            return False
        batch = rows.combine_chunks()
        batch = batch if isinstance(batch, pa.StructArray) else pa.concat_arrays(batch.chunks)
        times = pc.struct_field(batch, "deletionTimestamp")
        names = [pc.struct_field(batch, name).to_pylist() for name in ("path", "deletionVector")]
        if times.null_count or any(path is None or path in live for path in names[0]):
            return False
        keys = [file_key({"path": p, "deletionVector": v}) for p, v in zip(*names, strict=True)]
        self._pack()
        for key in keys:
            self.discard(key)
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        self._blocks.append(_Block.of(batch, hashes))
        return True

    def discard(self, key: str) -> None:
        """Let the removal of a file go, if there is one: the file is in the table again."""
        if self._recent.pop(key, None) is None and self._blocks:
            self._again.append(hash(key))
            self._since.append(len(self._blocks))
            if len(self._again) >= _BLOCK * max(8, len(self._blocks) // 4):
                self._settle()

    def forget(self, before_ms: int) -> None:
        """Let removals from before a moment go."""
        self._settle()
        self._recent = {
            key: one for key, one in self._recent.items() if one["deletionTimestamp"] >= before_ms
        }
        self._blocks = [b for b in self._blocks if b.newest_ms >= before_ms and b.stays.any()]

    def values(self) -> Iterator[dict[str, Any]]:
        """Yield the removals, the oldest first."""
        self._settle()
        for block in self._blocks:
            yield from map(plain_action, block.rows().to_pylist())
        yield from self._recent.values()

    def since(self, at_ms: int) -> Iterator[pa.StructArray]:
        """Yield the removals since a moment as a checkpoint has them, many at a time."""
        self._settle()
        for first in range(0, len(self._blocks), _GROUP):
            rows = pa.concat_arrays([b.rows() for b in self._blocks[first : first + _GROUP]])
            rows = rows.filter(pc.greater_equal(pc.struct_field(rows, "deletionTimestamp"), at_ms))
            if len(rows):
                yield rows
        recent = [r for r in self._recent.values() if r["deletionTimestamp"] >= at_ms]
        if recent:
            yield action_array("remove", recent)

    def _pack(self) -> None:
        if not self._recent:
            return
        rows = action_array("remove", self._recent.values())
        hashes = np.fromiter(map(hash, self._recent), np.int64, len(self._recent))
        self._blocks.append(_Block.of(rows, hashes))
        self._recent = {}

    def _settle(self) -> None:
        """Strike the removals out of blocks whose files were named again since."""
        again, since = np.array(self._again, np.int64), np.array(self._since, np.int64)
        self._again, self._since = array("q"), array("q")
        if not len(again):
            return
        order = np.argsort(again, kind="stable")
        again, since = again[order], since[order]
        last = np.append(again[1:] != again[:-1], True)  # the last time counts for most blocks
        again, since = again[last], since[last]
        for number, block in enumerate(self._blocks):
            place = np.minimum(np.searchsorted(again, block.hashes), len(again) - 1)
            block.stays &= (again[place] != block.hashes) | (since[place] <= number)
