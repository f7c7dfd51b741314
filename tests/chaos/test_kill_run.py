"""`rowferry run` killed with -9 twenty times: the files are exactly the source, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.spec.build import build_spec
from rowferry.testing.harness import RunProcess, checkpoint, wait_for
from rowferry.testing.storage import storage_changes
from rowferry.testing.verify import verify_storage

KILLS = 20
SNAPSHOT_ROWS = 100_000
LOG_ROWS = 100_000
TABLE = TableId("load", "t")


def test_twenty_kills(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    out = tmp_path / "out"
    config = tmp_path / "feed.toml"
    config.write_text("[sink.csv]\ninclude-commit-ts = true\n")
    small_parts = ("--part-bytes", str(256 << 10))
    with LocalCluster(tmp_path / "store", 2, data_options=small_parts) as cluster:
        with cluster.store() as store:
            _create(store)
            source = f"range://{cluster.master_address}"
            sink = f"file://{out}?protocol=csv&file-size=262144&flush-interval=200ms"
            arguments = ["--source", source, "--sink-uri", sink, "--config", str(config)]
            arguments += ["--changefeed-id", "kills"]
            for turn in range(KILLS):
                writer = threading.Thread(target=_write, args=(store, turn))
                how = ["--spark-only"] if turn % 2 else []  # in tasks, or in this process, too
                with RunProcess([*arguments, *how], tmp_path / "work") as process:
                    writer.start()
                    _until_working(process, out)
                    time.sleep(dice.uniform(0, 1.5))
                    assert process.alive, process.printed()[-2000:]
                writer.join()
            end = store.timestamp()
            with RunProcess([*arguments, "--until-ts", str(end)], tmp_path / "work") as process:
                assert process.wait(1200) == 0, process.printed()[-2000:]
            assert checkpoint(out) >= end
            spec, _ = build_spec(
                source, sink, config, "kills", tables=option_tables, sinks=sink_traits
            )
            codec = assemble(spec).encode
            result = verify_storage(out, codec, store, [TABLE])
            assert result.same, str(result)
            assert result.equal > SNAPSHOT_ROWS
    delivered = sum(len(c) for c in storage_changes(out, codec) if isinstance(c, Rows))
    # Every row was written once as an insert, and never changed: one line each, none twice.
    assert delivered == result.equal == SNAPSHOT_ROWS + LOG_ROWS


def _until_working(process: RunProcess, out: Path) -> None:
    """Wait until this run has written a file: kills should fall into work, not into start-up."""
    before = _data_files(out)
    wait_for(lambda: not process.alive or _data_files(out) != before, "a new file", 600, 0.05)


def _data_files(out: Path) -> int:
    return sum(1 for _ in out.rglob("CDC*.csv")) if out.exists() else 0


def _create(store: Store) -> None:
    store.ddl("CREATE DATABASE load")
    store.ddl(
        "CREATE TABLE load.t (id bigint PRIMARY KEY, name varchar(40), amount decimal(10,2))",
        ranges=3,
        handles=(0, SNAPSHOT_ROWS + LOG_ROWS),
    )
    rows = [_row(i) for i in range(SNAPSHOT_ROWS)]
    store.load(TABLE, rows)


def _row(i: int) -> dict[str, object]:
    return {"id": i, "name": f"name-{i}", "amount": f"{i % 1000}.{i % 100:02d}"}


def _write(store: Store, turn: int) -> None:
    """Write one kill's share of the load, in small transactions over some seconds."""
    share = LOG_ROWS // KILLS
    first = SNAPSHOT_ROWS + turn * share
    for start in range(first, first + share, 250):
        with store.transaction() as work:
            work.insert(TABLE, [_row(i) for i in range(start, start + 250)])
        time.sleep(0.3)
