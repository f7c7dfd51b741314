"""Tables rebuilt from change files, on Spark: one shuffle by key, then the last change of each.

The driver lists files. First tasks read and decode theirs, bring rows to the table's last version,
and send images by the hash of their key; second tasks merge one share after the other. So a task
holds a part of its files' rows, or what is left of one share: never a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.sql.pandas.types import from_arrow_schema

from rowferry.change.chunk import Rows, make_rows
from rowferry.change.table import TableId
from rowferry.rebuild.images import Remaining, shares
from rowferry.rebuild.stored_feed import open_storage
from rowferry.rebuild.table import TablePlan, plan_tables
from rowferry.spark.failure import as_error
from rowferry.spark.session import close_session, open_session
from rowferry.spark.table_columns import OWN, as_batches, change_schema

_FRAME = pa.schema([("share", pa.int32()), ("frame", pa.binary())])
_FRAME_DDL = "share int, frame binary"
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
        uri: the sink's URI, as the changefeed has it.
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
    (plan,) = plan_tables(open_storage(uri, config), [name], as_of, key)
    return table_frame(spark, plan, native_times)


def table_frame(spark: SparkSession, plan: TablePlan, native_times: bool = False) -> DataFrame:
    """Return the table of a plan; nothing is read before the frame is used."""
    cores = spark.sparkContext.defaultParallelism
    files = len(plan.lineage.files)
    readers = max(1, min(files, 4 * cores))
    parts = min(_MOST_SHARES, max(cores, 2 * files))
    schema = _row_schema(plan, native_times)
    numbers = spark.range(0, readers, 1, numPartitions=readers)
    frames = numbers.mapInArrow(_ReadTask(plan, readers, parts).__call__, _FRAME_DDL)
    together = frames.repartitionById(min(parts, 2 * cores), frames["share"])
    merge = _MergeTask(plan, native_times)
    return together.sortWithinPartitions("share").mapInArrow(
        merge.__call__, from_arrow_schema(schema)
    )


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

    def __init__(self, plan: TablePlan, native_times: bool) -> None:
        self._plan, self._native_times = plan, native_times

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the frames that come in, sorted by share; yield rows in Spark's types."""
        plan = self._plan
        current, remaining = -1, Remaining(plan.schema, plan.key)
        for batch in batches:
            for place, share in enumerate(batch.column(0).to_pylist()):
                if share != current:
                    yield from self._rows(remaining)
                    current, remaining = share, Remaining(plan.schema, plan.key)
                remaining.add(_from_bytes(batch.column(1)[place].as_buffer()))
        yield from self._rows(remaining)

    def _rows(self, remaining: Remaining) -> Iterator[pa.RecordBatch]:
        wanted = change_schema(self._plan.schema, self._native_times)
        names = [f.name for f in wanted if f.name not in OWN]
        for part in remaining.rows().combine_chunks().to_batches():
            rows = _inserts(self._plan, part)
            for batch in as_batches(rows, wanted, self._native_times):
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


class TableJob:
    """Rebuilds tables on one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def first_rows(
        self, plan: TablePlan, most: int, native_times: bool = False
    ) -> tuple[int, list[tuple[object, ...]]]:
        """Return how many rows a table has, and some of them, the first by its key.

        Raises:
            RowferryError: the error of the task that failed.
        """
        names = plan.key or [c.name for c in plan.schema.visible]
        seen = Observation()
        frame = table_frame(self._spark, plan, native_times).observe(seen, _counted())
        try:
            rows = frame.orderBy(*(f"`{_quoted(n)}`" for n in names)).limit(most).collect()
        except Exception as err:
            raise as_error(err) from err
        return int(seen.get["rows"]), [tuple(row) for row in rows]

    def write(self, plan: TablePlan, folder: Path, native_times: bool = False) -> int:
        """Write a table as Parquet into a new folder; return how many rows it has.

        Raises:
            RowferryError: the error of the task that failed.
        """
        seen = Observation()
        frame = table_frame(self._spark, plan, native_times).observe(seen, _counted())
        try:
            frame.write.parquet(folder.as_uri())
        except Exception as err:
            raise as_error(err) from err
        return int(seen.get["rows"])


@contextmanager
def opened_job(log_dir: Path, master: str) -> Iterator[TableJob]:
    """Start Spark for some tables, and stop it again."""
    session = open_session("rowferry table", log_dir, master)
    try:
        yield TableJob(session)
    finally:
        close_session(session)


def _counted() -> Column:
    return count(lit(1)).alias("rows")


def _quoted(name: str) -> str:
    return name.replace("`", "``")
