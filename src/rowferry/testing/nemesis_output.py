"""Where the nemesis lets a changefeed write to, and how what is there is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rowferry.change.table import TableId
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.harness import checkpoint
from rowferry.testing.model import History, Row
from rowferry.testing.nemesis_judge import FACTS, compare_with_store, judge
from rowferry.testing.nemesis_watch import OutputWatch, Watch
from rowferry.testing.validators import SnapshotWindow
from rowferry.testing.validators.rebuilt import Invariant


@dataclass(frozen=True, slots=True)
class Written:
    """What the source committed, and what of it may look otherwise.

    Attributes:
        windows: the snapshots that the feed began with.
        invariant: what holds for the tables at every watermark.
        allow_repeats: a snapshot was lost, so rows may come twice.
    """

    history: History
    windows: Sequence[SnapshotWindow]
    invariant: Invariant
    allow_repeats: bool


class ProgressWatch(OutputWatch):
    """Reads up to where an output says that it is complete."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._seen: list[int] = []
        super().__init__()

    @property
    def watermarks(self) -> list[int]:
        """The checkpoints that were seen, ascending."""
        return list(self._seen)

    def look(self) -> None:
        """Look once."""
        now = self._read()
        if now < self.checkpoint_ts:
            self.failures.append(f"P3: the output went back from {self.checkpoint_ts} to {now}")
        if now > self.checkpoint_ts:
            self._seen.append(now)


def differences(what: str, have: list[Row], want: list[Row], key: tuple[str, ...]) -> Iterator[str]:
    """Yield how the rows of a table are not those that it must have."""

    def keyed(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
        return {tuple(r.get(c) for c in key): r for r in rows}

    here, there = keyed(have), keyed(want)
    missing = [k for k in there if k not in here]
    extra = [k for k in here if k not in there]
    other = [(here[k], there[k]) for k in there if k in here and here[k] != there[k]]
    if missing or extra or other or len(here) != len(have):
        yield (
            f"{what}: {len(have)} rows for {len(want)}; missing {missing[:3]}, extra {extra[:3]}, "
            f"other {other[:2]}"
        )


class NemesisOutput(Protocol):
    """One kind of output."""

    sink: str
    config: str

    def checkpoint(self) -> int:
        """Return up to where the output says that it is complete; 0: it does not yet."""

    def watch(self) -> OutputWatch:
        """Begin to look at it; there is one watch at a time."""

    def judge(self, spec: ChangefeedSpec, written: Written) -> list[str]:
        """Return how what the watch has seen breaks the promises; it was stopped."""

    def compare(self, spec: ChangefeedSpec, store: Store, tables: list[TableId]) -> list[str]:
        """Return how tables differ from the store's rows of now, of which all are delivered."""


class FileOutput:
    """Files of a message protocol in a directory, held against P1 to P8."""

    def __init__(self, root: Path, protocol: str) -> None:
        extension = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
        self.sink = (
            f"file://{root}?protocol={protocol}{extension}&file-size=65536&flush-interval=200ms"
        )
        self.config = "[sink.csv]\ninclude-commit-ts = true\n" if protocol == "csv" else ""
        self._root, self._facts = root, FACTS[protocol]
        self._watch: Watch | None = None

    def checkpoint(self) -> int:
        """Return what `metadata` says."""
        return checkpoint(self._root)

    def watch(self) -> OutputWatch:
        """Begin to look at the files."""
        self._watch = Watch(self._root)
        return self._watch

    def judge(self, spec: ChangefeedSpec, written: Written) -> list[str]:
        """Read the files as the watch saw them grow."""
        assert self._watch is not None
        failures = judge(
            self._root,
            assemble(spec).encode,
            self._facts,
            written.history,
            written.windows,
            self._watch.sights,
            written.invariant,
            written.allow_repeats,
        )
        return [*self._watch.layout.failures, *failures]

    def compare(self, spec: ChangefeedSpec, store: Store, tables: list[TableId]) -> list[str]:
        """Rebuild the tables from their files."""
        return compare_with_store(self._root, assemble(spec).encode, store, tables)
