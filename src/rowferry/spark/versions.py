"""All that differs between Spark 4.0 and 4.3, and all of PySpark that is not its public interface.

No other module of ours uses private names of PySpark (`tests/arch` looks for them), so that a new
version of Spark is met here and nowhere else.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import Accumulator, _accumulatorRegistry
from pyspark.errors import AnalysisException, PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from rowferry.errors import NoJava, RowferryError, WrongSpark
from rowferry.spark.doors import private_file

OLDEST: Final = (4, 0)
NEWEST: Final = (4, 3)
RELEASE: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

JAVA_RAISED: Final = (Py4JJavaError, PySparkException)  # which, depends on sessions before
JAVA_GONE: Final = (OSError, Py4JError)
_WORD: Final = (1 << 32) - 1
_HASH_BEGIN: Final = 42  # where Spark begins a hash
_INT_BYTES: Final = 4
LIMITS_MICRO_BATCHES: Final = RELEASE >= (4, 2)

Form = dict[str, Any]


def check_release() -> None:
    """Refuse a Spark that this package was never tried with.

    Raises:
        WrongSpark: PySpark is older or newer.
    """
    if not OLDEST <= RELEASE <= NEWEST:
        oldest, newest = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise WrongSpark(
            f"pyspark {pyspark.__version__} is installed, and Rowferry runs with {oldest} to "
            f'{newest}; install one of these: pip install "pyspark=={newest}.*"'
        )


# --- the Java process ----------------------------------------------------------------------------


def has_java() -> bool:
    """Return whether this process has started Java and has not ended it."""
    return SparkContext._gateway is not None


def java_process(session: SparkSession) -> subprocess.Popen[bytes] | None:
    """Return the Java process of a session; None: it has none any more."""
    gateway = session.sparkContext._gateway
    return gateway.proc if gateway is not None else None


def start_java(conf: SparkConf, output: Path) -> None:
    """Start Spark's Java process: output to a file, out of reach of the terminal's Ctrl-C.

    Raises:
        NoJava: it did not start.
    """
    with open(private_file(output), "ab") as target:
        popen = {"stdout": target, "stderr": target, "start_new_session": True}
        try:
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
        except (PySparkRuntimeError, OSError) as err:
            raise NoJava(
                "Spark's Java process did not start; install Java 17 or newer (or set JAVA_HOME); "
                f"details are in {output} ({type(err).__name__})"
            ) from None


def end_java() -> None:
    """End the Java process, if there is one."""
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # its end tells the process to go
        try:
            gateway.proc.wait(10)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


def forget_session() -> None:
    """Let PySpark forget a session whose Java process is gone, so that another can be opened."""
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def scratch_folder(session: SparkSession) -> str:
    """Return a folder of this machine that Spark removes when it ends."""
    return str(session.sparkContext._temp_dir)


def forget_accumulator(one: Accumulator[Any]) -> None:
    """Let PySpark forget an accumulator: it keeps every one for ever."""
    _accumulatorRegistry.pop(one.aid, None)


def serve_workers() -> None:
    """Fork workers as Spark's own daemon does, until Spark ends."""
    from pyspark import daemon  # only a daemon's process may load it

    daemon.manager()


# --- frames --------------------------------------------------------------------------------------


def spark_schema(columns: pa.Schema) -> StructType:
    """Return Arrow's columns in Spark's words; times without a zone stay so."""
    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return Spark's columns in Arrow's words; times with a zone are in UTC."""
    if RELEASE < (4, 2):  # where UTC is what it gives, and there is no such parameter
        return to_arrow_schema(columns)
    return to_arrow_schema(columns, timezone="UTC")


def by_number(frame: DataFrame, parts: int, column: str) -> DataFrame:
    """Shuffle rows: those with number n in a column of type int come to partition n modulo parts.

    Spark 4.0 can only shuffle by a hash, so numbers are replaced there by those with the right one.
    """
    if RELEASE >= (4, 1):
        return frame.repartitionById(parts, frame[column])
    stand_ins = ", ".join(map(str, _hashed_to(parts)))
    return frame.repartition(parts, sql.expr(f"array({stand_ins})[pmod({column}, {parts})]"))


@lru_cache(maxsize=64)
def _hashed_to(parts: int) -> tuple[int, ...]:
    """Return for each partition an integer that Spark's hash brings there."""
    by_partition: dict[int, int] = {}
    number = 0
    while len(by_partition) < parts:
        by_partition.setdefault(spark_hash(number) % parts, number)
        number += 1
    return tuple(by_partition[part] for part in range(parts))


