"""A bucket in memory, whose tags are hashes of the content as S3's are, with places to stop at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from obstore.store import MemoryStore
from storage_kit import CSV, Feed, no_head, spec_for

from rowferry.change.table import TableSchema
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.files import Files, Stored
from rowferry.flow.sink.storage.object_files import ObjectFiles, ObjectStaged
from rowferry.flow.sink.storage.options import StorageSettings
from rowferry.flow.sink.storage.reader import StoredData, StoredSchema, read_storage
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.changefeed import ChangefeedSpec

Hook = Callable[[str, str], None]


class Bucket(ObjectFiles):
    """One process's view of a bucket; hooks hear of reads, and of writes before and after."""

    def __init__(self, store: Any, one_put: int = 96 << 20) -> None:
        super().__init__(
            store, "s3://bucket", "pre/fix", one_put, parallel=1
        )  # always in the same order
        self.before: Hook = lambda operation, path: None
        self.after: Hook = lambda operation, path: None

    def get(self, path: str) -> Stored | None:
        self.before("get", path)
        found = super().get(path)
        return found and replace(found, tag=hashlib.md5(found.data).hexdigest())

    def _note(self, path: str, stored: Stored | None) -> Stored | None:
        tagged = stored and replace(stored, tag=hashlib.md5(stored.data).hexdigest())
        return super()._note(path, tagged)

    def swap(self, path: str, data: bytes, expected: Stored | None) -> bool:
        self.before("swap", path)
        real = super().get(path)
        if expected and (not real or hashlib.md5(real.data).hexdigest() != expected.tag):
            self._seen.pop(path, None)
            return real is not None and real.data == data
        found = super().swap(path, data, real if expected else None)
        self.after("swap", path)
        return found

    def put_new(self, path: str, staged: ObjectStaged) -> bool:
        self.before("create", path)
        found = super().put_new(path, staged)
        self.after("create", path)
        return found

    def overwrite(self, path: str, data: bytes) -> None:
        self.before("overwrite", path)
        super().overwrite(path, data)
        self.after("overwrite", path)

    def delete(self, path: str) -> None:
        self.before("delete", path)
        super().delete(path)
        self.after("delete", path)


def sink_on(
    files: Files, query: str = "", now: Callable[[], datetime] | None = None, **more: Any
) -> StorageSink:
    class Here(StorageSink):
        @classmethod
        def files_of(cls, spec: ChangefeedSpec, settings: StorageSettings) -> Files:
            return files

    codec: Any = SimpleNamespace(TRAITS=CSV, file_head=no_head)
    return Here(spec_for(Path("/none"), query=query, **more), codec, now)


def process(store: MemoryStore, epoch: int, *schemas: TableSchema, query: str = "") -> Feed:
    """A new process that takes the bucket over."""
    feed = Feed(sink_on(Bucket(store), query), *schemas)
    feed.sink.open(Owner("feed", epoch), None)
    return feed


def bucket_of(feed: Feed) -> Bucket:
    found = feed.sink._files
    assert isinstance(found, Bucket)
    return found


def rows_in(store: Any) -> list[bytes]:
    files = store if isinstance(store, ObjectFiles) else Bucket(store)
    data = (s for s in read_storage(files) if isinstance(s, StoredData))
    return [line for s in data for line in s.content.splitlines(keepends=True)]


def checkpoint_in(store: Any) -> int | None:
    files = store if isinstance(store, ObjectFiles) else Bucket(store)
    marks = [s for s in read_storage(files) if not isinstance(s, StoredData | StoredSchema)]
    return marks[0].commit_ts if marks else None
