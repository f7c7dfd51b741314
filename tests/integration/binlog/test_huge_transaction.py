"""One transaction of 2 GiB: neither the planner nor a task holds it in memory."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from feed_kit import Feed, Runner

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.table import TableSchema
from rowferry.mysql.session import connected
from rowferry.mysql.snapshot_position import high_position
from rowferry.spark.job import SegmentTask
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import MariaDb, MySql, Server

ROWS, ROW_BYTES, AT_ONCE = 4096, 512 << 10, 64
MOST_MEMORY = 1_500_000_000


@pytest.fixture(params=[MySql, MariaDb], ids=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind: type[Server] = request.param
    folder = tmp_path_factory.mktemp("server")
    with kind.start(folder, server_id=41) as started:
        yield started
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Outcome:
    """What a run delivered, and the most memory that its two processes had."""

    micro_batches: int
    segments: int
    rows: int
    commit_ts: int
    planner_bytes: int
    task_bytes: int


def test_two_gigabytes_in_one_transaction(server: Server, tmp_path: Path) -> None:
    # The server need not keep the rows: only its log matters, and this engine writes nothing else.
    if server.flavour.value == "mariadb":
        server.execute("INSTALL SONAME 'ha_blackhole'")
    server.script(
        "CREATE DATABASE huge",
        "CREATE TABLE huge.t (id int PRIMARY KEY, v longtext) ENGINE=BLACKHOLE",
    )
    with connected(server.login) as connection:
        begin = high_position(connection, server.login, server.flavour)
    server.script("BEGIN", *(insert(i) for i in range(0, ROWS, AT_ONCE)), "COMMIT")
    with connected(server.login) as connection:
        end = high_position(connection, server.login, server.flavour)
    sizes = {str(row[0]): int(str(row[1])) for row in server.execute("SHOW BINARY LOGS")}
    assert sizes[begin["file"]] - begin["offset"] >= ROWS * ROW_BYTES == 2 << 30

    source = f"start-position={begin['file']}:{begin['offset']}"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        outcome = process.submit(run_feed, server.uri, source, tmp_path).result()
    try:
        assert end["file"] != begin["file"], "the file ends with such a transaction"
        assert outcome.rows == ROWS
        assert outcome.micro_batches == 1
        assert outcome.segments > 50
        assert delivered(tmp_path / "out") == (ROWS, {outcome.commit_ts})
        print(f"planner {outcome.planner_bytes >> 20} MiB, task {outcome.task_bytes >> 20} MiB")
        assert outcome.planner_bytes < MOST_MEMORY
        assert outcome.task_bytes < MOST_MEMORY
    finally:
        shutil.rmtree(tmp_path / "out")


def insert(first: int) -> str:
    return (
        f"INSERT INTO huge.t WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n "
        f"WHERE i < {first + AT_ONCE - 1}) SELECT i, REPEAT(SHA2(i, 256), {ROW_BYTES // 64}) FROM n"
    )


def delivered(root: Path) -> tuple[int, set[int]]:
    """Return how many rows the files have, each as long as it must be, and their commit-ts."""
    rows, stamps = 0, set()
    for file in sorted(root.glob("huge/**/CDC*.csv")):
        with open(file, "rb") as lines:
            for line in lines:
                head = re.match(rb'"I","t","huge",(\d+),(\d+),"', line)
                assert head and len(line) == head.end() + ROW_BYTES + len(b'"\r\n')
                stamps.add(int(head[1]))
                rows += 1
    return rows, stamps


# --- in processes of their own -------------------------------------------------------------------


def peak() -> int:
    """Return the most memory that this process had so far."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


def run_segment(task: SegmentTask, ordinal: int) -> list[Receipt]:
    return list(task.run(ordinal))


class OutOfProcess(Runner):
    """Runs segments one after the other in one process that does nothing else, as Spark would."""

    def __init__(self, worker: ProcessPoolExecutor) -> None:
        super().__init__()
        self._worker = worker

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run a plan."""
        self.plans.append(plan)
        task = SegmentTask(spec, plan, tables)
        found = [self._worker.submit(run_segment, task, s.ordinal) for s in plan.stretch.segments]
        return [receipt for future in found for receipt in future.result()]


@dataclass(frozen=True)
class Elsewhere:
    """A server that another process has started."""

    uri: str


def run_feed(uri: str, source: str, folder: Path) -> Outcome:
    """Deliver all that the log has."""
    config = "[sink.csv]\ninclude-commit-ts = true\n"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as worker:
        runner = OutOfProcess(worker)
        server = cast(Any, Elsewhere(uri))
        feed = Feed(server, folder, ["huge.*"], source, config, "csv", runner=runner)
        rows = 0
        while True:
            step = feed.step()
            rows += step.rows if step else 0
            if step and step.caught_up and rows:
                break
        feed.stop()
        segments = [s for p in runner.plans for s in p.stretch.segments]
        return Outcome(
            micro_batches=len(runner.plans),
            segments=len(segments),
            rows=rows,
            commit_ts=segments[0].first_commit_ts,
            planner_bytes=peak(),
            task_bytes=worker.submit(peak).result(),
        )
