"""Two sides compared on Spark: tasks read and sum up; one shuffle brings together what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rowferry.downstream.verify.comparison import A, Comparison
from rowferry.downstream.verify.lake import LakeTable
from rowferry.downstream.verify.postgresql import PostgresqlTable
from rowferry.downstream.verify.ranges import Ranges
from rowferry.downstream.verify.side import DatabaseTable, SideTable, StoredTable
from rowferry.downstream.verify.work import Differences, Sums, compare, joined, measure, pick
from rowferry.mysql.key_ranges import Chunk
from rowferry.spark.failure import as_error
from rowferry.spark.rebuild_table import ShareWork, worked_frame
from rowferry.spark.session import close_session, open_session
from rowferry.spark.shipping import shipped
from rowferry.spark.versions import by_number

_SUMS: Final = pa.schema([("side", pa.int32()), ("frame", pa.binary())])
_SUMS_DDL: Final = "side int, frame binary"
_FRAME: Final = pa.schema([("number", pa.int32()), ("side", pa.int32()), ("frame", pa.binary())])
_FRAME_DDL: Final = "number int, side int, frame binary"
_RANGES: Final = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("chunks", pa.string())])
_RANGES_DDL: Final = "a bigint, b bigint, chunks string"
_DIFFERENCES: Final = pa.schema([(name, pa.binary()) for name in ("a", "b", "old", "new")])
_DIFFERENCES_DDL: Final = "a binary, b binary, old binary, new binary"

Shares = Iterator[pa.Table]


class SparkVerifyRunner:
    """Runs a comparison's work as Spark jobs; a task holds a block of rows, or one group."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cores = spark.sparkContext.defaultParallelism

    def narrowed(self, ranges: Ranges) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows each side has, and the key ranges that differ.

        Raises:
            RowferryError: the error of the task that failed.
        """
        count = len(ranges.tables[A].chunks)
        parts = min(count, 4 * self._cores)
        numbers = self._spark.range(0, count, 1, numPartitions=parts)
        task = shipped(_RangeTask(ranges), self._spark)
        rows = _collected(numbers.mapInArrow(task, _RANGES_DDL))
        chunks = [Chunk.from_json(form) for row in rows for form in json.loads(row["chunks"])]
        return (sum(row["a"] for row in rows), sum(row["b"] for row in rows)), chunks

    def sums(
        self, comparison: Comparison, tables: tuple[SideTable, SideTable], buckets: int
    ) -> tuple[Sums, Sums]:
        """Sum up the rows of both sides, in one job.

        Raises:
            RowferryError: the error of the task that failed.
        """
        a, b = (
            self._worked(comparison, side, table, _SumWork(comparison, side, buckets), _SUMS_DDL)
            for side, table in enumerate(tables)
        )
        totals = Sums.empty(buckets), Sums.empty(buckets)
        for row in _collected(a.union(b)):
            totals[row["side"]].merge(Sums.from_bytes(bytes(row["frame"])))
        return totals

    def differences(
        self,
        comparison: Comparison,
        tables: tuple[SideTable, SideTable],
        groups: npt.NDArray[np.int32],
    ) -> Iterator[Differences]:
        """Compare the rows of the buckets that differ; the driver gets one group at a time.

        Raises:
            RowferryError: the error of the task that failed.
        """
        a, b = (
            self._worked(comparison, side, table, _PickWork(comparison, side, groups), _FRAME_DDL)
            for side, table in enumerate(tables)
        )
        parts = min(int(groups.max()) + 1, 4 * self._cores)
        in_order = by_number(a.union(b), parts, "number").sortWithinPartitions("number", "side")
        task = shipped(_CompareTask(comparison), self._spark)
        frames = in_order.mapInArrow(task, _DIFFERENCES_DDL)
        try:
            for row in frames.toLocalIterator(prefetchPartitions=True):
                yield Differences.from_bytes([bytes(frame) for frame in row])
        except Exception as err:
            raise as_error(err) from err

    def _worked(
        self,
        comparison: Comparison,
        side: int,
        table: SideTable,
        work: ShareWork,
        ddl: str,
    ) -> DataFrame:
        if isinstance(table, StoredTable):
            return worked_frame(self._spark, table.plan, work, ddl)
        count = table.pieces
        parts = max(1, min(count, 4 * self._cores))
        numbers = self._spark.range(0, count, 1, numPartitions=parts)
        task = shipped(_ReadTask(table, comparison.wanted(side), work), self._spark)
        return numbers.mapInArrow(task, ddl)


class _RangeTask:
    """What a task runs to compare key ranges on the servers."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (a, b), chunks = self._ranges.differing(batch.column(0).to_pylist())
            chunk_texts = pa.array([json.dumps([c.to_json() for c in chunks])])
            yield pa.RecordBatch.from_arrays(
                [pa.array([a]), pa.array([b]), chunk_texts], schema=_RANGES
            )


