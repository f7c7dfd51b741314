"""Carries out SQL statements about changefeeds: one statement, one call of an operation, a table.

Nothing in an answer holds a secret: URIs and settings are shown redacted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never

from rowferry.change.position import RangeProgress, Stage, physical_ms
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operation_forms import LastChanges, sample_words
from rowferry.control.operator.operations import ChangedSettings, Created, Operations, Seen, Wanted
from rowferry.control.operator.quarantine import Choice
from rowferry.control.operator.quarantine import forms as parked_forms
from rowferry.control.operator.resnapshots import forms
from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.control.operator.snapshot_progress import (
    newest_sample,
    phase,
    snapshot_sum,
    text_bar,
)
from rowferry.control.operator.statements.declared import applied, exported
from rowferry.control.operator.statements.parsed import (
    AddTables,
    ApplyText,
    CancelResnapshot,
    CreateChangefeed,
    Drop,
    DropTables,
    ExportText,
    ParkedRows,
    Pause,
    Reset,
    ResnapshotTable,
    Resume,
    SetOptions,
    Setting,
    ShowChangefeed,
    ShowChangefeeds,
    ShowOfChangefeed,
    ShowResnapshots,
    TraceRow,
)
from rowferry.control.operator.statements.syntax import parse
from rowferry.control.operator.statements.trace import traced
from rowferry.control.store.contract import FeedRecord
from rowferry.errors import BadStatement, NoSuchChangefeed

_LISTED: Final = ("id", "state", "checkpoint_ts", "checkpoint_time", "lag_ms", "owner")
_PLANNED: Final = ("what", "name", "details")
_PARKED: Final = ("row", "table", "key", "op", "commit_ts", "state", "cause")
_RESNAPSHOTS: Final = ("id", "table", "where", "state", "rows", "total", "message")
_PROGRESS: Final = ("table", "range", "stage", "position", "snapshot")


@dataclass(frozen=True, slots=True)
class StatementAnswer:
    """What a statement gave: a table, which may be empty, and a line of words.

    Cells are texts, whole numbers or None.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    message: str


def execute(operations: Operations, text: str) -> StatementAnswer:
    """Carry out the one statement that `text` holds.

    Raises:
        BadStatement: it cannot be understood; the text names the word, its place, and what was
            expected. Nothing was changed.
        RowferryError: as the operation says.
    """
    asked = parse(text)
    match asked:
        case CreateChangefeed():
            return _created(operations.create(_wanted(asked), dry_run=asked.explain))
        case SetOptions():
            feed = operations.update(asked.name, _changed(operations, asked))
            return _done(feed, "updated")
        case AddTables():
            return _done(operations.add_tables(asked.name, asked.tables), "captures more tables")
        case DropTables():
            return _done(operations.drop_tables(asked.name, asked.tables), "captures fewer tables")
        case Reset():
            feed = operations.reset(asked.name, asked.commit_ts, asked.position, asked.snapshot)
            return _done(feed, "begins anew when it is resumed")
        case ResnapshotTable():
            wish = operations.resnapshot(asked.name, asked.table, asked.keys, asked.where)
            return _resnapshots(operations, asked.name, f"resnapshot {wish.id} was asked for")
        case CancelResnapshot():
            operations.cancel_resnapshot(asked.name, asked.which)
            return _resnapshots(operations, asked.name, f"resnapshot {asked.which} has ended")
        case ShowResnapshots():
            return _resnapshots(operations, asked.name, "")
        case TraceRow():
            return StatementAnswer(*traced(operations, asked))
        case ParkedRows():
            return _parked(operations, asked)
        case ApplyText():
            return StatementAnswer(*applied(operations, asked))
        case ExportText():
            return StatementAnswer(*exported(operations, asked))
        case Pause():
            return _done(operations.pause(asked.name), "paused")
        case Resume():
            return _done(operations.resume(asked.name, asked.commit_ts), "resumed")
        case Drop():
            return _dropped(operations, asked)
        case ShowChangefeeds():
            return _listed(operations.feeds(tuple(FeedState) if asked.every else ()))
        case ShowChangefeed():
            seen = operations.see(asked.name)
            return _progress(seen) if asked.progress else _details(seen)
        case ShowOfChangefeed():
            return _show_of(operations, asked)
    assert_never(asked)


