"""What the master keeps: the ranges, who leads them, which servers live, and the next free numbers.

The ranges and numbers are one small file, replaced in one step at every change: what it says is the
truth, also about a split or a leader move that was under way at a crash.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rowferry.errors import BadInput, StoreDamaged, StoreError, StoreUnavailable
from rowferry.flow.capture.range_log import catalog
from rowferry.refstore.meta import RangeMeta
from rowferry.refstore.storage.frames import replace_file

CATALOG_RANGE = 1
DEAD_AFTER_S = 2.0
_FIRST_TABLE_ID = 100


class Topology:
    """The master's state. All methods may be called from any thread."""

    def __init__(
        self,
        path: Path,
        cluster_id: int | None,
        fsync: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the state, or start a new cluster with an empty catalog.

        Raises:
            BadInput: the folder belongs to another cluster.
            StoreDamaged: the file cannot be read.
        """
        self._path, self._fsync, self._monotonic = path, fsync, monotonic
        self._lock = threading.RLock()
        self.cluster_id = cluster_id if cluster_id is not None else 1
        self._seen: dict[str, float] = {}
        self._failures: dict[str, dict[int, str]] = {}
        self.frozen: set[int] = set()  # ranges under a split or a DDL
        if path.exists():
            self._load()
            if cluster_id is not None and cluster_id != self.cluster_id:
                raise BadInput(
                    f"--cluster-id {cluster_id}: the folder belongs to cluster {self.cluster_id}"
                )
        else:
            first = RangeMeta(CATALOG_RANGE, catalog.START, catalog.END, physical_id=0)
            self._ranges = {CATALOG_RANGE: first}
            self._numbers = {"range": CATALOG_RANGE, "table": _FIRST_TABLE_ID, "job": 0}
        # A DDL of a former master may still be on its way to the catalog: the new epoch refuses it.
        old = self._ranges[CATALOG_RANGE]
        self._ranges[CATALOG_RANGE] = old.led_by(old.leader)
        self._store()

    def _load(self) -> None:
        try:
            form = json.loads(self._path.read_bytes())
            ranges = [RangeMeta.from_json(r) for r in form["ranges"]]
            self._ranges = {r.range_id: r for r in ranges}
            self._numbers = {k: int(form["numbers"][k]) for k in ("range", "table", "job")}
            self.cluster_id = int(form["cluster_id"])
        except (ValueError, KeyError, TypeError) as err:
            raise StoreDamaged(
                f"{self._path.name} cannot be read ({err!r}); restore it from a copy"
            ) from err

    def _store(self) -> None:
        form = {
            "cluster_id": self.cluster_id,
            "numbers": self._numbers,
            "ranges": [r.to_json() for r in self._ranges.values()],
        }
        replace_file(self._path, [json.dumps(form).encode()], self._fsync)

    def number(self, kind: str) -> int:
        """Return the next "range", "table" or "job" number; none is given twice."""
        with self._lock:
            self._numbers[kind] += 1
            self._store()
            return self._numbers[kind]

    # --- servers ---------------------------------------------------------------------------------

    def beat(self, address: str, leaving: bool, failures: dict[int, str]) -> None:
        """Note that a server lives, or that it leaves."""
        with self._lock:
            self._failures[address] = failures
            if leaving:
                self._seen.pop(address, None)
                self._failures.pop(address, None)
            else:
                self._seen[address] = self._monotonic()

    def living(self) -> list[str]:
        """Return the addresses of the servers that were heard of lately."""
        with self._lock:
            limit = self._monotonic() - DEAD_AFTER_S
            return sorted(a for a, seen in self._seen.items() if seen >= limit)

    def failures(self) -> dict[int, str]:
        """Return why ranges cannot be opened, by range."""
        with self._lock:
            return {
                r: words for by_range in self._failures.values() for r, words in by_range.items()
            }

    def give_out(self, patience: bool) -> None:
        """Give every range without a living leader to the server that leads the fewest.

        With `patience`, ranges whose leader was not heard of since this master started are left
        to it.
        """
        with self._lock:
            living = self.living()
            if not living:
                return
            load = Counter(r.leader for r in self._ranges.values())
            changed = False
            for meta in list(self._ranges.values()):
                if meta.leader in living or (
                    patience and meta.leader and meta.leader not in self._seen
                ):
                    continue
                address = min(living, key=lambda a: (load[a], a))
                load[address] += 1
                self._ranges[meta.range_id] = meta.led_by(address)
                changed = True
            if changed:
                self._store()

    # --- ranges ----------------------------------------------------------------------------------

    def ranges(self, start: bytes = b"", end: bytes = b"") -> list[RangeMeta]:
        """Return the ranges that overlap [start, end) by start key; empty end: to the end."""
        with self._lock:
            overlapping = [
                r for r in self._ranges.values() if r.end > start and (not end or r.start < end)
            ]
        return sorted(overlapping, key=lambda r: r.start)

    def range(self, range_id: int) -> RangeMeta:
        """Return one range."""
        with self._lock:
            meta = self._ranges.get(range_id)
            if meta is None:
                known = ", ".join(str(r) for r in sorted(self._ranges))
                raise StoreError(f"there is no range {range_id}; known: {known}")
            return meta

    def of_tables(self, physical_ids: Iterable[int]) -> list[RangeMeta]:
        """Return the ranges of tables or table partitions."""
        wanted = set(physical_ids)
        return [r for r in self.ranges() if r.physical_id in wanted]

    def add_table(self, physical_id: int, bounds: list[bytes]) -> None:
        """Make the ranges between the given ascending keys; they get leaders at once."""
        with self._lock:
            for start, end in zip(bounds, bounds[1:], strict=False):
                self._numbers["range"] += 1
                range_id = self._numbers["range"]
                self._ranges[range_id] = RangeMeta(range_id, start, end, physical_id)
                self.frozen.add(range_id)
            self._store()
            self.give_out(patience=True)

    def remove_tables(self, physical_ids: Iterable[int]) -> None:
        """Forget ranges of tables that never came to be."""
        with self._lock:
            for meta in self.of_tables(physical_ids):
                del self._ranges[meta.range_id]
                self.frozen.discard(meta.range_id)
            self._store()

    def drop_all_but(self, physical_ids: set[int]) -> None:
        """Mark the ranges of all other tables as dropped; they can still be read."""
        with self._lock:
            gone = [r for r in self._ranges.values() if r.physical_id and not r.dropped]
            gone = [r for r in gone if r.physical_id not in physical_ids]
            self._ranges.update({r.range_id: replace(r, dropped=True) for r in gone})
            if gone:
                self._store()

    def freeze_tables(self, physical_ids: Iterable[int]) -> list[int]:
        """Freeze all ranges of tables; returns their ids."""
        with self._lock:
            range_ids = [r.range_id for r in self.of_tables(physical_ids)]
            self.freeze(range_ids)
            return range_ids

    def freeze(self, range_ids: Iterable[int]) -> None:
        """Let assignments say that these ranges take no writes."""
        with self._lock:
            wanted = set(range_ids)
            if wanted & self.frozen:
                raise StoreUnavailable("a range is being split or altered already; try again")
            self.frozen |= wanted

    def thaw(self, range_ids: Iterable[int]) -> None:
        """Let assignments say that these ranges take writes again."""
        with self._lock:
            self.frozen -= set(range_ids)

    def split(self, meta: RangeMeta, key: bytes, new_range_id: int, index: int) -> None:
        """Make a split real, whose files its leader has written."""
        with self._lock:
            if self._ranges.get(meta.range_id) != meta:
                raise StoreUnavailable(
                    f"range {meta.range_id} changed while it was split; try again"
                )
            left, right = meta.halves(key, new_range_id, index)
            self._ranges[left.range_id], self._ranges[right.range_id] = left, right
            self._store()
            self.frozen.discard(meta.range_id)

    def move(self, range_id: int, address: str) -> str:
        """Give a range to another server (empty: to any); returns its address."""
        with self._lock:
            meta = self.range(range_id)
            others = [a for a in self.living() if a != meta.leader]
            if address and address == meta.leader:
                return address
            if not others or (address and address not in others):
                known = ", ".join(self.living()) or "none"
                raise StoreError(f"range {range_id} cannot move to {address!r}; alive: {known}")
            load = Counter(r.leader for r in self._ranges.values())
            target = address or min(others, key=lambda a: (load[a], a))
            self._ranges[range_id] = meta.led_by(target)
            self._store()
            return target
