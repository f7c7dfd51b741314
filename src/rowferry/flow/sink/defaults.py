"""What a simple sink does not care about. Nothing here can break a promise.

So there is no default for `probe`, `open`, `allocate` and `publish`: who may write, what is where
and what is visible is each sink's own. Nor is there one for `discard` of a sink of segments or
rows, which must take back what tasks have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rowferry.change.plan import Plan
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.dispatch.by_slice import BySlice
from rowferry.spec.option import OptionTable

_SEGMENT_BYTES: Final = 32 << 20


class SinkDefaults:
    """Wishes of a sink that has none, for every shape."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = ()
    flush_interval_s: float = 0.05
    whole_transactions: bool = False
    separates_partitions: bool = False

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Take any table."""

    def segment_bytes(self, table: TableId) -> int:
        """Return the size at which reading is fastest."""
        return _SEGMENT_BYTES

    def partition_label(self, commit_ts: int) -> str:
        """Let all commits share a segment."""
        return ""

    def close(self) -> None:
        """Nothing is held."""


class SegmentDefaults(SinkDefaults):
    """For a `SegmentSink` or a `RowSink`: each slice of a segment has its output."""

    dispatch: ClassVar[BySlice] = BySlice()


class LaneDefaults(SinkDefaults):
    """For a `LaneSink`: what was sent cannot be taken back."""

    def discard(self, plan: Plan) -> bool:
        """Say that readers may have seen it; it will be sent again, in order."""
        return True
