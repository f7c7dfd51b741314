"""The options of soft delete and of the active-active mode."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from rowferry.errors import OptionsConflict
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionShape, Section, duration, flag, option, text, texts, whole
from rowferry.spec.sink_traits import SinkTraits


def _interval() -> OptionShape[timedelta]:
    any_duration = duration()

    def parse(value: Any) -> timedelta:
        interval = any_duration.parse(value)
        if interval <= timedelta(0):
            raise ValueError("the active-active-progress-interval must be larger than 0")
        return interval

    return OptionShape("a duration above 0, such as 30m", parse)


CLUSTER_INDEX_BITS: Final = 4  # the low bits of a timestamp that say which cluster made it


class ActiveActive(Section, section=""):
    """What a changefeed's settings say about the mode."""

    bdr_mode = option(
        flag(),
        False,
        "Rows and DDLs that another changefeed with this option wrote into the source are not "
        "sent on, so that two changefeeds may carry changes both ways.",
    )
    enabled = option(
        flag(),
        False,
        "Two clusters write the same rows: of each row the newest write wins. Needs bdr-mode, a "
        "MySQL or TiDB sink, and tables made for it.",
        key="enable-active-active",
    )
    emulated = option(
        flag(),
        False,
        "Allow a downstream that is not TiDB; its tables need the triggers that `rowferry "
        "active-active prepare` prints.",
        key="active-active-emulation",
    )
    progress_interval = option(
        _interval(),
        timedelta(minutes=30),
        "How often the progress table of the downstream is brought up to date; the first time at "
        "once.",
        key="active-active-progress-interval",
    )
    purge_progress = option(
        flag(),
        True,
        "On TiDB, write the progress also to `tidb_cdc.ticdc_progress_table`: TiDB looks there "
        "before it removes rows that were marked as deleted, and else removes none.",
        key="active-active-purge-progress",
    )
    cluster_id = option(
        text(),
        "",
        "The name of the source's cluster in the downstream's progress table; empty: the source's "
        "own id, found when the changefeed is created.",
    )
    cluster_index = option(
        whole(0, (1 << CLUSTER_INDEX_BITS) - 1),
        0,
        "The number of the source's cluster, in the low bits of every timestamp that it makes, so "
        "that two clusters never make the same one. Each cluster has another.",
    )
    active_active_tables = option(
        texts(),
        (),
        "Which tables are active-active ones, in the syntax of filter.rules; beside those whose "
        "comment or definition says so.",
    )
    soft_delete_tables = option(
        texts(),
        (),
        "Which tables have soft delete, in the syntax of filter.rules; beside those whose comment "
        "or definition says so.",
    )


def read_active_active(spec: ChangefeedSpec) -> ActiveActive:
    """Return the mode that a changefeed asks for."""
    return spec.options(ActiveActive)


def check_active_active(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    """Check whether the mode that a changefeed asks for can be kept with its sink.

    Raises:
        OptionsConflict: the mode is on, and something that it needs is missing or in its way.
    """
    mode = read_active_active(spec)
    if not mode.enabled:
        return
    if not sink.keeps_newest:
        raise OptionsConflict(
            "enable-active-active works with a MySQL or TiDB sink only, not with "
            f"{spec.sink.scheme}://; use such a sink, or leave it out"
        )
    if not mode.bdr_mode:
        raise OptionsConflict(
            "enable-active-active with mysql-class downstream requires bdr-mode to be true: "
            "without it each cluster would get its own writes back; set bdr-mode = true"
        )
    consistent = spec.section("consistent")
    level = consistent.get("level", "none") if isinstance(consistent, Mapping) else "none"
    if str(level).lower() not in ("", "none"):
        raise OptionsConflict(
            "enable-active-active is incompatible with redo log/consistency feature, please "
            f"disable redo: consistent.level is {level!r}; set it to none"
        )
