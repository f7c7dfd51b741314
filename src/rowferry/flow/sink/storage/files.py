"""What the sink needs of any storage: a few operations on named objects.

Create if absent, compare and swap, read, list, delete, and one lock per prefix where the storage
has locks. Everything else in this package reaches the storage through these only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rowferry.change.event_counts import EventCounts
from rowferry.flow.sink.storage.paths import STAGING, AnyPath, parse_path

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object's content, and a tag that changes whenever the object is written."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    is_directory: bool


class Staged(Protocol):
    """Content that grows piece by piece and has no name yet."""

    def append(self, data: bytes | memoryview) -> None:
        """Add bytes at the end; they are not kept in memory."""

    def create(self, path: str) -> bool:
        """Give the content its name; False: the same bytes were there already.

        Raises:
            FileConflict: other bytes are there.
        """

    def swap(self, path: str, expected: Stored | None) -> bool:
        """Replace an object if it is still as expected (None: absent); False: it is not."""

    def abandon(self) -> None:
        """Remove what was staged; harmless after `create` and `swap`."""


class Files(Protocol):
    """Objects below one prefix; paths are relative to it, with `/` between segments.

    Many objects become durable in four steps: stage each, `flush` all, name each, `settle`. An
    object is never seen under its name before its content is durable.

    Attributes:
        has_locks: `locked` really keeps others out. Without, only conditional writes do: whoever
            was replaced may still carry out a write that it had begun.
        parallel: how many operations at once are faster than one after the other.
        counts: of calls to a store; files of this machine make none.
    """

    has_locks: bool
    parallel: int
    counts: EventCounts

    def shown(self, path: str) -> str:
        """Return the path as users know it, for errors."""

    def get(self, path: str) -> Stored | None:
        """Return an object; None: there is none."""

    def recall(self, path: str) -> Stored | None:
        """Return a small object, perhaps as this process last saw or wrote it; for `swap` only.

        If it was changed since, `swap` tells so, and the next call reads it anew.
        """

    def exists(self, path: str) -> bool:
        """Return whether there is such an object."""

    def entries(self, directory: str) -> list[DirectoryEntry]:
        """Return the names in a directory, sorted; a missing directory has none."""

    def paths(self, depth: int) -> Iterator[str]:
        """Yield the path of every object at most `depth` directories deep, in no special order."""

    def survey(self, most: int) -> frozenset[str] | None:
        """Return the paths of all objects, from one list; None: they are more than so many.

        Where that is not faster than to look for single objects, it is None, too. `recall` then
        knows what is not there.
        """

    def create(self, path: str, data: bytes) -> bool:
        """Create an object, whole and durable; False: the same bytes were there already.

        Raises:
            FileConflict: other bytes are there.
        """

    def swap(self, path: str, data: bytes, expected: Stored | None) -> bool:
        """Replace an object if it is still as expected (None: absent); False: it is not."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Put content under a name, whatever is there."""

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is fine."""

    def prune(self, directory: str) -> None:
        """Remove a directory if nothing is in it (where directories exist at all)."""

    def move(self, directory: str, target: str, last: str) -> None:
        """Give all that is in a directory another one; what is below `last` in it comes last.

        Repeated after a crash it moves the rest. Nothing may be in the target.
        """

    def stage(self, data: bytes = b"") -> Staged:
        """Begin content whose name comes later."""

    def flush(self, staged: Collection[Staged]) -> None:
        """Make the content of all of these durable, at once."""

    def settle(self) -> None:
        """Make the names given since the last call durable, at once."""

    def sweep(self) -> None:
        """Remove staged content that nobody finished."""

    def locked(self, shared: bool = False) -> AbstractContextManager[None]:
        """Let one process at a time (or any number of shared ones) in; not re-entrant.

        Without `has_locks` it lets everybody in.
        """

    def check_writable(self) -> None:
        """Raise SinkUnwritable unless the prefix can be written or made; writes nothing."""

    def check_compares(self) -> None:
        """Raise SinkUnwritable unless `create` and `swap` really look at what is there.

        Leaves nothing behind.
        """

    def prepare(self) -> None:
        """Make the prefix, and forget what was seen so far."""

    def close(self) -> None:
        """Let connections and local space go."""


# Those that wait for a network are many; for a disk a few keep it busy, and each keeps memory.
_MOST_HELPERS: Final = 64
_MOST_AT_DISK: Final = 8
_pool: dict[int, ThreadPoolExecutor] = {}  # each from its first use on, by its size


def _helpers(most: int) -> ThreadPoolExecutor:
    """Return threads that all storages of the process share: making new ones costs too much."""
    if most not in _pool:
        _pool.setdefault(most, ThreadPoolExecutor(most, thread_name_prefix="storage"))
    return _pool[most]


os.register_at_fork(after_in_child=_pool.clear)  # threads stay with the parent


def each(files: Files, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what `do` gives for each item, in order; as many at once as is good for the storage.

    On raise: it is the error of the first item that failed; others may have been done.
    """
    given = list(items)
    workers = min(files.parallel, len(given))
    if workers < 2:
        return [do(item) for item in given]
    done: dict[int, R] = {}
    failed: dict[int, BaseException] = {}
    turns = iter(range(len(given)))  # each thread takes the next one: cheaper than a task for each

    def work() -> None:
        for place in turns:
            if failed:
                return
            try:
                done[place] = do(given[place])
            except BaseException as err:
                failed[place] = err

    most = _MOST_AT_DISK if files.has_locks else _MOST_HELPERS
    others = [_helpers(most).submit(work) for _ in range(workers - 1)]
    work()
    # Those that did not come to begin have nothing to do any more: a call inside of a call, or many
    # changefeeds at once, never wait for a free thread.
    for one in others:
        if not one.cancel():
            one.result()
    if failed:
        raise failed[min(failed)]
    return [done[place] for place in range(len(given))]


def each_fenced(files: Files, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do the same for what takes the prefix's lock itself: one after the other where it has one."""
    return [do(item) for item in items] if files.has_locks else each(files, do, items)


_DEEPEST = 6  # database/table/version/partition/date/meta


def walk(
    files: Files, date_separator: str = "", named: Callable[[str], str] = str
) -> Iterator[tuple[str, AnyPath]]:
    """Yield path and meaning of each file that the layout knows, by name; others are passed.

    Args:
        files: where they are.
        date_separator: see `parse_path`.
        named: returns the name of the layout under which a path is looked at.
    """
    for path in sorted(p for p in files.paths(_DEEPEST) if not p.startswith(f"{STAGING}/")):
        kind = parse_path(named(path), date_separator)
        if kind is not None:
            yield path, kind
