"""Checks a changefeed before anything is stored: its settings, its source, its sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from rowferry.change.table import TableId, TableSchema
from rowferry.control.operator.checks.near_misses import hint, nothing_matches
from rowferry.control.operator.settings.table_rules import filter_rules
from rowferry.control.store.connection import has_database
from rowferry.control.store.sql_store import open_store
from rowferry.errors import (
    BadTransform,
    NoSuchTable,
    OddAnswer,
    OptionsConflict,
    RowferryError,
    SinkError,
    SpecChanged,
    WrittenOntoItself,
)
from rowferry.flow.assemble import Flow, assemble, option_tables, sink_traits
from rowferry.flow.capture.contract import ChecksStart, Marking, Stamping
from rowferry.flow.sink.contract import HasAdvice, MarkReading, Owner
from rowferry.registry import SINKS, SOURCES
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.active_active import ActiveActive, read_active_active
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.rules.matched import has_matchers
from rowferry.spec.rules.transform import TransformOptions
from rowferry.spec.sealing import SecretKeys
from rowferry.spec.uri import Uri

LOG = logging.getLogger(__name__)
_EPOCH_TO_COME = (1 << 62) - 1  # the claim comes later; it will be above every epoch so far


@dataclass(frozen=True, slots=True)
class PreparedFeed:
    """A changefeed that was checked and may run; nothing was written yet.

    Attributes:
        tables: those that are captured.
        ineligible: those that match the filter and have no usable key.
        unmatched: of a new changefeed whose filter fits no table: which it may have meant.
    """

    spec: ChangefeedSpec
    flow: Flow
    tables: tuple[TableSchema, ...]
    notices: tuple[str, ...]
    ineligible: tuple[TableSchema, ...] = ()
    unmatched: str = ""


def prepare(
    source: str,
    sink: str,
    config: Path | Mapping[str, Any] | None = None,
    changefeed_id: str | None = None,
    stored: Callable[[str], ChangefeedSpec | None] = lambda changefeed: None,
    target_ts: int = 0,
    secrets: SecretSources = NO_STORE,
) -> PreparedFeed:
    """Check what the user asked for, and ask source and sink whether it can be done.

    `stored` returns the settings of a changefeed that was created before. It goes on whatever
    tables have come and gone since: only a new one is refused because of its tables. `secrets` is
    where the values of references come from; the settings that are returned keep the references.

    Raises:
        RowferryError: one line that says what is wrong. Nothing was written.
    """
    spec, notices = build_spec(
        source,
        sink,
        config,
        changefeed_id,
        tables=option_tables,
        target_ts=target_ts,
        sinks=sink_traits,
    )
    before = stored(spec.changefeed_id)
    if before is not None:
        spec = replace(spec, managed_by=before.managed_by)
    return examine(spec, before, notices, secrets=secrets)


def examine(
    spec: ChangefeedSpec,
    before: ChangefeedSpec | None,
    notices: Iterable[str] = (),
    anew: bool = False,
    secrets: SecretSources = NO_STORE,
) -> PreparedFeed:
    """Ask source and sink whether a changefeed with checked settings can run.

    `before` are the settings with which it was stored, None: it is new. `anew`: it begins where
    they say, as a new one does. Raises as `prepare` does.
    """
    flow = assemble(secrets.resolved(spec))
    with flow.hiding.in_errors():
        return _examined(spec, flow, before, notices, anew, secrets)


def _examined(
    spec: ChangefeedSpec,
    flow: Flow,
    before: ChangefeedSpec | None,
    notices: Iterable[str],
    anew: bool,
    secrets: SecretSources,
) -> PreparedFeed:
    remarks = list(notices)
    if not flow.capture.traits().has_closed_timestamps and flow.sink.whole_transactions:
        raise OptionsConflict(
            "transaction-atomicity = table or global needs a source with closed timestamps: "
            "remove it, or set feed-level = transaction"
        )
    if not flow.capture.traits().has_closed_timestamps and flow.redo is not None:
        raise OptionsConflict(
            "consistent.level = eventual needs a source with closed timestamps, else rows are "
            "ahead of every consistent point: set it to none, or set feed-level = transaction"
        )
    if before is not None:
        check_alterable(before, spec, flow)
    with _asking(OddAnswer, "source", spec.source):
        tables = flow.capture.probe(flow.decide)
        if (anew or before is None) and isinstance(flow.capture, ChecksStart):
            flow.capture.check_beginning()
        remarks += flow.capture.notices
        spec, flow = _with_cluster_id(spec, before, flow, secrets)
        spec = _with_salt_check(spec, before, flow)
    if flow.sink.separates_partitions and flow.capture.unnumbered:
        names = ", ".join(str(n) for n in flow.capture.unnumbered)
        raise OptionsConflict(
            f"{names}: partitioned, and the source's log does not tell a row's partition; set "
            "enable-partition-separator = false, or leave them out by filter.rules"
        )
    _check_whole_rows(spec, flow)
    if before is None:
        _check_old_rows(spec, flow)
        remarks += _checked_tables(spec, flow, tables)
    captured = tuple(t for t in tables if flow.decide.captures(t))
    if before is None and not flow.capture.traits().carries_before_image:
        flow.decide.require_old_rows(captured)
    flow.decide.check_salt()
    flow.decide.names(captured).check()
    seen = [flow.decide.seen_as(t) for t in captured]
    with _asking(SinkError, "sink", spec.sink):
        refuse_self_replication(flow, seen)
        if before is None:
            flow.sink.check_tables(seen)
            _check_stamps(flow, captured)
            for part in (flow.sink, flow.format):
                if isinstance(part, HasAdvice):
                    remarks += part.advice(seen)
        flow.probe_target(Owner(spec.changefeed_id, _EPOCH_TO_COME if before else 0))
    unmatched = ""
    if not captured:
        unmatched = nothing_matches(spec) if before is None and not tables else ""
        remarks.append(unmatched or "no table matches the filter yet")
        remarks[-1] += "; new ones are picked up when created"
    taken = {t.id for t in captured}
    keyless = tuple(t for t in tables if t.id not in taken and flow.decide.keeps_table(t.id))
    return PreparedFeed(spec, flow, captured, tuple(remarks), keyless, unmatched)


def _checked_tables(spec: ChangefeedSpec, flow: Flow, tables: Sequence[TableSchema]) -> list[str]:
    """Judge the tables of a new changefeed; a name that is missing is told with those like it."""
    try:
        return flow.decide.check_tables(tables)
    except NoSuchTable as err:
        raise NoSuchTable(f"{err.words}{hint(spec, filter_rules(spec))}") from None


@contextmanager
def _asking(error: type[RowferryError], who: str, uri: Uri) -> Iterator[None]:
    """Let an answer that makes no sense be an error of ours.

    Whoever is asked need not be what the URI says: its words may fit the protocol, and yet be of
    another kind, count or size than any server's. The log has what could not be done with them.
    """
    try:
        yield
    except RowferryError:
        raise
    except Exception as err:
        LOG.warning("what the %s answers makes no sense", who, exc_info=True)
        words = f"the {who} at {uri.address} gives an answer that makes no sense; the log has more"
        raise error(words) from err


def refuse_self_replication(flow: Flow, tables: Iterable[TableSchema]) -> None:
    """Refuse a changefeed that writes tables onto themselves; they are as readers see them.

    Addresses do not tell: a proxy, a second name or another scheme may lead to the same server. So
    a lock is taken at the source, under a name that nobody else can know, and the sink is asked
    whether it has it.

    Raises:
        WrittenOntoItself: source and sink are one server, and a table keeps its name.
    """
    source, sink = flow.capture, flow.sink
    if not isinstance(source, Marking) or not isinstance(sink, MarkReading):
        return
    alike = [t for t in tables if _folded(t.id) == _folded(t.written_as)]
    itself = next((t for t in alike if t.id == t.written_as), None)
    if itself is None and alike and sink.folds_names():
        itself = alike[0]
    if itself is None:
        return
    mark = f"rowferry-{uuid4().hex}"
    with source.marked(mark):
        if sink.sees(mark):
            raise WrittenOntoItself(
                f"the sink is the server that is read, and {itself.id} would be written onto "
                "itself; name another server, or give its tables a target-schema in "
                "sink.dispatchers"
            )


def _folded(name: TableId) -> tuple[str, str]:
    return name.database.lower(), name.table.lower()


def _check_old_rows(spec: ChangefeedSpec, flow: Flow) -> None:
    """Refuse a codec that would stop at the first delete of a source without old rows."""
    if flow.format.TRAITS.needs_old_rows and not flow.capture.traits().carries_before_image:
        raise OptionsConflict(
            f"protocol {spec.protocol} writes all columns of a deleted row, and this source gives "
            "only its key; use protocol=canal-json"
        )


def _check_stamps(flow: Flow, tables: Iterable[TableSchema]) -> None:
    if isinstance(flow.capture, Stamping):
        flow.capture.check_stamps(t.id for t in tables)


def _check_whole_rows(spec: ChangefeedSpec, flow: Flow) -> None:
    """Refuse a codec that would stop at the first row image that lacks a column."""
    if flow.capture.traits().omits_columns and not flow.format.TRAITS.can_omit_columns:
        what = f"protocol {spec.protocol}" if spec.protocol else f"a {spec.sink.scheme} sink"
        raise OptionsConflict(
            f"partial-row-image = allow lets rows lack columns, and {what} needs whole rows; set "
            "binlog_row_image = FULL on the server and leave the option out"
        )


def _with_cluster_id(
    spec: ChangefeedSpec, before: ChangefeedSpec | None, flow: Flow, secrets: SecretSources
) -> tuple[ChangefeedSpec, Flow]:
    """Settle under which name the source's cluster is known downstream, once and for all."""
    mode = read_active_active(spec)
    if not mode.enabled or mode.cluster_id:
        return spec, flow
    stored = read_active_active(before).cluster_id if before else ""
    cluster_id = stored or flow.capture.identity
    spec = replace(spec, config={**spec.config, ActiveActive.cluster_id.key: cluster_id})
    named = assemble(secrets.resolved(spec))
    return spec, replace(flow, sink=named.sink, dispatch=named.dispatch)


