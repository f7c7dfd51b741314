"""One Spark session for all changefeeds of a server, and what is too small for a Spark job.

A Spark job costs 0.1 to 0.2 s whatever it does, and a slot. Measured on two busy cores, from the
log of MySQL to canal-json files: 10 to 1,000 rows take 3 ms of one core in the driver alone,
2,000 rows (240 kB of log) 4 ms, 5,000 rows (600 kB, more than a plan carries along) 10 ms, 20,000
rows (2.4 MB) 22 ms. So the driver alone is quicker far beyond a megabyte; but its one
interpreter serves all changefeeds, and Spark's tasks do not share one. What is carried out here is
therefore what a plan can carry along: many quiet changefeeds need no slots at all, and where more
comes, stretches grow and go to Spark.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from pyspark.sql import SparkSession

from rowferry.change.plan import Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import RowferryError
from rowferry.flow.assemble import Flow, assemble
from rowferry.spark.cores import allowed, spread
from rowferry.spark.job import SparkRunner
from rowferry.spark.lanes import packets_of
from rowferry.spark.session import close_session
from rowferry.spark.versions import java_process
from rowferry.spec.changefeed import ChangefeedSpec

TINY_BYTES: Final = 512 << 10
WARY_BYTES: Final = 4 << 20  # after an error: a target that may hang again should keep no slot
_FEW_SEGMENTS: Final = 8


class Runs(Protocol):
    """Runs plans."""

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts."""

    def close(self) -> None:
        """Let go of what was started."""


class DriverRunner:
    """Runs plans of one changefeed in this process, with stages and connections of its own."""

    def __init__(self) -> None:
        self._flows: dict[int, Flow] = {}

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments, one after the other; on raise, the plan can be run again."""
        if plan.spec_version not in self._flows:
            self._flows = {plan.spec_version: assemble(spec)}
        flow = self._flows[plan.spec_version]
        return [r for s in plan.stretch.segments for r in _run_segment(flow, s, plan, tables)]

    def close(self) -> None:
        """Let connections go."""
        self._flows = {}


def _run_segment(
    flow: Flow, segment: Segment, plan: Plan, tables: Mapping[TableSlice, TableSchema]
) -> Iterator[Receipt]:
    mine = {one: tables[one] for one in segment.slices}
    work = (segment, plan.outputs_of(segment.ordinal), mine, plan.planned_at_ms)
    if not flow.sink.TRAITS.needs_shuffle:
        return flow.run_segment(*work)
    receipts: list[Receipt] = []
    packets = packets_of(flow.pack_segment(*work), receipts)
    flow.deliver(replace(p, micro_batch=plan.micro_batch, epoch=plan.epoch) for p in packets)
    return iter(receipts)


class RunsTasks(Protocol):
    """Runs plans as tasks in slots; see `SparkRunner`."""

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""

    def run(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
        tasks: int | None = None,
    ) -> list[Receipt]:
        """Run all segments of a plan, at most so many tasks at once."""

    def close(self) -> None:
        """Let go of what was started."""


class Seats:
    """Who may have how many slots: a target that hangs must not keep everybody else waiting.

    A changefeed never has all of them. Those whose last try failed come one after the other, with
    one slot each, however many targets have gone away.
    """

    def __init__(self) -> None:
        self._of_the_failed = threading.Lock()

    @contextmanager
    def taken(self, slots: int, proven: bool) -> Iterator[int]:
        """Wait for a turn; the block may run so many tasks at once."""
        if proven:
            yield max(1, slots - 1)
        else:
            with self._of_the_failed:
                yield 1


class EitherRunner:
    """Runs plans of one changefeed: tiny ones here, others as Spark jobs."""

    def __init__(
        self, here: Runs, spark: Callable[[], RunsTasks], seats: Seats | None = None
    ) -> None:
        self._here, self._open_spark = here, spark
        self._seats = seats or Seats()
        self._spark: RunsTasks | None = None
        self._proven = True  # the last try did not fail

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan where that is best."""
        proven, self._proven = self._proven, False
        try:
            if is_small(plan, TINY_BYTES if proven else WARY_BYTES):
                found = self._here.run(spec, plan, tables)
            else:
                spark = self._spark = self._spark or self._open_spark()
                with self._seats.taken(spark.slots, proven) as tasks:
                    found = spark.run(spec, plan, tables, tasks)
        except BaseException:
            self._close_spark()  # the session may be another one the next time
            raise
        self._proven = True
        return found

    def close(self) -> None:
        """Let go of both ways."""
        self._here.close()
        self._close_spark()

    def _close_spark(self) -> None:
        if self._spark is not None:
            self._spark.close()
            self._spark = None


def is_small(plan: Plan, limit: int) -> bool:
    """Return whether all that a plan reads is known to be little."""
    segments = plan.stretch.segments
    sizes = [len(s.payload) or s.log_bytes for s in segments]
    return len(segments) <= _FEW_SEGMENTS and all(sizes) and sum(sizes) <= limit


class SharedSpark:
    """The session of a server, opened in the background and opened again if Java died."""

    def __init__(self, open_session: Callable[[], SparkSession]) -> None:
        self._open = open_session
        self._processors = allowed()
        self._seats = Seats()
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def start(self, on_error: Callable[[RowferryError], None]) -> None:
        """Open the session in a thread of its own; `on_error` is called there if that fails."""

        def open_now() -> None:
            try:
                self.session()
            except RowferryError as err:
                on_error(err)

        threading.Thread(target=open_now, name="spark", daemon=True).start()

    def session(self) -> SparkSession:
        """Return the session; waits while it is being opened.

        Raises:
            NoJava: Java did not start.
        """
        with self._lock:
            if self._session is not None and not _is_alive(self._session):
                close_session(self._session)
                self._session = None
            if self._session is None:
                spread(self._processors)  # Java runs where its opener does, a changefeed's thread
                self._session = self._open()
            return self._session

    def runner(self, changefeed: str) -> EitherRunner:
        """Return who runs the plans of one changefeed, with a fair share of the session."""
        return EitherRunner(
            DriverRunner(), lambda: SparkRunner(self.session(), changefeed), self._seats
        )

    def close(self) -> None:
        """Stop Spark."""
        with self._lock:
            if self._session is not None:
                close_session(self._session)
                self._session = None


def with_a_spare(master: str) -> str:
    """Return a master on this machine with one slot more, since no changefeed gets all of them.

    One that is elsewhere has its own settings, and stays as it is.
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if found is None:
        return master
    cores = os.cpu_count() or 1 if found[1] == "*" else int(found[1] or 1)
    return f"local[{cores + 1}]"


def _is_alive(session: SparkSession) -> bool:
    java = java_process(session)
    return java is not None and java.poll() is None
