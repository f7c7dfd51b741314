"""`rowferry run` from outside: real Spark, a real store, files compared with the store."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from run_kit import Result, call, tree

from rowferry.change.chunk import Op, Rows, SchemaChange
from rowferry.change.table import TableId
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import SqlStore, open_store
from rowferry.errors import OptionsConflict, TableNotActiveActive
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark import session as spark_session
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import close_session, open_session
from rowferry.spark.shared import SharedSpark
from rowferry.spec.build import build_spec
from rowferry.testing.harness import RunProcess, checkpoint, wait_for
from rowferry.testing.servers.spark.classes import SparkClasses
from rowferry.testing.storage import storage_changes
from rowferry.testing.verify import verify_storage

PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code
PROTOCOLS = ("csv", "canal-json")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("store"), 2) as running:
        yield running


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    found = open_session("test", tmp_path_factory.mktemp("spark"), "local[2]")
    yield found
    close_session(found)


@dataclass
class Ferry:
    """A changefeed of one database, run as a user runs it."""

    store: Store
    source: str
    folder: Path
    database: str
    session: SparkSession
    capfd: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch
    protocol: str = "csv"
    config: dict[str, Any] = field(default_factory=dict)
    parameters: str = ""
    changes: int = 0  # row changes that a reader must find, each once

    def __post_init__(self) -> None:
        self.out = self.folder / "out"
        self.orders, self.parts, self.log = (
            TableId(self.database, name) for name in ("orders", "parts", "log")
        )
        self.store.ddl(f"CREATE DATABASE {self.database}")

    # --- the source -------------------------------------------------------------------------------

    def create(self, partitioned: bool = True) -> None:
        """Make `orders` in three ranges, `parts` in partitions, and `log` without a key."""
        self.store.ddl(
            f"CREATE TABLE {self.orders} (id bigint PRIMARY KEY, note varchar(40))",
            ranges=3,
            handles=(0, 999),
        )
        self.insert(self.orders, range(0, 1000, 10))
        if partitioned:
            self.store.ddl(
                f"CREATE TABLE {self.parts} (id bigint PRIMARY KEY, note varchar(40)) "
                "PARTITION BY HASH (id) PARTITIONS 3"
            )
            self.store.ddl(f"CREATE TABLE {self.log} (note varchar(40))")
            self.insert(self.parts, range(20))
            self.write_log("before", 5)

    def insert(self, table: TableId, ids: Any, **more: Any) -> None:
        rows = [{"id": i, "note": f"first, of “{i}”", **more} for i in ids]
        with self.store.transaction() as work:
            work.insert(table, rows)
        self.changes += len(rows)

    def write_log(self, text: str, count: int) -> None:
        """Insert equal rows: a table without a key may hold them."""
        with self.store.transaction() as work:
            work.insert(self.log, [{"note": text}] * count)
        self.changes += count

    def change(self, table: TableId, updated: list[int], deleted: list[int]) -> None:
        with self.store.transaction() as work:
            work.update(table, [{"id": i, "note": f"changed {i}"} for i in updated])
            work.delete(table, [{"id": i} for i in deleted])
        self.changes += len(updated) + len(deleted)

    # --- the run ----------------------------------------------------------------------------------

    def arguments(self, *more: str, sink: str = "", source: str = "") -> list[str]:
        config = {"filter": {"rules": [f"{self.database}.*"]}, **self.config}
        self.config_file.write_text(json.dumps(config))
        return [
            *("--source", self.source + source, "--sink-uri", self.sink + sink),
            *("--config", str(self.config_file), "-c", "feed", *more),
        ]

    @property
    def config_file(self) -> Path:
        return self.folder / "feed.json"

    @property
    def sink(self) -> str:
        return f"file://{self.out}?protocol={self.protocol}&flush-interval=200ms{self.parameters}"

    def run(self, *more: str, sink: str = "", source: str = "") -> Result:
        """Run in this process, on the Spark that all tests here share."""
        with self.patch.context() as here:
            here.setattr(spark_session, "open_session", lambda *_: self.session)
            here.setattr(SharedSpark, "close", lambda _: None)
            arguments = self.arguments(*more, sink=sink, source=source)
            return call(self.folder, self.capfd, self.patch, ["run", "--spark-only", *arguments])

    def catch_up(self, **more: str) -> Result:
        done = self.run("--until", "caught-up", **more)
        assert done.code == 0, done
        return done

    # --- the files --------------------------------------------------------------------------------

    def codec(self) -> Codec:
        spec, _ = build_spec(
            self.source,
            self.sink,
            self.config_file,
            "feed",
            tables=option_tables,
            sinks=sink_traits,
        )
        return assemble(spec).encode

    def verify(self, *tables: TableId) -> None:
        """Compare the tables rebuilt from the files with the store's."""
        result = verify_storage(self.out, self.codec(), self.store, list(tables))
        assert result.same, str(result)
        assert result.equal > 0

    def delivered(self) -> list[Rows]:
        return [c for c in storage_changes(self.out, self.codec()) if isinstance(c, Rows)]

    def count(self) -> int:
        return sum(len(c) for c in self.delivered())

    def ddls(self) -> list[str]:
        found = storage_changes(self.out, self.codec())
        return [c.query for c in found if isinstance(c, SchemaChange) and c.query]

    def data_files(self) -> dict[str, str]:
        return {
            str(p.relative_to(self.out)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(self.out.rglob("CDC*"))
            if p.suffix != ".index"
        }

    def meta(self) -> SqlStore:
        found = open_store(f"sqlite:///{self.folder / '.rowferry' / 'feed.db'}")
        assert isinstance(found, SqlStore)
        return found

    def state(self) -> FeedState:
        store = self.meta()
        try:
            feed = store.feed("feed")
            assert feed is not None
            return feed.state
        finally:
            store.close()


@pytest.fixture
def ferry(
    cluster: LocalCluster,
    session: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Ferry]:
    database = re.sub(r"\W", "_", request.node.name)[5:60]
    with cluster.store() as store:
        source = f"range://{cluster.master_address}"
        yield Ferry(store, source, tmp_path, database, session, capfd, monkeypatch)


# --- start to end ---------------------------------------------------------------------------------

# What a run may print when it is not on a terminal.
OURS = re.compile(
    r"rowferry \S+: asking source and sink"
    r"|stopping after this micro-batch; again to stop now"
    r"|changefeed feed: \d+ tables? from \S+ to \S+"
    r"|[\d,]+ rows  [\d,]+ rows/s  [\d.]+ MB/s  lag .+"
    r"|(done|stopped): [\d,]+ rows?, .+ in \d+ micro-batch(es)?, [\d.]+ s; checkpoint-ts [1-9]\d+"
)


def test_a_process_from_its_start_to_ctrl_c(ferry: Ferry) -> None:
    ferry.config = {"force-replicate": True, "sink": {"csv": {"include-commit-ts": True}}}
    ferry.create()
    with RunProcess(ferry.arguments(), ferry.folder) as process:
        wait_for(lambda: checkpoint(ferry.out) > 0, "the snapshot", PATIENCE_S)
        refused = ferry.run("--until", "caught-up")
        assert refused.code == 1
        code, words = refused.refusal()
        assert (code, f"pid {process.pid}" in words) == ("RF-2003", True)

        ferry.change(ferry.orders, [0, 500], [10])
        ferry.change(ferry.parts, [0, 1, 2], [5])
        ferry.store.ddl(f"ALTER TABLE {ferry.orders} ADD COLUMN extra varchar(10) DEFAULT 'none'")
        ferry.insert(ferry.orders, [3, 703], extra="more")
        ferry.change(ferry.orders, [3, 20], [])
        ferry.write_log("after", 2)
        end = ferry.store.timestamp()
        wait_for(lambda: checkpoint(ferry.out) >= end, "the changes", PATIENCE_S)
        process.interrupt()
        assert process.wait(PATIENCE_S) == 0
        lines = process.printed().splitlines()
    assert [line for line in lines if not OURS.fullmatch(line)] == []
    assert "stopping after this micro-batch; again to stop now" in lines
    assert lines[-1].startswith("stopped: ")
    logs = ferry.folder / ".rowferry" / "logs"
    assert {"spark.log", "spark-process.log", "feed.log"} <= {p.name for p in logs.iterdir()}
    told = (logs / "feed.log").read_text()
    for words in ("claimed with epoch 1 by process", "it is new", '"rules"', "schema change at"):
        assert words in told, told
    assert "checkpoint" in told and "was released" in told

    ferry.change(ferry.orders, [30], [40])
    ferry.catch_up()
    ferry.verify(ferry.orders, ferry.parts, ferry.log)
    assert ferry.count() == ferry.changes
    assert [q for q in ferry.ddls() if "extra" in q]
    again = ferry.catch_up()
    assert again.out.splitlines()[-1].startswith("done: 0 rows")
    assert ferry.count() == ferry.changes


def test_java_reads_the_classes_that_were_kept(session: SparkSession) -> None:
    """The many starts of Spark in the suite take half the work by it."""
    assert session.range(3).count() == 3
    kept = SparkClasses.ensure()
    assert SparkClasses.environment().keys() <= os.environ.keys()
    children = psutil.Process().children(recursive=True)
    programs = [Path(f"/proc/{child.pid}/maps") for child in children if child.name() == "java"]
    assert any(str(kept) in program.read_text() for program in programs)


def test_a_filter_that_fits_nothing_is_no_success(ferry: Ferry) -> None:
    ferry.create(partitioned=False)
    rules = ("--filter", f"{ferry.database[:-1]}.*")
    refused = ferry.run("--until", "caught-up", *rules)
    code, words = refused.refusal()
    assert (refused.code, code) == (2, "RF-1040")
    assert f"did you mean {ferry.database}.*?" in words and "databases there: " in words
    assert not (ferry.folder / ".rowferry").exists()
    misspelt = ferry.run("--until", "caught-up", "--table", f"{ferry.database}.order")
    assert misspelt.code == 2 and f"did you mean {ferry.orders}?" in misspelt.refusal()[1]
    empty = ferry.run("--until", "caught-up", "--allow-empty", *rules)
    assert empty.code == 0 and empty.out.splitlines()[-1].startswith("done: 0 rows")
    # Made by a run, without a server: so it is forgotten without one.
    patch = (ferry.folder, ferry.capfd, ferry.patch)
    gone = call(*patch, ["changefeed", "remove", "--local", "-c", "feed"])
    assert gone.code == 0 and "remove successfully" in gone.out
    again = call(*patch, ["changefeed", "remove", "--local", "-c", "feed"])
    assert "Changefeed not found" in again.out


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_snapshot_log_and_ddl(ferry: Ferry, protocol: str) -> None:
    ferry.protocol, ferry.config = protocol, {"force-replicate": True}
    ferry.create()
    first = ferry.catch_up()
    assert first.err == ""
    assert ferry.count() == ferry.changes
    ferry.change(ferry.orders, [0, 500], [10])
    ferry.store.ddl(f"ALTER TABLE {ferry.orders} ADD COLUMN extra varchar(10)")
    ferry.insert(ferry.orders, [3, 703], extra="more")
    ferry.change(ferry.orders, [3], [500])
    ferry.change(ferry.parts, [0, 1, 2], [5, 6])
    ferry.write_log("after", 2)
    ferry.store.ddl(f"CREATE TABLE {ferry.database}.late (id bigint PRIMARY KEY)")
    late = TableId(ferry.database, "late")
    with ferry.store.transaction() as work:
        work.insert(late, [{"id": 1}, {"id": 2}])
    ferry.catch_up()
    ferry.verify(ferry.orders, ferry.parts, ferry.log, late)
    assert ferry.count() == ferry.changes + 2
    by_partition = {c.physical_id for c in ferry.delivered() if c.table.id == ferry.parts}
    assert len(list(ferry.out.glob(f"{ferry.database}/parts/*/*/*/CDC*"))) >= 3, by_partition


def test_until_a_commit_ts(ferry: Ferry) -> None:
    ferry.config = {"sink": {"csv": {"include-commit-ts": True}}}
    ferry.create(partitioned=False)
    ferry.catch_up()
    ferry.change(ferry.orders, [0], [])
    end = ferry.store.timestamp()
    wanted = ferry.changes
    ferry.change(ferry.orders, [20], [30])
    assert ferry.run("--until-ts", str(end)).code == 0
    assert checkpoint(ferry.out) == end
    assert ferry.count() == wanted
    assert ferry.state() is FeedState.FINISHED
    assert max(int(c.commit_ts.max()) for c in ferry.delivered()) <= end

    assert ferry.run("--until-ts", str(end)).code == 0  # nothing to do
    assert (checkpoint(ferry.out), ferry.count()) == (end, wanted)

    ferry.catch_up()
    assert ferry.count() == ferry.changes
    ferry.verify(ferry.orders)


def test_order_by_range_only(ferry: Ferry) -> None:
    ferry.source += "?feed-level=range"
    ferry.create(partitioned=False)
    ferry.catch_up()
    ferry.change(ferry.orders, [0, 500, 900], [10, 510])
    ferry.store.ddl(f"ALTER TABLE {ferry.orders} ADD COLUMN extra varchar(10)")
    ferry.insert(ferry.orders, [3, 403, 803], extra="more")
    ferry.catch_up()
    ferry.verify(ferry.orders)
    assert ferry.count() == ferry.changes


# --- stopped in the middle ------------------------------------------------------------------------


class Killed(BaseException):
    """Passes everything that handles errors, as a killed process does."""


KILLED_IN = {
    "before the job": (SparkRunner, "run"),
    "before files become visible": (StorageSink, "publish"),
    "before that is noted": (SqlStore, "publish"),
}


@pytest.mark.parametrize("moment", KILLED_IN)
def test_what_was_recorded_is_what_runs(ferry: Ferry, moment: str) -> None:
    """canal-json writes the time of planning: files of a plan made anew would differ."""
    ferry.protocol = "canal-json"
    ferry.create(partitioned=False)
    ferry.catch_up()
    visible = ferry.count()
    ferry.change(ferry.orders, [0, 500], [10])

    def killed(*_: Any) -> None:
        raise Killed

    owner, name = KILLED_IN[moment]
    with ferry.patch.context() as here:
        here.setattr(owner, name, killed)
        with pytest.raises(Killed):
            ferry.run("--until", "caught-up")
    left = ferry.data_files()
    store = ferry.meta()
    pending = store.pending("feed")
    store.close()
    assert pending is not None
    assert pending.outputs
    if moment != "before that is noted":
        assert ferry.count() == visible

    ferry.change(ferry.orders, [20], [30])  # a plan made anew would take these too
    ferry.catch_up()
    found = ferry.data_files()
    assert {path: found.get(path) for path in left} == left
    for output in pending.outputs:
        lines = (ferry.out / output.target["path"]).read_text().splitlines()
        assert {json.loads(line)["ts"] for line in lines} == {pending.planned_at_ms}
    assert ferry.count() == ferry.changes
    ferry.verify(ferry.orders)


# --- what may not, and what may, change between two runs ------------------------------------------


def test_settings_that_cannot_be_changed(ferry: Ferry) -> None:
    ferry.create(partitioned=False)
    ferry.catch_up()
    before = tree(ferry.out), ferry.count()
    attempts = [
        ({"sink": "&file-index-digit=8"}, "file-index-digit"),
        ({"source": "?feed-level=range"}, "feed-level"),
    ]
    for more, named in attempts:
        refused = ferry.run("--until", "caught-up", **more)
        code, words = refused.refusal()
        assert (refused.code, code) == (1, "RF-2004")
        assert named in words
    ferry.protocol = "canal-json"
    code, words = ferry.run("--until", "caught-up").refusal()
    assert (code, "canal-json" in words) == ("RF-2004", True)
    ferry.protocol = "csv"
    assert (tree(ferry.out), ferry.count()) == before
    assert ferry.state() is FeedState.NORMAL
    ferry.catch_up(sink="&file-size=4096")  # this one can


def test_tables_may_come_and_go(ferry: Ferry) -> None:
    """What refuses a new changefeed does not keep a running one from going on."""
    ferry.create(partitioned=False)
    ferry.config = {"filter": {"rules": [str(ferry.orders), f"{ferry.database}.l*"]}}
    ferry.catch_up()
    ferry.change(ferry.orders, [20], [])
    ferry.store.ddl(f"DROP TABLE {ferry.orders}")
    ferry.store.ddl(f"CREATE TABLE {ferry.log} (note varchar(40))")  # without a key
    ferry.catch_up()
    assert ferry.count() == ferry.changes
    assert [q for q in ferry.ddls() if q.upper().startswith("DROP TABLE")]


def test_a_log_that_was_compacted(ferry: Ferry) -> None:
    ferry.create(partitioned=False)
    ferry.catch_up()
    ferry.change(ferry.orders, [0, 500], [10, 510])
    for one in ferry.store.ranges(ferry.orders):
        ferry.store.compact(one.range_id)
    before = tree(ferry.out)
    stopped = ferry.run("--until", "caught-up")
    code, words = stopped.refusal()
    assert (stopped.code, code) == (1, "RF-3003")
    assert re.search(r"range \d+: the log after index \d+ is gone", words)
    assert "on-log-lost = resnapshot" in words
    assert ferry.state() is FeedState.FAILED
    after = tree(ferry.out)
    assert {k: v for k, v in after.items() if "rowferry" not in k} == {
        k: v for k, v in before.items() if "rowferry" not in k
    }

    ferry.catch_up(source="?on-log-lost=resnapshot")
    assert ferry.state() is FeedState.NORMAL
    assert [q for q in ferry.ddls() if q.startswith("TRUNCATE TABLE")]
    ferry.verify(ferry.orders)
    ferry.change(ferry.orders, [20], [30])
    ferry.catch_up(source="?on-log-lost=resnapshot")
    ferry.verify(ferry.orders)


def test_a_source_without_old_values(
    session: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("--without-old-value",)
    with (
        LocalCluster(tmp_path / "store", 1, data_options=options) as cluster,
        cluster.store() as store,
    ):
        source, folder = f"range://{cluster.master_address}", tmp_path / "work"
        folder.mkdir()
        ferry = Ferry(store, source, folder, "shop", session, capfd, monkeypatch, "canal-json")
        ferry.create(partitioned=False)
        with pytest.raises(OptionsConflict, match="csv writes all columns .* protocol=canal-json"):
            prepare(source, f"file://{folder}/csv?protocol=csv")
        store.ddl("CREATE DATABASE soft")
        store.ddl(
            "CREATE TABLE soft.t (id int PRIMARY KEY, _tidb_softdelete_time timestamp(6) NULL) "
            "COMMENT='rowferry:soft-delete'"
        )
        with pytest.raises(TableNotActiveActive, match="soft.t has soft delete, and the source"):
            prepare(source, f"file://{folder}/soft?protocol=canal-json")
        store.ddl("DROP DATABASE soft")
        ferry.catch_up()
        ferry.change(ferry.orders, [0, 500], [10])
        ferry.insert(ferry.orders, [3])
        ferry.catch_up()
        ferry.verify(ferry.orders)
        assert ferry.count() == ferry.changes
        gone = [
            image
            for chunk in ferry.delivered()
            for op, image in zip(chunk.op, chunk.before.to_pylist(), strict=True)
            if op == Op.DELETE
        ]
        assert gone == [{"id": 10}]
