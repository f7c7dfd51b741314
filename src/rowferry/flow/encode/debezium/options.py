"""The options of the debezium protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rowferry.flow.encode.options import CODEC_EXTENSION, TIDB_EXTENSION, one_of_or_empty
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option, OptionShape, OptionTable, flag, text

DISABLE_SCHEMA = Option(
    "debezium-disable-schema",
    flag(),
    False,
    "debezium: messages are the payload alone, without the schema that describes it.",
    uri=True,
)


def _never(why: str) -> OptionShape[bool]:
    def parse(value: Any) -> bool:
        if flag().parse(value):
            raise ValueError(why)
        return False

    return OptionShape("false", parse, kind="none")


INCLUDE_START_TS = Option(
    "debezium-include-start-ts",
    _never("the log does not tell when a transaction began; leave it out"),
    False,
    "debezium: the transaction's start-ts in `source`, which is not known here: refused.",
    uri=True,
)
SINK = OptionTable("sink", (TIDB_EXTENSION, DISABLE_SCHEMA, INCLUDE_START_TS))

OUTPUT_OLD_VALUE = Option(
    "output-old-value", flag(), True, "debezium: an update holds the row's old values too."
)
NAME = Option(
    "debezium-name",
    text(),
    "",
    "debezium: the logical name of the server, as Debezium's `topic.prefix`: it stands in "
    "`source.name` and begins the names of schemas. Empty: the changefeed's id.",
    uri=True,
)
DECIMAL_MODE = Option(
    "debezium-decimal-handling-mode",
    one_of_or_empty("precise", "string", "double"),
    "precise",
    "debezium: how DECIMAL is written, as Debezium's `decimal.handling.mode`.",
    uri=True,
)
TIME_MODE = Option(
    "debezium-time-precision-mode",
    one_of_or_empty(
        "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ),
    "adaptive_time_microseconds",
    "debezium: how DATE, DATETIME and TIME are written, as Debezium's `time.precision.mode`.",
    uri=True,
)
BIGINT_MODE = Option(
    "debezium-bigint-unsigned-handling-mode",
    one_of_or_empty("long", "precise"),
    "long",
    "debezium: how BIGINT UNSIGNED is written, as Debezium's `bigint.unsigned.handling.mode`. With "
    "`long`, values from 2^63 on are negative.",
    uri=True,
)
BINARY_MODE = Option(
    "debezium-binary-handling-mode",
    one_of_or_empty("bytes", "base64", "base64-url-safe", "hex"),
    "bytes",
    "debezium: how binary columns are written, as Debezium's `binary.handling.mode`.",
    uri=True,
)
TOMBSTONES = Option(
    "debezium-tombstones-on-delete",
    flag(),
    True,
    "debezium: after a delete comes a message with the same key and no value, by which a compacted "
    "topic forgets the row; as Debezium's `tombstones.on.delete`.",
    uri=True,
)
NULL_DEFAULT = Option(
    "debezium-replace-null-with-default",
    flag(),
    True,
    "debezium: NULL in a column that has a default is written as that default, which is what Kafka "
    "Connect's converter does unless its `replace.null.with.default` is false.",
    uri=True,
)
DEBEZIUM = OptionTable(
    "sink.debezium",
    (
        OUTPUT_OLD_VALUE,
        NAME,
        DECIMAL_MODE,
        TIME_MODE,
        BIGINT_MODE,
        BINARY_MODE,
        TOMBSTONES,
        NULL_DEFAULT,
    ),
)
TABLES: Final = (SINK, DEBEZIUM, CODEC_EXTENSION)


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
        options = spec.options(DEBEZIUM)
        return cls(
            options[DECIMAL_MODE],
            options[TIME_MODE],
            options[BIGINT_MODE],
            options[BINARY_MODE],
            options[NULL_DEFAULT],
            extension,
        )
