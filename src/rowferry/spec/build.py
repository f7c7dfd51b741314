"""The one door from what a user typed to a checked `ChangefeedSpec`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from rowferry.errors import BadInput, BadOption, TargetTsTooEarly
from rowferry.spec.active_active import check_active_active
from rowferry.spec.changefeed import ChangefeedSpec, check_changefeed_id, default_changefeed_id
from rowferry.spec.check import check_config, check_parameters
from rowferry.spec.config_file import inline_rule_files, read_config
from rowferry.spec.consistent import check_consistent
from rowferry.spec.feed_options import own_tables, wants_raw_changes
from rowferry.spec.legacy import modernise, protocol_notice
from rowferry.spec.option import OptionTable
from rowferry.spec.quarantine import check_quarantine
from rowferry.spec.rules.dispatch import DispatchOptions, idle_rule_notices
from rowferry.spec.sink_traits import SinkLookup, SinkTraits, check_atomicity, check_protocol
from rowferry.spec.sync_point import check_sync_point
from rowferry.spec.uri import Uri

Tables: TypeAlias = Sequence[OptionTable] | Callable[[ChangefeedSpec], Sequence[OptionTable]]


def build_spec(
    source: str,
    sink: str,
    config: str | Path | Mapping[str, Any] | None = None,
    changefeed_id: str | None = None,
    tables: Tables = (),
    target_ts: int = 0,
    *,
    sinks: SinkLookup,
) -> tuple[ChangefeedSpec, list[str]]:
    """Return what the user asked for, checked, with notices to show.

    Args:
        source: the source's URI.
        sink: the sink's URI; a relative `file` URI starts at the current directory.
        config: a file's path, its content, or None.
        changefeed_id: None makes one from the two URIs.
        tables: the option tables of the chosen stages, or a function that returns them for the spec
            as far as it is known (source, sink and protocol are). A table whose section is `source`
            or begins with `source.` belongs to the source URI, every other to the sink URI.
        target_ts: the commit-ts at which the changefeed ends; 0: it has no end.
        sinks: tells what the sink's class says about itself, by its URI scheme.

    Raises:
        BadInput: one line that names the file, key, parameter or URI at fault and what is allowed.
            Nothing was written.
    """
    file = str(config) if isinstance(config, str | Path) else ""
    notices: list[str] = []
    written = Uri.parse(sink, "sink")
    target = written.absolute(os.getcwd(), "sink")
    if written.address != target.address:
        notices.append(f"the sink file://{written.address}{written.path} is {target.path}")
    spec = ChangefeedSpec(
        changefeed_id="",
        source=Uri.parse(source, "source").absolute(os.getcwd(), "source"),
        sink=target,
        config=_in_file(file, lambda: _modern(config, notices)),
        target_ts=target_ts,
    )
    name = changefeed_id
    name = default_changefeed_id(spec.source, spec.sink) if name is None else name
    spec = replace(spec, changefeed_id=check_changefeed_id(name))
    traits = sinks(target.scheme)
    _check_names(spec, traits)
    option_tables = tuple(tables(spec) if callable(tables) else tables)
    notices += _check(spec, traits, option_tables, file)
    check_target_ts(target_ts, spec.start_ts)
    return replace(spec, config=inline_rule_files(spec.config)), notices


def check_target_ts(target_ts: int, reached: int) -> None:
    """Refuse an end that is no commit-ts, or not above one that is reached already.

    Raises:
        BadOption: it is no commit-ts at all.
        TargetTsTooEarly: at or below `reached`.
    """
    if not 0 <= target_ts < 1 << 63:
        raise BadOption(f"target-ts = {target_ts}: not a commit-ts; allowed: 0 to 2^63 - 1")
    if target_ts and target_ts <= reached:
        raise TargetTsTooEarly(
            f"target-ts {target_ts} is not above {reached}, where the changefeed begins or stands; "
            "give a later one, or none"
        )


def _modern(config: str | Path | Mapping[str, Any] | None, notices: list[str]) -> dict[str, Any]:
    raw = config if isinstance(config, Mapping) else {} if config is None else read_config(config)
    content, deprecations = modernise(raw)
    notices += deprecations
    return content


def _check_names(spec: ChangefeedSpec, sink: SinkTraits) -> None:
    """Check what the sink decides alone, before any option table is looked up."""
    for key, check in (("protocol", check_protocol), ("transaction-atomicity", check_atomicity)):
        value = spec.written(spec.sink, "sink", key)
        check(sink, spec.sink.scheme, "" if value is None else str(value))


def _check(
    spec: ChangefeedSpec, sink: SinkTraits, tables: Sequence[OptionTable], file: str
) -> list[str]:
    readers = {sink.kind, spec.protocol or sink.default_protocol}
    of_source = [t for t in tables if t.section.split(".")[0] == "source"]
    of_sink = [t for t in (*own_tables(sink), *tables) if t not in of_source]
    _in_file(file, lambda: check_active_active(spec, sink))
    _in_file(file, lambda: check_sync_point(spec, sink))
    _in_file(file, lambda: check_quarantine(spec, sink, wants_raw_changes(spec, sink)))
    _in_file(file, lambda: check_consistent(spec, sink))
    notices = _in_file(file, lambda: check_config(spec.config, [*of_source, *of_sink], readers))
    if not sink.has_topics:
        notices += idle_rule_notices(spec.section("sink").get(DispatchOptions.dispatchers.key, ()))
    notices += check_parameters(spec.source, "source", of_source)
    notices += check_parameters(
        spec.sink, "sink", of_sink, readers, forwards=sink.forwards_parameters
    )
    notices += _overridden(spec.source, spec, of_source) + _overridden(spec.sink, spec, of_sink)
    for text in (spec.sink.parameter("protocol"), spec.section("sink").get("protocol", "")):
        if notice := protocol_notice(text):
            notices.append(notice)
    return list(dict.fromkeys(notices))


def _overridden(uri: Uri, spec: ChangefeedSpec, tables: Sequence[OptionTable]) -> list[str]:
    """Tell where a URI parameter wins over another value in the file."""
    given = dict(uri.parameters)
    return [
        f"{table.path(o.key)} of the file is not used: the URI gives another value"
        for table in tables
        for o in table.options
        if o.uri
        and o.key in given
        and o.key in (section := spec.section(table.section))
        and o.shape.parse(section[o.key]) != o.shape.parse(given[o.key])
    ]


def _in_file(file: str, check: Callable[[], Any]) -> Any:
    """Run a check; its error names the file, where there is one."""
    try:
        return check()
    except BadInput as err:
        if not file or err.words.startswith(file):
            raise
        raise type(err)(f"{file}: {err.words}") from None