def spark_hash(number: int) -> int:
    """Return what Spark's function `hash` gives for an int that is not negative: Murmur3."""
    word = _turned(number * 0xCC9E2D51, 15) * 0x1B873593
    mixed = ((_turned(word ^ _HASH_BEGIN, 13) * 5 + 0xE6546B64) & _WORD) ^ _INT_BYTES
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _WORD
    return mixed - ((mixed >> 31) << 32)


def _turned(word: int, bits: int) -> int:
    """Turn a word of 32 bits to the left."""
    word &= _WORD
    return ((word << bits) | (word >> (32 - bits))) & _WORD


# --- data sources --------------------------------------------------------------------------------


def make_known(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a data source known to a session, unless Spark has found its module by itself."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as err:
        if err.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def words_alone() -> Iterator[None]:
    """Let an error of ours reach Spark's user as its one line, without Python's traceback.

    For code that runs in a worker of Spark, which ends with the error: Spark asks this variable
    of the process when it writes down why.
    """
    try:
        yield
    except RowferryError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


# --- streams -------------------------------------------------------------------------------------


class StreamReporter(ABC):
    """What a stream tells of itself, to whichever Spark asks."""

    @abstractmethod
    def follow(self, start: Form, everything: bool) -> Form:
        """Return the end of the next micro-batch: all there is, or as much as is allowed.

        `start` itself: there is nothing new.
        """

    @abstractmethod
    def planned(self, start: Form, end: Form) -> Sequence[Any]:
        """Return the partitions between two offsets."""

    @abstractmethod
    def end_when_caught_up(self) -> None:
        """Let nothing follow once all that is there by now was read."""

    @abstractmethod
    def most_bytes(self) -> int:
        """Return about how much a micro-batch may take."""


if LIMITS_MICRO_BATCHES:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    class Follower(StreamReporter, DataSourceStreamReader, SupportsTriggerAvailableNow):
        """A stream reader that Spark tells where to begin, and how much to take."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return how much a micro-batch takes."""
            return ReadMaxBytes(self.most_bytes())

        def prepareForTriggerAvailableNow(self) -> None:
            """End where the source has nothing more; what is written meanwhile may be read too."""
            self.end_when_caught_up()

        def latestOffset(self, start: Form, limit: ReadLimit) -> Form:
            """Plan the next micro-batch."""
            return self.follow(start, everything=isinstance(limit, ReadAllAvailable))

        def partitions(self, start: Form, end: Form) -> Sequence[Any]:
            """Return what was planned between two offsets."""
            return self.planned(start, end)

elif RELEASE >= OLDEST:
    from pyspark.sql.datasource import DataSourceStreamReader

    class Follower(StreamReporter, DataSourceStreamReader):  # type: ignore[no-redef]
        """A stream reader that Spark asks for the newest offset and tells nothing.

        `Trigger.AvailableNow` is one question then (or none, where a micro-batch is to be run
        again), so that each answer must hold all there is. A query that goes on from its checkpoint
        begins with `partitions` of its last offset.
        """

        _place: Form | None = None

        def latestOffset(self) -> Form:  # type: ignore[override]
            """Plan the next micro-batch, behind the one before it."""
            start = self.initialOffset() if self._place is None else self._place
            self._place = self.follow(start, everything=True)
            return self._place

        def partitions(self, start: Form, end: Form) -> Sequence[Any]:
            """Return what was planned between two offsets."""
            self._place = end
            return self.planned(start, end)