def _resnapshots(operations: Operations, name: str, message: str) -> StatementAnswer:
    known = forms(operations.resnapshots(name))
    rows = tuple(tuple(one[key] for key in _RESNAPSHOTS) for one in known)
    return StatementAnswer(_RESNAPSHOTS, rows, message or f"{len(rows)} resnapshots")


def _parked(operations: Operations, asked: ParkedRows) -> StatementAnswer:
    choice = Choice(table=asked.table, key=asked.key, every=not asked.table)
    message = ""
    match asked.verb:
        case "retry":
            count = operations.retry_quarantined(asked.name, choice)
            message = f"{count} rows will be sent again"
        case "drop":
            message = f"{operations.drop_quarantined(asked.name, choice)} rows were dropped"
    known = parked_forms(operations.quarantined(asked.name))
    rows = tuple(tuple(one[key] for key in _PARKED) for one in known)
    return StatementAnswer(_PARKED, rows, message or f"{len(rows)} parked rows")


# --- what is asked for ---------------------------------------------------------------------------


def _wanted(asked: CreateChangefeed) -> Wanted:
    own, settings = _own_keys(asked.settings, ("start_ts", "target_ts"))
    config = _merged({}, settings)
    if asked.tables:
        rules = config.setdefault("filter", {})
        if not isinstance(rules, dict):
            raise BadStatement("filter is a section: write filter.rules = [...]")
        if "rules" in rules:
            raise BadStatement("FOR TABLE and filter.rules both say which tables: keep one of them")
        rules["rules"] = list(asked.tables)
    return Wanted(
        asked.source,
        asked.sink,
        asked.name,
        config,
        start_ts=_commit_ts(own, "start_ts"),
        target_ts=_commit_ts(own, "target_ts"),
    )


def _changed(operations: Operations, asked: SetOptions) -> ChangedSettings:
    own, settings = _own_keys(
        asked.settings, ("start_ts", "target_ts", "source_uri", "sink_uri", "changefeed_id")
    )
    for key, cure in (
        ("start_ts", "use ALTER CHANGEFEED … RESET TO TS"),
        ("changefeed_id", "create another changefeed"),
    ):
        if key in own:
            raise BadStatement(f"{key} can not be updated: {cure}")
    for key in ("source_uri", "sink_uri"):
        if key in own and not isinstance(own[key], str):
            raise BadStatement(f"{key}: expected a URI in quotes")
    # With secrets as answers show them: only what the statement writes out counts as given.
    stored = redacted_config(operations.see(asked.name).feed.spec)
    return ChangedSettings(
        own.get("source_uri"),
        own.get("sink_uri"),
        _merged(stored, settings) if settings else None,
        _commit_ts(own, "target_ts", none=0),
    )


def _own_keys(
    settings: Iterable[Setting], names: Sequence[str]
) -> tuple[dict[str, Any], list[Setting]]:
    """Part the keys that are no part of the configuration from those that are."""
    own: dict[str, Any] = {}
    rest: list[Setting] = []
    for path, value in settings:
        name = path[0].replace("-", "_")
        if len(path) == 1 and name in names:
            if name in own:
                raise BadStatement(f"{name} is given twice")
            own[name] = value
        else:
            rest.append((path, value))
    return own, rest


def _commit_ts(own: Mapping[str, Any], key: str, none: int | None = None) -> int | None:
    if key not in own:
        return None
    value = own[key]
    if value is None:
        return none
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        shown = key if isinstance(value, str) else f"{key} = {value!r}"
        raise BadStatement(f"{shown}: expected a commit-ts, a positive whole number")
    return value


