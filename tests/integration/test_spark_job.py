"""One micro-batch as one Spark job: receipts and errors cross from real workers to the driver."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_kit import LanedTask, LongLaneTask, ObedientTask

from rowferry.change.plan import Plan, Segment, Stretch
from rowferry.errors import (
    BY_CODE,
    RowferryError,
    RowRejected,
    SourceUnavailable,
    TaskFailed,
    Verdict,
)
from rowferry.spark import job, versions
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import close_session, open_session
from rowferry.spark.versions import by_number
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver, ReceivedRequest, ReceiverFault, Refusal

SPEC = ChangefeedSpec(
    "feed",
    Uri.parse("range://127.0.0.1:1", "source"),
    Uri.parse("blackhole://?protocol=csv", "sink"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[SparkSession]:
    here = str(Path(__file__).parent)
    found = open_session("test", folder, "local[2]", {"spark.executorEnv.PYTHONPATH": here})
    yield found
    close_session(found)


@pytest.fixture
def runner(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkRunner:
    monkeypatch.setattr(job, "SegmentTask", ObedientTask)
    return SparkRunner(session)


def plan(*do: Any) -> Plan:
    parts = tuple(Segment(i, {"do": what}, (), 1, 1) for i, what in enumerate(do))
    return Plan(1, 1, 0, Stretch(parts, (), {}))


def jobs(session: SparkSession) -> set[int]:
    return set(session.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_every_segment_gives_its_receipts(runner: SparkRunner) -> None:
    found = runner.run(SPEC, plan(2, 0, 1, 3), {})
    assert sorted((r.segment, r.slice) for r in found) == [
        (0, 0),
        (0, 1),
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
    ]
    one = next(r for r in found if (r.segment, r.slice) == (3, 1))
    assert (one.rows, one.bytes, one.source_bytes) == (1001, 1 << 40, 7)
    assert one.note is not None
    assert {r.note for r in found if r.slice == 0} == {None}


def test_a_plan_is_one_job_however_many_segments(
    runner: SparkRunner, session: SparkSession
) -> None:
    before = jobs(session)
    runner.run(SPEC, plan(*[1] * 9), {})
    assert len(jobs(session) - before) == 1
    assert runner.run(SPEC, plan(), {}) == []
    assert len(jobs(session) - before) == 1


@pytest.mark.parametrize("code", ["RF-3001", "RF-3002", "RF-4006"])
def test_an_error_of_ours_keeps_its_code_verdict_and_words(runner: SparkRunner, code: str) -> None:
    with pytest.raises(RowferryError) as raised:
        runner.run(SPEC, plan(1, code, 1), {})
    assert type(raised.value) is BY_CODE[code]
    assert raised.value.verdict is BY_CODE[code].verdict
    assert raised.value.words == "segment 1: it's [so] “bad”"


def test_an_error_of_someone_else_is_tried_again(runner: SparkRunner) -> None:
    with pytest.raises(TaskFailed, match="KeyError: 'odd'") as raised:
        runner.run(SPEC, plan("odd"), {})
    assert raised.value.verdict is Verdict.RETRY


def test_a_worker_that_dies_is_replaced(runner: SparkRunner) -> None:
    with pytest.raises(TaskFailed) as raised:
        runner.run(SPEC, plan("die", 1), {})
    assert "\n" not in str(raised.value)
    assert len(runner.run(SPEC, plan(1, 1), {})) == 2


def test_a_real_task_reports_what_its_client_met(session: SparkSession) -> None:
    """The whole way: a gRPC error in a worker is wrapped there, and known here."""
    from rowferry.change.plan import TableSlice
    from rowferry.change.sqltype import SqlType
    from rowferry.change.table import Column, TableId, TableSchema

    table = TableSchema(TableId("shop", "orders"), 7, 1, (Column(1, "id", SqlType("bigint")),))
    mine = TableSlice(table.id, 7, 1)
    span = {"range_id": 1, "start": "74", "end": "75", "from": 0, "until": 9}
    read = {"kind": "log", "after_ts": 0, "until_ts": 9, "spans": [span]}
    stretch = Stretch((Segment(0, read, (mine,), 1, 9),), (), {})
    with pytest.raises(SourceUnavailable, match="127.0.0.1:1"):
        SparkRunner(session).run(SPEC, Plan(1, 1, 0, stretch), {mine: table})


def test_lanes_keep_their_order_through_the_shuffle(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SegmentTask", LanedTask)
    with HttpReceiver() as receiver:
        spec = ChangefeedSpec("feed", SPEC.source, Uri.parse(receiver.uri, "sink"))
        recorded = plan(*["pack"] * 5).with_(micro_batch=7, epoch=3)
        found = SparkRunner(session).run(spec, recorded, {})
    rows = [row for request in receiver.taken for row in json.loads(request.body)]
    for lane in range(4):
        places = [tuple(row["place"]) for row in rows if row["lane"] == lane]
        assert places == [(s, n) for s in range(5) for n in (lane, lane + 4)]
    assert sorted(r.segment for r in found if r.segment >= 0) == [0, 1, 2, 3, 4]
    assert {r.headers["Rowferry-Micro-Batch"] for r in receiver.taken} == {"7"}
    assert {r.headers["Rowferry-Epoch"] for r in receiver.taken} == {"3"}


class UnevenReceiver(HttpReceiver):
    """Refuses lane 0 for good while it takes its time with lane 1."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = threading.Event()

    def note(self, request: ReceivedRequest) -> ReceiverFault | Refusal | None:
        if json.loads(request.body) == [{"lane": 0}]:
            self._begun.wait(30)
            return Refusal(400)
        fault = super().note(request)
        self._begun.set()
        time.sleep(0.3)
        return fault


