"""One table's changes as a DataFrame: `spark.readStream.format("rowferry")` and `spark.read`.

Spark calls these classes by its own names and keeps the offsets in its checkpoint. Planning happens
in a process that Spark starts beside the driver; each segment is read by a task of its own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from rowferry.change.plan import NearBytes, Segment
from rowferry.change.table import TableSchema
from rowferry.errors import BadOption, RowferryError, TableAltered, Verdict
from rowferry.flow.capture.contract import Source
from rowferry.secrets.environment import sources_of_environment
from rowferry.spark.shipping import is_key_here, packed, unpacked
from rowferry.spark.table_columns import as_batches, change_schema, same_columns
from rowferry.spark.table_request import RequestOptions, TableRequest, read_request, source_of
from rowferry.spark.table_stretches import Form, Offset, Stretches, plan_all
from rowferry.spark.versions import (
    LIMITS_MICRO_BATCHES,
    Follower,
    arrow_schema,
    check_release,
    make_known,
    spark_schema,
    words_alone,
)
from rowferry.spec.changefeed import ChangefeedSpec


def register(spark: SparkSession) -> None:
    """Make the format `rowferry` known to a session. On repeat: nothing changes.

    Where this package is installed for Spark's Python, Spark finds `pyspark_rowferry` by itself.

    Raises:
        WrongSpark: this version of Spark is not known.
    """
    check_release()
    make_known(spark, TableSource)


class TableSource(DataSource):
    """The format `rowferry`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rowferry"

    @words_alone()
    def schema(self) -> StructType:
        """Ask the source for the table as it is now.

        Raises:
            RowferryError: the options are wrong, or the source cannot be read.
        """
        check_release()
        request = read_request(self.options, _new_name())
        return spark_schema(change_schema(request.present(), request.native_times))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return who reads the table once."""
        return TableReader(dict(self.options), schema)

    @words_alone()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return who reads the table on and on.

        Raises:
            BadOption: a limit is wanted that this Spark does not ask for.
        """
        bounded = RequestOptions.max_bytes.key
        if not LIMITS_MICRO_BATCHES and bounded.lower() in map(str.lower, self.options):
            raise BadOption(
                f"{bounded} needs Spark 4.2 or newer; leave it out: here a micro-batch takes "
                "all there is"
            )
        return TableStreamReader(dict(self.options), schema)


class SegmentReader:
    """The part that tasks run. Travels to them as bytes: holds plain values only."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._wanted: pa.Schema = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one segment: its changes in log order, equal on every call.

        Raises:
            RowferryError: why it cannot be read.
        """
        if partition.value is None:  # Spark's stand-in where there is nothing to read
            return
        with words_alone():
            yield from self._read(*partition.value)

    def _read(self, planned: str, near: tuple[NearBytes, ...] = ()) -> Iterator[pa.RecordBatch]:
        settings, native_times, segment_form, table_forms = json.loads(planned)
        segment = replace(Segment.from_json(segment_form), near=near)
        definitions = [TableSchema.from_json(form) for form in table_forms]
        tables = dict(zip(segment.slices, definitions, strict=True))
        try:
            for rows in _source_of(settings).read(segment, tables):
                yield from as_batches(rows, self._wanted, native_times)
        except RowferryError as err:
            _source_of.cache_clear()  # a password may have changed since
            if err.verdict is not Verdict.REPLAN:
                raise
            raise type(err)(
                f"{err.words}; what was planned cannot be read any more: read again, or for a "
                "stream remove the newest file in `offsets` of its checkpoint and start it again"
            ) from None

    def _request(self, feed: str) -> TableRequest:
        return read_request(self._options, feed)

    def _fits(self, request: TableRequest, table: TableSchema) -> bool:
        return same_columns(change_schema(table, request.native_times), self._wanted)

    def _check_columns(self, request: TableRequest) -> None:
        """Refuse columns that the table has not: altered since, or given by hand."""
        if not self._fits(request, request.present()):
            raise TableAltered(
                f"the query's columns are not those of {request.table} now; load it again, without "
                ".schema(…)"
            )

    def _partitions(
        self, request: TableRequest, planned: Sequence[tuple[Segment, list[TableSchema]]]
    ) -> list[InputPartition]:
        settings, native_times = shipped_settings(request.spec), request.native_times

        def planned_form(segment: Segment, tables: list[TableSchema]) -> str:
            forms = [table.to_json() for table in tables]
            return json.dumps([settings, native_times, segment.to_json(), forms])

        return [InputPartition((planned_form(s, t), s.near_anywhere)) for s, t in planned]


class TableReader(SegmentReader, DataSourceReader):
    """Everything from the beginning that was asked for until the source has nothing more."""

    @words_alone()
    def partitions(self) -> list[InputPartition]:
        """Plan the segments."""
        request = self._request(_new_name())
        self._check_columns(request)
        planned = plan_all(request, lambda table: self._fits(request, table))
        return self._partitions(request, planned)


class TableStreamReader(SegmentReader, Follower):
    """Stretch after stretch; see `Stretches` for what an offset holds."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._bounded = False
        self._stretches: Stretches | None = None
        self._asked: TableRequest | None = None

    def initialOffset(self) -> Form:
        """Return where a new query begins: the same on every call, in every process."""
        return Offset().to_json()

    @words_alone()
    def most_bytes(self) -> int:
        """Return about how much a micro-batch takes."""
        return self._request(_new_name()).stretch_bytes

    def end_when_caught_up(self) -> None:
        """End where the source has nothing more."""
        self._bounded = True

    @words_alone()
    def follow(self, start: Form, everything: bool) -> Form:
        """Plan the next stretch; `start` itself: there is nothing new."""
        _, stretches = self._planning(start)
        return stretches.follow(start, everything)

    @words_alone()
    def planned(self, start: Form, end: Form) -> list[InputPartition]:
        """Return the segments that were planned between two offsets."""
        request, stretches = self._planning(end)
        return self._partitions(request, stretches.between(start, end))

    def stop(self) -> None:
        """Let connections go."""
        if self._stretches is not None:
            self._stretches.close()

    def _planning(self, offset: Form) -> tuple[TableRequest, Stretches]:
        if self._stretches is None or self._asked is None:
            request = self._request(Offset.from_json(offset).feed or _new_name())
            self._check_columns(request)
            self._asked = request
            self._stretches = Stretches(request, lambda table: self._fits(request, table))
            if self._bounded:
                self._stretches.end_when_caught_up()
        return self._asked, self._stretches

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stretches": None, "_asked": None}


def _new_name() -> str:
    return f"spark-{secrets.token_hex(8)}"


def shipped_settings(spec: ChangefeedSpec) -> str:
    """Return settings as Spark's partitions have them: no value of a reference can be read there.

    Where processes of Spark have our key, the values go along encrypted. Else the references do,
    and tasks look for the values themselves.
    """
    with_key = is_key_here()
    return packed(sources_of_environment().fixed(spec) if with_key else spec, with_key)


@lru_cache(maxsize=8)
def _source_of(settings: str) -> Source:
    """Return a worker process's source; connections in it live from task to task."""
    return source_of(unpacked(settings))