def _with_salt_check(
    spec: ChangefeedSpec, before: ChangefeedSpec | None, flow: Flow
) -> ChangefeedSpec:
    """Settle by what a changed salt is noticed.

    Raises:
        BadTransform: it is another one than the changefeed was created with.
    """
    check = flow.decide.salt_check()
    stored = before.options(TransformOptions).salt_check if before else ""
    if stored and check and stored != check:
        raise BadTransform(
            f"transform.salt is not the one with which changefeed {spec.changefeed_id!r} was "
            "created: hashes would not be those that readers have; give it back its value"
        )
    if not check:
        return spec
    section = {**spec.section("transform"), TransformOptions.salt_check.key: check}
    return replace(spec, config={**spec.config, "transform": section})


def check_rules(
    old: ChangefeedSpec, new: ChangefeedSpec, secrets: SecretSources = NO_STORE
) -> None:
    """Ask the source whether a changefeed can go on with other filter rules; the sink is let be.

    Raises:
        BadInput: as `check_added_rules` does, or a captured table cannot go to the sink.
    """
    flow = assemble(secrets.resolved(new))
    with _asking(OddAnswer, "source", new.source):
        tables = flow.capture.probe(flow.decide)
    captured = tuple(t for t in tables if flow.decide.captures(t))
    if not flow.capture.traits().carries_before_image:
        flow.decide.require_old_rows(captured)
    flow.decide.check_salt()
    flow.decide.names(captured).check()
    flow.sink.check_tables([flow.decide.seen_as(t) for t in captured])
    _check_stamps(flow, captured)
    check_added_rules(old, PreparedFeed(new, flow, tables, ()))


