"""A feed from the reference store to a receiver, in this process, step by step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rowferry.change.chunk import Change, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.refstore.client import Store
from rowferry.spark.job import InProcessRunner
from rowferry.testing.receiver import ReceivedRequest

NAME = "feed"
PATIENCE_S = 600.0  # an upper bound for a machine under load


class Ferry:
    """A feed in this process, step by step; `start` again is what another server would do."""

    def __init__(self, source: str, store: Store, folder: Path, database: str, sink: str) -> None:
        config = folder / "feed.toml"
        config.write_text(f'[filter]\nrules = ["{database}.*"]\n')
        self._meta = open_store(f"sqlite:///{folder}/meta.db")
        self._prepared = service.prepare(source, sink, config, NAME)
        self._meta.create_changefeed(self._prepared.spec, 0)
        self._store = store
        self.codec = self._prepared.flow.encode
        self.faults: list[RowferryError] = []
        self._versions: dict[int, TableSchema] = {}
        self.start()

    def start(self) -> None:
        claim = self._meta.claim(NAME, Holder.here(), time.time(), 0.0)
        self._loop = Loop(
            NAME,
            self._prepared.flow,
            self._meta,
            claim,
            InProcessRunner(),
            lambda: time.time_ns() // 1_000_000,
        )

    def catch_up(self) -> None:
        wanted, end = self._store.timestamp(), time.monotonic() + PATIENCE_S
        while True:
            try:
                step = self._loop.step()
                self._versions.update({v.version: v for v in self._meta.state(NAME).versions})
                if step.caught_up and step.watermark >= wanted:
                    return
            except RowferryError as err:
                self.faults.append(err)
                if err.verdict is Verdict.STOP:
                    raise
            assert time.monotonic() < end, self.faults[-1:]

    def close(self) -> None:
        self._loop.close()

    def changes(self, request: ReceivedRequest) -> Iterator[tuple[Change, bytes]]:
        """Yield what a request holds, each row as a chunk with its bytes."""
        if request.body.startswith(b"["):
            texts = [json.dumps(m, ensure_ascii=False).encode() for m in json.loads(request.body)]
        else:
            texts = request.body.splitlines()
        for text in texts:
            for change in self.codec.decode(text, self._version_at(_commit_ts(text))):
                if isinstance(change, SchemaChange):
                    change = replace(change, schema=self._version_at(change.commit_ts))
                yield change, text

    def _version_at(self, commit_ts: int) -> TableSchema:
        """Return the table as it was then; snapshot rows may be older than its first version."""
        fitting = [v for v in self._versions if v <= commit_ts]
        return self._versions[max(fitting, default=min(self._versions))]


def _commit_ts(text: bytes) -> int:
    found = json.loads(text)
    stamps = found.get("_tidb") or found
    return int(stamps.get("commitTs") or stamps["watermarkTs"])
