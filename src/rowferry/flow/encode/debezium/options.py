"""The options of the debezium protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rowferry.flow.encode.options import CodecOptions, one_of_or_empty
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionShape, Section, flag, option, text


def _never(why: str) -> OptionShape[bool]:
    def parse(value: Any) -> bool:
        if flag().parse(value):
            raise ValueError(why)
        return False

    return OptionShape("false", parse, kind="none")


class EventOptions(Section, section="sink"):
    """What TiCDC has for this protocol in the section of the sink."""

    enable_tidb_extension = CodecOptions.enable_tidb_extension
    debezium_disable_schema = option(
        flag(),
        False,
        "debezium: messages are the payload alone, without the schema that describes it.",
        uri=True,
    )
    debezium_include_start_ts = option(
        _never("the log does not tell when a transaction began; leave it out"),
        False,
        "debezium: the transaction's start-ts in `source`, which is not known here: refused.",
        uri=True,
    )


class DebeziumOptions(Section, section="sink.debezium"):
    """How events and their values are written."""

    output_old_value = option(flag(), True, "debezium: an update holds the row's old values too.")
    name = option(
        text(),
        "",
        "debezium: the logical name of the server, as Debezium's `topic.prefix`: it stands in "
        "`source.name` and begins the names of schemas. Empty: the changefeed's id.",
        uri=True,
        key="debezium-name",
    )
    decimal_mode = option(
        one_of_or_empty("precise", "string", "double"),
        "precise",
        "debezium: how DECIMAL is written, as Debezium's `decimal.handling.mode`.",
        uri=True,
        key="debezium-decimal-handling-mode",
    )
    time_mode = option(
        one_of_or_empty(
            "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
        ),
        "adaptive_time_microseconds",
        "debezium: how DATE, DATETIME and TIME are written, as Debezium's `time.precision.mode`.",
        uri=True,
        key="debezium-time-precision-mode",
    )
    bigint_mode = option(
        one_of_or_empty("long", "precise"),
        "long",
        "debezium: how BIGINT UNSIGNED is written, as Debezium's `bigint.unsigned.handling.mode`. "
        "With `long`, values from 2^63 on are negative.",
        uri=True,
        key="debezium-bigint-unsigned-handling-mode",
    )
    binary_mode = option(
        one_of_or_empty("bytes", "base64", "base64-url-safe", "hex"),
        "bytes",
        "debezium: how binary columns are written, as Debezium's `binary.handling.mode`.",
        uri=True,
        key="debezium-binary-handling-mode",
    )
    tombstones = option(
        flag(),
        True,
        "debezium: after a delete comes a message with the same key and no value, by which a "
        "compacted topic forgets the row; as Debezium's `tombstones.on.delete`.",
        uri=True,
        key="debezium-tombstones-on-delete",
    )
    null_default = option(
        flag(),
        True,
        "debezium: NULL in a column that has a default is written as that default, which is what "
        "Kafka Connect's converter does unless its `replace.null.with.default` is false.",
        uri=True,
        key="debezium-replace-null-with-default",
    )


@dataclass(frozen=True, slots=True)
class ValueModes:
    """How values are written; a part of what a table's programs depend on."""

    decimal: str = "precise"
    time: str = "adaptive_time_microseconds"
    bigint: str = "long"
    binary: str = "bytes"
    null_default: bool = True
    source_types: bool = False  # fields name the column's own type

    @classmethod
    def of(cls, spec: ChangefeedSpec, extension: bool) -> ValueModes:
        """Read them."""
        options = spec.options(DebeziumOptions)
        return cls(
            options.decimal_mode,
            options.time_mode,
            options.bigint_mode,
            options.binary_mode,
            options.null_default,
            extension,
        )
