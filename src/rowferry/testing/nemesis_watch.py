"""A reader of the output while the feed runs: which files were visible at which checkpoint."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rowferry.change.chunk import Change
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.storage.files import walk
from rowferry.flow.sink.storage.index_file import read_any_index
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.paths import IndexFile, SchemaFile, parse_data_name
from rowferry.testing.feed import WatchedFeed, Where
from rowferry.testing.harness import checkpoint
from rowferry.testing.storage import deliver_changes, placed_changes
from rowferry.testing.validators.layout import StorageLayout


@dataclass(frozen=True, slots=True)
class Sight:
    """What was visible when `metadata` said `checkpoint_ts`; read in the reverse order of writing.

    Attributes:
        last_numbers: by directory, the number that CDC.index names.
        schema_files: paths of the schema files.
    """

    checkpoint_ts: int
    last_numbers: dict[str, int]
    schema_files: frozenset[str]

    def shows(self, path: str) -> bool:
        """Return whether a file was visible."""
        home, _, name = path.rpartition("/")
        data = parse_data_name(name)
        if data is None:
            return path in self.schema_files
        return data[0] <= self.last_numbers.get(home, 0)


class OutputWatch(ABC):
    """A reader that looks at an output again and again while the feed runs, until stopped.

    It looks in a thread of its own; `failures` holds what was wrong, and what ended it early.
    """

    def __init__(self, pause_s: float = 0.1) -> None:
        """Begin to look; all that `look` needs is there."""
        self.failures: list[str] = []
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def watermarks(self) -> list[int]:
        """The checkpoints that were seen, ascending."""

    @abstractmethod
    def look(self) -> None:
        """Look once."""

    @property
    def checkpoint_ts(self) -> int:
        """The last checkpoint seen; 0 before there is one."""
        seen = self.watermarks
        return seen[-1] if seen else 0

    def stop(self) -> None:
        """Look a last time and end."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """Judge what only the end can show."""

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                self.look()
            self.look()
            self.finish()
        except Exception as err:  # seen less than there was: the run must not pass
            self.failures.append(f"the watch ended: {type(err).__name__}: {err}")


class Watch(OutputWatch):
    """Looks at a storage directory.

    `sights` has one entry for each checkpoint seen; `layout` watches P8 meanwhile.
    """

    def __init__(self, root: Path, pause_s: float = 0.1) -> None:
        self.sights: list[Sight] = []
        self.layout = StorageLayout(root)
        self._root = root
        super().__init__(pause_s)

    @property
    def watermarks(self) -> list[int]:
        """The checkpoints that were seen, ascending."""
        return [sight.checkpoint_ts for sight in self.sights]

    def look(self) -> None:
        """Look once."""
        if not self._root.exists():
            return
        checkpoint_ts = checkpoint(self._root)
        if checkpoint_ts != self.checkpoint_ts:
            self.sights.append(see(self._root, checkpoint_ts))
        self.layout.observe()

    def finish(self) -> None:
        """Judge the layout as a whole."""
        self.layout.finish()


def see(root: Path, checkpoint_ts: int) -> Sight:
    """Return what is visible now; `checkpoint_ts` was read before."""
    files = LocalFiles(root)
    last_numbers: dict[str, int] = {}
    schema_files: set[str] = set()
    for path, kind in walk(files):
        if isinstance(kind, SchemaFile):
            schema_files.add(path)
        elif isinstance(kind, IndexFile) and (stored := files.get(path)) is not None:
            last_numbers[path.rsplit("/", 2)[0]] = read_any_index(stored.data, path)[0]
    return Sight(checkpoint_ts, last_numbers, frozenset(schema_files))


def deliver_sights(root: Path, codec: Codec, sights: list[Sight], feed: WatchedFeed) -> None:
    """Note a directory's content as a reader got it that looked at these moments.

    Each file comes with the first sight that shows it, before that sight's checkpoint; what no
    sight shows comes last.
    """
    waiting: dict[int, list[tuple[Where, Change]]] = {}
    first_seen: dict[str, int] = {}
    for where, change in placed_changes(root, codec):
        path = where.container
        if path not in first_seen:
            # Visibility never ends, so the first sight that shows a file can be searched for.
            first_seen[path] = bisect_left(sights, True, key=partial(Sight.shows, path=path))
        waiting.setdefault(first_seen[path], []).append((where, change))
    for number, sight in enumerate(sights):
        deliver_changes(waiting.get(number, []), feed)
        feed.note_watermark(sight.checkpoint_ts)
    deliver_changes(waiting.get(len(sights), []), feed)
