"""TiCDC's `replica_config` and our configuration say the same."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.errors import BadOption
from rowferry.face.rest.replica_config import to_config, to_replica

REPLICA = {
    "case_sensitive": True,
    "changefeed_error_stuck_duration": 1_800_000_000_000,
    "filter": {
        "rules": ["a.*"],
        "event_filters": [{"matcher": ["a.b"], "ignore_event": ["insert"]}],
    },
    "sink": {
        "csv": {"null": "\\N", "include_commit_ts": True},
        "file_index_width": 6,
        "dispatchers": [{"matcher": ["a.*"], "partition": "ts", "target-schema": "x_y"}],
        "cloud_storage_config": {"flush_interval": "5s", "use_table_id_as_path": False},
    },
}
CONFIG = {
    "case-sensitive": True,
    "changefeed-error-stuck-duration": "30m",
    "filter": {
        "rules": ["a.*"],
        "event-filters": [{"matcher": ["a.b"], "ignore-event": ["insert"]}],
    },
    "sink": {
        "csv": {"null": "\\N", "include-commit-ts": True},
        "file-index-digit": 6,
        "dispatchers": [{"matcher": ["a.*"], "partition": "ts", "target-schema": "x_y"}],
        "cloud-storage-config": {"flush-interval": "5s", "use-table-id-as-path": False},
    },
}


def test_both_ways() -> None:
    assert to_config(REPLICA) == CONFIG
    assert to_replica(CONFIG) == REPLICA
    assert to_config(CONFIG) == CONFIG  # hyphens are understood, too


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (90_000_000_000, "1m30s"),
        (1_500_000_000.0, "1s500ms"),
        (0, "0s"),
        ("1h30m", "1h30m"),
        (True, True),  # refused later, by the option itself
    ],
)
def test_durations_in_nanoseconds_or_with_units(given: Any, kept: Any) -> None:
    assert to_config({"sync_point_interval": given}) == {"sync-point-interval": kept}


def test_values_that_are_absent_or_hidden() -> None:
    assert to_config({"sink": {"csv": None, "protocol": "csv"}}) == {"sink": {"protocol": "csv"}}
    assert to_replica({"sync-point-interval": "***"}) == {"sync_point_interval": "***"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sink": {"a_b": 1, "a-b": 2}}, "sink.a-b is given twice"),
        ({"sync_point_interval": 1e300}, "too long"),
        ({"sync_point_interval": float("nan")}, "too long"),
        ({"sink": {"protocol": "\ud800"}}, "sink.protocol: holds text that is not Unicode"),
        ({"\ud800": 1}, "replica_config: holds"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        to_config(given)
