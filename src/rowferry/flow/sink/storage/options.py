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
    OptionShape,
    Section,
    duration,
    flag,
    one_of,
    option,
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

    return OptionShape("false", parse, kind="none")


def _atomicity() -> OptionShape[str]:
    words = one_of("none", "table")

    def parse(value: Any) -> str:
        if isinstance(value, str) and value.lower() == "global":
            raise ValueError("'global' is for MySQL and TiDB sinks only")
        return words.parse(value)

    return OptionShape(words.words, parse)


def _absolute_path() -> OptionShape[str]:
    def parse(value: Any) -> str:
        path = text().parse(value)
        if path and not path.startswith("/"):
            raise ValueError("the path must be absolute")
        return path

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


class StorageOptions(Section, section="sink.cloud-storage-config"):
    """The options of the storage sink."""

    worker_count = option(
        _positive("worker-count", most=512),
        16,
        "Object stores: how many requests one process sends at once. Without effect on file://.",
        uri=True,
    )
    flush_interval = option(
        duration(timedelta(milliseconds=100), timedelta(minutes=10), clamp=True),
        timedelta(seconds=5),
        "How often files are written.",
        uri=True,
    )
    file_size = option(
        size(1024, 536870912, clamp=True),
        67108864,
        "About how many bytes a data file should have.",
        uri=True,
    )
    use_table_id_as_path = option(
        _never("use-table-id-as-path"), False, "Not supported.", uri=True, alterable=False
    )
    spool_disk_quota = option(
        _positive("spool-disk-quota"),
        10 << 30,
        "How much may wait on a local disk.",
        uri=True,
        no_effect="a micro-batch decides how much waits",
    )
    spool_base_dir = option(
        _absolute_path(),
        "",
        "Where that waits.",
        uri=True,
        no_effect="it is in the directory of temporary files, TMPDIR",
    )
    output_column_id = option(flag(), False, "Schema files carry each column's number.")
    file_expiration_days = option(
        whole(0),
        0,
        "Data files older than this are deleted; 0: never. Only with date-separator `day`.",
    )
    file_cleanup_cron_spec = option(
        _cron(), Cron.parse("0 0 2 * * *"), "When expired files are deleted."
    )
    flush_concurrency = option(
        _concurrency(),
        1,
        "How many write one file.",
        no_effect="Spark's cores decide how much is written at once",
    )
    output_raw_change_event = option(
        flag(),
        False,
        "An update that changes a key stays one change instead of a delete and an insert.",
    )
    fsync = option(
        flag(),
        True,
        "file:// only: files reach the disk before they count as written; false survives a killed "
        "process, but not a power failure.",
        uri=True,
    )
    compression = option(
        one_of(*SUFFIXES),
        "none",
        "Data files are compressed, and their names end with `.gz` or `.zst`.",
        uri=True,
        alterable=False,
    )


class LayoutOptions(Section, section="sink"):
    """Options that this sink reads in the section of all sinks.

    Those that make directories stay as they are: readers take the directories of a table version in
    the order of their names, and would meet older rows behind newer ones.
    """

    date_separator = option(
        one_of("none", "year", "month", "day"),
        "day",
        "Which part of the commit date is a directory.",
        uri=True,
        alterable=False,
    )
    enable_partition_separator = option(
        flag(),
        True,
        "Each partition of a partitioned table has its own directory.",
        uri=True,
        alterable=False,
    )
    file_index_digit = option(
        whole(6, 20), 20, "Digits of the number in a data file's name.", uri=True, alterable=False
    )
    transaction_atomicity = option(
        _atomicity(),
        "none",
        "`table`: the changes of one transaction to one table are in one file.",
        uri=True,
    )
    time_zone = option(
        _time_zone(),
        ZoneInfo("UTC"),
        "The time zone of date directories.",
        uri=True,
        alterable=False,
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The options of one changefeed, read and checked."""

    storage: StorageOptions
    layout: LayoutOptions


def read_settings(spec: ChangefeedSpec) -> StorageSettings:
    """Read the storage sink's options.

    Raises:
        BadOption: a value of the wrong type or outside what is allowed.
        OptionsConflict: files shall expire by date, but their paths have no day.
    """
    storage, layout = spec.options(StorageOptions), spec.options(LayoutOptions)
    if storage.file_expiration_days and layout.date_separator != "day":
        raise OptionsConflict(
            f"sink.cloud-storage-config.file-expiration-days = {storage.file_expiration_days} "
            f"needs sink.date-separator = 'day' (it is {layout.date_separator!r}): "
            "files expire by the day in their path"
        )
    return StorageSettings(storage, layout)
