"""A directory as storage: hard links create, renames swap, a lock file keeps others out.

Nothing else in this package touches the file system, and every OSError becomes an error of ours
here, once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rowferry.change.event_counts import EventCounts
from rowferry.errors import BadUri, FileConflict, SinkDamaged, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.storage.files import DirectoryEntry, Staged, Stored
from rowferry.flow.sink.storage.local_handles import (
    read_all,
    same_bytes,
    sync,
    sync_file_system,
    tag_of,
)
from rowferry.flow.sink.storage.paths import LOCK, STAGING
from rowferry.spec.uri import Uri

_SYNC_SINGLY = 4
_HELD = 64 << 10  # bytes of one file that wait in memory
_HELD_IN_ALL = 64 << 20
_COUNTING = threading.Lock()  # of all directories: this is for a moment, and must not be pickled
_LOCK_WAIT_S = 30.0
# Nothing that a later try would change.
_FOR_GOOD = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EEXIST,  # a file in place of a directory
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.EMLINK,
        errno.ENOTSUP,
    }
)


def local_root(uri: Uri) -> Path:
    """Return the directory that a file:// URI names.

    Raises:
        BadUri: no path, or a host: `file://tmp/x` is not `file:///tmp/x`.
    """
    if uri.address not in ("", "localhost"):
        raise BadUri(
            f"the sink URI {uri} has the host {uri.address!r}; for a directory write three "
            f"slashes: file:///{uri.address}{uri.path}"
        )
    if not uri.path.strip("/"):
        raise BadUri("the sink URI names no directory; write file:///path/to/directory")
    return Path(uri.path)


class LocalFiles:
    """A directory on a local or network file system that has hard links and flock."""

    has_locks = True
    parallel = 4

    def __init__(self, root: Path, fsync: bool = True, lock_wait_s: float = _LOCK_WAIT_S) -> None:
        self.root = root
        self.counts = EventCounts()  # it asks no store
        self.fsync = fsync
        self.lock_wait_s = lock_wait_s
        self.staging = f"{root}/{STAGING}"
        self._unsettled: set[str] = set()  # directories with names that may not be on disk
        self._held = 0  # bytes that wait in memory

    def shown(self, path: str) -> str:
        """Return the whole path."""
        self._refuse_outside(path)
        return f"{self.root}/{path}" if path else str(self.root)

    def get(self, path: str) -> Stored | None:
        """Return a file's content; its tag is its identity on disk."""
        with _Owned(self.shown(path)):
            try:
                handle = os.open(self.shown(path), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                about = os.fstat(handle)
                return Stored(read_all(handle, about.st_size), tag_of(about))
            finally:
                os.close(handle)

    def tag(self, path: str) -> str | None:
        """Return a file's identity, as `get` does; None: there is none."""
        with _Owned(self.shown(path)):
            try:
                return tag_of(os.stat(self.shown(path)))
            except FileNotFoundError:
                return None

    def recall(self, path: str) -> Stored | None:
        """Return a file as it is now."""
        return self.get(path)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        with _Owned(self.shown(path)):
            return os.path.isfile(self.shown(path))

    def entries(self, directory: str) -> list[DirectoryEntry]:
        """Return the names in a directory, sorted; a missing directory has none."""
        with _Owned(self.shown(directory)):
            try:
                with os.scandir(self._place(directory)) as listed:
                    names = [DirectoryEntry(e.name, e.is_dir(follow_symlinks=True)) for e in listed]
            except FileNotFoundError:
                return []
        return sorted(names, key=lambda e: e.name)

    def paths(self, depth: int) -> Iterator[str]:
        """Yield the files of the directories down to a depth, by name."""
        return self._below("", depth)

    def survey(self, most: int) -> frozenset[str] | None:
        """Return None: to look for a file takes no time."""
        return None

    def _below(self, directory: str, depth: int) -> Iterator[str]:
        for entry in self.entries(directory):
            path = f"{directory}/{entry.name}" if directory else entry.name
            if not entry.is_directory:
                yield path
            elif depth and path != STAGING:
                yield from self._below(path, depth - 1)

    def create(self, path: str, data: bytes) -> bool:
        """Create a file under a temporary name, then link it to its own."""
        staged = self.stage(data)
        try:
            self.flush([staged])
            return staged.create(path)
        finally:
            staged.abandon()
            self.settle()

    def swap(self, path: str, data: bytes, expected: Stored | None) -> bool:
        """Replace a file by rename; call it inside `locked`, which makes the comparison hold."""
        staged = self.stage(data)
        try:
            self.flush([staged])
            return staged.swap(path, expected)
        finally:
            staged.abandon()
            self.settle()

    def overwrite(self, path: str, data: bytes) -> None:
        """Replace a file by rename, whatever it is."""
        self.swap(path, data, self.get(path))

    def delete(self, path: str) -> None:
        """Remove a file; a missing one is fine."""
        with _Owned(self.shown(path)):
            self._place(path).unlink(missing_ok=True)

    def prune(self, directory: str) -> None:
        """Remove a directory if nothing is in it."""
        with _Owned(self.shown(directory)):
            try:
                self._place(directory).rmdir()
            except OSError as err:
                if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def move(self, directory: str, target: str, last: str) -> None:
        """Rename the directory: all of it at once."""
        with _Owned(self.shown(target)):
            place = self._place(target)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._place(directory), place)
            self._sync([str(place.parent), str(self._place(directory).parent)])

    def stage(self, data: bytes = b"") -> LocalStaged:
        """Begin a file in the staging directory."""
        staged = LocalStaged(self)
        try:
            staged.append(data)
        except BaseException:
            staged.abandon()
            raise
        return staged

    def flush(self, staged: Collection[Staged]) -> None:
        """Bring the staged files to disk; many of them with the whole file system."""
        ours = [s for s in staged if isinstance(s, LocalStaged)]
        for one in ours:
            one.write_out()
        self._sync([one.place for one in ours])

    def settle(self) -> None:
        """Bring the directories of new names to disk."""
        waiting = frozenset(self._unsettled)
        self._sync(waiting)
        self._unsettled -= waiting  # not before: whoever tries again must bring them there

    def named(self, place: str) -> None:
        """Note that a name was given in this directory."""
        self._unsettled.add(place)

    def hold(self, more: int) -> bool:
        """Return whether so many more bytes may wait in memory, and count them; negative: less."""
        with _COUNTING:
            if more > 0 and self._held + more > _HELD_IN_ALL:
                return False
            self._held += more
            return True

    def sweep(self) -> None:
        """Remove staged files that nobody finished."""
        for entry in self.entries(STAGING):
            with _Owned(self.shown(STAGING)):
                self._place(f"{STAGING}/{entry.name}").unlink(missing_ok=True)

    @contextmanager
    def locked(self, shared: bool = False) -> Iterator[None]:
        """Hold the prefix's lock file.

        Raises:
            SinkUnavailable: somebody held it for too long (a stopped process, perhaps).
        """
        with _Owned(self.shown(LOCK)):
            handle = os.open(self._place(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # lets the lock go, too

    def check_writable(self) -> None:
        """Raise SinkUnwritable unless the directory can be written or made; writes nothing."""
        with _Owned(self.shown("")):
            nearest = self.root
            while not os.path.lexists(nearest):
                nearest = nearest.parent
            if not nearest.is_dir():
                raise SinkUnwritable(f"{nearest} is not a directory; choose another sink URI")
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise SinkUnwritable(
                    f"{nearest} cannot be written by this user; "
                    "change its permissions or choose another sink URI"
                )

    def check_compares(self) -> None:
        """Nothing: links and the lock file do."""

    def prepare(self) -> None:
        """Make the directory, and the one for staged files."""
        self._unsettled.clear()
        with _Owned(self.shown("")):
            self._place(STAGING).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _place(self, path: str) -> Path:
        self._refuse_outside(path)
        return self.root / path

    def _refuse_outside(self, path: str) -> None:
        """Raise where a path leads out: logs of tables name paths, and others write them."""
        if ".." in path and ".." in path.split("/"):
            raise SinkDamaged(
                f"{self.root}: something there names the file {path!r}, which would be elsewhere; "
                "nothing outside of the sink's directory is touched"
            )

    def _sync(self, places: Collection[str]) -> None:
        if not self.fsync or not places:
            return
        with _Owned(self.shown("")):
            # Each single fsync waits for the journal; from a few on, one for all is faster.
            if len(places) > _SYNC_SINGLY:
                sync_file_system(self.root)
                return
            for place in places:
                sync(place)

    def _lock(self, handle: int, how: int) -> None:
        deadline = time.monotonic() + self.lock_wait_s
        while True:
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SinkUnavailable(
                        f"{self.shown(LOCK)} has been locked by another process for "
                        f"{self.lock_wait_s:g} s"
                    ) from None
                time.sleep(0.002)
            except OSError as err:
                raise _ours(err, self.shown(LOCK)) from err


class LocalStaged:
    """A file in the staging directory, opened only while bytes are written.

    No handle is held between two calls, so a segment may stage thousands of files at once. What is
    short waits in memory until `flush`: then it is one write.
    """

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self.place = f"{files.staging}/{uuid.uuid4().hex}.part"
        self._made = False
        self._waiting: list[bytes] = []
        self._size = 0  # of what waits

    def append(self, data: bytes | memoryview) -> None:
        """Add bytes at the end of the staged file."""
        view = memoryview(data).cast("B")
        if self._size + len(view) <= _HELD and self._files.hold(len(view)):
            self._size += len(view)
            self._waiting.append(bytes(view))
            return
        self._write(view)

    def write_out(self) -> None:
        """Write what waits; makes the file in any case."""
        if self._waiting or not self._made:
            self._write()

    def _give_back(self) -> list[bytes]:
        """Let what waits go, and its room."""
        held, self._waiting = self._waiting, []
        if self._size:
            self._files.hold(-self._size)
            self._size = 0
        return held

    def _write(self, *more: memoryview) -> None:
        """Write what waits and then this, with the file opened once."""
        # Only the first call creates: a file that a new owner swept away must not come back torn.
        once = 0 if self._made else os.O_CREAT | os.O_EXCL
        with _Owned(self.place):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | once
            handle = os.open(self.place, flags, 0o666)
            self._made = True
            try:
                for view in (memoryview(b"".join(self._give_back())), *more):
                    while len(view):
                        view = view[os.write(handle, view) :]
            finally:
                os.close(handle)

    def create(self, path: str) -> bool:
        """Link the staged file to its name; compare where that name is taken."""
        self.write_out()
        target = self._files.shown(path)
        with _Owned(target):
            try:
                self._name(os.link, target)
            except FileExistsError:
                # Whoever gave the name may have died before it was on disk.
                self._files.named(os.path.dirname(target))
                if not same_bytes(self.place, target):
                    raise FileConflict(
                        f"{target} exists with other content; a file above CDC.index is seen by no "
                        "reader: move it away, then resume"
                    ) from None
                return False
        return True

    def swap(self, path: str, expected: Stored | None) -> bool:
        """Rename the staged file to its name, in place of what is there."""
        self.write_out()
        if self._files.tag(path) != (expected.tag if expected else None):
            return False
        target = self._files.shown(path)
        with _Owned(target):
            self._name(os.replace, target)
        return True

    def abandon(self) -> None:
        """Remove the staged file."""
        self._give_back()
        if self._made:
            with _Owned(self.place):
                with suppress(FileNotFoundError):
                    os.unlink(self.place)

    def _name(self, give: Callable[[str, str], None], target: str) -> None:
        """Give the file its name, in a directory that may have to be made."""
        directory = os.path.dirname(target)
        try:
            give(self.place, target)
        except FileNotFoundError:
            self._make_directory(directory)
            give(self.place, target)
        self._files.named(directory)

    def _make_directory(self, directory: str) -> None:
        above = os.path.dirname(directory)
        try:
            try:
                os.mkdir(directory)
            except FileNotFoundError:
                self._make_directory(above)
                os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory
                ) from None
        self._files.named(above)


_CURES = {
    errno.ENOSPC: "; free space on that disk, and writing goes on by itself",
    errno.EDQUOT: "; raise the quota, or free space, and writing goes on by itself",
    errno.EACCES: "; let this user write there, or name another directory",
    errno.EPERM: "; let this user write there, or name another directory",
    errno.EROFS: "; mount it writable, or name another directory",
}


class _Owned:
    """Turns an OSError into one of ours; a class, since it stands around every call."""

    __slots__ = ("_shown",)

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, err: BaseException | None, trace: Any) -> None:
        if isinstance(err, OSError):
            raise _ours(err, self._shown) from err


def _ours(err: OSError, shown: str) -> SinkUnwritable | SinkUnavailable:
    words = f"{shown}: {err.strerror or err}{_CURES.get(err.errno or 0, '')}"
    return SinkUnwritable(words) if err.errno in _FOR_GOOD else SinkUnavailable(words)