def check_added_rules(old: ChangefeedSpec, prepared: PreparedFeed) -> None:
    """Judge the tables that new filter rules bring, as those of a new changefeed are judged.

    All rules are new where names are compared in another way.

    Raises:
        NoSuchTable, TableIneligible: one of them is missing, or has no usable key.
    """
    new = prepared.spec
    before = filter_rules(old) if _case_of(old) == _case_of(new) else ()
    added = [r for r in filter_rules(new) if r not in before and not r.startswith("!")]
    if added:
        prepared.flow.decide.check_added((*prepared.tables, *prepared.ineligible), added)


def stored_spec(
    meta_url: str, changefeed: str, keys: SecretKeys | None = None
) -> ChangefeedSpec | None:
    """Return the settings of a changefeed; None: it, or its meta database, was never made.

    Raises:
        BadUri: the URL is not one of a database that can be used.
        StateError: the database is there, but cannot be read.
    """
    if not has_database(meta_url):
        return None
    store = open_store(meta_url, keys=keys)
    try:
        feed = store.feed(changefeed)
        return feed.spec if feed else None
    finally:
        store.close()


def check_alterable(old: ChangefeedSpec, new: ChangefeedSpec, flow: Flow) -> None:
    """Refuse new settings that a stored changefeed cannot take; `flow` is that of the new ones.

    Raises:
        SpecChanged: another source, sink or protocol, or an option that never changes.
    """
    cure = "make a new changefeed for that, under another id"
    from_anywhere = flow.capture.traits().movable and type(flow.capture) is SOURCES.load(
        old.source.scheme
    )
    to_anywhere = flow.sink.TRAITS.movable and type(flow.sink) is SINKS.load(old.sink.scheme)
    for what, before, after, same in (
        ("source", old.source, new.source, from_anywhere or _same_place(old.source, new.source)),
        ("sink", old.sink, new.sink, _same_place(old.sink, new.sink, to_anywhere)),
    ):
        if not same:
            raise SpecChanged(
                f"changefeed {old.changefeed_id!r} has the {what} {before}, not {after}; {cure}"
            )
    if old.protocol != new.protocol:
        raise SpecChanged(
            f"changefeed {old.changefeed_id!r} writes {old.protocol}, not {new.protocol}; {cure}"
        )
    _check_options(old, new, cure)
    _check_case(old, new, cure)


