"""Where a changefeed begins, as parameters of its source: set at creation, moved by a reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rowferry.errors import BadOption, OptionsConflict
from rowferry.flow.capture.contract import BeginsAtPlace, BeginsAtPosition
from rowferry.registry import SOURCES
from rowferry.spec.build import check_target_ts
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

_START_TS: Final = "start-ts"
_STARTS: Final = (_START_TS, "start-position", "start-gtid")
_SNAPSHOT: Final = "snapshot"


def source_with_start_ts(source: str, start_ts: int | None) -> str:
    """Return a source URI that begins behind a commit-ts; None or 0 leaves it as it is.

    Raises:
        OptionsConflict: the URI names another commit-ts.
        BadOption: this kind of source cannot begin there.
    """
    if not start_ts:
        return source
    uri = Uri.parse(source, "source")
    _require(uri, _START_TS)
    named = uri.parameter(_START_TS)
    if named and named != str(start_ts):
        raise OptionsConflict(
            f"start_ts is {start_ts}, and the source URI's parameter start-ts is {named}; give one"
        )
    return uri.with_parameter(_START_TS, str(start_ts)).reveal()


def with_old_start(source: str, old: ChangefeedSpec) -> str:
    """Return a source URI that begins where the stored one does, unless it says where itself.

    Where a changefeed once began cannot be changed by an update, and need not be told again.
    """
    uri = Uri.parse(source, "source")
    if not any(uri.parameter(key) for key in _STARTS):
        for key in _STARTS:
            if written := old.source.parameter(key):
                uri = uri.with_parameter(key, written)
    return uri.reveal()


def with_start_of(spec: ChangefeedSpec, old: ChangefeedSpec) -> ChangefeedSpec:
    """Return settings that begin where the stored ones do, whatever they say themselves.

    The stored ones may begin elsewhere than they once did: a reset has moved them.
    """
    moved_spec = _without(spec, *_STARTS)
    for key in _STARTS:
        if written := old.source.parameter(key):
            moved_spec = replace(moved_spec, source=moved_spec.source.with_parameter(key, written))
    kept = {k: v for k, v in old.section("source").items() if k in _STARTS}
    if kept:
        section = {**moved_spec.section("source"), **kept}
        moved_spec = replace(moved_spec, config={**moved_spec.config, "source": section})
    return moved_spec


def moved(
    spec: ChangefeedSpec, commit_ts: int | None, position: str | None
) -> tuple[ChangefeedSpec, str]:
    """Return settings that begin elsewhere, and the place in words.

    With neither a commit-ts nor a position, that is a new snapshot.

    Raises:
        BadOption: this kind of source cannot begin there, or it is no such place.
        TargetTsTooEarly: the changefeed would begin behind its own end.
    """
    if commit_ts is not None:
        if commit_ts <= 0:
            raise BadOption(f"commit-ts {commit_ts}: it must be above 0")
        check_target_ts(spec.target_ts, commit_ts)
        return _begun(spec, _START_TS, str(commit_ts)), f"commit-ts {commit_ts}"
    if position is not None:
        place = position.strip()
        if not place:
            raise BadOption(
                "the position is empty; write a place of the source's log, such as FILE:OFFSET"
            )
        source = SOURCES.load(spec.source.scheme)
        if not isinstance(source, BeginsAtPlace):
            raise _begins_with_snapshot(spec.source)
        return _begun(spec, source.start_option(place), place), f"position {place}"
    restarted = _without(spec, *_STARTS)
    if _written(restarted, _SNAPSHOT).lower() == "never":
        restarted = _without(restarted, _SNAPSHOT)
    return restarted, "a new snapshot"


def at_position(
    spec: ChangefeedSpec, commit_ts: int, position: Mapping[str, Any], old: ChangefeedSpec
) -> ChangefeedSpec:
    """Return settings that begin at a commit-ts; where a position stands at it, just there.

    The stored settings, `old`, may begin at it, too: then an earlier reset has told the place, and
    no position tells it until something was delivered from there on.
    """
    if _written(old, _START_TS) == str(commit_ts):
        spec = with_start_of(spec, old)
    source, uri = SOURCES.load(spec.source.scheme), spec.source
    if isinstance(source, BeginsAtPosition):
        for key, value in source.start_at(position, commit_ts).items():
            uri = uri.with_parameter(key, value)
    return replace(spec, source=uri)


def _begun(spec: ChangefeedSpec, key: str, value: str) -> ChangefeedSpec:
    _require(spec.source, key)
    plain = _without(spec, *_STARTS)
    return replace(plain, source=plain.source.with_parameter(key, value))


def _require(source: Uri, key: str) -> None:
    known = {o.key for table in SOURCES.load(source.scheme).TABLES for o in table.options}
    if key not in known:
        raise _begins_with_snapshot(source)


def _begins_with_snapshot(source: Uri) -> BadOption:
    return BadOption(
        f"a {source.scheme} source cannot begin at a place of its log; it begins with a snapshot"
    )


def _written(spec: ChangefeedSpec, key: str) -> str:
    value = spec.written(spec.source, "source", key)
    return "" if value is None else str(value)


def _without(spec: ChangefeedSpec, *keys: str) -> ChangefeedSpec:
    """Return settings without these keys of the source, in its URI and in the configuration."""
    uri = spec.source
    for key in keys:
        uri = uri.with_parameter(key, None)
    config = dict(spec.config)
    if section := spec.section("source"):
        config["source"] = {k: v for k, v in section.items() if k not in keys}
    return replace(spec, source=uri, config=config)
