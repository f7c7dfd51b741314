"""The key runs of one table's data files, at hand and made anew where they are missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.errors import SinkDamaged, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.data_file import read_parquet, with_constants
from rowferry.flow.sink.lake.key_filter import KeyFilter
from rowferry.flow.sink.lake.key_run import GONE, KeyRun
from rowferry.flow.sink.lake.keys import Keys, Places, joined, keys_of
from rowferry.flow.sink.lake.shared_cache import SharedCache
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.moment import moment

OWN: Final = "_rowferry"  # a name that begins so is no data to readers, nor to their clean-up
_RUNS: Final = SharedCache[KeyRun](1 << 30)  # on the disk of this machine
_MAPPING: Final = 32 << 10  # what a run counts for that is mapped where it lies
_FILTERS: Final = SharedCache[KeyFilter](256 << 20)
_ABOUT: Final = 512  # bytes of a filter beside its words
_LOOK_COSTS: Final = 16  # to look one key up costs as much as to put so many into a filter
RowNumbers: TypeAlias = npt.NDArray[np.int64]
Held: TypeAlias = Callable[[str], Mapping[str, pa.Scalar]]


class RunFile(Protocol):
    """A data file of a table."""

    @property
    def path(self) -> str:
        """What its run is known by."""


F = TypeVar("F", bound=RunFile)


def run_path(directory: str, data_path: str) -> str:
    """Return the path of a data file's run."""
    return f"{directory}/{OWN}/{data_path.replace('/', '%2F')}.run"


def run_of(names: Sequence[str], rows: pa.Table) -> KeyRun:
    """Return the run of a data file with these rows of its key's columns.

    Rows with NULL in them are left out: they were replaced before these columns became the key.
    """
    columns = [rows.column(name).combine_chunks() for name in names]
    columns = [c if isinstance(c, pa.Array) else pa.concat_arrays(c.chunks) for c in columns]
    numbers = np.arange(rows.num_rows, dtype=np.uint32)
    if any(c.null_count for c in columns):
        whole = np.all([c.is_valid().to_numpy(zero_copy_only=False) for c in columns], axis=0)
        columns, numbers = [c.filter(pa.array(whole)) for c in columns], numbers[whole]
    return KeyRun.make(names, keys_of(columns), numbers)


