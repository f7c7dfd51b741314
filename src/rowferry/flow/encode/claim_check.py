"""Claim checks: rows that are too large for a message wait in storage, and the message says where.

The content of a file decides its name, so that a replay writes the same file again.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID, uuid5

from rowferry.errors import (
    BadInput,
    BadOption,
    DecodeError,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.flow.named_storage import files_at, storage_class
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment
from rowferry.spec.uri import Uri

_SPACE: Final = UUID("6f1d6d57-6a1c-5cf4-9d53-4c2f2f6b3a10")
_NAME: Final = re.compile(r"[0-9a-f-]{36}\.json")
_WHAT: Final = "claim checks"


class ClaimStore(Protocol):
    """Where claim checks wait: whole objects by name."""

    def put(self, name: str, data: bytes) -> None:
        """Store an object durably; the same name always has the same content."""

    def get(self, name: str) -> bytes:
        """Return an object.

        Raises:
            DecodeError: there is none.
            SinkError: the store cannot be asked.
        """


class FolderStore:
    """Claim checks as files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        """Write a file; it is never seen half-written."""
        moment("put claim check file")
        path = self._folder / name
        try:
            if path.exists() and path.stat().st_size == len(data):
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, made = tempfile.mkstemp(prefix=f".{name}.", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(made, 0o644)  # readers are other users
                os.replace(made, path)
            except BaseException:
                os.unlink(made)
                raise
            self._settle()
        except (PermissionError, NotADirectoryError, FileExistsError) as err:
            raise SinkUnwritable(f"claim-check storage {self._folder}: {err}") from err
        except OSError as err:
            raise SinkUnavailable(f"claim-check storage {self._folder}: {err}") from err

    def get(self, name: str) -> bytes:
        """Read a file."""
        moment("read claim check file")
        try:
            return (self._folder / name).read_bytes()
        except OSError as err:
            raise DecodeError(f"claim check {name}: it cannot be read: {err}") from err

    def _settle(self) -> None:
        """Make the folder's new entry durable."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class BucketStore:
    """Claim checks as objects below a prefix of a bucket."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, name: str, data: bytes) -> None:
        """Create an object in one request; a repeat finds it there."""
        moment("put claim check object")
        self._files.create(name, data)

    def get(self, name: str) -> bytes:
        """Read an object."""
        moment("read claim check object")
        content = self._files.get(name)
        if content is None:
            raise DecodeError(f"claim check {name}: it cannot be read: there is no such object")
        return content.data


def open_store(uri: str, path: str) -> ClaimStore:
    """Return the store at a URI; asks nobody. `path` is the option's, for errors.

    Raises:
        BadOption: it is no URI of a storage that claim checks can use.
    """
    place = Uri.parse(uri, "claim-check storage")
    try:
        sink = storage_class(place, _WHAT)
    except BadInput as err:
        raise BadOption(f"{path}: {err.words}") from None
    if sink.in_directory:
        if place.address not in ("", "localhost") or not place.path.strip("/"):
            raise BadOption(f"{path}: write the whole path, as file:///some/directory")
        return FolderStore(Path(place.path))
    try:
        return BucketStore(files_at(place, _WHAT))
    except BadInput as err:
        raise BadOption(f"{path}: {err.words}") from None


class ClaimChecks:
    """Leaves messages in a store and fetches them back.

    With `raw` a file is the message's value alone; else JSON with its key and value.
    """

    def __init__(self, uri: str, path: str, raw: bool, changefeed: str) -> None:
        self._store = open_store(uri, path)
        self._prefix = uri.partition("?")[0].rstrip("/")  # parameters hold the login
        self._raw = raw
        self._changefeed = changefeed

    def leave(self, key: bytes | None, value: bytes, commit_ts: int, seq: int) -> str:
        """Store a message; return its location."""
        data = value if self._raw else _packed(key, value)
        # One row of the log may become two (a key change), so its place alone is not enough.
        what = f"{self._changefeed}\n{commit_ts}\n{seq}\n{sha256(data).hexdigest()}"
        name = f"{uuid5(_SPACE, what)}.json"
        self._store.put(name, data)
        return f"{self._prefix}/{name}"

    def fetch(self, location: str) -> tuple[bytes | None, bytes]:
        """Return the key and value that were left at a location.

        Only its last part counts: a message cannot make us read from anywhere else.

        Raises:
            DecodeError: nothing is there, or something else.
        """
        name = str(location).rpartition("/")[2]
        if not _NAME.fullmatch(name):
            raise DecodeError(f"claim check {location!r}: it names no file of ours")
        data = self._store.get(name)
        if self._raw:
            return None, data
        try:
            pair = json.loads(data)
            key = b64decode(pair["key"], validate=True) if pair["key"] else None
            return key, b64decode(pair["value"], validate=True)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DecodeError(f"claim check {location!r}: the file is damaged") from None


def _packed(key: bytes | None, value: bytes) -> bytes:
    shown = b"null" if key is None else b'"%s"' % b64encode(key)
    return b'{"key":%s,"value":"%s"}' % (shown, b64encode(value))
