"""What a server carries out itself, and what it leaves to Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rowferry.change.plan import Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import SinkUnavailable
from rowferry.spark.shared import (
    TINY_BYTES,
    WARY_BYTES,
    EitherRunner,
    Seats,
    is_small,
    with_a_spare,
)
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

SPEC = ChangefeedSpec(
    "feed",
    Uri.parse("range://127.0.0.1:1", "source"),
    Uri.parse("blackhole://?protocol=csv", "sink"),
)


def plan(*sizes: int, payload: bytes = b"") -> Plan:
    parts = tuple(
        Segment(i, {}, (), 1, 1, log_bytes=size, payload=payload) for i, size in enumerate(sizes)
    )
    return Plan(1, 1, 0, Stretch(parts, (), {}))


@pytest.mark.parametrize(
    ("given", "small"),
    [
        (plan(1000), True),
        (plan(TINY_BYTES), True),
        (plan(TINY_BYTES, 1), False),
        (plan(0), False),  # of unknown size: a part of a snapshot
        (plan(1000, 0), False),
        (plan(0, payload=b"rows"), True),
        (plan(*[10] * 8), True),
        (plan(*[10] * 9), False),
    ],
)
def test_small_is_what_is_known_to_be_little(given: Plan, small: bool) -> None:
    assert is_small(given, TINY_BYTES) is small


class Noting:
    """A runner that notes its plans; fails once where it is told to."""

    slots = 3

    def __init__(self) -> None:
        self.ran = 0
        self.closed = 0
        self.tasks: list[int | None] = []
        self.plans: list[Plan] = []
        self.error: Exception | None = None

    def run(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
        tasks: int | None = None,
    ) -> list[Receipt]:
        self.tasks.append(tasks)
        self.plans.append(plan)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.ran += 1
        return []

    def close(self) -> None:
        self.closed += 1


def test_spark_is_opened_for_what_is_not_small() -> None:
    here, spark, opened = Noting(), Noting(), []

    def open_spark() -> Noting:
        opened.append(True)
        return spark

    runner = EitherRunner(here, open_spark)
    runner.run(SPEC, plan(1000), {})
    assert (here.ran, opened) == (1, [])
    for _ in range(2):
        runner.run(SPEC, plan(TINY_BYTES + 1), {})
    assert (here.ran, spark.ran, opened) == (1, 2, [True])
    runner.close()
    assert (here.closed, spark.closed) == (1, 1)


def test_after_an_error_a_larger_plan_is_tried_without_a_slot() -> None:
    here, spark = Noting(), Noting()
    runner = EitherRunner(here, lambda: spark)
    spark.error = SinkUnavailable("nobody answers")
    with pytest.raises(SinkUnavailable):
        runner.run(SPEC, plan(WARY_BYTES), {})
    assert spark.closed == 1  # its session may be gone: the next job asks for it anew
    here.error = SinkUnavailable("still nobody")
    with pytest.raises(SinkUnavailable):
        runner.run(SPEC, plan(WARY_BYTES), {})
    runner.run(SPEC, plan(WARY_BYTES), {})
    assert (here.ran, spark.ran) == (1, 0)
    runner.run(SPEC, plan(WARY_BYTES), {})
    assert (here.ran, spark.ran) == (1, 1)  # all is well again


def test_no_changefeed_has_all_slots_and_failed_ones_share_one() -> None:
    here, spark, seats = Noting(), Noting(), Seats()
    failed, well = (EitherRunner(here, lambda: spark, seats) for _ in range(2))
    spark.error = SinkUnavailable("nobody answers")
    with pytest.raises(SinkUnavailable):
        failed.run(SPEC, plan(WARY_BYTES + 1), {})
    assert spark.tasks == [2]
    with ThreadPoolExecutor(1) as threads:
        with seats.taken(3, proven=False):  # by a third one
            waiting = threads.submit(failed.run, SPEC, plan(WARY_BYTES + 1), {})
            well.run(SPEC, plan(WARY_BYTES + 1), {})  # waits for nobody
            assert spark.tasks == [2, 2]
        waiting.result()
    failed.run(SPEC, plan(WARY_BYTES + 1), {})
    assert spark.tasks == [2, 2, 1, 2]
    spark.slots = 1
    failed.run(SPEC, plan(WARY_BYTES + 1), {})
    assert spark.tasks[-1] == 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("local", "local[2]"),
        ("local[3]", "local[4]"),
        ("local[*]", f"local[{(os.cpu_count() or 1) + 1}]"),
        ("spark://here:7077", "spark://here:7077"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
    ],
)
def test_a_master_on_this_machine_gets_a_slot_more(given: str, wanted: str) -> None:
    assert with_a_spare(given) == wanted


def test_while_spark_starts_segments_are_carried_out_here() -> None:
    """One after the other, in their order; what is left when it is there goes there."""
    here, spark = Noting(), Noting()
    there = iter([False, False, True])
    runner = EitherRunner(here, lambda: spark, Seats(alone=True), lambda needed: next(there))
    runner.run(SPEC, plan(*[TINY_BYTES] * 4), {})
    assert (here.ran, spark.ran, spark.tasks) == (2, 1, [3])
    assert [s.ordinal for p in here.plans for s in p.stretch.segments] == [0, 1]
    assert [s.ordinal for p in spark.plans for s in p.stretch.segments] == [2, 3]


def test_what_a_sink_counts_is_not_divided() -> None:
    """It waits for Spark, where all messages of a lane come to one call."""
    here, spark = Noting(), Noting()
    asked: list[bool] = []

    def is_there(needed: bool) -> bool:
        asked.append(needed)
        return False

    runner = EitherRunner(here, lambda: spark, Seats(alone=True), is_there)
    counted = replace(SPEC, sink=Uri.parse("redis://127.0.0.1:1/topic", "sink"))
    runner.run(counted, plan(*[TINY_BYTES] * 4), {})
    assert (here.ran, spark.ran, asked) == (0, 1, [True])
    assert [s.ordinal for s in spark.plans[0].stretch.segments] == [0, 1, 2, 3]


def test_more_is_little_where_many_changefeeds_share_few_processors() -> None:
    """They keep these at work by themselves; a server with few of them needs Spark for that."""
    seats = Seats(processors=2)
    assert seats.tiny_bytes == TINY_BYTES
    spark = Noting()
    runners = [EitherRunner(Noting(), lambda: spark, seats) for _ in range(16)]
    for runner in runners:
        runner.run(SPEC, plan(TINY_BYTES), {})
        runner.run(SPEC, plan(TINY_BYTES), {})  # it counts once
    assert seats.tiny_bytes == 2 * TINY_BYTES
    runners[0].run(SPEC, plan(2 * TINY_BYTES), {})
    assert not spark.plans
    for runner in runners[:8]:
        runner.close()
        runner.close()
    assert seats.tiny_bytes == TINY_BYTES
    for _ in range(1000):
        seats.enter()
    assert seats.tiny_bytes == WARY_BYTES