class RunStore:
    """Runs by data file, mapped: those of a directory where they lie, copies of others.

    All tables of a process share the room for copies, which is on the local disk.
    """

    def __init__(self, files: Files, directory: str, held: Held = lambda _: {}) -> None:
        """Begin with the runs of a directory.

        `held` gives what the rows of a file have in columns that the file itself lacks.
        """
        self._files = files
        self._held_by = held
        self._directory = directory
        self._held = _RUNS.part()
        self._filters = _FILTERS.part()
        self._looked: dict[str, int] = {}  # keys, while a run has no filter

    def run_path(self, data_path: str) -> str:
        """Return where the run of a data file is."""
        return run_path(self._directory, data_path)

    def data_path(self, data_path: str) -> str:
        """Return where a data file is, below the prefix."""
        return f"{self._directory}/{data_path}"

    def key_rows(self, data_path: str, data: bytes, names: tuple[str, ...]) -> pa.Table:
        """Return the key's columns of a data file."""
        return with_constants(read_parquet(data, list(names)), self._held_by(data_path))

    def run(self, data_path: str, names: tuple[str, ...]) -> KeyRun:
        """Return the run of a data file, whose key has these columns.

        Raises:
            TargetLost: the data file is gone.
        """
        known = self._held.get(data_path)
        if known is not None and known.names == names:
            return known
        run = self._stored(data_path)
        return run if run is not None and run.names == names else self._made_anew(data_path, names)

    def look_up(
        self, data_path: str, names: tuple[str, ...], wanted: Keys, among: Places
    ) -> tuple[Places, npt.NDArray[np.uint32]]:
        """Return which of the wanted keys are in a data file, and their rows.

        As the file's run tells it, which is not looked at where its filter lets no key pass.

        Args:
            data_path: of the file.
            names: those of the key's columns.
            wanted: sorted by code.
            among: the places of those that are looked up, ascending.
        """
        known = self._filters.get(data_path)
        if known is not None and known.knows(names, wanted):
            among = known.passed(wanted.codes, among)
            if not len(among):
                return among, np.zeros(0, np.uint32)
        run = self.run(data_path, names)
        if known is None:
            self._count_look(data_path, run, len(among))
        return run.look_up(wanted, among)

    def _count_look(self, data_path: str, run: KeyRun, keys: int) -> None:
        """Make the filter of a run, once as many keys were looked up as it costs to make it.

        At once where runs are fetched: it costs less than to fetch one again.
        """
        looked = self._looked.get(data_path, 0) + keys
        self._looked[data_path] = looked
        if isinstance(self._files, LocalFiles) and looked * _LOOK_COSTS < len(run.keys):
            return
        self._looked[data_path] = 0
        made = KeyFilter.of(run.names, run.keys)
        self._filters.put(data_path, made, made.words.nbytes + _ABOUT)

    def old_rows(
        self,
        names: tuple[str, ...],
        keys: Keys,
        files: Iterable[F],
        gone: Callable[[F], RowNumbers],
    ) -> Iterator[tuple[F, RowNumbers]]:
        """Yield the files that hold rows of keys, and these rows, ascending.

        Rows that are gone do not count; a key has one row that does.

        Args:
            names: those of the key's columns.
            keys: sorted by code.
            files: in the order in which they are looked at.
            gone: gives the rows of a file that are gone, ascending; asked only where it matters.
        """
        left = np.arange(len(keys))
        for file in files:
            if not len(left):
                return
            places, numbers = self.look_up(file.path, names, keys, left)
            there = numbers != GONE
            places, rows = places[there], numbers[there].astype(np.int64)
            if not len(rows):
                continue
            alive = ~_are_in(rows, gone(file))
            if not alive.any():
                continue
            yield file, np.sort(rows[alive])
            rest = np.ones(len(keys), np.bool_)
            rest[places[alive]] = False
            left = left[rest[left]]

    def forget(self, data_paths: Sequence[str]) -> None:
        """Let go of the runs of files that the table has no more; nobody else looks at them."""
        self._filters.forget(data_paths)
        self._held.forget(data_paths)
        for path in data_paths:
            self._looked.pop(path, None)
            moment("delete key run")
            self._files.delete(self.run_path(path))

    def _stored(self, data_path: str) -> KeyRun | None:
        moment("read key run")
        path = self.run_path(data_path)
        if not isinstance(self._files, LocalFiles):
            stored = self._files.get(path)
            return self._fetched(data_path, stored.data) if stored else None
        if not self._files.exists(path):
            return None
        try:
            data = _mapped(self._files.shown(path))
        except (OSError, ValueError):
            return None  # an empty one, or it went away just now: it is made anew
        return self._hold(data_path, data, _MAPPING)

    def _fetched(self, data_path: str, content: bytes) -> KeyRun | None:
        try:
            data = _on_disk(content)
        except OSError:  # no room: it is fetched again next time
            return KeyRun.read(np.frombuffer(content, np.uint8))
        return self._hold(data_path, data, len(content))

    def _hold(self, data_path: str, data: npt.NDArray[np.uint8], size: int) -> KeyRun | None:
        run = KeyRun.read(data)
        if run is not None:
            self._held.put(data_path, run, size)
        return run

    def _made_anew(self, data_path: str, names: tuple[str, ...]) -> KeyRun:
        moment("read data file for its keys")
        path = self.data_path(data_path)
        stored = self._files.get(path)
        if stored is None:
            raise TargetLost(f"{self._files.shown(path)} is gone, a data file; {RESTORE}")
        try:
            run = run_of(names, self.key_rows(data_path, stored.data, names))
        except (pa.ArrowException, KeyError, OSError):
            raise SinkDamaged(
                f"{self._files.shown(path)} is no data file with the key's columns; {RESTORE}"
            ) from None
        moment("put key run")
        content = run.content()
        self._files.overwrite(self.run_path(data_path), content)
        if isinstance(self._files, LocalFiles):
            return self._stored(data_path) or run
        return self._fetched(data_path, content) or run


def _mapped(path: str) -> npt.NDArray[np.uint8]:
    """Map a file; the mapping needs no handle, as there may be very many."""
    with pa.memory_map(path) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)


def _on_disk(content: bytes) -> npt.NDArray[np.uint8]:
    """Map a copy in the directory for temporary files, which has no name and goes with its use."""
    handle, path = tempfile.mkstemp(prefix="rowferry-", suffix=".run")
    try:
        with open(handle, "wb") as file:
            file.write(content)
        return _mapped(path)
    finally:
        os.unlink(path)


def _are_in(rows: RowNumbers, ascending: RowNumbers) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(rows), np.bool_)
    place = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
    return np.asarray(ascending[place] == rows)


class TouchedKeys:
    """The keys that a micro-batch has touched, each once, and which of its new rows count.

    Attributes:
        keys: sorted by code.
        dead: of each run, the rows that a later run of the same micro-batch has replaced.
    """

    def __init__(self, runs: Sequence[KeyRun]) -> None:
        self.dead: list[Places] = [np.zeros(0, np.int64) for _ in runs]
        if len(runs) == 1:
            self.keys: Keys = runs[0].keys
            return
        every = joined([r.keys for r in runs])
        rows = np.concatenate([r.rows for r in runs])
        owner = np.repeat(np.arange(len(runs)), [len(r.keys) for r in runs])
        last = every.last_places()
        late = np.zeros(len(every), np.bool_)
        late[last] = True
        lost = ~late & (rows != GONE)
        for number in range(len(runs)):
            self.dead[number] = np.sort(rows[lost & (owner == number)]).astype(np.int64)
        last = last[np.argsort(every.codes[last], kind="stable")]
        self.keys = every.take(last)
