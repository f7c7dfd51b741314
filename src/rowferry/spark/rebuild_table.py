"""Tables rebuilt from change files, on Spark: one shuffle by key, then the last change of each.

The driver lists files. First tasks read and decode theirs, bring rows to the table's last version,
and send images by the hash of their key; second tasks merge one share after the other. So a task
holds a part of its files' rows, or what is left of one share: never a table that is not small.
Small tables need no shuffle: one job rebuilds many of them, each in one task.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.table import TableId
from rowferry.downstream.rebuild.images import Remaining, shares
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import TablePlan, plan_tables, rebuild_within
from rowferry.errors import BadOption
from rowferry.secrets.environment import sources_of_environment
from rowferry.spark.failure import as_error
from rowferry.spark.session import close_session, open_session
from rowferry.spark.shipping import has_key, shipped
from rowferry.spark.table_columns import OWN, as_batches, change_schema
from rowferry.spark.versions import by_number, spark_schema

T = TypeVar("T")
_FRAME = pa.schema([("share", pa.int32()), ("frame", pa.binary())])
_FRAME_DDL = "share int, frame binary"
_ANSWER = pa.schema([("place", pa.int64()), ("count", pa.int64()), ("frame", pa.binary())])
_ANSWER_DDL = "place bigint, count bigint, frame binary"
_NOT_SMALL: Final = -1
_SMALL_BYTES: Final = 4 << 20  # changes of a table that one task may hold at once
_AT_ONCE: Final = 64  # tables of one job; the driver gets the first rows of all of them
_MOST_SHARES: Final = 256
_HELD_BYTES: Final = 32 << 20  # images that a first task holds before it sends them
_FRAME_BYTES: Final = 512 << 10  # pieces of this size cross to Java fastest


def read_table(
    spark: SparkSession,
    uri: str,
    table: str | TableId,
    as_of: int | None = None,
    config: Path | None = None,
    key: Sequence[str] = (),
    native_times: bool = False,
) -> DataFrame:
    """Return a table as it was at a commit-ts, from the change files of a storage sink.

    Args:
        spark: the session; workers must have this package.
        uri: the sink's URI, as the changefeed has it; its secrets may be references.
        table: `database.table`, as the files name it.
        as_of: a commit-ts; None: the checkpoint, or all that is visible where rows do not tell.
        config: the changefeed's configuration file.
        key: columns that name a row, for a table whose schema files tell no primary key.
        native_times: dates and times as Spark's types instead of text; what Spark cannot hold
            (zero dates) is NULL then.

    Raises:
        BadInput: the request cannot be understood, or cannot be answered exactly.
        SinkDamaged: schema, index, metadata or data files are not as they must be.
    """
    name = TableId(*table.split(".", 1)) if isinstance(table, str) else table
    feed = open_storage(uri, config, secrets=sources_of_environment())
    (plan,) = plan_tables(feed, [name], as_of, key)
    return table_frame(spark, plan, native_times)


def table_frame(spark: SparkSession, plan: TablePlan, native_times: bool = False) -> DataFrame:
    """Return the table of a plan; nothing is read before the frame is used."""
    task = _SparkRows(plan, native_times)
    return worked_frame(spark, plan, task, spark_schema(_row_schema(plan, native_times)))


class ShareWork(Protocol):
    """What a task does with the rows of its shares of a table."""

    def __call__(self, shares: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Take the shares' rows, in canonical values, one share after the other."""
        ...


def worked_frame(
    spark: SparkSession, plan: TablePlan, work: ShareWork, schema: StructType | str
) -> DataFrame:
    """Return what tasks make of the shares of a plan's table; nothing is read before it is used."""
    cores = spark.sparkContext.defaultParallelism
    files = len(plan.lineage.files)
    readers = max(1, min(files, 4 * cores))
    parts = min(_MOST_SHARES, max(cores, 2 * files))
    numbers = spark.range(0, readers, 1, numPartitions=readers)
    plan = _with_values(plan, spark)
    read = shipped(_ReadTask(plan, readers, parts), spark)
    frames = numbers.mapInArrow(read, _FRAME_DDL)
    together = by_number(frames, min(parts, 2 * cores), "share")
    merge = shipped(_MergeTask(plan, work), spark)
    return together.sortWithinPartitions("share").mapInArrow(merge, schema)


def _with_values(plan: TablePlan, spark: SparkSession) -> TablePlan:
    """Return a plan for tasks: with the values of its references, where nobody can read them.

    Else tasks look for the values themselves.
    """
    if not has_key(spark.sparkContext.getConf()):
        return plan
    return replace(plan, spec=sources_of_environment().fixed_sink(plan.spec))


