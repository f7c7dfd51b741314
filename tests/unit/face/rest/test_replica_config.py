"""TiCDC's `replica_config` and our configuration say the same."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.errors import BadOption
from rowferry.face.rest.replica_config import to_config, to_replica
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.spec.build import build_spec

REPLICA: dict[str, Any] = {
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


SECOND = 1_000_000_000
# What TiCDC's own client sends for a changefeed without a configuration file.
SENT: dict[str, Any] = {
    "performance_mode": "throughput",
    "memory_quota": 1073741824,
    "case_sensitive": False,
    "check_gc_safe_point": True,
    "enable_sync_point": False,
    "enable_table_monitor": False,
    "bdr_mode": False,
    "enable_active_active": False,
    "active_active_progress_interval": 1800 * SECOND,
    "active_active_sync_stats_interval": 60 * SECOND,
    "sync_point_interval": 600 * SECOND,
    "sync_point_retention": 86400 * SECOND,
    "filter": {"rules": ["*.*"]},
    "mounter": {"worker_num": 16},
    "sink": {
        "csv": {
            "delimiter": ",",
            "quote": '"',
            "null": "\\N",
            "include_commit_ts": False,
            "binary_encoding_method": "base64",
            "output_old_value": False,
            "output_handle_key": False,
            "output_field_header": False,
        },
        "encoder_concurrency": 32,
        "terminator": "\r\n",
        "date_separator": "day",
        "enable_partition_separator": True,
        "only_output_updated_columns": False,
        "delete_only_output_handle_key_columns": False,
        "content_compatible": False,
        "advance_timeout_in_sec": 150,
        "send_bootstrap_interval_in_sec": 120,
        "send_bootstrap_in_msg_count": 10000,
        "send_bootstrap_to_all_partition": True,
        "send_all_bootstrap_at_start": False,
        "debezium_disable_schema": False,
        "debezium": {"output_old_value": True},
        "open": {"output_old_value": True},
    },
    "consistent": {
        "level": "none",
        "max_log_size": 64,
        "flush_interval": 2000,
        "meta_flush_interval": 200,
        "encoding_worker_num": 16,
        "flush_worker_num": 8,
        "storage": "",
        "use_file_backend": False,
        "compression": "",
        "memory_usage": {"memory_quota_percentage": 50},
    },
    "scheduler": {
        "enable_table_across_nodes": False,
        "region_threshold": 10000,
        "region_count_per_span": 100,
        "region_count_refresh_interval": 300 * SECOND,
        "write_key_threshold": 0,
        "scheduling_task_count_per_node": 20,
        "enable_splittable_check": False,
        "force_split": False,
        "balance_score_threshold": 20,
        "min_traffic_percentage": 0.8,
        "max_traffic_percentage": 1.25,
    },
    "integrity": {"integrity_check_level": "none", "corruption_handle_level": "warn"},
    "changefeed_error_stuck_duration": 1800 * SECOND,
    "synced_status": {"synced_check_interval": 300, "checkpoint_interval": 15},
}


@pytest.mark.parametrize(
    "sink",
    [
        "blackhole://",
        "file:///out?protocol=csv",
        "s3://bucket/out?protocol=canal-json",
        "kafka://h:9092/t?protocol=open-protocol&max-batch-size=8",
        "kafka://h:9092/t?protocol=canal-json&max-batch-size=8&enable-tidb-extension=1",
        "kafka://h:9092/t?protocol=avro&schema-registry=http://r:8081",
        "mysql://<user>@h:3306/?batch-replace-enable=true",
        "tidb://<user>@h:4000/",
    ],
)
def test_what_its_own_client_sends_is_taken(sink: str) -> None:
    config = to_config(SENT)
    spec, _ = build_spec(
        "range://h:1", sink.replace("<user>", "me"), config, None, option_tables, sinks=sink_traits
    )
    assert to_replica(spec.config) == SENT


def test_names_that_its_file_and_its_uri_have_for_one_thing() -> None:
    sent = {"enable_batch_dml": False, "max_multi_update_row_count": 9, "worker_count": 3}
    config = to_config({"sink": {"mysql_config": sent}})
    spec, _ = build_spec(
        "range://h:1", "mysql://me@h:1/", config, None, option_tables, sinks=sink_traits
    )
    kept = {"batch-dml-enable": False, "max-multi-update-row": 9, "worker-count": 3}
    assert spec.section("sink.mysql-config") == kept
    assert to_replica(spec.config) == {"sink": {"mysql_config": sent}}


def test_the_pulsar_section_as_clients_have_it() -> None:
    # Its keys have hyphens there, and two of them the names of other things.
    sent = {
        "tls-certificate-path": "/key.pem",
        "tls-private-key-path": "/cert.pem",
        "compression-type": "zstd",
        "send-timeout": 30,
        "oauth2": {"oauth2-issuer-url": "https://h/", "oauth2-private-key": "/k"},
    }
    config = to_config({"sink": {"pulsar_config": sent}})
    uri = "pulsar+ssl://h:6651/t?protocol=canal-json"
    spec, _ = build_spec("range://h:1", uri, config, None, option_tables, sinks=sink_traits)
    kept = spec.section("sink.pulsar-config")
    assert (kept["tls-key-file-path"], kept["tls-certificate-file"]) == ("/key.pem", "/cert.pem")
    assert to_replica(spec.config) == {"sink": {"pulsar_config": sent}}
    with pytest.raises(BadOption, match="tls-key-file-path is given twice"):
        to_config({"sink": {"pulsar_config": {**sent, "tls_key_file_path": "/key.pem"}}})


def test_what_clients_of_older_releases_send_is_taken() -> None:
    renamed = {"advance_timeout": 150, "send-all-bootstrap-at-start": False}
    gone = ("advance_timeout_in_sec", "send_all_bootstrap_at_start")
    sink = {k: v for k, v in SENT["sink"].items() if k not in gone} | renamed
    assert to_config({**SENT, "sink": sink}) == to_config(SENT)


def test_sections_that_clients_know_only_as_a_whole() -> None:
    large = {"large-message-handle": {"large-message-handle-option": "claim-check"}}
    shown = to_replica({"sink": {"csv": {"quote": ""}, "kafka-config": large}})["sink"]
    assert shown["csv"] == SENT["sink"]["csv"] | {"quote": ""}
    assert shown["kafka_config"]["large_message_handle"] == {
        "large_message_handle_option": "claim-check",
        "large_message_handle_compression": "none",
        "claim_check_storage_uri": "",
        "claim_check_raw_value": False,
    }


def test_the_number_of_a_partition_is_text() -> None:
    rules = [{"matcher": ["a.*"], "partition": 3}]
    (rule,) = to_replica({"sink": {"dispatchers": rules}})["sink"]["dispatchers"]
    assert rule["partition"] == "3"


def test_both_ways() -> None:
    assert to_config(REPLICA) == CONFIG
    shown = to_replica(CONFIG)
    assert shown["sink"].pop("csv") == SENT["sink"]["csv"] | REPLICA["sink"]["csv"]
    assert shown["sink"] == {k: v for k, v in REPLICA["sink"].items() if k != "csv"}
    assert {**shown, "sink": REPLICA["sink"]} == REPLICA
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
