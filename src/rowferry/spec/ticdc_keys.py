"""TiCDC's words: its names of protocols, and keys of its configuration that no stage here reads.

A key that a stage declares in an option table is never looked up here. What is found here is either
without effect, which the user is told, or would change results, which is refused by name unless the
value is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rowferry.spec.option import OptionShape, duration, flag, one_of, whole

# What TiCDC's users may write there, not here.
PROTOCOLS_ELSEWHERE: Final = tuple("craft maxwell".split())
PROTOCOL_ALIASES: Final = {"default": "open-protocol", "flat-avro": "avro"}
RESERVED_PROTOCOLS: Final = {"rich-avro": "avro"}
SPARK: Final = "Spark divides the work"


@dataclass(frozen=True, slots=True)
class BroughtKey:
    """One key (or, where `whole_section`, a section with all its keys) of TiCDC's configuration.

    Attributes:
        path: the key with its section.
        default: the value that asks for nothing.
        readers: sink families and protocols that it concerns; empty: all.
        no_effect: why it changes nothing here; empty: it would change results.
        shape: what a value without effect must still look like, so that a slip is found.
    """

    path: str
    default: Any = None
    readers: frozenset[str] = frozenset()
    no_effect: str = ""
    whole_section: bool = False
    shape: OptionShape[Any] | None = None

    @property
    def section(self) -> str:
        """The section that holds the key."""
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        """The key without its section."""
        return self.path.rpartition(".")[2]


def _idle(
    section: str, keys: str, why: str, *readers: str, shape: OptionShape[Any] | None = None
) -> list[BroughtKey]:
    lead = f"{section}." if section else ""
    who = frozenset(readers)
    return [BroughtKey(lead + key, readers=who, no_effect=why, shape=shape) for key in keys.split()]


def _acts(path: str, default: Any, *readers: str) -> BroughtKey:
    return BroughtKey(path, default, frozenset(readers))


def _elsewhere(path: str, *readers: str) -> BroughtKey:
    return BroughtKey(path, {}, frozenset(readers), whole_section=True)


def _of_others(section: str, *pairs: tuple[str, str]) -> list[BroughtKey]:
    """Settings of one protocol, as (key, protocol), that are idle with all others."""
    return [
        BroughtKey(
            f"{section}.{key}" if section else key,
            readers=frozenset({"kafka"}),
            no_effect=f"it concerns the protocol {protocol} only",
        )
        for key, protocol in pairs
    ]


_CODEC_KEYS: Final = (
    ("enable-tidb-extension", "canal-json, avro, debezium or debezium-avro"),
    ("max-batch-size", "open-protocol"),
    ("avro-enable-watermark", "avro or debezium-avro"),
    ("avro-decimal-handling-mode", "avro"),
    ("avro-bigint-unsigned-handling-mode", "avro"),
    ("avro-include-before-value", "avro"),
    ("encoding-format", "simple"),
)
BROUGHT: Final[tuple[BroughtKey, ...]] = (
    # top level
    *_idle("", "performance-mode", SPARK, shape=one_of("throughput", "low-latency")),
    *_idle(
        "",
        "memory-quota event-collector-batch-count event-collector-batch-bytes",
        SPARK,
        shape=whole(0),
    ),
    *_idle("", "check-gc-safe-point", "the source's own retention counts", shape=flag()),
    *_idle("", "enable-table-monitor", "there is no table monitor", shape=flag()),
    *_idle("", "enable-old-value", "old values are always there", shape=flag()),
    *_idle("", "sql-mode", "DDL is not parsed with a session's SQL mode"),
    *_idle(
        "",
        "active-active-sync-stats-interval",
        "the downstream's statistics are not asked for",
        shape=duration(timedelta(0)),
    ),
    # sections of their own
    *_idle("mounter", "worker-num", SPARK, shape=whole()),
    *_idle(
        "scheduler",
        "enable-table-across-nodes region-threshold region-count-per-span "
        "region-count-refresh-interval write-key-threshold scheduling-task-count-per-node "
        "enable-splittable-check force-split balance-score-threshold min-traffic-percentage "
        "max-traffic-percentage",
        SPARK,
    ),
    _acts("integrity.integrity-check-level", "none", "kafka"),
    *_idle(
        "integrity",
        "corruption-handle-level",
        "rows carry no checksum",
        shape=one_of("warn", "error"),
    ),
    # [sink]
    _acts("sink.transaction-atomicity", "none"),
    _acts("sink.terminator", "\r\n", "csv", "canal-json"),
    _acts("sink.date-separator", "day", "storage"),
    _acts("sink.enable-partition-separator", True, "storage"),
    _acts("sink.file-index-digit", 20, "storage"),
    _acts("sink.schema-registry", "", "avro", "debezium-avro"),
    _acts("sink.only-output-updated-columns", False, "canal-json", "open-protocol"),
    _acts("sink.delete-only-output-handle-key-columns", False, "canal-json", "open-protocol"),
    _acts("sink.content-compatible", False, "canal-json"),
    _acts("sink.safe-mode", False, "mysql"),
    _acts("sink.debezium-disable-schema", False, "debezium"),
    *_idle("sink", "encoder-concurrency", SPARK, shape=whole(0)),
    *_idle("sink", "advance-timeout-in-sec", SPARK, shape=whole()),
    *_idle("sink", "enable-kafka-sink-v2", "TiCDC ignores it too"),
    *_idle(
        "sink",
        "send-bootstrap-interval-in-sec send-bootstrap-in-msg-count "
        "send-bootstrap-to-all-partition send-all-bootstrap-at-start",
        "it concerns the protocol simple only",
    ),
    # [sink.…]
    _elsewhere("sink.csv", "csv"),
    _elsewhere("sink.open", "open-protocol"),
    _elsewhere("sink.debezium", "debezium", "debezium-avro"),
    _elsewhere("sink.kafka-config", "kafka"),
    *_of_others("sink.kafka-config.codec-config", *_CODEC_KEYS),
    _elsewhere("sink.pulsar-config", "pulsar"),
    _elsewhere("sink.mysql-config", "mysql"),
    _elsewhere("sink.cloud-storage-config", "storage"),
    _elsewhere("sink.http-config", "http"),
    _elsewhere("sink.json", "json"),
    _acts("sink.csv.delimiter", ",", "csv"),
    _acts("sink.csv.quote", '"', "csv"),
    _acts("sink.csv.null", "\\N", "csv"),
    _acts("sink.csv.include-commit-ts", False, "csv"),
    _acts("sink.csv.binary-encoding-method", "base64", "csv"),
    _acts("sink.csv.output-old-value", False, "csv"),
    _acts("sink.csv.output-field-header", False, "csv"),
    *_idle("sink.csv", "output-handle-key", "TiCDC ignores it too", "csv"),
    *_idle("sink.cloud-storage-config", "worker-count", SPARK, "storage", shape=whole(1)),
    *_idle("sink.cloud-storage-config", "flush-concurrency", SPARK, "storage", shape=whole()),
    *_idle(
        "sink.cloud-storage-config",
        "spool-disk-quota spool-base-dir",
        "nothing is spooled to a local disk",
        "storage",
    ),
    _acts("sink.cloud-storage-config.flush-interval", "5s", "storage"),
    _acts("sink.cloud-storage-config.file-size", 67108864, "storage"),
    _acts("sink.cloud-storage-config.use-table-id-as-path", False, "storage"),
    _acts("sink.cloud-storage-config.output-column-id", False, "storage"),
    _acts("sink.cloud-storage-config.file-expiration-days", 0, "storage"),
    *_idle(
        "sink.cloud-storage-config", "file-cleanup-cron-spec", "nothing is cleaned up", "storage"
    ),
)

# Parameters of sink URIs, by family, that no stage declares.
BROUGHT_PARAMETERS: Final[tuple[BroughtKey, ...]] = (
    *_idle("", "worker-count", SPARK, "storage", shape=whole(1)),
    *_idle("", "flush-concurrency", SPARK, "storage", shape=whole()),
    *_idle("", "spool-disk-quota spool-base-dir", "nothing is spooled", "storage"),
    _acts("use-table-id-as-path", "false", "storage"),
    _acts("flush-interval", "5s", "storage"),
    _acts("file-size", "67108864", "storage"),
    _acts("transaction-atomicity", "none"),
    *_of_others(
        "",
        *_CODEC_KEYS,
        ("schema-registry", "avro or debezium-avro"),
        ("only-output-updated-columns", "canal-json or open-protocol"),
        ("content-compatible", "canal-json"),
        ("output-row-key", "canal-json"),
        ("debezium-disable-schema", "debezium"),
        ("debezium-include-start-ts", "debezium or debezium-avro"),
    ),
    *_idle("", "batch-replace-enable batch-replace-size", "TiCDC ignores it too", "mysql"),
)