def _row_schema(plan: TablePlan, native_times: bool) -> pa.Schema:
    whole = change_schema(plan.schema, native_times)
    return pa.schema([field for field in whole if field.name not in OWN])


class _ReadTask:
    """What each first task runs: every so-manieth file, to images by share."""

    def __init__(self, plan: TablePlan, readers: int, count: int) -> None:
        self._plan, self._readers, self._count = plan, readers, count

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of the tasks whose numbers come in; yield frames."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(number)

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        held, held_bytes = Remaining(plan.schema, plan.key), 0
        for images in plan.images(plan.lineage.files[number :: self._readers]):
            held.add(images)
            held_bytes += images.nbytes
            if held_bytes >= _HELD_BYTES:
                yield from self._frames(held.images())
                held, held_bytes = Remaining(plan.schema, plan.key), 0
        yield from self._frames(held.images())

    def _frames(self, images: pa.Table) -> Iterator[pa.RecordBatch]:
        for share, mine in shares(images, self._plan.schema, self._plan.key, self._count):
            rows = max(1, mine.num_rows * _FRAME_BYTES // max(1, mine.nbytes))
            for start in range(0, mine.num_rows, rows):
                frame = _to_bytes(mine.slice(start, rows))
                columns = [pa.array([share], pa.int32()), pa.array([frame], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, schema=_FRAME)


class _MergeTask:
    """What each second task runs: its shares one after the other, to the rows that are left."""

    def __init__(self, plan: TablePlan, work: ShareWork) -> None:
        self._plan, self._work = plan, work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the frames that come in, sorted by share; yield what the work makes of them."""
        return self._work(self._shares(batches))

    def _shares(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        plan = self._plan
        current, remaining = -1, Remaining(plan.schema, plan.key)
        for batch in batches:
            for place, share in enumerate(batch.column(0).to_pylist()):
                if share != current:
                    yield remaining.rows()
                    current, remaining = share, Remaining(plan.schema, plan.key)
                remaining.add(_from_bytes(batch.column(1)[place].as_buffer()))
        yield remaining.rows()


class _SparkRows:
    """The work that gives the rows themselves, in Spark's types."""

    def __init__(self, plan: TablePlan, native_times: bool) -> None:
        self._plan, self._native_times = plan, native_times

    def __call__(self, shares: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        for rows in shares:
            yield from _in_spark_types(self._plan, rows, self._native_times)


def _in_spark_types(
    plan: TablePlan, table: pa.Table, native_times: bool
) -> Iterator[pa.RecordBatch]:
    wanted = change_schema(plan.schema, native_times)
    names = [f.name for f in wanted if f.name not in OWN]
    for part in table.combine_chunks().to_batches():
        for batch in as_batches(_inserts(plan, part), wanted, native_times):
            yield batch.select(names)


def _inserts(plan: TablePlan, part: pa.RecordBatch) -> Rows:
    image = part.to_struct_array()
    count = part.num_rows
    return make_rows(
        plan.schema,
        pa.repeat(pa.scalar(0, pa.int8()), count),
        pa.repeat(pa.scalar(0, pa.uint64()), count),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        pa.nulls(count, image.type),
        image,
    )


def _to_bytes(images: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, images.schema, options=options) as writer:
        writer.write_table(images)
    return bytes(sink.getvalue())


def _from_bytes(frame: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(frame) as reader:
        return reader.read_all()


class _SmallTask:
    """What each task runs for some tables, if they are small: all of a table's work.

    With folders a table is written there; else its first rows come back.
    """

    def __init__(
        self, plans: Sequence[TablePlan], folders: Sequence[Path], most: int, native_times: bool
    ) -> None:
        self._plans, self._folders = plans, folders
        self._most, self._native_times = most, native_times
        self._small_bytes = _SMALL_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rebuild the tables whose places come in; yield count and first rows of each."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                count, frame = self._rebuilt(place)
                answer = {"place": place, "count": count, "frame": frame}
                yield pa.RecordBatch.from_pylist([answer], schema=_ANSWER)

    def _rebuilt(self, place: int) -> tuple[int, bytes]:
        plan = self._plans[place]
        rows = rebuild_within(plan, self._small_bytes)
        if rows is None:
            return _NOT_SMALL, b""
        parts = list(_in_spark_types(plan, rows, self._native_times))
        table = pa.Table.from_batches(parts, _row_schema(plan, self._native_times))
        if self._folders:
            _write_parquet(table, self._folders[place])
            return table.num_rows, b""
        names = plan.key or table.column_names
        order = pc.sort_indices(table, [(n, "ascending") for n in names], null_placement="at_start")
        return table.num_rows, _to_bytes(table.take(order[: self._most]))


def _write_parquet(table: pa.Table, folder: Path) -> None:
    """Write a folder as Spark does; it is never there in part.

    One that is there is an earlier try's of the same task, whose answer was lost.
    """
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    pq.write_table(table, unfinished / "part-00000.parquet")
    (unfinished / "_SUCCESS").touch()
    unfinished.rename(folder)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A table that was rebuilt: how many rows it has, and the first ones if they were wanted."""

    plan: TablePlan
    count: int
    rows: tuple[tuple[object, ...], ...] = ()


class TableJob:
    """Rebuilds tables on one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks of the stages under way are done, of how many."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        known = [s for s in stages if s is not None]
        return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)

    def show(
        self, plans: Sequence[TablePlan], most: int, native_times: bool = False
    ) -> Iterator[Rebuilt]:
        """Yield each table with its first rows by its key, in the order of the plans.

        Raises:
            RowferryError: the error of the task that failed.
        """
        for some in _groups(plans):
            answers = self._small(some, (), most, native_times)
            for plan, (count, frame) in zip(some, answers, strict=True):
                if count == _NOT_SMALL:
                    yield self._shown(plan, most, native_times)
                else:
                    rows = _from_bytes(pa.py_buffer(frame)).to_pylist()
                    yield Rebuilt(plan, count, tuple(tuple(row.values()) for row in rows))

    def write(
        self, plans: Sequence[TablePlan], folders: Sequence[Path], native_times: bool = False
    ) -> Iterator[Rebuilt]:
        """Write each table as Parquet into its new folder; yield them in the order of the plans.

        Raises:
            BadOption: a folder is there already; nothing was written.
            RowferryError: the error of the task that failed.
        """
        for folder in folders:
            if folder.exists():
                raise BadOption(f"{folder} is there already; name another folder")
        for some, places in zip(_groups(plans), _groups(folders), strict=True):
            answers = self._small(some, places, 0, native_times)
            for plan, folder, (count, _) in zip(some, places, answers, strict=True):
                if count == _NOT_SMALL:
                    count = self._written(plan, folder, native_times)
                yield Rebuilt(plan, count)

    def _small(
        self, plans: Sequence[TablePlan], folders: Sequence[Path], most: int, native_times: bool
    ) -> list[tuple[int, bytes]]:
        parts = min(len(plans), 4 * self._spark.sparkContext.defaultParallelism)
        whole = [_with_values(plan, self._spark) for plan in plans]
        task = shipped(_SmallTask(whole, folders, most, native_times), self._spark)
        numbers = self._spark.range(0, len(plans), 1, numPartitions=parts)
        try:
            answers = numbers.mapInArrow(task, _ANSWER_DDL).collect()
        except Exception as err:
            raise as_error(err) from err
        by_place = {row["place"]: (row["count"], bytes(row["frame"])) for row in answers}
        return [by_place[place] for place in range(len(plans))]

    def _shown(self, plan: TablePlan, most: int, native_times: bool) -> Rebuilt:
        names = plan.key or [c.name for c in plan.schema.visible]
        seen = Observation()
        frame = table_frame(self._spark, plan, native_times).observe(seen, _counted())
        try:
            rows = frame.orderBy(*(f"`{_quoted(n)}`" for n in names)).limit(most).collect()
        except Exception as err:
            raise as_error(err) from err
        return Rebuilt(plan, int(seen.get["rows"]), tuple(tuple(row) for row in rows))

    def _written(self, plan: TablePlan, folder: Path, native_times: bool) -> int:
        seen = Observation()
        frame = table_frame(self._spark, plan, native_times).observe(seen, _counted())
        try:
            frame.write.parquet(folder.as_uri())
        except Exception as err:
            raise as_error(err) from err
        return int(seen.get["rows"])


def _groups(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[i : i + _AT_ONCE] for i in range(0, len(items), _AT_ONCE)]


@contextmanager
def opened_job(log_dir: Path, master: str) -> Iterator[TableJob]:
    """Start Spark for some tables, and stop it again."""
    session = open_session("rowferry table", log_dir, master)
    try:
        yield TableJob(session)
    finally:
        close_session(session)


def _counted() -> Column:
    return sql.count(sql.lit(1)).alias("rows")


def _quoted(name: str) -> str:
    return name.replace("`", "``")
