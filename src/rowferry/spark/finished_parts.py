"""What tasks report while others of their job still run: which segment is done, and its rows.

It comes by one of Spark's accumulators: those of a task that succeeded reach the driver at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark import Accumulator, AccumulatorParam, SparkContext

from rowferry.spark.versions import forget_accumulator

Part = tuple[int, int, int, int]  # job, segment, rows, bytes


class _Gathered(AccumulatorParam[list[Part]]):
    """In tasks: a list that grows."""

    def zero(self, value: list[Part]) -> list[Part]:
        return []

    def addInPlace(self, value1: list[Part], value2: list[Part]) -> list[Part]:
        value1.extend(value2)
        return value1


class _HandedOn(_Gathered):
    """On the driver: what comes is handed on, and not kept."""

    def __init__(self, tell: Callable[[Part], None]) -> None:
        self._tell = tell

    def addInPlace(self, value1: list[Part], value2: list[Part]) -> list[Part]:
        for part in value2:
            self._tell(part)
        return value1

    def __reduce__(self) -> Any:
        return _Gathered, ()


class PartReporter:
    """The side of the tasks of one job: reports the parts that are done."""

    def __init__(self, job: int, parts: Accumulator[list[Part]]) -> None:
        self._job, self._parts = job, parts

    def add(self, segment: int, rows: int, size: int) -> None:
        """Report that a segment, or one output of it, is done."""
        self._parts.add([(self._job, segment, rows, size)])


class PartListener:
    """The driver's side, for the jobs of one changefeed, one after the other."""

    def __init__(self, context: SparkContext, tell: Callable[[int, int, int], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._job = 0
        self._parts = context.accumulator([], _HandedOn(self._take))

    def next_job(self) -> PartReporter:
        """Return what the tasks of the next job need; those of earlier ones are not heard more."""
        with self._lock:
            self._job += 1
            return PartReporter(self._job, self._parts)

    def close(self) -> None:
        """Hear nothing more."""
        self.next_job()
        forget_accumulator(self._parts)

    def _take(self, part: Part) -> None:
        job, segment, rows, size = part
        with self._lock:
            if job != self._job:
                return
        self._tell(segment, rows, size)
