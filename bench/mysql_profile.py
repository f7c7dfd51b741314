"""Where the time of a feed goes: seconds for each stage, in tasks and on the driver.

Stages are measured by wrapping their functions. A stage that calls another one is charged only for
its own part. Tasks write what they measured to files, which the driver adds up.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import cloudpickle

from rowferry.control.store.sql_store import SqlStore
from rowferry.flow.capture.binlog import read
from rowferry.flow.capture.binlog.client.stream import LogStream
from rowferry.flow.capture.binlog.decode.rows_events import RowsDecoder
from rowferry.flow.capture.binlog.frame import scanner
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.csv.codec import Csv
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.storage.local_files import LocalFiles, LocalStaged
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spark import job

Call = Callable[..., Any]
AHEAD = "binlog"  # the driver's thread that frames the log while jobs run


@dataclass
class Spent:
    """Time of one stage."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls: int = 0


@dataclass
class Stopwatch:
    """Charges time to the stage that runs, in each thread for itself."""

    spent: dict[str, Spent] = field(default_factory=dict)
    _own: threading.local = field(default_factory=threading.local)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge a block's time to a stage, without that of stages inside it."""
        if threading.current_thread().name == AHEAD:
            name = f"driver, ahead: {name}"
        stack: list[str] = self._own.__dict__.setdefault("stack", [])
        self._charge(stack)
        stack.append(name)
        self.spent.setdefault(name, Spent()).calls += 1
        try:
            yield
        finally:
            self._charge(stack)
            stack.pop()

    def _charge(self, stack: list[str]) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        if stack:
            spent = self.spent[stack[-1]]
            spent.wall_s += now - self._own.now
            spent.cpu_s += cpu - self._own.cpu
        self._own.now, self._own.cpu = now, cpu

    def around(self, name: str, function: Call) -> Call:
        """Return the function, charged to a stage."""

        def wrapped(*values: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*values, **named)

        return wrapped

    def each(self, name: str, function: Call) -> Call:
        """Return a function that gives an iterator, whose every item is charged to a stage."""

        def wrapped(*values: Any, **named: Any) -> Iterator[Any]:
            items = iter(function(*values, **named))
            while True:
                with self.stage(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        return wrapped


_TASK = (
    (LogStream, "__init__", "connect", "around"),
    (LogStream, "fill", "fetch", "around"),
    (read, "run_walk", "frame and checksum", "around"),
    (RowsDecoder, "__init__", "table map to decoder", "around"),
    (RowsDecoder, "decode", "decode", "each"),
    (RowsDecoder, "decode_alike", "decode", "each"),
    (Decisions, "rows", "decide", "each"),
    (CanalJson, "encode_rows", "encode", "around"),
    (CanalJson, "encode_same_layout", "encode", "around"),
    (Csv, "encode_rows", "encode", "around"),
    (Csv, "encode_same_layout", "encode", "around"),
    (LocalStaged, "append", "write", "around"),
    (LocalFiles, "flush", "sync", "around"),
    (LocalFiles, "settle", "sync", "around"),
    (StorageSink, "write", "sink, the rest", "around"),
    (Blackhole, "write", "sink, the rest", "around"),
)
_DRIVER = (
    (scanner, "run_walk", "frame", "around"),
    (BinlogPlanner, "plan", "driver: plan", "around"),
    (SqlStore, "record", "driver: record", "around"),
    (SqlStore, "publish", "driver: store progress", "around"),
    (StorageSink, "allocate", "driver: number the files", "around"),
    (StorageSink, "publish", "driver: publish files", "around"),
    (job.SparkRunner, "run", "driver: Spark job", "around"),
)


@contextmanager
def _wrapped(watch: Stopwatch, places: tuple[tuple[Any, str, str, str], ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, function, stage, how in places:
            found = getattr(watch, how)(stage, getattr(owner, function))
            stack.enter_context(patch.object(owner, function, found))
        yield


@contextmanager
def in_this_process(watch: Stopwatch, driver: bool = False) -> Iterator[None]:
    """Measure the tasks' stages in this process, and those of a driver."""
    with _wrapped(watch, _TASK + (_DRIVER if driver else ())):
        yield


class MeasuredTask(job.SegmentTask):
    """A task that leaves the time of its stages in a folder."""

    folder = ""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._folder = type(self).folder
        self._made_at = time.time()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        watch = Stopwatch()
        began = time.time()
        with in_this_process(watch), watch.stage("task, the rest"):
            found = list(super().__call__(batches))
        spent = {name: vars(one) for name, one in watch.spent.items()}
        about = {"waited_s": began - self._made_at, "wall_s": time.time() - began, "stages": spent}
        Path(self._folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps(about))
        yield from found


@contextmanager
def of_spark(folder: Path, watch: Stopwatch) -> Iterator[None]:
    """Measure a feed that runs through Spark: the driver's stages here, the tasks' in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    MeasuredTask.folder = str(folder)
    me = sys.modules[__name__]
    # Workers cannot import from this folder.
    cloudpickle.register_pickle_by_value(me)  # type: ignore[no-untyped-call]
    try:
        with _wrapped(watch, _DRIVER), patch.object(job, "SegmentTask", MeasuredTask):
            yield
    finally:
        cloudpickle.unregister_pickle_by_value(me)  # type: ignore[no-untyped-call]


def tasks_in(folder: Path) -> dict[str, Spent]:
    """Return the time of all tasks by stage, and that of the tasks as a whole."""
    whole, total = Spent(), Stopwatch()
    waited = []
    for path in folder.glob("*.json"):
        about = json.loads(path.read_text())
        waited.append(about["waited_s"])
        whole.calls, whole.wall_s = whole.calls + 1, whole.wall_s + about["wall_s"]
        for name, one in about["stages"].items():
            spent = total.spent.setdefault(name, Spent())
            spent.wall_s += one["wall_s"]
            spent.cpu_s += one["cpu_s"]
            spent.calls += one["calls"]
            whole.cpu_s += one["cpu_s"]
    first = Spent(min(waited, default=0.0), 0.0, 1)
    return {"Spark: until the first task": first, "all tasks together": whole, **total.spent}
