"""`rowferry server` on a Spark cluster of processes: a killed executor costs time, and no row."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, checkpoint, wait_for
from rowferry.testing.servers.child import free_ports
from rowferry.testing.servers.spark.cluster import SparkCluster
from rowferry.testing.storage import storage_changes
from rowferry.testing.verify import verify_storage

WITHIN_S = 600.0
TABLE = TableId("load", "t")
SNAPSHOT_ROWS = 40_000
LOG_ROWS = 10_000
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def test_a_killed_executor_costs_no_row(tmp_path: Path) -> None:
    small_parts = ("--part-bytes", str(64 << 10))
    with (
        SparkCluster(tmp_path / "spark") as spark,
        LocalCluster(tmp_path / "store", 1, data_options=small_parts) as cluster,
        cluster.store() as source,
        closing(open_store(f"sqlite:///{tmp_path / 'meta.db'}")) as meta,
        ServerProcess(_arguments(tmp_path, spark), tmp_path / "server") as server,
    ):
        source.ddl("CREATE DATABASE load")
        source.ddl("CREATE TABLE load.t (id bigint PRIMARY KEY, name varchar(80))")
        source.load(TABLE, _rows(0, SNAPSHOT_ROWS))
        out = tmp_path / "out"
        sink = f"file://{out}?protocol=csv&file-size=65536&flush-interval=200ms"
        config = {"sink": {"csv": {"include-commit-ts": True}}}
        source_uri = f"range://{cluster.master_address}"
        Operations(meta).create(Wanted(source_uri, sink, "feed", config))

        def in_a_micro_batch() -> bool:
            assert server.alive, server.printed()[-2000:]
            return meta.pending("feed") is not None and any(out.rglob("CDC0*.csv"))

        wait_for(in_a_micro_batch, "files of a micro-batch under way", WITHIN_S, 0.01)
        os.kill(spark.executors()[0], signal.SIGKILL)
        log = tmp_path / "server" / ".rowferry" / "logs" / "spark.log"
        wait_for(lambda: "Lost executor" in log.read_text(), "the loss to be noticed", WITHIN_S)
        _deliver(source, SNAPSHOT_ROWS, out)
        server.terminate()
        assert server.wait(WITHIN_S) == 0, server.printed()[-2000:]
        _check(out, meta, source)


def _arguments(folder: Path, spark: SparkCluster) -> list[str]:
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    arguments = ["--meta", f"sqlite:///{folder / 'meta.db'}", "--spark-master", spark.master]
    arguments += ["--addr", ports[0], "--grpc-addr", ports[1]]
    for key, value in {**LOCAL, **spark.settings, "spark.executor.memory": "512m"}.items():
        arguments += ["--spark-conf", f"{key}={value}"]
    return arguments


def _deliver(source: Store, first: int, out: Path) -> None:
    """Write one transaction that is too long for the driver alone, and wait for it."""
    with source.transaction() as work:
        work.insert(TABLE, _rows(first, LOG_ROWS))
    end = source.timestamp()
    wait_for(lambda: checkpoint(out) >= end, "the last row", WITHIN_S)


def _rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"id": i, "name": f"name-{i}-{'x' * 60}"} for i in range(first, first + count)]


def _check(out: Path, meta: MetaStore, source: Store) -> None:
    feed = meta.feed("feed")
    assert feed is not None
    codec = assemble(feed.spec).encode
    result = verify_storage(out, codec, source, [TABLE])
    assert result.same, str(result)
    delivered = sum(len(c) for c in storage_changes(out, codec) if isinstance(c, Rows))
    assert delivered == result.equal == SNAPSHOT_ROWS + LOG_ROWS
