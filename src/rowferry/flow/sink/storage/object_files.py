"""A bucket as storage: conditional puts create and swap.

Nothing else in this package talks to an object store, and every error of the client library becomes
an error of ours here, once. Texts of errors hold no query of a URL, where signatures stand.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from rowferry.change.event_counts import CALLS, SENT_BYTES, EventCounts
from rowferry.errors import FileConflict, SinkDamaged, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.storage.compress import MOST_FILE
from rowferry.flow.sink.storage.files import DirectoryEntry, Staged, Stored
from rowferry.flow.sink.storage.paths import STAGING
from rowferry.flow.sink.storage.upload_spool import Budget, UploadSpool

_PARALLEL: Final = 16
_RECALLED_BYTES: Final = 512  # index files and metadata, not schema files
_RECALLED: Final = 65536
# Up to here content goes in one request, held in memory; above, in parts, to a name of its own
# that is then copied to the final one if that is free: no store lets parts be put conditionally.
ONE_PUT: Final = 96 << 20
# What uploads may hold in memory at once.
_IN_FLIGHT: Final = 192 << 20
_ANY_DEPTH: Final = 1 << 30
_PAGE: Final = 1000
MOST_NAMES: Final = 512 << 20  # bytes of the names of one directory, with what they cost
_NAME_COST: Final = 128
_PART: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4
# Nothing that a later try would change.
_FOR_GOOD = (PermissionDeniedError, UnauthenticatedError, NotSupportedError, InvalidPathError)
_STATUS: Final = re.compile(r"status code: (\d{3})")
_LOST: Final = (400, 401, 403, 404, 405, 501)  # statuses that come again for the same request
_PASSING: Final = ("RequestTimeout",)  # S3 says so with 400 where a connection was too slow
_TAKEN: Final = (AlreadyExistsError, PreconditionError)


class ObjectFiles:
    """Objects below a prefix of a bucket."""

    has_locks = False

    def __init__(
        self,
        store: Any,
        name: str,
        prefix: str,
        one_put: int = ONE_PUT,
        parallel: int = _PARALLEL,
    ) -> None:
        self._store = store
        self._name = name  # scheme://bucket
        self._prefix = prefix.strip("/")
        self._spool = UploadSpool()
        self.one_put = one_put
        self.parallel = parallel
        self._in_flight = Budget(_IN_FLIGHT)
        self._seen: dict[str, Stored | None] = {}
        self._surveyed: frozenset[str] | None = None
        self.counts = EventCounts()

    def shown(self, path: str) -> str:
        """Return the object's URI, without parameters."""
        return "/".join(part for part in (self._name, self._prefix, path) if part)

    def get(self, path: str) -> Stored | None:
        """Return an object; its tag is what the store compares in a conditional put."""
        with self._owned(path):
            try:
                self.counts.call("get")
                answer = obstore.get(self._store, self.key(path))
                if answer.meta["size"] > MOST_FILE:
                    raise SinkDamaged(f"{self.shown(path)} has more than {MOST_FILE} bytes")
                data = bytes(answer.bytes())
            except FileNotFoundError:
                return None
        return Stored(data, _tag(answer.meta))

    def recall(self, path: str) -> Stored | None:
        """Return an object as it was last seen; a tag that is too old lets no `swap` succeed."""
        # Another thread may let both go at any moment. In this order, a list is never believed
        # without what was written since.
        seen, surveyed = self._seen, self._surveyed
        if path in seen:
            return seen[path]
        if surveyed is not None and path not in surveyed:
            return None
        return self._note(path, self.get(path))

    def _note(self, path: str, stored: Stored | None) -> Stored | None:
        if len(self._seen) >= _RECALLED:
            # What was written since the list was made is known by this alone: the list goes first.
            self._surveyed = None
            self._seen = {}
        if stored is None or len(stored.data) <= _RECALLED_BYTES:
            self._seen[path] = stored
        return stored

    def exists(self, path: str) -> bool:
        """Return whether there is such an object."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Return an object's length; None: there is none."""
        with self._owned(path):
            try:
                self.counts.call("head")
                return int(obstore.head(self._store, self.key(path))["size"])
            except FileNotFoundError:
                return None

    def entries(self, directory: str) -> list[DirectoryEntry]:
        """Return the names directly below a directory, sorted."""
        files: set[str] = set()
        below: set[str] = set()
        size = 0
        for path in self._listed(directory):
            name, is_below, _ = path.partition("/")
            size += len(name) + _NAME_COST
            if size > MOST_NAMES:
                raise SinkDamaged(
                    f"{self.shown(directory)} has more objects than can be listed "
                    f"({len(files):,} names so far); move old ones away, or set date-separator so "
                    "that each directory has fewer"
                )
            (below if is_below else files).add(name)
        names = [DirectoryEntry(name, False) for name in files]
        names += [DirectoryEntry(name, True) for name in below]
        return sorted(names, key=lambda e: e.name)

    def paths(self, depth: int) -> Iterator[str]:
        """Yield the path of every object, from one list of the whole prefix."""
        return (path for path in self._listed("") if path.count("/") <= depth)

    def _listed(self, directory: str) -> Iterator[str]:
        """Yield the path of every object below a directory, from there; pages are not kept."""
        home = self.key(directory)
        skip = len(home) + 1 if home else 0
        with self._owned(directory):
            for page in obstore.list(self._store, prefix=home or None, chunk_size=_PAGE):
                self.counts.call("list")
                for meta in page:
                    yield meta["path"][skip:]

    def survey(self, most: int) -> frozenset[str] | None:
        """Return all paths, if one list of the prefix finds no more than so many."""
        paths = frozenset(islice(self.paths(_ANY_DEPTH), most + 1))
        self._surveyed = paths if len(paths) <= most else None
        return self._surveyed

    def create(self, path: str, data: bytes) -> bool:
        """Create an object in one request."""
        staged = self.stage(data)
        try:
            return staged.create(path)
        finally:
            staged.abandon()

    def swap(self, path: str, data: bytes, expected: Stored | None) -> bool:
        """Replace an object if its tag is still the same.

        True is also the answer if it was replaced by the same bytes: an answer that got lost makes
        the client send the request again, which then finds its own work.
        """
        mode: Any = json.loads(expected.tag) if expected else "create"
        self._seen.pop(path, None)
        with self._owned(path):
            try:
                self.counts.call("put", len(data))
                made = obstore.put(
                    self._store, self.key(path), data, mode=mode, use_multipart=False
                )
                self._note(path, Stored(data, _tag(made)))
                return True
            except (*_TAKEN, FileNotFoundError):
                self._surveyed = None
        now = self.get(path)
        return now is not None and now.data == data

    def overwrite(self, path: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        self._seen.pop(path, None)
        with self._owned(path):
            self.counts.call("put", len(data))
            obstore.put(self._store, self.key(path), data, use_multipart=False)

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is fine."""
        self._seen.pop(path, None)
        with self._owned(path):
            try:
                self.counts.call("delete")
                obstore.delete(self._store, self.key(path))
            except FileNotFoundError:
                return

    def prune(self, directory: str) -> None:
        """Nothing: a directory is gone with its last object."""

    def move(self, directory: str, target: str, last: str) -> None:
        """Copy each object inside the store, then delete the old ones, `last` first."""
        own = f"{directory}/"
        paths = [p for p in self.paths(_ANY_DEPTH) if p.startswith(own)]
        paths.sort(key=lambda p: (f"/{last}/" in p, p))
        for path in paths:
            with self._owned(path):
                new = self.key(f"{target}/{path.removeprefix(own)}")
                self.counts.call("copy")
                obstore.copy(self._store, self.key(path), new)
        # From the first on, so that a half that is left after a crash is the whole of nothing.
        paths.sort(key=lambda p: (f"/{last}/" not in p, not p.endswith("/_last_checkpoint"), p))
        for path in paths:
            self.delete(path)

    def stage(self, data: bytes = b"") -> ObjectStaged:
        """Begin content in local space; nothing is sent before it has its name."""
        staged = ObjectStaged(self, self._spool)
        staged.append(data)
        return staged

    def flush(self, staged: Collection[Staged]) -> None:
        """Nothing: a put that was answered is durable."""

    def settle(self) -> None:
        """Nothing, as in `flush`."""

    def sweep(self) -> None:
        """Remove what uploads in parts left under names of their own."""
        for entry in self.entries(STAGING):
            self.delete(f"{STAGING}/{entry.name}")

    def locked(self, shared: bool = False) -> AbstractContextManager[None]:
        """Let everybody in: object stores have no locks."""
        return nullcontext()

    def check_writable(self) -> None:
        """Raise unless the prefix can be listed; a right to write shows with the first write."""
        next(self._listed(""), None)

    def check_compares(self) -> None:
        """Put an object of its own twice, as a new one and in place of the first.

        Some stores take `If-None-Match` and `If-Match`, and put without a look.
        """
        key = self.key(f"{STAGING}/{uuid.uuid4().hex}")

        def put(data: bytes, mode: Any) -> Any:
            self.counts.call("put", len(data))
            return obstore.put(self._store, key, data, mode=mode, use_multipart=False)

        with self._owned(""):
            try:
                first = json.loads(_tag(put(b"1", "create")))
                put(b"3", first)
                for mode, header in (("create", "If-None-Match"), (first, "If-Match")):
                    with suppress(*_TAKEN):
                        put(b"4", mode)
                        raise SinkUnwritable(
                            f"{self.shown('')}: the store puts objects without regard to {header}, "
                            "so that two processes could write over each other; choose a store "
                            "that compares, or file://"
                        )
            except _TAKEN:
                return  # an answer was lost, and the request was sent again: it compares
            finally:
                self.counts.call("delete")
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def prepare(self) -> None:
        """Forget what was seen so far; a bucket has no directories to make."""
        self._seen, self._surveyed = {}, None

    def close(self) -> None:
        """Nothing: connections end with the client."""

    # --- for staged content ----------------------------------------------------------------------

    def key(self, path: str) -> str:
        """Return an object's name in the bucket."""
        return "/".join(part for part in (self._prefix, path) if part)

    def put_new(self, path: str, staged: ObjectStaged) -> bool:
        """Create an object of any length; False: there is one."""
        if staged.content.size > self.one_put:
            with self._in_flight.taking(_PART * (_PARTS_AT_ONCE + 1)):
                return self._put_in_parts(path, staged)
        with self._in_flight.taking(staged.content.size):
            return self._put_at_once(path, staged)

    def _put_at_once(self, path: str, staged: ObjectStaged) -> bool:
        data = staged.content.whole()
        with self._owned(path):
            try:
                self.counts.call("put", len(data))
                obstore.put(self._store, self.key(path), data, mode="create", use_multipart=False)
            except _TAKEN:
                return False
        return True

    def _put_in_parts(self, path: str, staged: ObjectStaged) -> bool:
        part = f"{STAGING}/{uuid.uuid4().hex}"
        try:
            with self._owned(path):
                parts = -(-staged.content.size // _PART)
                self.counts.add(f"{CALLS}.put", parts)
                self.counts.add(SENT_BYTES, staged.content.size)
                obstore.put(
                    self._store,
                    self.key(part),
                    staged.content.pieces(),
                    use_multipart=True,
                    chunk_size=_PART,
                    max_concurrency=_PARTS_AT_ONCE,
                )
                try:
                    self.counts.call("copy")
                    obstore.copy(self._store, self.key(part), self.key(path), overwrite=False)
                except _TAKEN:
                    return False
            return True
        finally:
            self.delete(part)

    def holds(self, path: str, staged: ObjectStaged) -> bool:
        """Return whether an object has exactly this content."""
        if self.size(path) != staged.content.size:
            return False
        ours = staged.content.pieces()
        waiting = memoryview(b"")
        with self._owned(path):
            self.counts.call("get")
            for piece in obstore.get(self._store, self.key(path)).stream():
                theirs = memoryview(piece)
                while len(theirs):
                    waiting = waiting or memoryview(next(ours, b""))
                    both = min(len(theirs), len(waiting))
                    if not both or theirs[:both] != waiting[:both]:
                        return False
                    theirs, waiting = theirs[both:], waiting[both:]
        return True

    @contextmanager
    def _owned(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as err:
            raise _ours(err, self.shown(path)) from None  # its own text may hold a signed URL


class ObjectStaged:
    """Content in local space until it has its name."""

    def __init__(self, files: ObjectFiles, spool: UploadSpool) -> None:
        self._files = files
        self.content = spool.content()

    def append(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self.content.append(data)

    def create(self, path: str) -> bool:
        """Put the content under its name; compare where that name is taken."""
        if self._files.put_new(path, self):
            return True
        if not self._files.holds(path, self):
            # S3 refuses one of two requests that meet (409), and the other may come to nothing.
            if not self._files.exists(path):
                raise SinkUnavailable(
                    f"{self._files.shown(path)}: the store was at work on another request for it"
                )
            raise FileConflict(
                f"{self._files.shown(path)} exists with other content; an object above CDC.index "
                "is seen by no reader: move it away, then resume"
            )
        return False

    def swap(self, path: str, expected: Stored | None) -> bool:
        """Put the content in place of what is there."""
        return self._files.swap(path, self.content.whole(), expected)

    def abandon(self) -> None:
        """Give the local space back."""
        self.content.drop()


def _tag(meta: Any) -> str:
    known = {k: meta[k] for k in ("e_tag", "version") if meta.get(k) is not None}
    return json.dumps(known)


def _cure(code: str, text: str) -> str:
    """Return what helps, where the store's words leave that open."""
    lower = text.lower()
    if code in ("NoSuchBucket", "ContainerNotFound") or "bucket does not exist" in lower:
        return "; create the bucket, or correct its name in the sink URI"
    if code == "InvalidAccessKeyId" or code == "SignatureDoesNotMatch":
        return "; correct access-key and secret-access-key"
    if code == "AccessDenied":
        return "; give this key the rights to list, read and write there"
    if "169.254.169.254" in lower or "instance credentials" in lower or "credential" in lower:
        return (
            "; no credentials were found: give access-key and secret-access-key, a profile, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    if "dns" in lower or "connection refused" in lower or "error sending request" in lower:
        return "; correct the endpoint in the sink URI, or bring the store back"
    return ""


def _ours(err: Exception, shown: str) -> SinkUnwritable | SinkUnavailable:
    whole = str(err)
    text = re.split(r"\s*Debug source:", whole)[0]
    status = _STATUS.search(text)
    code = re.search(r"<Code>([^<]+)</Code>", text) or re.search(r'"message":\s*"([^"]+)"', text)
    if status and code:
        reason = f"the store answered {status[1]} {code[1]}"
    else:
        reason = re.sub(r"\?\S*", "", " ".join(text.split()))[:300]
    reason += _cure(code[1] if code else "", text)
    lost = isinstance(err, _FOR_GOOD) or (status is not None and int(status[1]) in _LOST)
    lost = lost and not (code and code[1] in _PASSING)
    return SinkUnwritable(f"{shown}: {reason}") if lost else SinkUnavailable(f"{shown}: {reason}")