def _check_options(old: ChangefeedSpec, new: ChangefeedSpec, cure: str) -> None:
    for table in option_tables(new):
        uri_old, uri_new = (
            (old.source, new.source) if table.section == "source" else (old.sink, new.sink)
        )
        was, now = old.options(table, uri_old), new.options(table, uri_new)
        for option in table.options:
            if not option.alterable and was[option] != now[option]:
                if option.secret:
                    raise SpecChanged(
                        f"{table.path(option.key)} of changefeed {old.changefeed_id!r} cannot be "
                        f"changed; {cure}"
                    )
                raise SpecChanged(
                    f"{table.path(option.key)} of changefeed {old.changefeed_id!r} is "
                    f"{was[option]!r} and cannot be changed to {now[option]!r}; {cure}"
                )


def _check_case(old: ChangefeedSpec, new: ChangefeedSpec, cure: str) -> None:
    """Refuse to let rules that never change be for other tables: columns would go out in clear."""
    if _case_of(old) == _case_of(new):
        return
    for table in option_tables(new):
        settings = new.options(table)
        for option in table.options:
            if not option.alterable and has_matchers(settings[option]):
                raise SpecChanged(
                    f"{FeedOptions.case_sensitive.key} of changefeed {old.changefeed_id!r} cannot "
                    f"be changed, because {table.path(option.key)} would be for other tables; "
                    f"{cure}"
                )


def _case_of(spec: ChangefeedSpec) -> bool:
    return spec.options(FeedOptions).case_sensitive


def _same_place(one: Uri, other: Uri, movable: bool = False) -> bool:
    """Return whether two URIs name one place; a movable one may have another address."""
    if movable:
        return one.path == other.path
    return (one.scheme, one.address, one.path) == (other.scheme, other.address, other.path)
