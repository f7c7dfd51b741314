"""`rowferry run` to S3 killed with -9 in its flushes, over a bad network: every row once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.downstream.consume.storage import storage_changes
from rowferry.downstream.rebuild.lineage import read_checkpoint
from rowferry.downstream.rebuild.stored_feed import StoredFeed, open_storage
from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import expected_of
from rowferry.downstream.storage_check.listing import Listing
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import Minio, Relay
from rowferry.testing.verify import verify_stored

TABLES = [TableId("lake", f"t{n}") for n in range(3)]
SNAPSHOT_ROWS = 3_000
SHARE = 30  # transactions that a writer carries out in one life of the process
PATIENCE_S = 240.0  # for a start on a machine under load; never reached by working code


class Load:
    """Writes to all tables; counts the row changes that must be delivered."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self._alive = dict.fromkeys(TABLES, SNAPSHOT_ROWS)  # rows have the keys below
        self.changes = SNAPSHOT_ROWS * len(TABLES)
        store.ddl("CREATE DATABASE lake")
        for table in TABLES:
            store.ddl(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, v varchar(400))",
                ranges=2,
                handles=(0, 2 * SNAPSHOT_ROWS),
            )
            store.load(table, [self._row(key) for key in range(SNAPSHOT_ROWS)])

    def write(self) -> None:
        """One share: each transaction is in all tables."""
        for _ in range(SHARE):
            with self._store.transaction() as work:
                for table in TABLES:
                    end = self._alive[table]
                    new = [self._row(key) for key in range(end, end + 40)]
                    work.insert(table, new)
                    old = self._dice.sample(range(end // 2), 10)
                    work.update(table, [self._row(key) for key in old])
                    self._alive[table] = end + len(new)
                    self.changes += len(new) + len(old)
            time.sleep(0.05)  # so that a life has several micro-batches

    def _row(self, key: int) -> dict[str, object]:
        return {"id": key, "v": f'"{self._dice.random()}\r\n' * 8}


def _break_a_put(relay: Relay, dice: random.Random) -> None:
    relay.break_after(dice.randrange(300_000))
    wait_for(lambda: relay.broken, "a broken request", PATIENCE_S, 0.005)


def _lose_answers(relay: Relay, dice: random.Random) -> None:
    relay.lose_answers(dice.randrange(1, 5))
    wait_for(lambda: relay.broken, "lost answers", PATIENCE_S, 0.005)


def _slow_down_and_cut(relay: Relay, dice: random.Random) -> None:
    relay.delay_s = 0.05
    time.sleep(dice.uniform(0, 1))
    relay.cut()
    time.sleep(dice.uniform(0, 0.5))


FAULTS: tuple[Callable[[Relay, random.Random], None], ...] = (
    _break_a_put,
    _slow_down_and_cut,
    _lose_answers,
)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("protocol", "faults"), [("csv", FAULTS), ("parquet", FAULTS[:1])], ids=["csv", "parquet"]
)
def test_kills_in_flushes_to_s3(
    protocol: str,
    faults: tuple[Callable[[Relay, random.Random], None], ...],
    s3_server: Minio,
    tmp_path: Path,
    seed: int,
) -> None:
    dice = random.Random(seed)
    config = tmp_path / "feed.toml"
    config.write_text("[sink.csv]\ninclude-commit-ts = true\n")
    settings = {"protocol": protocol, "file-size": "65536", "flush-interval": "200ms"}
    bucket = open_storage(s3_server.uri(f"chaos/kills-{protocol}", **settings), config)
    with LocalCluster(tmp_path / "store", 2) as cluster, cluster.store() as store:
        load = Load(store, dice)
        with Relay(s3_server.client_port) as relay:
            endpoint = urlsplit(s3_server.endpoint)._replace(netloc=f"127.0.0.1:{relay.port}")
            sink = s3_server.uri(f"chaos/kills-{protocol}", **settings, endpoint=endpoint.geturl())
            arguments = ["--source", f"range://{cluster.master_address}", "--sink-uri", sink]
            arguments += ["--config", str(config), "--changefeed-id", "kills"]
            for disturb in faults:
                _kill_in_work(arguments, bucket, load, relay, disturb, dice, tmp_path / "work")
            end = store.timestamp()
            with RunProcess([*arguments, "--until-ts", str(end)], tmp_path / "work") as process:
                assert process.wait(PATIENCE_S) == 0, process.said()[-2000:]
                assert s3_server.password not in process.said()
        checkpoint = read_checkpoint(bucket.files)
        assert checkpoint is not None and checkpoint >= end
        findings = check_storage(Listing(bucket.files), expected_of(bucket.spec))
        assert not findings.failed, findings.violations
        compared = verify_stored(bucket, store, TABLES)
        assert compared.same, str(compared)
    delivered = sum(
        len(c) for c in storage_changes(bucket.files, bucket.codec) if isinstance(c, Rows)
    )
    assert delivered == load.changes, "a row came twice, or is missing"


def _kill_in_work(
    arguments: list[str],
    bucket: StoredFeed,
    load: Load,
    relay: Relay,
    disturb: Callable[[Relay, random.Random], None],
    dice: random.Random,
    folder: Path,
) -> None:
    """Let a process live until it flushes, spoil the network, and kill it."""
    writer = threading.Thread(target=load.write)
    before = _data_files(bucket)
    with RunProcess(arguments, folder) as process:
        wait_for(
            lambda: not process.alive or _data_files(bucket) > before,
            "a new file",
            PATIENCE_S,
            0.02,
        )
        writer.start()
        disturb(relay, dice)
        assert process.alive, process.said()[-2000:]
    writer.join()
    relay.heal()


def _data_files(bucket: StoredFeed) -> int:
    return sum(1 for path in bucket.files.paths(9) if "/CDC0" in path)
