from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from storage_kit import CSV, spec_for, storage, ts

from rowferry.errors import BadOption, BadUri, OptionsConflict
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.sink.storage.cron import Cron
from rowferry.flow.sink.storage.options import StorageSettings, read_settings
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def settings(config: dict[str, Any] | None = None, query: str = "") -> StorageSettings:
    return read_settings(spec_for(Path("/x"), config, query))


def cloud(**keys: Any) -> dict[str, Any]:
    return {"sink": {"cloud-storage-config": {k.replace("_", "-"): v for k, v in keys.items()}}}


def test_defaults() -> None:
    found = settings()
    assert (found.storage.flush_interval.total_seconds(), found.storage.file_size) == (
        5.0,
        67108864,
    )
    assert (found.layout.date_separator, found.layout.enable_partition_separator) == ("day", True)
    assert (
        found.layout.file_index_digit,
        found.layout.transaction_atomicity,
        found.layout.time_zone.key,
    ) == (20, "none", "UTC")
    assert (found.storage.output_column_id, found.storage.file_expiration_days) == (False, 0)


def test_a_uri_parameter_wins_over_the_file() -> None:
    config = {"sink": {"cloud-storage-config": {"flush-interval": "7s"}, "date-separator": "year"}}
    assert settings(config).storage.flush_interval.total_seconds() == 7
    found = settings(config, "flush-interval=1m30s&date-separator=none")
    assert (found.storage.flush_interval.total_seconds(), found.layout.date_separator) == (
        90,
        "none",
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("1ms", 0.1), ("-10s", 0.1), ("1h", 600), ("1m30s", 90), ("250ms", 0.25)]
)
def test_flush_interval_is_moved_into_its_bounds(text: str, seconds: float) -> None:
    assert settings(cloud(flush_interval=text)).storage.flush_interval.total_seconds() == seconds


@pytest.mark.parametrize(("given", "used"), [(1, 1024), (5000, 5000), (1 << 40, 536870912)])
def test_file_size_is_moved_into_its_bounds(given: int, used: int) -> None:
    assert settings(cloud(file_size=given)).storage.file_size == used


@pytest.mark.parametrize(
    "config",
    [
        cloud(worker_count=0),
        cloud(flush_interval="soon"),
        cloud(flush_interval=5),
        cloud(file_size="big"),
        cloud(use_table_id_as_path=True),
        cloud(spool_disk_quota=0),
        cloud(spool_base_dir="relative"),
        cloud(file_expiration_days=-1),
        cloud(file_cleanup_cron_spec="0 0 2 * *"),
        cloud(file_cleanup_cron_spec="0 0 25 * * *"),
        cloud(output_column_id="maybe"),
        {"sink": {"date-separator": "hour"}},
        {"sink": {"file-index-digit": 5}},
        {"sink": {"file-index-digit": 21}},
        {"sink": {"transaction-atomicity": "row"}},
        {"sink": {"time-zone": "Mars/Olympus"}},
        {"sink": {"time-zone": "../etc/passwd"}},
    ],
)
def test_a_bad_value_is_refused_by_key(config: dict[str, Any]) -> None:
    section = config["sink"].get("cloud-storage-config", config["sink"])
    (key,) = section
    with pytest.raises(BadOption, match=f"{key} = "):
        settings(config)


def test_global_atomicity_is_refused_with_its_reason() -> None:
    with pytest.raises(BadOption, match="MySQL and TiDB sinks only"):
        settings(query="transaction-atomicity=global")
    assert settings(query="transaction-atomicity=table").layout.transaction_atomicity == "table"


def test_options_without_effect_are_taken() -> None:
    settings(
        cloud(
            worker_count=10000,
            flush_concurrency=0,
            spool_disk_quota=1,
            spool_base_dir="/spool",
            use_table_id_as_path=False,
        )
    )


def test_whoever_sets_an_option_without_effect_is_told() -> None:
    uri = "file:///x?protocol=csv&spool-disk-quota=5&spool-base-dir=/spool"
    sink = {**cloud(flush_concurrency=2)["sink"], "csv": {"output-handle-key": True}}
    _, told = build_spec(
        "range://127.0.0.1:1", uri, {"sink": sink}, "feed", option_tables, sinks=sink_traits
    )
    ours = ("flush-concurrency", "output-handle-key", "spool-base-dir", "spool-disk-quota")
    for key in ours:
        assert [line for line in told if f"{key} has no effect: " in line], key
    assert len(told) == len(ours)


def test_expiry_needs_days_in_paths() -> None:
    assert settings(cloud(file_expiration_days=3)).storage.file_expiration_days == 3
    with pytest.raises(OptionsConflict, match="date-separator"):
        settings(cloud(file_expiration_days=3), "date-separator=month")


@pytest.mark.parametrize(("uri", "cure"), [("file://tmp/x", "file:///tmp/x"), ("file:///", "path")])
def test_a_uri_without_a_whole_path_is_refused_with_the_cure(uri: str, cure: str) -> None:
    source = Uri.parse("range://127.0.0.1:1", "source")
    with pytest.raises(BadUri, match=cure):
        StorageSink(
            ChangefeedSpec("feed", source, Uri.parse(uri, "sink")), SimpleNamespace(TRAITS=CSV)
        )


@pytest.mark.parametrize(
    ("query", "moment", "date"),
    [
        ("", "2023-05-09T23:59:59.999", "2023-05-09"),
        ("", "2023-05-10T00:00:00", "2023-05-10"),
        ("time-zone=Asia/Shanghai", "2023-05-09T15:59:59.999", "2023-05-09"),
        ("time-zone=Asia/Shanghai", "2023-05-09T16:00:00", "2023-05-10"),
        ("time-zone=America/New_York", "2023-03-12T05:00:00", "2023-03-12"),
        ("time-zone=America/New_York", "2023-03-13T03:59:59", "2023-03-12"),
        ("date-separator=month", "2023-05-10T00:00:00", "2023-05"),
        ("date-separator=year", "2023-05-10T00:00:00", "2023"),
        ("date-separator=none", "2023-05-10T00:00:00", ""),
    ],
)
def test_the_date_of_a_commit(query: str, moment: str, date: str) -> None:
    assert storage(Path("/x"), query=query).partition_label(ts(moment)) == date


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 2 * * *", "2023-05-10T02:00:00"),
        ("30 */20 * * * *", "2023-05-09T12:20:30"),
        ("0 0 12 9 5 *", "2024-05-09T12:00:00"),
        ("0 0 0 ? * MON", "2023-05-15T00:00:00"),
        ("0 0 0 11 * sat", "2023-05-11T00:00:00"),
        ("0 0 0 29 feb *", "2024-02-29T00:00:00"),
        ("0 5,10 13-14 * * *", "2023-05-09T13:05:00"),
        ("0 0 0 31 2 *", None),
    ],
)
def test_the_next_moment_of_a_cron_text(text: str, expected: str | None) -> None:
    noon = datetime(2023, 5, 9, 12, 0, 30, tzinfo=UTC)  # a Tuesday
    found = Cron.parse(text).after(noon)
    assert (found.isoformat()[:19] if found else None) == expected


@pytest.mark.parametrize(
    "text",
    ["", "* * * * *", "60 * * * * *", "* * * 0 * *", "* * * * * 8", "x * * * * *", "*/0 * * * * *"],
)
def test_a_bad_cron_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Cron.parse(text)