def test_no_lane_of_a_failed_job_sends_on_behind_it(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would send behind the next try, and behind what comes after that."""
    monkeypatch.setattr(job, "SegmentTask", LongLaneTask)
    with UnevenReceiver() as receiver:
        sink = Uri.parse(f"{receiver.uri}?timeout=60s", "sink")
        spec = ChangefeedSpec("feed", SPEC.source, sink)
        with pytest.raises(RowRejected):
            SparkRunner(session).run(spec, plan(*["pack"] * 2), {})
        taken = len(receiver.taken)
        time.sleep(1.5)
        assert 0 < taken == len(receiver.taken)


@pytest.mark.parametrize("release", [(4, 0), versions.RELEASE])
def test_rows_come_to_the_partition_of_their_number(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, release: tuple[int, ...]
) -> None:
    """Spark 4.0 has hashes only; what stands in for them there works in all versions."""
    monkeypatch.setattr(versions, "RELEASE", release)
    numbers = session.range(0, 40, 1, numPartitions=3).selectExpr("int(id) AS number")
    for parts in (1, 7):
        placed = by_number(numbers, parts, "number").selectExpr("number", "spark_partition_id()")
        assert sorted(map(tuple, placed.collect())) == [(n, n % parts) for n in range(40)]


def test_spark_prints_nothing_and_logs_to_its_file(
    runner: SparkRunner, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TaskFailed):
        runner.run(SPEC, plan("odd"), {})
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert "KeyError" in (folder / "spark.log").read_text()


@pytest.mark.parametrize("laned", [False, True])
def test_each_segment_is_told_of_once_and_before_the_job_ends(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, laned: bool
) -> None:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(job, "SegmentTask", LanedTask if laned else ObedientTask)
    with HttpReceiver() as receiver:
        sink = receiver.uri if laned else str(SPEC.sink)
        spec = ChangefeedSpec("feed", SPEC.source, Uri.parse(sink, "sink"))
        runner = SparkRunner(session, "pool")
        runner.on_part = lambda *part: told.append(part)
        runner.run(spec, plan(*["pack" if laned else 2] * 3), {})
        runner.close()
    assert sorted(told) == [(n, 8 if laned else 2001, 1000 if laned else 2 << 40) for n in range(3)]
