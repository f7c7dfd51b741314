"""Where in the source's log: commit timestamps, and the progress of each range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from rowferry.change.json_form import JsonForm

PHYSICAL_SHIFT = 18  # a commit-ts is milliseconds since 1970 << 18, plus a counter


def physical_ms(commit_ts: int) -> int:
    """Milliseconds since 1970 of a commit-ts."""
    return commit_ts >> PHYSICAL_SHIFT


class Stage(IntEnum):
    """What is being read of a range."""

    REGISTERED = 0
    SNAPSHOT = 1
    LOG = 2


@dataclass(frozen=True, slots=True)
class RangeProgress(JsonForm):
    """How far one range has been delivered: one row of the `progress` table.

    Attributes:
        init_snapshot_version: log index of the first snapshot; the log is read from here.
        current_snapshot_version: log index of the snapshot being read (or last read).
        init_snapshot_ts / current_snapshot_ts: their timestamps.
        last_snapshot_key: hex; the snapshot was delivered up to and including this key.
        last_log_index: the log was delivered up to and including this index.
    """

    database: str
    table: str
    table_id: int
    physical_id: int
    range_id: int
    start_key: str
    end_key: str
    stage: Stage
    init_snapshot_version: int = 0
    init_snapshot_ts: int = 0
    current_snapshot_version: int = 0
    current_snapshot_ts: int = 0
    last_snapshot_key: str = ""
    last_log_index: int = 0

    def with_(self, **changes: Any) -> RangeProgress:
        """Return a copy with some fields changed."""
        return replace(self, **changes)
