"""P10: kill any process at any moment, and all the other promises still hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rowferry.change.chunk import SchemaChange
from rowferry.testing.feed import DeliveredRows, Where
from rowferry.testing.validators.before import BeforeImagesTrue
from rowferry.testing.validators.delivery import NothingLostOrInvented
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.order import PerKeyOrder
from rowferry.testing.validators.rebuilt import Invariant, RebuildMatches, SnapshotMeetsLog
from rowferry.testing.validators.validator import Validator
from rowferry.testing.validators.version import RightVersions
from rowferry.testing.validators.watermark import WatermarkHolds


class AllPromises:
    """P10. Several validators as one; whoever kills processes in between watches this one."""

    promise: ClassVar[str] = "P10"

    def __init__(self, members: Iterable[Validator]) -> None:
        self.members = tuple(members)

    @classmethod
    def of(
        cls,
        oracle: DeliveryOracle,
        invariant: Invariant | None = None,
        partitions: tuple[str, ...] = (),
        allow_repeats: bool = True,
    ) -> AllPromises:
        """Return P1 to P7 for one feed; P8 watches a directory and is added by whoever has one."""
        return cls(
            (
                NothingLostOrInvented(oracle, allow_repeats),
                PerKeyOrder(oracle.facts, oracle),
                WatermarkHolds(oracle.facts, oracle),
                RebuildMatches(oracle, invariant),
                BeforeImagesTrue(oracle),
                RightVersions(oracle, partitions),
                SnapshotMeetsLog(oracle),
            )
        )

    @property
    def failures(self) -> list[str]:
        """Every member's failures."""
        return [f for m in self.members for f in m.failures]

    @property
    def unchecked(self) -> list[str]:
        """What the members could not check, and why."""
        return [u for m in self.members for u in m.unchecked]

    def note_rows(self, rows: DeliveredRows) -> None:
        """Take rows, in delivery order."""
        for member in self.members:
            member.note_rows(rows)

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Take a DDL."""
        for member in self.members:
            member.note_schema_change(change, where)

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        """Take a watermark of one container ("" is all of them)."""
        for member in self.members:
            member.note_watermark(commit_ts, where)

    def note_resolved(self, commit_ts: int) -> None:
        """Learn that every container's watermark has reached this commit-ts."""
        for member in self.members:
            member.note_resolved(commit_ts)

    def finish(self) -> None:
        """The feed has ended."""
        for member in self.members:
            member.finish()
