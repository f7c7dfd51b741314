"""The options of sync points: moments of upstream and downstream at which both hold the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rowferry.errors import OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option, OptionTable, duration, flag
from rowferry.spec.sink_family import family_of

ENABLE: Final = Option(
    "enable-sync-point",
    flag(),
    False,
    "Write now and then to `tidb_cdc.syncpoint_v1` of the downstream which of its timestamps holds "
    "the same rows as which one of the source. Needs TiDB downstream.",
)
INTERVAL: Final = Option(
    "sync-point-interval",
    duration(timedelta(seconds=30)),
    timedelta(minutes=10),
    "How often: at the first checkpoint behind each whole multiple of it since 1970.",
)
RETENTION: Final = Option(
    "sync-point-retention",
    duration(timedelta(hours=1)),
    timedelta(hours=24),
    "How long sync points are kept.",
)
SYNC_POINT: Final = OptionTable("", (ENABLE, INTERVAL, RETENTION))


@dataclass(frozen=True, slots=True)
class SyncPointSettings:
    """What a changefeed's settings say about sync points."""

    enabled: bool
    interval: timedelta
    retention: timedelta


def read_sync_point(spec: ChangefeedSpec) -> SyncPointSettings:
    """Return the sync points that a changefeed asks for.

    Raises:
        OptionsConflict: they are on, and the sink is no database.
    """
    options = spec.options(SYNC_POINT)
    if options[ENABLE] and family_of(spec.sink.scheme).name != "mysql":
        raise OptionsConflict(
            "The SyncPoint must be disabled when the downstream is not tidb or mysql: leave "
            f"enable-sync-point out, or use another sink than {spec.sink.scheme}://"
        )
    return SyncPointSettings(options[ENABLE], options[INTERVAL], options[RETENTION])
