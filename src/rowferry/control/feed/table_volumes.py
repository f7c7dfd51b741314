"""How much of each table a micro-batch has sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rowferry.change.plan import Plan, Receipt
from rowferry.change.table import TableId


@dataclass(frozen=True, slots=True)
class TableVolume:
    """Rows of one table that were sent.

    Attributes:
        last_ts: the greatest commit-ts of them.
    """

    rows: int = 0
    bytes: int = 0
    last_ts: int = 0

    def plus(self, other: TableVolume) -> TableVolume:
        """Return the sum of both."""
        return TableVolume(
            self.rows + other.rows, self.bytes + other.bytes, max(self.last_ts, other.last_ts)
        )


def table_volumes(plan: Plan, receipts: Sequence[Receipt]) -> dict[TableId, TableVolume]:
    """Return what receipts say of each table that had rows, by its name at the source."""
    volumes: dict[TableId, TableVolume] = {}
    segments = {segment.ordinal: segment for segment in plan.stretch.segments}
    for receipt in receipts:
        if not receipt.rows:
            continue
        table = segments[receipt.segment].slices[receipt.slice].table
        sent = TableVolume(receipt.rows, receipt.bytes, receipt.last_ts)
        volumes[table] = volumes.get(table, TableVolume()).plus(sent)
    return volumes
