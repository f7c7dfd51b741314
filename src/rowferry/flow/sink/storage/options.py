"""Options of the storage sink, and the settings that they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from rowferry.errors import OptionsConflict
from rowferry.flow.sink.storage.compress import SUFFIXES
from rowferry.flow.sink.storage.cron import Cron
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    Option,
    OptionShape,
    OptionTable,
    duration,
    flag,
    one_of,
    size,
    text,
    whole,
)


def _positive(key: str, most: int | None = None) -> OptionShape[int]:
    """A whole number above 0; above `most` it is `most`."""
    any_whole = whole()

    def parse(value: Any) -> int:
        number = any_whole.parse(value)
        if number <= 0:
            raise ValueError(f"invalid {key} {number}, it must be greater than 0")
        return number if most is None else min(number, most)

    return OptionShape("a whole number above 0", parse, any_whole.parse)


def _concurrency() -> OptionShape[int]:
    any_whole = whole()

    def parse(value: Any) -> int:
        number = any_whole.parse(value)
        return number if 1 <= number <= 512 else 1

    return OptionShape("a whole number from 1 to 512 (else 1 is used)", parse, any_whole.parse)


def _never(key: str) -> OptionShape[bool]:
    """A flag that can only be false."""

    def parse(value: Any) -> bool:
        if flag().parse(value):
            raise ValueError(f"{key} is not supported: paths are made of names; leave it out")
        return False

    return OptionShape("false", parse)


def _atomicity() -> OptionShape[str]:
    words = one_of("none", "table")

    def parse(value: Any) -> str:
        if isinstance(value, str) and value.lower() == "global":
            raise ValueError("'global' is for MySQL and TiDB sinks only")
        return words.parse(value)

    return OptionShape(words.words, parse)


def _absolute_path() -> OptionShape[str]:
    def parse(value: Any) -> str:
        found = text().parse(value)
        if found and not found.startswith("/"):
            raise ValueError("the path must be absolute")
        return found

    return OptionShape("an absolute path", parse)


def _time_zone() -> OptionShape[ZoneInfo]:
    def parse(value: Any) -> ZoneInfo:
        try:
            return ZoneInfo(text().parse(value))
        except (OSError, KeyError, ValueError):
            raise ValueError("no such time zone") from None

    return OptionShape("a time zone name such as UTC or Europe/Berlin", parse)


def _cron() -> OptionShape[Cron]:
    def parse(value: Any) -> Cron:
        return Cron.parse(text().parse(value))

    return OptionShape("six cron fields: second minute hour day month weekday", parse)


WORKER_COUNT = Option(
    "worker-count",
    _positive("worker-count", most=512),
    16,
    "Object stores: how many requests one process sends at once. Without effect on file://.",
    uri=True,
)
FLUSH_INTERVAL = Option(
    "flush-interval",
    duration(timedelta(milliseconds=100), timedelta(minutes=10), clamp=True),
    timedelta(seconds=5),
    "How often files are written.",
    uri=True,
)
FILE_SIZE = Option(
    "file-size",
    size(1024, 536870912, clamp=True),
    67108864,
    "About how many bytes a data file should have.",
    uri=True,
)
USE_TABLE_ID = Option(
    "use-table-id-as-path",
    _never("use-table-id-as-path"),
    False,
    "Not supported.",
    uri=True,
    alterable=False,
)
SPOOL_DISK_QUOTA = Option(
    "spool-disk-quota",
    _positive("spool-disk-quota"),
    10 << 30,
    "Accepted for compatibility, without effect.",
    uri=True,
)
SPOOL_BASE_DIR = Option(
    "spool-base-dir",
    _absolute_path(),
    "",
    "Accepted for compatibility, without effect.",
    uri=True,
)
OUTPUT_COLUMN_ID = Option(
    "output-column-id", flag(), False, "Schema files carry each column's number."
)
EXPIRATION_DAYS = Option(
    "file-expiration-days",
    whole(0),
    0,
    "Data files older than this are deleted; 0: never. Only with date-separator `day`.",
)
CLEANUP_CRON = Option(
    "file-cleanup-cron-spec",
    _cron(),
    Cron.parse("0 0 2 * * *"),
    "When expired files are deleted.",
)
FLUSH_CONCURRENCY = Option(
    "flush-concurrency",
    _concurrency(),
    1,
    "Accepted for compatibility; Spark's cores decide how much is written at once.",
)
RAW_CHANGE = Option(
    "output-raw-change-event",
    flag(),
    False,
    "An update that changes a key stays one change instead of a delete and an insert.",
)
FSYNC = Option(
    "fsync",
    flag(),
    True,
    "file:// only: files reach the disk before they count as written; false survives a killed "
    "process, but not a power failure.",
    uri=True,
)

COMPRESSION = Option(
    "compression",
    one_of(*SUFFIXES),
    "none",
    "Data files are compressed, and their names end with `.gz` or `.zst`.",
    uri=True,
    alterable=False,
)

STORAGE_TABLE = OptionTable(
    "sink.cloud-storage-config",
    (
        WORKER_COUNT,
        FLUSH_INTERVAL,
        FILE_SIZE,
        USE_TABLE_ID,
        SPOOL_DISK_QUOTA,
        SPOOL_BASE_DIR,
        OUTPUT_COLUMN_ID,
        EXPIRATION_DAYS,
        CLEANUP_CRON,
        FLUSH_CONCURRENCY,
        RAW_CHANGE,
        FSYNC,
        COMPRESSION,
    ),
)

DATE_SEPARATOR = Option(
    "date-separator",
    one_of("none", "year", "month", "day"),
    "day",
    "Which part of the commit date is a directory.",
    uri=True,
)
PARTITION_SEPARATOR = Option(
    "enable-partition-separator",
    flag(),
    True,
    "Each partition of a partitioned table has its own directory.",
    uri=True,
)
INDEX_DIGITS = Option(
    "file-index-digit",
    whole(6, 20),
    20,
    "Digits of the number in a data file's name.",
    uri=True,
    alterable=False,
)
ATOMICITY = Option(
    "transaction-atomicity",
    _atomicity(),
    "none",
    "`table`: the changes of one transaction to one table are in one file.",
    uri=True,
)
TIME_ZONE = Option(
    "time-zone", _time_zone(), ZoneInfo("UTC"), "The time zone of date directories.", uri=True
)

SINK_TABLE = OptionTable(
    "sink", (DATE_SEPARATOR, PARTITION_SEPARATOR, INDEX_DIGITS, ATOMICITY, TIME_ZONE)
)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The options of one changefeed, read and checked."""

    worker_count: int
    flush_interval_s: float
    file_size_bytes: int
    output_column_id: bool
    fsync: bool
    compression: str
    expiration_days: int
    cleanup: Cron
    date_separator: str
    partition_separator: bool
    index_digits: int
    atomicity: str
    time_zone: ZoneInfo


