"""What a changefeed would do with each table: where its rows go, and which rules say so."""

from __future__ import annotations

from collections.abc import Iterator

from rowferry.change.table import TableId, TableSchema
from rowferry.control import lifecycle
from rowferry.control.operator.checks.prepare import PreparedFeed
from rowferry.control.operator.operation_forms import Created
from rowferry.control.operator.settings.table_rules import deciding_rule, filter_rules
from rowferry.control.store.contract import FeedRecord
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.flow.dispatch.by_topic import ByTopic
from rowferry.flow.sink.storage.paths import database_directory, escape
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.rules.dispatch import dispatch_rules
from rowferry.spec.uri import Uri


def described(prepared: PreparedFeed, feed: FeedRecord, dry_run: bool) -> Created:
    """Return a changefeed, stored or not, with what it does with each table."""
    return Created(
        feed=feed,
        eligible=tuple(sorted(t.id for t in prepared.tables)),
        ineligible=tuple(sorted(t.id for t in prepared.ineligible)),
        outputs=outputs(prepared),
        rules=rules(prepared),
        notices=prepared.notices,
        dry_run=dry_run,
    )


def unstored(spec: ChangefeedSpec, now: float) -> FeedRecord:
    """Return a changefeed as it would be, had it been stored."""
    return FeedRecord(
        id=spec.changefeed_id,
        state=lifecycle.INITIAL,
        spec=spec,
        spec_version=0,
        created_at=now,
        epoch=0,
        micro_batch=0,
        watermark=0,
        error="",
        error_code="",
        cancel=False,
        lease=None,
    )


def outputs(prepared: PreparedFeed) -> dict[TableId, str]:
    """Return where the rows of each captured table go: a topic, a directory, a table or a URL."""
    return {table.id: _output(prepared, table) for table in prepared.tables}


def _output(prepared: PreparedFeed, table: TableSchema) -> str:
    flow, sink = prepared.flow, prepared.spec.sink
    name = flow.decide.seen_as(table).written_as
    if isinstance(flow.dispatch, ByTopic):
        return flow.dispatch.topic_of(table.id)
    if flow.sink.TRAITS.takes_files:
        inside = f"{database_directory(name.database)}/{escape(name.table)}/"
        return f"{_bare(sink).rstrip('/')}/{inside}"
    if flow.sink.TRAITS.writes_tables:
        return str(name)
    return _bare(sink)


def _bare(uri: Uri) -> str:
    """Return a URI without login and parameters."""
    return f"{uri.scheme}://{uri.address}{uri.path}"


def rules(prepared: PreparedFeed) -> tuple[str, ...]:
    """Return which rules decide about each table, a line each."""
    return tuple(
        line
        for table in sorted((*prepared.tables, *prepared.ineligible), key=lambda t: t.id)
        for line in _lines(prepared, table)
    )


def _lines(prepared: PreparedFeed, table: TableSchema) -> Iterator[str]:
    spec, name = prepared.spec, table.id
    cased = spec.options(FeedOptions).case_sensitive
    rule = deciding_rule(filter_rules(spec), *name, cased)
    if table not in prepared.tables:
        yield f"{name}: matched by filter rule {rule!r}, left out because it has no usable key"
        return
    yield f"{name}: captured by filter rule {rule!r}"
    if isinstance(prepared.flow.dispatch, ByTopic):
        yield from _dispatch_lines(spec, name, cased)
    seen = prepared.flow.decide.seen_as(table)
    if seen.written_as != name:
        yield f"{name}: written as {seen.written_as}"
    if left := [c.name for c in table.columns if c.name.lower() not in seen.by_name]:
        yield f"{name}: columns left out by sink.column-selectors: {', '.join(left)}"


def _dispatch_lines(spec: ChangefeedSpec, name: TableId, cased: bool) -> Iterator[str]:
    """Tell the first dispatch rule that fits."""
    for rule in dispatch_rules(spec):
        if TableFilter(rule.matcher, cased).matches_table(*name):
            settings = {"topic": rule.topic, "partition": rule.partition}
            words = ", ".join(f"{key} = {value}" for key, value in settings.items() if value)
            yield f"{name}: dispatched by {rule.path}" + (f" ({words})" if words else "")
            return
