"""What the planner must remember between stretches, and its JSON form (the stored position)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.announcements import Left


@dataclass
class RangeTable:
    """A table that the feed captures, as of the resolved commit-ts.

    Attributes:
        joined: its ranges have progress; a table that has not joined waits for its snapshot.
        low: the commit-ts of all its snapshot rows (0: it was born inside the feed's log).
        announced: readers were told of it, though it has not joined.
    """

    schema: TableSchema
    joined: bool = False
    low: int = 0
    announced: bool = False

    @property
    def is_known(self) -> bool:
        """Whether readers know the table."""
        return self.joined or self.announced


@dataclass
class RangeState:
    """The planner's facts after a stretch.

    Attributes:
        resolved_ts: rows and schema changes up to here were planned.
        catalog_index: the catalog's log was read up to here (entries above `resolved_ts` again).
        tables: captured tables by table id.
        ranges: progress by range id.
        parts: for ranges in the snapshot stage, hex keys that cut them into parts.
        hold_until: the watermark stands still until the log has passed this commit-ts (the newest
            snapshot); 0: it does not stand still.
        fresh: physical ids born inside the log: no snapshot, the log from its beginning.
        ddl_seen: table id -> commit-ts up to which its DDLs are already part of its definition.
        rules: the filter in force, as text: when it changes, tables may join.
        left: of tables that the feed has let go, by the names that readers know.
    """

    cluster_id: int = 0
    resolved_ts: int = 0
    catalog_index: int = 0
    tables: dict[int, RangeTable] = field(default_factory=dict)
    ranges: dict[int, RangeProgress] = field(default_factory=dict)
    parts: dict[int, list[str]] = field(default_factory=dict)
    hold_until: int = 0
    fresh: set[int] = field(default_factory=set)
    ddl_seen: dict[int, int] = field(default_factory=dict)
    without_old_value: bool = False
    rules: str = ""
    left: dict[TableId, Left] = field(default_factory=dict)

    def to_position(self) -> dict[str, Any]:
        """Return the JSON form, without the progress rows (they have a table of their own)."""
        return {
            "cluster_id": self.cluster_id,
            "resolved_ts": self.resolved_ts,
            "catalog_index": self.catalog_index,
            "tables": [
                [t.schema.table_id, t.schema.version, t.joined, t.low, t.announced]
                for t in self.tables.values()
            ],
            "parts": {str(k): v for k, v in self.parts.items()},
            "hold_until": self.hold_until,
            "fresh": sorted(self.fresh),
            "ddl_seen": {str(k): v for k, v in self.ddl_seen.items()},
            "without_old_value": self.without_old_value,
            "rules": self.rules,
            "left": [[*name, one.table_id, one.looks] for name, one in self.left.items()],
        }

    @classmethod
    def from_position(
        cls,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: dict[tuple[int, int], TableSchema],
    ) -> RangeState:
        """Read what `to_position` wrote; `versions` is by (table id, version)."""
        return cls(
            cluster_id=position["cluster_id"],
            resolved_ts=position["resolved_ts"],
            catalog_index=position["catalog_index"],
            tables={
                # Of those that waited, an older position did not say whether readers were told.
                table_id: RangeTable(
                    versions[table_id, version], joined, low, *(announced or [True])
                )
                for table_id, version, joined, low, *announced in position["tables"]
            },
            ranges={r.range_id: r for r in ranges},
            parts={int(k): v for k, v in position["parts"].items()},
            hold_until=position["hold_until"],
            fresh=set(position["fresh"]),
            ddl_seen={int(k): v for k, v in position["ddl_seen"].items()},
            without_old_value=position["without_old_value"],
            rules=position.get("rules", ""),
            left={TableId(d, t): Left(*rest) for d, t, *rest in position.get("left", ())},
        )

    def copy(self) -> RangeState:
        """Return a copy that can be changed without changing this one."""
        return RangeState(
            self.cluster_id,
            self.resolved_ts,
            self.catalog_index,
            {k: replace(t) for k, t in self.tables.items()},
            dict(self.ranges),
            deepcopy(self.parts),
            self.hold_until,
            set(self.fresh),
            dict(self.ddl_seen),
            self.without_old_value,
            self.rules,
            dict(self.left),
        )

    def waiting(self) -> list[RangeTable]:
        """Return the captured tables that have not joined yet."""
        return [t for t in self.tables.values() if not t.joined]

    def in_snapshot(self) -> list[RangeProgress]:
        """Return the ranges whose snapshot is not complete, by key."""
        ranges = [r for r in self.ranges.values() if r.stage is not Stage.LOG]
        return sorted(ranges, key=lambda r: (r.table_id, r.physical_id, r.start_key))

    def let_go(self, table_id: int) -> None:
        """Let a table go of which readers keep what they have."""
        table = self.tables.get(table_id)
        if table is not None and table.is_known:
            self.left[table.schema.id] = Left.of(table.schema)
        self.forget(table_id)

    def forget(self, table_id: int) -> None:
        """Forget a table and its ranges."""
        table = self.tables.pop(table_id, None)
        if table is not None:
            self.fresh -= set(table.schema.physical_ids)
        for range_id, progress in list(self.ranges.items()):
            if progress.table_id == table_id:
                del self.ranges[range_id]
                self.parts.pop(range_id, None)
