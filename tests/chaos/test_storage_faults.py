"""`rowferry run` to S3 killed with -9 in its flushes, over a bad network: every row once."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from network_kit import FAULTS, PATIENCE_S, TABLES, Fault, Load

from rowferry.change.chunk import Rows
from rowferry.downstream.consume.storage import storage_changes
from rowferry.downstream.rebuild.lineage import read_checkpoint
from rowferry.downstream.rebuild.stored_feed import StoredFeed, open_storage
from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import expected_of
from rowferry.downstream.storage_check.listing import Listing
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import Minio, Relay
from rowferry.testing.verify import verify_stored


@pytest.mark.parametrize(
    ("protocol", "faults"), [("csv", FAULTS), ("parquet", FAULTS[:1])], ids=["csv", "parquet"]
)
def test_kills_in_flushes_to_s3(
    protocol: str,
    faults: tuple[Fault, ...],
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
                assert process.wait(PATIENCE_S) == 0, process.printed()[-2000:]
                assert s3_server.password not in process.printed()
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
    disturb: Fault,
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
        assert process.alive, process.printed()[-2000:]
    writer.join()
    relay.heal()


def _data_files(bucket: StoredFeed) -> int:
    return sum(1 for path in bucket.files.paths(9) if "/CDC0" in path)
