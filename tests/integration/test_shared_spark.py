"""One Spark session for several changefeeds: each has its own share, and Java may die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_kit import LanedTask

from rowferry.change.plan import Plan, Segment, Stretch
from rowferry.errors import EngineError
from rowferry.spark import job
from rowferry.spark.session import open_session
from rowferry.spark.shared import SharedSpark
from rowferry.spark.versions import java_process
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.receiver import HttpReceiver

SOURCE = Uri.parse("range://127.0.0.1:1", "source")
TURNS = 2


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SharedSpark]:
    """A session that is opened at the second try: Spark refuses the first settings."""
    tries = [{"spark.executor.memory": "10m"}]

    def open_now() -> SparkSession:
        more = tries.pop() if tries else {}
        here = {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parent)}
        return open_session("test", tmp_path, "local[3]", {**here, **more})

    shared = SharedSpark(open_now)
    yield shared
    shared.close()


def deliver(spark: SharedSpark, name: str) -> None:
    """Let a changefeed run some plans through a shuffle; each lane must arrive in its order."""
    runner = spark.runner(name)
    segments = tuple(Segment(i, {"do": "pack"}, (), 1, 1) for i in range(5))
    for turn in range(TURNS):
        with HttpReceiver() as receiver:
            spec = ChangefeedSpec(name, SOURCE, Uri.parse(receiver.uri, "sink"))
            found = runner.run(spec, Plan(turn + 1, 1, 0, Stretch(segments, (), {})), {})
        assert sorted(r.segment for r in found if r.segment >= 0) == [0, 1, 2, 3, 4]
        rows = [row for request in receiver.taken for row in json.loads(request.body)]
        for lane in range(4):
            places = [tuple(row["place"]) for row in rows if row["lane"] == lane]
            assert places == [(s, n) for s in range(5) for n in (lane, lane + 4)]
    runner.close()


def test_several_changefeeds_share_a_session_that_may_die(
    spark: SharedSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SegmentTask", LanedTask)
    with pytest.raises(EngineError, match=r"Spark did not start on local\[3\]: .*\S; check"):
        spark.session()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: deliver(spark, name), ["a", "b"]))
    java = java_process(spark.session())
    assert java is not None
    os.kill(java.pid, signal.SIGKILL)
    java.wait()
    assert spark.session().range(3).count() == 3
