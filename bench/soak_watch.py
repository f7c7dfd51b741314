"""Looks at a soak run every few seconds: lag, rows/s, memory, descriptors, meta database, files."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from soak_world import Member, World

from rowferry.change.position import physical_ms
from rowferry.errors import RowferryError

_METRIC = re.compile(r'^rowferry_(\w+)\{changefeed="([^"]+)"(?:,(\w+)="([^"]*)")?\} (\S+)$', re.M)
_MEMORY = re.compile(r'^rowferry_memory_bytes\{of="(\w+)"\} (\S+)$', re.M)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_META_EVERY_S, _FILES_EVERY_S = 15.0, 30.0
Sample = dict[str, Any]


class Watch:
    """Takes samples of a world, and adds them to a file.

    Lag is the clock minus the checkpoint that a server's metrics show; of a changefeed that no
    server shows at the moment, minus the last one that was shown.
    """

    def __init__(self, world: World, record: Path) -> None:
        self._world = world
        self._kind = {feed.id: feed.kind for feed in world.feeds}
        self._record = record
        self._checkpoints: dict[str, float] = {}
        self._seen_at: dict[str, float] = {}
        self._counted: dict[tuple[int, str], float] = {}
        self._sent: dict[str, float] = {}
        self._errors: dict[tuple[int, str, str], float] = {}
        self._last: Sample = {}
        self.errors: dict[str, dict[str, int]] = {}
        self.began = time.time()
        self.samples: list[Sample] = []

    def restart(self) -> None:
        """Begin the run's own clock: what was seen before is forgotten."""
        self.began = time.time()
        self.samples, self._last, self.errors = [], {}, {}
        self._record.unlink(missing_ok=True)

    def look(self) -> Sample:
        """Take one sample."""
        sent_before = dict(self._sent)
        self._seen_at = {}
        owned = self._owned()
        servers = [self._server(member, owned) for member in self._world.members]
        now = time.time()
        sample: Sample = {"t": round(now - self.began, 1), "load": round(os.getloadavg()[0], 2)}
        lags = {
            name: max(0.0, self._seen_at.get(name, now) - at)
            for name, at in self._checkpoints.items()
        }
        groups = {"healthy": [n for n in lags if self._kind[n] not in ("slow", "failing")]}
        for kind in sorted(set(self._kind.values())):
            groups[kind] = [name for name in lags if self._kind[name] == kind]
        sample["lag"] = {g: _spread([lags[n] for n in names]) for g, names in groups.items()}
        sample["worst"] = max(groups["healthy"], key=lambda name: lags[name], default="")
        passed = sample["t"] - self._last.get("t", sample["t"] - 1)
        sample["rows_s"] = {
            kind: round((sent - sent_before.get(kind, 0.0)) / max(passed, 0.1), 1)
            for kind, sent in self._sent.items()
        }
        sources = self._world.sources.values()
        sample["written"] = {
            "transactions": sum(s.transactions for s in sources),
            "rows": sum(s.rows for s in sources),
            "schema_changes": sum(s.schema_changes for s in sources),
        }
        sample["servers"] = [one for one in servers if one]
        sample["logs"] = sum(_size(m.output) + _size_below(m.work) for m in self._world.members)
        self._now_and_then(sample, "meta", _META_EVERY_S, self._meta)
        self._now_and_then(sample, "files", _FILES_EVERY_S, self._files)
        self._last = sample
        self.samples.append(sample)
        with open(self._record, "a") as file:
            file.write(json.dumps(sample) + "\n")
        return sample

    def _now_and_then(self, sample: Sample, name: str, every_s: float, look: Any) -> None:
        before = self._last.get(f"{name}_at", -every_s)
        if sample["t"] - before >= every_s:
            sample[name] = look()
            before = sample["t"]
        sample[f"{name}_at"] = before

    # --- a server --------------------------------------------------------------------------------

    def _server(self, member: Member, owned: dict[str, int]) -> dict[str, Any] | None:
        process = member.process
        if process is None or not process.alive:
            return None
        pid = process.pid
        found: dict[str, Any] = {"name": member.name, "pid": pid, **_memory(pid)}
        try:
            with urlopen(f"http://{member.address}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return found
        self._read(pid, text, time.time())
        found |= {of: round(float(size) / 1e6, 1) for of, size in _MEMORY.findall(text)}
        found["owned"] = owned.get(member.address, 0)
        return found

    def _owned(self) -> dict[str, int]:
        """Return how many changefeeds each server has: metrics show all of them on every one."""
        query = (
            "SELECT owner, count(*) FROM leases WHERE owner IS NOT NULL "
            f"AND expires_at > {time.time() * 1000:.0f} GROUP BY owner"
        )
        try:
            return {owner: int(n) for owner, n in self._world.meta.execute(query, "rowferry")}
        except RowferryError:
            return {}

    def _read(self, pid: int, text: str, now: float) -> None:
        for name, feed, _, label, value in _METRIC.findall(text):
            if name == "checkpoint_ts" and float(value):
                self._seen_at[feed] = now
                self._checkpoints[feed] = max(
                    self._checkpoints.get(feed, 0.0), physical_ms(int(float(value))) / 1000
                )
            elif name == "rows_total" and label == "sent":
                kind = self._kind[feed]
                count, before = float(value), self._counted.get((pid, feed), 0.0)
                # A changefeed that left this server and came back counts from zero again.
                self._sent[kind] = (
                    self._sent.get(kind, 0.0) + count - (before if count >= before else 0.0)
                )
                self._counted[pid, feed] = count
            elif name == "errors_total":
                self._note_errors(pid, feed, label, float(value))

    def _note_errors(self, pid: int, feed: str, code: str, count: float) -> None:
        before = self._errors.get((pid, feed, code), 0.0)
        more = count - (before if count >= before else 0.0)
        if more:
            kind = self.errors.setdefault(self._kind[feed], {})
            kind[code] = kind.get(code, 0) + round(more)
        self._errors[pid, feed, code] = count

    # --- the meta database and files -------------------------------------------------------------

    def _meta(self) -> dict[str, Any] | None:
        counts = (
            "SELECT relname, n_live_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables"
        )
        try:
            tables = self._world.meta.execute(counts, "rowferry")
            states = self._world.meta.execute("SELECT id, state FROM changefeeds", "rowferry")
        except RowferryError:
            return None
        return {
            "tables": {name: [int(rows), int(size)] for name, rows, size in tables},
            "states": {
                state: sorted(name for name, s in states if s == state)
                for state in sorted({s for _, s in states} - {"normal"})
            },
        }

    def _files(self) -> dict[str, int]:
        members, out = self._world.members, self._world.folder / "out"
        return {
            "work": sum(_count(m.work) for m in members),
            "temporary": sum(_count(m.temporary) for m in members),
            "sink_temporary": sum(_count(path) for path in out.glob("*/rowferry.tmp")),
            "written": _count(out),
        }


def _spread(lags: Sequence[float]) -> list[float]:
    if not lags:
        return []
    return [round(float(np.percentile(lags, q)), 2) for q in (50, 99, 100)]


def _memory(root: int) -> dict[str, Any]:
    """Return what a server takes: memory in MB, open descriptors and threads."""
    found = {"python": 0.0, "java": 0.0, "workers": 0.0, "worker_count": 0, "fds": 0, "threads": 0}
    for pid in tree(root):
        place = Path(f"/proc/{pid}")
        try:
            rss = int((place / "statm").read_text().split()[1]) * _PAGE / 1e6
            name = (place / "comm").read_text().strip()
            if pid == root or name == "java":
                found["fds"] += len(os.listdir(place / "fd"))
                found["threads"] += len(os.listdir(place / "task"))
        except OSError:
            continue
        part = "python" if pid == root else "java" if name == "java" else "workers"
        found[part] = round(found[part] + rss, 1)
        found["worker_count"] += part == "workers"
    return found


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    left = [pid]
    while left:
        yield (one := left.pop())
        left += below.get(one, [])


def _walk(folder: Path) -> Iterable[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def _count(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def _size_below(folder: Path) -> int:
    return sum(_size(path) for path in _walk(folder))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
