"""The options of sync points: moments of upstream and downstream at which both hold the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rowferry.errors import BadOption, OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, duration, flag, go_text, option
from rowferry.spec.sink_traits import SinkTraits

_LEAST_INTERVAL: Final = timedelta(seconds=30)
_LEAST_RETENTION: Final = timedelta(hours=1)


class SyncPointSettings(Section, section=""):
    """What a changefeed's settings say about sync points."""

    enabled = option(
        flag(),
        False,
        "Write now and then to `tidb_cdc.syncpoint_v1` of the downstream which of its timestamps "
        "holds the same rows as which one of the source. Needs TiDB downstream.",
        key="enable-sync-point",
    )
    interval = option(
        duration(),
        timedelta(minutes=10),
        "How often: at the first checkpoint behind each whole multiple of it since 1970; 30s at "
        "the least.",
        key="sync-point-interval",
    )
    retention = option(
        duration(),
        timedelta(hours=24),
        "How long sync points are kept; 1h at the least.",
        key="sync-point-retention",
    )


def read_sync_point(spec: ChangefeedSpec) -> SyncPointSettings:
    """Return the sync points that a changefeed asks for.

    Raises:
        BadOption: they are on, and come too often or are kept too short a time.
    """
    options = spec.options(SyncPointSettings)
    if options.enabled:
        for span, name, least in (
            (SyncPointSettings.interval, "SyncPointInterval", _LEAST_INTERVAL),
            (SyncPointSettings.retention, "SyncPointRetention", _LEAST_RETENTION),
        ):
            if options[span] < least:
                given, bound = go_text(options[span]), go_text(least)
                raise BadOption(
                    f"{span.key}: The {name}:{given} must be larger than {bound}; give {bound} "
                    "or more"
                )
    return options


def check_sync_point(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    """Check whether the sync points that a changefeed asks for can be kept with its sink.

    Raises:
        OptionsConflict: they are on, and the sink keeps none.
        BadOption: as `read_sync_point` does.
    """
    if spec.options(SyncPointSettings).enabled and not sink.keeps_sync_points:
        raise OptionsConflict(
            "The SyncPoint must be disabled when the downstream is not tidb or mysql: leave "
            f"enable-sync-point out, or use another sink than {spec.sink.scheme}://"
        )
    read_sync_point(spec)
