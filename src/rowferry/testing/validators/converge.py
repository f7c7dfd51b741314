"""P9: clusters that write the same rows come to hold the same ones, and deletes stay deleted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rowferry.testing.validators.validator import Validator


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A row as one cluster holds it.

    Attributes:
        stamp: the moment of the write that it is from, wherever that was made.
        deleted: it is marked as deleted.
        values: everything else that clusters must agree on.
    """

    stamp: int
    deleted: bool
    values: tuple[object, ...]


class ClustersConverge(Validator):
    """P9. Call `observe` as often as wanted while feeds run, `settled` when all is carried over.

    A stamp names one write: rows of one key and one stamp are equal, whoever holds them. In each
    cluster a key's stamp never goes back, so that no late write undoes a newer one or a delete. A
    row leaves a cluster only after it was marked, and comes back only by a newer write. Once
    settled, all clusters hold the same rows; one that is marked may be gone already.
    """

    promise: ClassVar[str] = "P9"

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, dict[Hashable, ClusterRow]] = {}
        self._last: dict[str, dict[Hashable, ClusterRow]] = {}  # also of rows that are gone
        self._writes: dict[tuple[Hashable, int], tuple[str, ClusterRow]] = {}

    def observe(self, cluster: str, rows: Mapping[Hashable, ClusterRow]) -> None:
        """Take all rows that a cluster holds now, by key."""
        before, last = self._seen.get(cluster, {}), self._last.setdefault(cluster, {})
        for key in before.keys() - rows.keys():
            if not before[key].deleted:
                self.fail(f"{cluster}: row {key} is gone and was not marked as deleted")
        for key, row in rows.items():
            first, same = self._writes.setdefault((key, row.stamp), (cluster, row))
            if same != row:
                self.fail(f"row {key} of {row.stamp} is {same} in {first} and {row} in {cluster}")
            newest = last.get(key)
            if newest is not None and row.stamp < newest.stamp:
                self.fail(f"{cluster}: row {key} went back from {newest.stamp} to {row.stamp}")
            elif newest is not None and key not in before and row.stamp == newest.stamp:
                self.fail(f"{cluster}: row {key} of {row.stamp} came back after it was removed")
            last[key] = row
        self._seen[cluster] = dict(rows)

    def settled(self) -> None:
        """All writes so far have been carried everywhere: compare what was observed last."""
        keys = {key for rows in self._seen.values() for key in rows}
        for key in keys:
            held = {cluster: rows.get(key) for cluster, rows in self._seen.items()}
            rows_held = {row for row in held.values() if row is not None}
            purged = None in held.values() and all(row.deleted for row in rows_held)
            if len(rows_held) > 1 or (None in held.values() and not purged):
                words = ", ".join(f"{row} in {cluster}" for cluster, row in held.items())
                self.fail(f"clusters differ in row {key}: {words}")
