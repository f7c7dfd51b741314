"""`rowferry run` to lake tables in S3 killed with -9 in its commits, over a bad network."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from network_kit import FAULTS, PATIENCE_S, SNAPSHOT_ROWS, TABLES, Fault, Load
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from rowferry.change.table import TableId
from rowferry.flow.sink.storage.files import Files
from rowferry.refstore.cluster import LocalCluster
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import Minio, Relay


class Lake:
    """Lake tables below a prefix of a bucket, and readers of others that reach it directly."""

    def __init__(self, kind: str, mode: str, server: Minio, folder: Path) -> None:
        self.prefix = f"chaos/{kind}-{mode}"
        self._kind, self._mode, self._server, self._folder = kind, mode, server, folder

    def uri(self, **more: str) -> str:
        own = {"mode": self._mode, "flush-interval": "200ms", "optimize-after": "0"}
        if self._kind == "iceberg":
            own["catalog"] = f"file://{self._folder}/catalog.db"
        return f"{self._kind}+{self._server.uri(self.prefix, **own, **more)}"

    def files(self) -> Files:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("kills", source, Uri.parse(self.uri(), "sink"))
        sink: Any = SINKS.load(f"{self._kind}+s3")
        found: Files = sink.files_of(spec, 4, False)
        return found

    def rows(self, table: TableId) -> pa.Table:
        """A table as delta-rs or pyiceberg reads it."""
        if self._kind == "iceberg":
            return self.iceberg(table).scan().to_arrow()
        login = {
            "AWS_ENDPOINT_URL": self._server.endpoint,
            "AWS_ACCESS_KEY_ID": self._server.user,
            "AWS_SECRET_ACCESS_KEY": self._server.password,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        place = f"s3://rowferry/{self.prefix}/{table.database}/{table.table}"
        query = QueryBuilder().register("t", DeltaTable(place, storage_options=login))
        return pa.table(query.execute("SELECT * FROM t").read_all())

    def iceberg(self, table: TableId) -> Table:
        login = {
            "s3.endpoint": self._server.endpoint,
            "s3.access-key-id": self._server.user,
            "s3.secret-access-key": self._server.password,
            "s3.region": "us-east-1",
        }
        uri = f"sqlite:///{self._folder}/catalog.db"
        return SqlCatalog("rowferry", uri=uri, **login).load_table((table.database, table.table))

    def commits_of(self, table: TableId) -> dict[int, set[int]]:
        """The snapshots in which each commit-ts of a changelog is."""
        found: dict[int, set[int]] = defaultdict(set)
        one = self.iceberg(table)
        for entry in one.inspect.entries().to_pylist():
            place = entry["data_file"]["file_path"]
            with one.io.new_input(place).open() as file:
                stamps = pq.read_table(file, columns=["_commit_ts"]).column(0).unique()
            for stamp in stamps.to_pylist():
                found[stamp].add(entry["snapshot_id"])
        return found


@pytest.mark.parametrize(
    ("kind", "mode", "faults"),
    [("delta", "upsert", FAULTS[1:]), ("iceberg", "changelog", FAULTS[:1])],
    ids=["delta", "iceberg"],
)
def test_kills_in_commits_to_s3(
    kind: str, mode: str, faults: tuple[Fault, ...], s3_server: Minio, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    lake = Lake(kind, mode, s3_server, tmp_path)
    with LocalCluster(tmp_path / "store", 2) as cluster, cluster.store() as store:
        load = Load(store, dice)
        with Relay(s3_server.client_port) as relay:
            endpoint = urlsplit(s3_server.endpoint)._replace(netloc=f"127.0.0.1:{relay.port}")
            arguments = [
                "--source",
                f"range://{cluster.master_address}",
                "--changefeed-id",
                "kills",
            ]
            arguments += ["--sink-uri", lake.uri(endpoint=endpoint.geturl())]
            for disturb in faults:
                _kill_in_work(
                    arguments, lake.files(), load, relay, disturb, dice, tmp_path / "work"
                )
            end = store.timestamp()
            with RunProcess([*arguments, "--until-ts", str(end)], tmp_path / "work") as process:
                assert process.wait(PATIENCE_S) == 0, process.printed()[-2000:]
                assert s3_server.password not in process.printed()
        changes = 0
        for table in TABLES:
            source = {row["id"]: row["v"] for row in store.scan(table).to_pylist()}
            found = lake.rows(table)
            if mode == "upsert":
                assert {row["id"]: row["v"] for row in found.to_pylist()} == source
                assert found.num_rows == len(source)
                continue
            changes += found.num_rows
            _check_changelog(found, source)
            first = [r for r in found.to_pylist() if r["id"] < SNAPSHOT_ROWS]
            snapshots = {r["_commit_ts"] for r in first if r["_op"] == "insert"}
            twice = {ts: s for ts, s in lake.commits_of(table).items() if len(s) > 1}
            assert twice.keys() <= snapshots, "a commit-ts is in several commits"
        assert mode == "upsert" or changes == load.changes, "a row came twice, or is missing"


def _check_changelog(rows: pa.Table, source: dict[int, str]) -> None:
    """Changes, each once, make the source's rows."""
    ordered = sorted(rows.to_pylist(), key=lambda r: (r["_commit_ts"], r["_seq"]))
    counts = Counter((r["_commit_ts"], r["id"]) for r in ordered)
    assert not [key for key, count in counts.items() if count > 1]
    state = {r["id"]: r["v"] for r in ordered if r["_op"] != "delete"}
    assert state == source


def _kill_in_work(
    arguments: list[str],
    files: Files,
    load: Load,
    relay: Relay,
    disturb: Fault,
    dice: random.Random,
    folder: Path,
) -> None:
    """Let a process live until it writes, spoil the network, and kill it."""
    writer = threading.Thread(target=load.write)
    before = _data_files(files)
    with RunProcess(arguments, folder) as process:
        wait_for(
            lambda: not process.alive or _data_files(files) > before, "a new file", PATIENCE_S, 0.02
        )
        writer.start()
        disturb(relay, dice)
        assert process.alive, process.printed()[-2000:]
    writer.join()
    relay.heal()


def _data_files(files: Files) -> int:
    return sum(1 for path in files.paths(9) if path.endswith(".parquet"))
