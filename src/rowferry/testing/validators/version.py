"""P6: rows carry the table version in force at their commit-ts; each DDL goes where it should."""

from __future__ import annotations

from typing import ClassVar

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableId
from rowferry.testing.feed import DeliveredRows, RowRepetition, Where
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.validator import Validator


class RightVersions(Validator):
    """P6. No row has a version that was not in force; every DDL comes once per place, in its place.

    The feed's first version of a table may be newer than the source's (the moment when the feed met
    the table); so a version is right when the source made no DDL of the table after it, up to
    the row. In a topic-partition that carries DDLs, no row after a DDL's commit-ts comes before it,
    and no new row below it comes after.

    Args:
        oracle: what the source did.
        partitions: all topic-partitions, for DDLs that go to all of them, or partition 0 alone.
    """

    promise: ClassVar[str] = "P6"

    def __init__(self, oracle: DeliveryOracle, partitions: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._oracle = oracle
        self._partitions = partitions
        self._goes_to = oracle.facts.schema_changes_go_to
        self._ordered = self._goes_to in ("all-partitions", "partition-0")
        self._due = oracle.schema_changes()
        self._known = {_name(c) for c in self._due}
        self._came: dict[tuple[int, TableId, str], set[str]] = {}
        self._last_ddl: dict[tuple[str, TableId], int] = {}
        self._newest_row: dict[tuple[str, TableId], tuple[int, str]] = {}
        if not oracle.facts.carries_commit_ts:
            self.leave_unchecked("versions of rows: the feed carries no commit-ts")
        if self._goes_to == "nowhere":
            self.leave_unchecked("DDLs: the feed carries none")

    def note_rows(self, rows: DeliveredRows) -> None:
        """Check the version of each row, and its side of the last DDL."""
        if not self._oracle.facts.carries_commit_ts:
            return
        table, version = rows.table, rows.version
        at = self._oracle.versions.at
        own = at(table, version)
        lane = (rows.container, table)
        ddl = self._last_ddl.get(lane, 0)
        for i, (stamp, repetition) in enumerate(zip(rows.commit_ts, rows.repetitions, strict=True)):
            if repetition is RowRepetition.REPEAT:
                continue
            if not self._in_force(table, version, stamp, own is at(table, stamp)):
                self.fail(f"{rows.place(i)}: written as version {version}, not in force then")
            if self._ordered:
                if stamp < ddl:
                    self.fail(f"{rows.place(i)}: new after the DDL at {ddl}")
                if stamp > self._newest_row.get(lane, (0, ""))[0]:
                    self._newest_row[lane] = (stamp, rows.place(i))

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Check that the DDL is the source's, and where it stands."""
        name = _name(change)
        if name not in self._known:
            self.fail(f"{where}: the source made no DDL {change.query!r} at {change.commit_ts}")
            return
        came = self._came.setdefault(name, set())
        repeat = where.container in came
        came.add(where.container)
        if self._goes_to == "partition-0" and where.container not in self._partitions[:1]:
            self.fail(f"{where}: DDL {change.query!r} belongs on {self._partitions[:1]}")
        if repeat or not self._ordered:
            return
        for table in {change.table, change.previous or change.table}:
            lane = (where.container, table)
            newest, place = self._newest_row.get(lane, (0, ""))
            if newest > change.commit_ts:
                self.fail(f"{where}: DDL at {change.commit_ts} comes after {place}")
            self._last_ddl[lane] = max(self._last_ddl.get(lane, 0), change.commit_ts)

    def note_resolved(self, commit_ts: int) -> None:
        """Report DDLs that should have come by now."""
        if self._goes_to == "nowhere":
            return
        while self._due and self._due[0].commit_ts <= commit_ts:
            change = self._due.pop(0)
            came = self._came.get(_name(change), set())
            wanted = set(self._partitions) if self._goes_to == "all-partitions" else set()
            if not came:
                self.fail(f"lost: DDL {change.query!r} at {change.commit_ts}")
            elif missing := wanted - came:
                self.fail(f"DDL {change.query!r} did not come on {', '.join(sorted(missing))}")

    def _in_force(self, table: TableId, version: int, stamp: int, same: bool) -> bool:
        if version <= stamp and same:
            return True
        window = self._oracle.windows.get(table)
        # A snapshot row carries `low`, but may have been read after a DDL inside the window.
        return window is not None and stamp == window.low < version <= window.high


def _name(change: SchemaChange) -> tuple[int, TableId, str]:
    return (change.commit_ts, change.table, change.query)
