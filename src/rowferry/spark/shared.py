"""One Spark session for all changefeeds of a process, and what is too small for a Spark job.

A Spark job costs 0.1 to 0.2 s whatever it does, and a slot. Measured on two busy cores, from the
log of MySQL to canal-json files: 10 to 1,000 rows take 3 ms of one core in the driver alone,
2,000 rows (240 kB of log) 4 ms, 5,000 rows (600 kB, more than a plan carries along) 10 ms, 20,000
rows (2.4 MB) 22 ms. So the driver alone is quicker far beyond a megabyte; but its one
interpreter serves all changefeeds, and Spark's tasks do not share one. What is carried out here is
therefore little: many quiet changefeeds need no slots at all, and where more comes, stretches grow
and go to Spark. Where a machine has many changefeeds for each of its processors, they keep these at
work by themselves, and a job is only what it costs: then more is little.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rowferry.change.plan import Again, Output, Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import RowferryError
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.parking import refusal_receipts
from rowferry.flow.sink.contract import Packet
from rowferry.registry import SINKS
from rowferry.spark.cores import allowed, spread
from rowferry.spark.lanes import packets_of
from rowferry.spec.changefeed import ChangefeedSpec

if TYPE_CHECKING:  # imported when needed: many a run ends before it needs Spark
    from pyspark.sql import SparkSession

    from rowferry.spark.job import SparkRunner

TINY_BYTES: Final = 512 << 10
WARY_BYTES: Final = 4 << 20  # after an error: a target that may hang again should keep no slot
_FEW_SEGMENTS: Final = 8
_FEW_FEEDS: Final = 4  # for each processor


class Runs(Protocol):
    """Runs plans; `on_part` is called for each segment that is done: ordinal, rows, bytes."""

    on_part: Callable[[int, int, int], None] | None

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
        self.on_part: Callable[[int, int, int], None] | None = None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments, one after the other; on raise, the plan can be run again."""
        if plan.spec_version not in self._flows:
            self._flows = {plan.spec_version: assemble(spec)}
        flow = self._flows[plan.spec_version]
        if flow.sink.TRAITS.needs_shuffle:
            return self._run_lanes(flow, plan, tables)
        receipts: list[Receipt] = []
        for segment in plan.stretch.segments:
            mine = list(flow.run_segment(*_work(segment, plan, tables)))
            self._tell(segment, mine)
            receipts += mine
        return receipts

    def _run_lanes(
        self, flow: Flow, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run segments with all their packets in one call of the sink, which may count them."""
        receipts: list[Receipt] = []

        def packets() -> Iterator[Packet]:
            for segment in plan.stretch.segments:
                mine: list[Receipt] = []
                work = _work(segment, plan, tables)
                items = flow.pack_segment(*work, plan.quarantine, plan.redo)
                for packet in packets_of(items, mine):
                    yield replace(packet, micro_batch=plan.micro_batch, epoch=plan.epoch)
                self._tell(segment, mine)
                receipts.extend(mine)

        flow.deliver(packets(), plan.quarantine)
        return [*receipts, *refusal_receipts(flow.take_refused())]

    def _tell(self, segment: Segment, receipts: Sequence[Receipt]) -> None:
        if self.on_part is not None:
            rows, size = sum(r.rows for r in receipts), sum(r.bytes for r in receipts)
            self.on_part(segment.ordinal, rows, size)

    def close(self) -> None:
        """Let connections go."""
        self._flows = {}


def _work(
    segment: Segment, plan: Plan, tables: Mapping[TableSlice, TableSchema]
) -> tuple[Segment, tuple[Output, ...], dict[TableSlice, TableSchema], int]:
    mine = {one: tables[one] for one in segment.slices}
    return segment, plan.outputs_of(segment.ordinal), mine, plan.planned_at_ms


class RunsTasks(Protocol):
    """Runs plans as tasks in slots; see `SparkRunner`."""

    on_part: Callable[[int, int, int], None] | None

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

    A changefeed never has all of them, unless it is `alone`. Those whose last try failed come one
    after the other, with one slot each, however many targets have gone away.
    """

    def __init__(self, alone: bool = False, processors: int | None = None) -> None:
        self._alone = alone
        self._few = _FEW_FEEDS * (processors or os.cpu_count() or 1)
        self._feeds = 0
        self._entering = threading.Lock()
        self._of_the_failed = threading.Lock()

    def enter(self) -> None:
        """Note one more changefeed."""
        with self._entering:
            self._feeds += 1

    def leave(self) -> None:
        """Note that one has gone."""
        with self._entering:
            self._feeds -= 1

    @property
    def tiny_bytes(self) -> int:
        """How much is not worth a job."""
        return min(WARY_BYTES, TINY_BYTES * max(1, self._feeds // self._few))

    @contextmanager
    def taken(self, slots: int, proven: bool) -> Iterator[int]:
        """Wait for a turn; the block may run so many tasks at once."""
        if self._alone:
            yield slots
        elif proven:
            yield max(1, slots - 1)
        else:
            with self._of_the_failed:
                yield 1


class EitherRunner:
    """Runs plans of one changefeed: tiny ones here, others as Spark jobs."""

    def __init__(
        self,
        here: Runs,
        spark: Callable[[], RunsTasks],
        seats: Seats | None = None,
        is_there: Callable[[bool], bool] = lambda needed: True,
    ) -> None:
        """Make a runner; until Spark `is_there`, what is not tiny is carried out here as well.

        It is asked before each segment, and told whether there is more than one: then Spark is
        needed.
        """
        self._here, self._open_spark = here, spark
        self._seats = seats or Seats()
        self._has_entered = False
        self._is_there = is_there
        self._spark: RunsTasks | None = None
        self._proven = True  # the last try did not fail
        self._on_part: Callable[[int, int, int], None] | None = None

    @property
    def slots(self) -> int:
        """How many tasks can run at once; until Spark is there, one after the other."""
        return self._spark.slots if self._spark is not None else 1

    @property
    def on_part(self) -> Callable[[int, int, int], None] | None:
        """Who is told of each segment that is done."""
        return self._on_part

    @on_part.setter
    def on_part(self, tell: Callable[[int, int, int], None] | None) -> None:
        self._on_part = tell
        self._here.on_part = tell
        if self._spark is not None:
            self._spark.on_part = tell

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan where that is best."""
        proven, self._proven = self._proven, False
        if not self._has_entered:
            self._has_entered = True
            self._seats.enter()
        try:
            if is_small(plan, self._seats.tiny_bytes if proven else WARY_BYTES):
                receipts = self._here.run(spec, plan, tables)
            else:
                receipts = self._run_large(spec, plan, tables, proven)
        except BaseException:
            self._close_spark()  # the session may be another one the next time
            raise
        self._proven = True
        return receipts

    def _run_large(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
        proven: bool,
    ) -> list[Receipt]:
        """Run segments here while Spark starts, one after the other, and the rest as tasks.

        What belongs together waits for Spark.
        """
        receipts: list[Receipt] = []
        together = _is_counted(spec, plan)
        for place, segment in enumerate(plan.stretch.segments):
            if self._is_there(len(plan.stretch.segments) > 1) or together:
                rest = _with_segments(plan, plan.stretch.segments[place:])
                spark = self._spark = self._spark or self._open_spark()
                spark.on_part = self._on_part
                with self._seats.taken(spark.slots, proven) as tasks:
                    return receipts + spark.run(spec, rest, tables, tasks)
            receipts += self._here.run(spec, _with_segments(plan, (segment,)), tables)
        return receipts

    def close(self) -> None:
        """Let go of both ways. On repeat: nothing."""
        if self._has_entered:
            self._has_entered = False
            self._seats.leave()
        self._here.close()
        self._close_spark()

    def _close_spark(self) -> None:
        if self._spark is not None:
            self._spark.close()
            self._spark = None


def _is_counted(spec: ChangefeedSpec, plan: Plan) -> bool:
    """Return whether a sink counts the messages of all segments, since a replay has the same."""
    segments = plan.stretch.segments
    counts = len(segments) > 1 and SINKS.load(spec.sink.scheme).TRAITS.counts_messages
    return counts and any(s.again is Again.SAME for s in segments)


def _with_segments(plan: Plan, segments: tuple[Segment, ...]) -> Plan:
    return plan.with_(stretch=replace(plan.stretch, segments=segments))


def is_small(plan: Plan, limit: int) -> bool:
    """Return whether all that a plan reads is known to be little."""
    segments = plan.stretch.segments
    sizes = [s.bytes_here or s.log_bytes for s in segments]
    return len(segments) <= _FEW_SEGMENTS and all(sizes) and sum(sizes) <= limit


class SharedSpark:
    """A session that is opened in the background, and opened again if Java died."""

    def __init__(self, open_session: Callable[[], SparkSession], alone: bool = False) -> None:
        """Open nothing yet; `alone`: one changefeed has all of it."""
        self._open = open_session
        self._processors = allowed()
        self._seats = Seats(alone, len(self._processors))
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._opener: threading.Thread | None = None
        self._is_over = threading.Event()  # the first try to open it has come to an end
        self._closing = False

    def start(self, on_error: Callable[[RowferryError], None]) -> None:
        """Open the session in a thread of its own; `on_error` is called there if that fails.

        On repeat: nothing.
        """

        def open_now() -> None:
            try:
                self.session()
            except Exception as err:
                if self._closing:  # Java was ended under its hands
                    return
                if not isinstance(err, RowferryError):
                    raise
                on_error(err)
            finally:
                self._is_over.set()

        if self._opener is None:
            self._opener = threading.Thread(target=open_now, name="spark", daemon=True)
            self._opener.start()

    def session(self) -> SparkSession:
        """Return the session; waits while it is being opened.

        Raises:
            NoJava: Java did not start.
        """
        from rowferry.spark.session import close_session

        with self._lock:
            if self._session is not None and not _is_alive(self._session):
                close_session(self._session)
                self._session = None
            if self._session is None:
                spread(self._processors)  # Java runs where its opener does, a changefeed's thread
                self._session = self._open()
            return self._session

    def runner(
        self, changefeed: str, meanwhile: Callable[[RowferryError], None] | None = None
    ) -> EitherRunner:
        """Return who runs the plans of one changefeed, with a fair share of the session.

        With `meanwhile` it does not wait for Spark, but starts it when that is needed, and works by
        itself until it is there; `meanwhile` is called as `on_error` of `start`.
        """

        def is_there(needed: bool) -> bool:
            if meanwhile is not None and needed:
                self.start(meanwhile)
            return meanwhile is None or self._is_over.is_set()

        def open_spark() -> RunsTasks:
            return self.tasks(changefeed)

        return EitherRunner(DriverRunner(), open_spark, self._seats, is_there)

    def tasks(self, changefeed: str) -> SparkRunner:
        """Return who runs all plans of one changefeed as tasks; waits until Spark is there."""
        from rowferry.spark.job import SparkRunner

        return SparkRunner(self.session(), changefeed)

    def close(self) -> None:
        """Stop Spark, also while it starts."""
        self._closing = True
        if self._opener is None and self._session is None:
            return
        from rowferry.spark.session import close_session
        from rowferry.spark.versions import end_java

        while self._opener is not None and self._opener.is_alive():
            end_java()  # as soon as there is one
            self._opener.join(0.05)
        with self._lock:
            if self._session is not None:
                close_session(self._session)
                self._session = None


def spark_for_one(
    name: str, log_dir: Path, master: str, settings: Mapping[str, str]
) -> SharedSpark:
    """Return a session for a process with one changefeed; it is not opened yet."""

    def open_now() -> SparkSession:
        from rowferry.spark.session import open_session

        return open_session(name, log_dir, master, settings)

    return SharedSpark(open_now, alone=True)


def with_a_spare(master: str) -> str:
    """Return a master on this machine with one slot more, since no changefeed gets all of them.

    One that is elsewhere has its own settings, and stays as it is.
    """
    match = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if match is None:
        return master
    cores = os.cpu_count() or 1 if match[1] == "*" else int(match[1] or 1)
    return f"local[{cores + 1}]"


def _is_alive(session: SparkSession) -> bool:
    from rowferry.spark.versions import java_process

    java = java_process(session)
    return java is not None and java.poll() is None
