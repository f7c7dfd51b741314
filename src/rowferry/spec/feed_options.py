"""The options of a changefeed that belong to no single source, codec or sink."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from rowferry.spec.active_active import ActiveActive
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.consistent import ConsistentMemory, ConsistentOptions
from rowferry.spec.legacy import parse_protocol
from rowferry.spec.option import (
    OptionShape,
    OptionTable,
    Section,
    duration,
    flag,
    option,
    whole,
)
from rowferry.spec.quarantine import QuarantineOptions
from rowferry.spec.rules.dispatch import DispatchOptions
from rowferry.spec.rules.filter import ColumnOptions, FilterOptions
from rowferry.spec.sink_traits import SinkTraits
from rowferry.spec.sync_point import SyncPointSettings


def _sample(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value not in ("true", "masked", "false"):
        raise ValueError("expected true, masked or false")
    return str(value)


class FeedOptions(Section, section=""):
    """Options of the top level."""

    case_sensitive = option(
        flag(),
        False,
        "Whether table names in filter rules, event filters and dispatch rules are compared with "
        "their case. A changefeed with masks, computed columns or column selectors keeps it as it "
        "was created.",
    )
    force_replicate = option(
        flag(),
        False,
        "Also capture tables that have neither a primary key nor a unique key of NOT NULL columns.",
    )
    ignore_ineligible_table = option(
        flag(),
        False,
        "Create the changefeed although some tables have no usable key; those are left out. When "
        "false, such tables refuse the creation by name. Tables without a key that are created "
        "later are left out in both cases.",
    )
    changefeed_error_stuck_duration = option(
        duration(timedelta(seconds=1)),
        timedelta(minutes=30),
        "How long a failing changefeed is retried before it is given up.",
    )
    sample_changes = option(
        OptionShape(
            "true, masked or false", _sample, kind="choice", choices=("true", "masked", "false")
        ),
        "masked",
        "What the server that runs the changefeed keeps in memory of its last 20 changes, to be "
        "looked at: `masked`: table, kind and commit-ts; `true`: for operators and admins also "
        "values, as the sink gets them; `false`: nothing.",
    )


class SyncedOptions(Section, section="synced-status"):
    """When a changefeed counts as synced."""

    synced_check_interval = option(
        whole(1), 300, "A changefeed counts as synced when no row came for this many seconds."
    )
    checkpoint_interval = option(
        whole(1),
        15,
        "A changefeed counts as synced when its checkpoint is less than this many seconds old.",
    )


def _protocol(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    return parse_protocol(value)


class ProtocolOptions(Section, section="sink"):
    """In which format changes are written."""

    protocol = option(
        OptionShape("the name of a protocol", _protocol), "", "The format of the output.", uri=True
    )


_RAW_CHANGES: Final = option(
    flag(),
    False,
    "Send an update that changes a primary or unique key as it is, instead of as a delete followed "
    "by an insert.",
    key="output-raw-change-event",
)


def _raw_changes_table(sink: SinkTraits) -> OptionTable:
    """Return the table of that option; its section is the sink's."""
    return OptionTable(sink.section, (_RAW_CHANGES,))


def wants_raw_changes(spec: ChangefeedSpec, sink: SinkTraits) -> bool:
    """Return whether an update that changes a key stays whole: the sink can, and is told to."""
    return sink.takes_raw_changes and spec.options(_raw_changes_table(sink))[_RAW_CHANGES]


_TOP_LEVEL: Final = (
    FeedOptions.TABLE,
    ActiveActive.TABLE,
    SyncPointSettings.TABLE,
    QuarantineOptions.TABLE,
)


def top_level_names() -> frozenset[str]:
    """Return the keys of a configuration that stand in no section."""
    return frozenset(name for table in _TOP_LEVEL for name in table.names())


def own_tables(sink: SinkTraits) -> tuple[OptionTable, ...]:
    """Return the tables of this module that apply with such a sink."""
    return (
        *_TOP_LEVEL,
        ConsistentOptions.TABLE,
        ConsistentMemory.TABLE,
        FilterOptions.TABLE,
        SyncedOptions.TABLE,
        ProtocolOptions.TABLE,
        DispatchOptions.TABLE,
        ColumnOptions.TABLE,
        *((_raw_changes_table(sink),) if sink.takes_raw_changes else ()),
    )