class _ReadTask:
    """What a task runs on some key ranges of a server's table, or files of a lake's."""

    def __init__(
        self,
        table: DatabaseTable | LakeTable | PostgresqlTable,
        wanted: tuple[str, ...],
        work: ShareWork,
    ) -> None:
        self._table, self._wanted, self._work = table, wanted, work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._work(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Shares:
        for batch in batches:
            yield from self._table.read(batch.column(0).to_pylist(), self._wanted)


class _SumWork:
    """Sums up all rows of a task."""

    def __init__(self, comparison: Comparison, side: int, buckets: int) -> None:
        self._comparison, self._side, self._buckets = comparison, side, buckets

    def __call__(self, shares: Shares) -> Iterator[pa.RecordBatch]:
        sums = measure(self._comparison, self._side, self._buckets, shares)
        columns = [pa.array([self._side], pa.int32()), pa.array([sums.to_bytes()], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_SUMS)


class _PickWork:
    """Picks the rows of buckets that differ."""

    def __init__(self, comparison: Comparison, side: int, groups: npt.NDArray[np.int32]) -> None:
        self._comparison, self._side, self._groups = comparison, side, groups

    def __call__(self, shares: Shares) -> Iterator[pa.RecordBatch]:
        for number, frame in pick(self._comparison, self._side, self._groups, shares):
            columns = [pa.array([number], pa.int32()), pa.array([self._side], pa.int32())]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.array([frame], pa.binary())], schema=_FRAME
            )


class _CompareTask:
    """What a second task runs: its groups one after the other."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compare the frames that come in, sorted by group; yield what differs."""
        current: int | None = None
        frames: tuple[list[bytes], list[bytes]] = ([], [])
        for batch in batches:
            numbers, sides = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            for place, (number, side) in enumerate(zip(numbers, sides, strict=True)):
                if number != current:
                    yield from self._compared(frames)
                    current, frames = number, ([], [])
                frames[side].append(batch.column(2)[place].as_py())
        yield from self._compared(frames)

    def _compared(self, frames: tuple[list[bytes], list[bytes]]) -> Iterator[pa.RecordBatch]:
        if not any(frames):
            return
        a, b = (joined(self._comparison, side, some) for side, some in enumerate(frames))
        differences = compare(self._comparison, a, b)
        if len(differences):
            columns = [pa.array([frame], pa.binary()) for frame in differences.to_bytes()]
            yield pa.RecordBatch.from_arrays(columns, schema=_DIFFERENCES)


def _collected(frame: DataFrame) -> list[Any]:
    try:
        return frame.collect()
    except Exception as err:
        raise as_error(err) from err


@contextmanager
def opened_verify(log_dir: Path, master: str) -> Iterator[SparkVerifyRunner]:
    """Start Spark for a comparison, and stop it again."""
    session = open_session("rowferry verify", log_dir, master)
    try:
        yield SparkVerifyRunner(session)
    finally:
        close_session(session)
