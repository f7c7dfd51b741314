"""The options of a changefeed that belong to no single source, codec or sink."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from rowferry.spec.active_active import ActiveActive
from rowferry.spec.dispatch_rules import DISPATCH_RULES
from rowferry.spec.filter_rules import COLUMN_RULES, EVENT_FILTERS, IGNORE_TXN_START_TS
from rowferry.spec.legacy import parse_protocol
from rowferry.spec.option import Option, OptionShape, OptionTable, duration, flag, texts, whole
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.sync_point import SyncPointSettings

CASE_SENSITIVE: Final = Option(
    "case-sensitive",
    flag(),
    False,
    "Whether table names in filter rules, event filters and dispatch rules are compared with their "
    "case.",
)
FORCE_REPLICATE: Final = Option(
    "force-replicate",
    flag(),
    False,
    "Also capture tables that have neither a primary key nor a unique key of NOT NULL columns.",
)
IGNORE_INELIGIBLE: Final = Option(
    "ignore-ineligible-table",
    flag(),
    False,
    "Create the changefeed although some tables have no usable key; those are left out. "
    "When false, such tables refuse the creation by name. Tables without a key that are created "
    "later are left out in both cases.",
)
ERROR_STUCK: Final = Option(
    "changefeed-error-stuck-duration",
    duration(timedelta(seconds=1)),
    timedelta(minutes=30),
    "How long a failing changefeed is retried before it is given up.",
)
TOP: Final = OptionTable("", (CASE_SENSITIVE, FORCE_REPLICATE, IGNORE_INELIGIBLE, ERROR_STUCK))

RULES: Final = Option(
    "rules",
    texts(),
    ("*.*",),
    "Which tables are captured, in TiDB's table filter syntax; the last rule that matches decides. "
    "System databases never are. An empty list means all tables.",
)
FILTER: Final = OptionTable("filter", (RULES, EVENT_FILTERS, IGNORE_TXN_START_TS))


SYNCED_CHECK: Final = Option(
    "synced-check-interval",
    whole(1),
    300,
    "A changefeed counts as synced when no row came for this many seconds.",
)
SYNCED_CHECKPOINT: Final = Option(
    "checkpoint-interval",
    whole(1),
    15,
    "A changefeed counts as synced when its checkpoint is less than this many seconds old.",
)
SYNCED_STATUS: Final = OptionTable("synced-status", (SYNCED_CHECK, SYNCED_CHECKPOINT))


def _protocol(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    return parse_protocol(value)


PROTOCOL: Final = Option(
    "protocol",
    OptionShape("the name of a protocol", _protocol),
    "",
    "The format of the output.",
    uri=True,
)
SINK: Final = OptionTable("sink", (PROTOCOL,))

RAW_CHANGES: Final = Option(
    "output-raw-change-event",
    flag(),
    False,
    "Send an update that changes a primary or unique key as it is, instead of as a delete followed "
    "by an insert.",
)


def raw_changes_table(sink: SinkTraits) -> OptionTable | None:
    """Return the table that holds RAW_CHANGES for such a sink; None: it always splits."""
    return OptionTable(sink.section, (RAW_CHANGES,)) if sink.takes_raw_changes else None


def own_tables(sink: SinkTraits) -> tuple[OptionTable, ...]:
    """Return the tables of this module that apply with such a sink."""
    raw = raw_changes_table(sink)
    return (
        TOP,
        ActiveActive.TABLE,
        SyncPointSettings.TABLE,
        FILTER,
        SYNCED_STATUS,
        SINK,
        DISPATCH_RULES,
        COLUMN_RULES,
        *((raw,) if raw else ()),
    )