def _merged(config: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the configuration with these settings; None removes one."""
    inside = {path[:end]: path for path, _ in settings for end in range(1, len(path))}
    for path, _ in settings:
        if path in inside:
            both = f"{'.'.join(path)} and {'.'.join(inside[path])}"
            raise BadStatement(f"{both} overlap: keep one of them")
    merged = deepcopy(dict(config))
    for path, value in settings:
        here = merged
        for part in path[:-1]:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise BadStatement(f"{'.'.join(path)}: {part} is a value, not a section")
        if value is None:
            here.pop(path[-1], None)
        else:
            here[path[-1]] = value
    return merged


# --- answers -------------------------------------------------------------------------------------


def _done(feed: FeedRecord, what: str) -> StatementAnswer:
    return StatementAnswer((), (), f"changefeed {feed.id} {what}")


def _dropped(operations: Operations, asked: Drop) -> StatementAnswer:
    feed = operations.remove(asked.name)
    if feed is not None:
        return _done(feed, "dropped")
    if not asked.if_exists:
        raise NoSuchChangefeed(f"there is no changefeed {asked.name!r}")
    return StatementAnswer((), (), f"there is no changefeed {asked.name!r}: nothing to drop")


def _created(made: Created) -> StatementAnswer:
    rows: list[tuple[str, str, str]] = [
        ("captured", str(table), made.outputs.get(table, "")) for table in made.eligible
    ]
    rows += [("left out", str(table), "it has no usable key") for table in made.ineligible]
    rows += [("rule", "", words) for words in made.rules]
    rows += [("note", "", words) for words in made.notices]
    count = f"{len(made.eligible)} table{'' if len(made.eligible) == 1 else 's'}"
    name = made.feed.id
    message = f"changefeed {name} created: {count} captured"
    if made.dry_run:
        message = f"changefeed {name} can be created: {count} would be captured; nothing was stored"
    return StatementAnswer(_PLANNED, tuple(rows), message)


def _listed(feeds: Sequence[FeedRecord]) -> StatementAnswer:
    rows = tuple(
        (*_where(feed), str(feed.spec.source), str(feed.spec.sink), _error(feed)) for feed in feeds
    )
    count = f"{len(feeds)} changefeed{'' if len(feeds) == 1 else 's'}"
    return StatementAnswer((*_LISTED, "source", "sink", "error"), rows, count)


def _details(seen: Seen) -> StatementAnswer:
    feed = seen.feed
    rows: list[tuple[str, Any]] = list(zip(_LISTED, _where(feed), strict=True))
    rows += [
        ("created", _time(feed.created_at * 1000)),
        ("source_uri", str(feed.spec.source)),
        ("sink_uri", str(feed.spec.sink)),
        ("target_ts", feed.spec.target_ts or None),
        ("tables", ", ".join(str(table) for table in seen.tables)),
        *((f"position.{name}", value) for name, value in seen.log_place.items()),
        ("log_kept_ms", seen.kept_ms),
        ("error", _error(feed)),
        ("cure", seen.cure or None),
    ]
    rows += [(key, _value(value)) for key, value in _flat(redacted_config(feed.spec))]
    return StatementAnswer(("key", "value"), tuple(rows), _words(seen))


def _progress(seen: Seen) -> StatementAnswer:
    under_way = {
        t: f"{text_bar(done, all_)} ({done:,}/{all_:,})" for t, done, all_ in _snapshots(seen)
    }
    rows: list[tuple[Any, ...]] = []
    shown: set[str] = set()
    for one in seen.ranges:
        table = f"{one.database}.{one.table}"
        shown.add(table)
        stage = one.stage.name.lower()
        rows.append((table, one.range_id, stage, _position(one), under_way.get(table)))
    others = [*under_way, *(str(table) for table in seen.tables)]  # a first snapshot's are planned
    rows += [
        (table, None, "snapshot" if table in under_way else None, None, under_way.get(table))
        for table in dict.fromkeys(others)
        if table not in shown
    ]
    return StatementAnswer(_PROGRESS, tuple(rows), _words(seen))


def _show_of(operations: Operations, asked: ShowOfChangefeed) -> StatementAnswer:
    """Return the tables, the schema changes, the log lines or the last changes of a changefeed."""
    name = asked.name
    if asked.what == "log":
        lines = operations.log(name)
        rows = tuple((_time(e.at * 1000), e.level, e.server, e.words) for e in lines)
        return StatementAnswer(("time", "level", "server", "message"), rows, f"log of {name}")
    if asked.what == "sample":
        return _sample(operations.last_changes(name), name)
    seen = operations.see(name)
    if asked.what == "tables":
        counts = {count.table: count for count in seen.counts}
        tables = []
        for table in seen.tables:
            count = counts.get(table)
            last = _time(physical_ms(count.last_ts)) if count and count.last_ts else None
            sums = (count.rows, count.bytes) if count else (0, 0)
            tables.append((str(table), *sums, last))
        return StatementAnswer(
            ("table", "rows", "bytes", "last_change"), tuple(tables), f"{len(tables)} tables"
        )
    changes = tuple(
        (_time(physical_ms(c.commit_ts)), c.commit_ts, str(c.table), c.kind, c.query)
        for c in seen.schema_changes
    )
    columns = ("time", "commit_ts", "table", "kind", "statement")
    return StatementAnswer(columns, changes, f"{len(changes)} schema changes")


def _sample(last: LastChanges, name: str) -> StatementAnswer:
    columns = ("time", "commit_ts", "table", "op", "key", "before", "after")
    rows = tuple(
        (
            *(_time(physical_ms(one.commit_ts)), one.commit_ts, str(one.table), one.op),
            *(_one_line(image) for image in (one.key, one.before, one.after)),
        )
        for one in last.changes
    )
    return StatementAnswer(columns, rows, sample_words(last, name))


def _one_line(image: Mapping[str, Any] | None) -> str | None:
    return None if image is None else json.dumps(image, ensure_ascii=False)


def _snapshots(seen: Seen) -> tuple[tuple[str, int, int], ...]:
    newest = newest_sample(seen.samples, time.time())
    return newest.snapshots if newest else ()


def _position(one: RangeProgress) -> str:
    match one.stage:
        case Stage.REGISTERED:
            return ""
        case Stage.SNAPSHOT:
            return f"key {one.last_snapshot_key}" if one.last_snapshot_key else ""
        case Stage.LOG:
            return f"log {one.last_log_index}" if one.last_log_index else ""
    assert_never(one.stage)


def _words(seen: Seen) -> str:
    feed = seen.feed
    words, now = [f"changefeed {feed.id} is {feed.state}"], time.time()
    if doing := phase(feed, seen.samples, now):
        words[0] += f" ({doing})"
    if (snapshot := snapshot_sum(seen.samples, now)) is not None:
        bar = text_bar(snapshot.done, snapshot.total)
        words.append(f"snapshot {bar}, {snapshot.done:,} of {snapshot.total:,} {snapshot.unit}")
        if snapshot.left_ms is not None:
            words.append(f"about {snapshot.left_ms / 1000:,.0f} s left")
    if feed.watermark:
        words.append(f"checkpoint {feed.watermark} ({_time(physical_ms(feed.watermark))})")
        words.append(f"lag {(_lag_ms(feed) or 0) / 1000:.1f} s")
    if rate := _rows_per_s(seen):
        words.append(f"{rate:,.0f} rows/s")
    if feed.error:
        words.append(_error(feed) or "")
    return "; ".join(words)


def _rows_per_s(seen: Seen) -> float:
    if len(seen.samples) < 2:
        return 0.0
    before, newest = seen.samples[-2:]
    seconds = newest.at - before.at
    return newest.rows / seconds if seconds > 0 else 0.0


def _where(feed: FeedRecord) -> tuple[Any, ...]:
    """Return the cells of `_LISTED`."""
    held = feed.lease is not None and feed.lease.expires_at > time.time()
    return (
        feed.id,
        str(feed.state),
        feed.watermark or None,
        _time(physical_ms(feed.watermark)) if feed.watermark else None,
        _lag_ms(feed),
        feed.lease.owner if feed.lease and held else None,
    )


def _lag_ms(feed: FeedRecord) -> int | None:
    if not feed.watermark:
        return None
    return max(0, time.time_ns() // 1_000_000 - physical_ms(feed.watermark))


def _error(feed: FeedRecord) -> str | None:
    return f"[{feed.error_code}] {feed.error}" if feed.error else None


def _time(ms: float) -> str:
    """Return a moment as TiCDC writes it: local time with milliseconds."""
    return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")


def _flat(config: Mapping[str, Any], lead: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{lead}{key}"
        pairs += _flat(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return pairs


def _value(value: Any) -> Any:
    """Return a setting's value as a cell: as one would write it in a statement."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(str(_value(v)) for v in value) + "]"
    return value if isinstance(value, int | str) else str(value)
