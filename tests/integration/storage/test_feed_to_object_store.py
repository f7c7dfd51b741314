"""A changefeed to each object store over a bad network, with restarts: every row once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from object_store_kit import files_at, sink_uri

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.downstream.consume.arrival import Arrival, ArrivedRow
from rowferry.downstream.consume.consumer import ConsumeRequest, consume
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.sink.storage import buckets
from rowferry.refstore.client import Store
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import ObjectServer, Relay
from rowferry.testing.storage import storage_changes
from rowferry.testing.verify import verify_storage

NAME = "feed"
PATIENCE_S = 600.0  # an upper bound for a machine under load
FORMATS = {
    "s3": {"protocol": "csv", "compression": "gzip"},
    "gcs": {"protocol": "parquet", "date-separator": "none"},
    "azure": {"protocol": "csv", "compression": "zstd", "date-separator": "month"},
}


class Ferry:
    """A feed in this process, step by step; `start` again is what another server would do."""

    def __init__(self, source: str, store: Store, folder: Path, database: str, sink: str) -> None:
        config = folder / "feed.toml"
        config.write_text(f'[filter]\nrules = ["{database}.*"]\n')
        self._meta = open_store(f"sqlite:///{folder}/meta.db")
        self._prepared = service.prepare(source, sink, config, NAME)
        self._meta.create_changefeed(self._prepared.spec, 0)
        self._store = store
        self.codec = self._prepared.flow.format
        self.faults: list[RowferryError] = []
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

    def catch_up(self, relay: Relay) -> None:
        wanted, end = self._store.timestamp(), time.monotonic() + PATIENCE_S
        while True:
            try:
                step = self._loop.step()
                if step.caught_up and step.watermark >= wanted:
                    return
            except RowferryError as err:
                self.faults.append(err)
                assert err.verdict is Verdict.RETRY, err
                relay.heal()
                self.start()  # after an error the supervisor begins anew
            assert time.monotonic() < end, self.faults[-1:]


def _write(store: Store, table: TableId, alive: set[int], dice: random.Random) -> int:
    new = [k for k in dice.sample(range(300), 30) if k not in alive]
    old = dice.sample(sorted(alive), min(len(alive), 12))
    with store.transaction() as work:
        work.insert(table, [_row(k, dice) for k in new])
        work.update(table, [_row(k, dice) for k in old[:8]])
        work.delete(table, [{"id": k} for k in old[8:]])
    alive.update(new)
    alive.difference_update(old[8:])
    return len(new) + len(old)


def _row(key: int, dice: random.Random) -> dict[str, Any]:
    return {"id": key, "note": f'ß"\\\r\n,{dice.random()}', "v": dice.choice([None, 7, -(1 << 63)])}


def _disturb(relay: Relay, turn: int, dice: random.Random) -> None:
    if turn % 4 == 0:
        relay.lose_answers(dice.randrange(1, 9))
    elif turn % 4 == 1:
        relay.break_after(dice.randrange(20_000))
    elif turn % 4 == 2:
        relay.cut()
    else:
        relay.delay_s = 0.005


def test_every_row_once_whatever_the_network_does(
    server: ObjectServer,
    prefix: str,
    source: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(buckets.RETRIES, "max_retries", 1)
    kind = server.uri("").partition(":")[0]
    dice = random.Random(5)
    table = TableId(f"lake_{kind}", "t")
    store.ddl(f"CREATE DATABASE {table.database}")
    store.ddl(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, note varchar(100), v bigint)",
        ranges=2,
        handles=(0, 299),
    )
    alive: set[int] = set()
    written = 0
    with Relay(server.client_port) as relay:
        # A request that gets no answer at all should not take the whole patience.
        told = {**FORMATS[kind], "request-timeout": "10s"}
        sink = sink_uri(server, prefix, relay, **told)
        ferry = Ferry(source, store, tmp_path, table.database, sink)
        for turn in range(8):
            _disturb(relay, turn, dice)
            written += _write(store, table, alive, dice)
            if turn == 3:
                store.ddl(f"ALTER TABLE {table} ADD COLUMN more varchar(20)")
            if turn == 5:
                ferry.start()
            ferry.catch_up(relay)
            relay.heal()
    assert ferry.faults, "the network was never so bad that the feed had to repeat"
    root = _copied(sink_uri(server, prefix, **FORMATS[kind]), tmp_path / "copy")
    compared = verify_storage(root, ferry.codec, store, [table])
    assert compared.same, str(compared)
    rows = [c for c in storage_changes(root, ferry.codec) if isinstance(c, Rows)]
    assert sum(len(r) for r in rows) == written, "a row came twice, or is missing"
    assert _consumed(sink_uri(server, prefix, **FORMATS[kind])) == (written, 0)


class _Counter:
    """Takes what `consume` hands on."""

    rows = 0

    def take(self, changes: Iterable[Arrival]) -> None:
        self.rows += sum(isinstance(change, ArrivedRow) for change in changes)


def _consumed(uri: str) -> tuple[int, int]:
    """Read the bucket as users do; return rows and violations."""
    taker = _Counter()
    outcome = consume(ConsumeRequest(uri, until_end=True), lambda _: [taker], threading.Event())
    assert outcome.watermark > 0
    assert taker.rows == outcome.findings.rows
    return taker.rows, outcome.findings.violations


def _copied(uri: str, root: Path) -> Path:
    files = files_at(uri)
    for path in files.paths(9):
        stored = files.get(path)
        assert stored is not None
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(stored.data)
    return root
