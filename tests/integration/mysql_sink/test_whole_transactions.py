"""Transactions over tables of a source whose segments are tables: readers never see half of one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.mysql import lanes
from rowferry.flow.sink.mysql.session import Session
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark.job import InProcessRunner, SegmentTask
from rowferry.spark.lanes import packets_of
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import MariaDb

NAME = "wholetransactions"
TABLES = (TableId(NAME, "a"), TableId(NAME, "b"))
TURNS, LARGE = 12, 6
PATIENCE_S = 600.0


class AllAtOnce(InProcessRunner):
    """Delivers the packets of all segments in one go, as tasks behind a shuffle do."""

    segments = 0

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        task, receipts = SegmentTask(spec, plan, tables), list[Receipt]()
        found = chain.from_iterable(task.pack(s.ordinal) for s in plan.stretch.segments)
        task.deliver(packets_of(found, receipts))
        self.segments = max(self.segments, len(plan.stretch.segments))
        return receipts


@pytest.mark.parametrize("held_bytes", [lanes._HELD_BYTES, 4_000])
def test_no_reader_sees_half_of_a_transaction(
    mariadb_server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """After each transaction downstream both tables have it; so they have after a replay."""
    monkeypatch.setattr(lanes, "_HELD_BYTES", held_bytes)
    shape = "(id bigint PRIMARY KEY, turn bigint)"
    mariadb_server.script(
        f"DROP DATABASE IF EXISTS {NAME}",
        f"DROP DATABASE IF EXISTS {NAME}_meta",
        f"CREATE DATABASE {NAME}",
        *(f"CREATE TABLE {t.database}.{t.table} {shape}" for t in TABLES),
    )
    config = {"filter": {"rules": [f"{NAME}.*"]}}
    query = f"meta-database={NAME}_meta&transaction-atomicity=global&exactly-once=true"
    sink = f"{mariadb_server.uri}?{query}&max-txn-row=8"
    with LocalCluster(tmp_path / "store", 1) as cluster, cluster.store() as store:
        store.ddl(f"CREATE DATABASE {NAME}")
        for table in TABLES:
            store.ddl(f"CREATE TABLE {NAME}.{table.table} {shape}")
        ready = prepare(f"range://{cluster.master_address}", sink, config, NAME)
        meta, runner = open_store(f"sqlite:///{tmp_path}/meta.db"), AllAtOnce()
        meta.create_changefeed(ready.spec, 0)
        claim = meta.claim(NAME, Holder.here(), time.time(), 3600)
        loop = Loop(NAME, ready.flow, meta, claim, runner, lambda: time.time_ns() // 1_000_000)
        with closing(meta), closing(loop):
            until_caught_up(loop, store.timestamp())
            for turn in range(TURNS):
                size = 300 if turn == LARGE else 3
                with store.transaction() as work:
                    rows = [{"id": turn * 1000 + n, "turn": turn} for n in range(size)]
                    for table in TABLES:
                        work.insert(table, rows)
            seen = watch_each_transaction(mariadb_server, monkeypatch)
            until_caught_up(loop, store.timestamp())
    assert runner.segments >= len(TABLES)
    counts = [3 * (TURNS - 1) + 300] * 2
    assert halves(mariadb_server) == counts
    assert len(seen) > 1 and seen[-1] == tuple(counts)
    assert all(one == other for one, other in seen)


def halves(server: MariaDb) -> list[int]:
    found = server.execute(
        f"SELECT (SELECT COUNT(*) FROM {NAME}.a), (SELECT COUNT(*) FROM {NAME}.b)"
    )
    return [int(str(count)) for count in found[0]]


def watch_each_transaction(
    server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Note what a reader sees after each transaction; the answer to the first is lost."""
    seen: list[tuple[int, int]] = []
    run = Session.run

    def noted(this: Session, *statements: bytes, joined: bool = True) -> None:
        run(this, *statements, joined=joined)
        if b"COMMIT" in statements:
            one, other = halves(server)
            seen.append((one, other))
            if len(seen) == 1:
                raise SinkUnavailable("the answer was lost")

    monkeypatch.setattr(Session, "run", noted)
    return seen


def until_caught_up(loop: Loop, wanted: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            step = loop.step()
        except SinkUnavailable:
            continue
        if step.caught_up and step.watermark >= wanted:
            return
        assert time.monotonic() < end, "it never caught up"