def read_settings(spec: ChangefeedSpec) -> StorageSettings:
    """Read the storage sink's options.

    Raises:
        BadOption: a value of the wrong type or outside what is allowed.
        OptionsConflict: files shall expire by date, but their paths have no day.
    """
    storage = spec.options(STORAGE_TABLE)
    sink = spec.options(SINK_TABLE)
    if storage[EXPIRATION_DAYS] and sink[DATE_SEPARATOR] != "day":
        raise OptionsConflict(
            f"sink.cloud-storage-config.file-expiration-days = {storage[EXPIRATION_DAYS]} needs "
            f"sink.date-separator = 'day' (it is {sink[DATE_SEPARATOR]!r}): "
            "files expire by the day in their path"
        )
    return StorageSettings(
        worker_count=storage[WORKER_COUNT],
        flush_interval_s=storage[FLUSH_INTERVAL].total_seconds(),
        file_size_bytes=storage[FILE_SIZE],
        output_column_id=storage[OUTPUT_COLUMN_ID],
        fsync=storage[FSYNC],
        compression=storage[COMPRESSION],
        expiration_days=storage[EXPIRATION_DAYS],
        cleanup=storage[CLEANUP_CRON],
        date_separator=sink[DATE_SEPARATOR],
        partition_separator=sink[PARTITION_SEPARATOR],
        index_digits=sink[INDEX_DIGITS],
        atomicity=sink[ATOMICITY],
        time_zone=sink[TIME_ZONE],
    )
