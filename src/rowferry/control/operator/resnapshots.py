"""One table again beside the stream: what is asked for is checked, and shown as far as it is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId, TableSchema
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.checks.near_misses import near_misses
from rowferry.control.operator.operation_forms import ResnapshotProgress
from rowferry.control.store.contract import FeedRecord, FleetServer, MetaStore
from rowferry.errors import (
    BadEventFilter,
    BadInput,
    BadResnapshot,
    IllegalMove,
    NoSuchTable,
    RowferryError,
)
from rowferry.flow.assemble import decisions_of
from rowferry.mysql.key_values import key_bound
from rowferry.registry import SOURCES

_LONGEST: Final = 4096  # of an expression
_BETWEEN: Final = ".."
_OVER: Final = (FeedState.FINISHED, FeedState.REMOVED)


def ask(
    store: MetaStore,
    feed: FeedRecord,
    owner: FleetServer | None,
    table: str,
    keys: str,
    where: str,
    now: float,
) -> Resnapshot:
    """Check what is asked for, and store it; the owner begins with it within a second or two."""
    if feed.state in _OVER:
        raise IllegalMove(f"changefeed {feed.id} is {feed.state}: nothing is read any more")
    if feed.lease is not None and owner is None:
        holder = feed.lease.holder
        raise BadResnapshot(
            f"changefeed {feed.id} is run by process {holder.pid} on {holder.host}, which is no "
            "server and hears of nothing; run it by `rowferry server`"
        )
    if not can_reread(feed):
        scheme = feed.spec.source.scheme
        raise BadResnapshot(
            f"changefeed {feed.id} reads {scheme}://, which cannot give a table again beside its "
            "log; pause it, and use: rowferry changefeed reset --snapshot"
        )
    schema = captured_schema(store, feed, table)
    if schema.handle_index is None:
        raise BadResnapshot(
            f"table {schema.id} has no primary or NOT NULL unique key: its rows would come twice; "
            "give it a key, or pause the changefeed and use: rowferry changefeed reset --snapshot"
        )
    if decisions_of(feed.spec).hides_rows:
        raise BadResnapshot(
            f"changefeed {feed.id} masks columns: keys of rows would be compared with masked ones, "
            "and be noted in clear; pause it, and use: rowferry changefeed reset --snapshot"
        )
    first, last = _range(schema, keys)
    _check_where(feed, schema, where)
    wanted = Resnapshot(
        uuid.uuid4().hex[:12], schema.id, first, last, where, asked_at=round(now, 3)
    )
    store.ask_resnapshot(feed.id, wanted)
    return wanted


def cancel(store: MetaStore, feed: FeedRecord, which: str) -> None:
    """End an open resnapshot where it is; not open: nothing changes."""
    if not any(one.id == which for one in feed.resnapshots):
        raise BadResnapshot(
            f"changefeed {feed.id} has no resnapshot {which!r}; they are listed by: "
            f"rowferry changefeed resnapshot -c {feed.id}"
        )
    store.cancel_resnapshot(feed.id, which)


def can_reread(feed: FeedRecord) -> bool:
    """Return whether a changefeed's source can give a table again beside its log."""
    return SOURCES.load(feed.spec.source.scheme)(feed.spec).traits().rereads


def offers_rereads(feed: FeedRecord) -> bool:
    """Return the same, also of one whose settings cannot be used any more: no."""
    with suppress(RowferryError):
        return can_reread(feed)
    return False


def look(store: MetaStore, feed: FeedRecord) -> tuple[ResnapshotProgress, ...]:
    """Return the open resnapshots and the last ones that ended, oldest first."""
    if not feed.resnapshots:
        return ()
    position = store.position(feed.id)
    begun = {form["id"]: form for form in position.get("rereads", ())}
    return tuple(_progress(one, begun.get(one.id)) for one in feed.resnapshots)


def _progress(one: Resnapshot, form: Mapping[str, Any] | None) -> ResnapshotProgress:
    if not one.is_open:
        return ResnapshotProgress(one, one.outcome.value, one.rows, one.rows)
    if form is None or form.get("outcome", ResnapshotOutcome.OPEN.value):
        return ResnapshotProgress(one, "waiting" if form is None else "running", 0, 0)
    done = int(form.get("done", 0))
    return ResnapshotProgress(one, "running", done, max(done, int(form.get("total", 1))))


def captured_schema(store: MetaStore, feed: FeedRecord, table: str) -> TableSchema:
    """Return the newest version of a table that is captured now."""
    state = store.state(feed.id)
    names = {TableId(r.database, r.table): r.table_id for r in state.ranges}
    wanted = table.replace("`", "")
    for name, table_id in names.items():
        if str(name) == wanted:
            mine = [v for v in state.versions if v.table_id == table_id]
            if mine:
                return max(mine, key=lambda v: v.version)
    near = near_misses([wanted], sorted(names))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise NoSuchTable(
        f"--table {table}: changefeed {feed.id} does not capture such a table{hint} (captured ones "
        f"are listed by: rowferry changefeed tables -c {feed.id})"
    )


def _range(schema: TableSchema, keys: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read `a..b`, `a..` or `..b`; for keys of several columns `a1,a2..b1,b2`.

    Each end may be a JSON list of its values, too: for texts with commas or dots.
    """
    if not keys:
        return (), ()
    index = schema.handle_index
    columns = index.columns if index else ()
    if keys.count(_BETWEEN) != 1 and not keys.startswith("["):
        raise BadResnapshot(
            f"--keys {keys}: write FIRST..LAST (or FIRST.., or ..LAST), each "
            f"{'a value' if len(columns) == 1 else 'values'} of ({', '.join(columns)}); values "
            'with dots or commas as lists: ["a..b"]..["c"]'
        )
    middle = "].." if keys.startswith("[") else _BETWEEN
    first, between, last = keys.partition(middle)
    if middle == "].." and between:
        first += "]"
    ends = []
    for text in (first, last):
        values = _values(text, len(columns))
        if values:
            try:
                key_bound(schema, values)
            except BadInput as err:
                raise BadResnapshot(f"--keys {keys}: {err.words}") from None
        ends.append(values)
    if not any(ends):
        raise BadResnapshot(f"--keys {keys}: give at least one end, or leave --keys out")
    return ends[0], ends[1]


def _values(text: str, columns: int) -> tuple[str, ...]:
    if not text:
        return ()
    if text.startswith("["):
        try:
            known = json.loads(text)
        except (ValueError, RecursionError):
            raise BadResnapshot(f"--keys: {text} is not a list of values") from None
        return tuple(_plain(value) for value in known)
    return (text,) if columns == 1 else tuple(part.strip() for part in text.split(","))


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadResnapshot(f"--keys: {json.dumps(value)} is neither a text nor a number")
    return str(value)


def _check_where(feed: FeedRecord, schema: TableSchema, where: str) -> None:
    if len(where) > _LONGEST:
        raise BadResnapshot(f"--where: the expression has more than {_LONGEST} characters")
    try:
        decisions_of(feed.spec).check_where(schema, where)
    except BadEventFilter as err:
        raise BadResnapshot(f"--{err.words}") from None


def forms(known: Sequence[ResnapshotProgress]) -> list[dict[str, Any]]:
    """Return resnapshots as answers show them; times in milliseconds."""
    return [
        {
            "id": one.asked.id,
            "table": str(one.asked.table),
            "first_key": list(one.asked.first),
            "last_key": list(one.asked.last),
            "where": one.asked.where,
            "state": one.state,
            "rows": one.rows,
            "total": one.total,
            "asked_at": round(one.asked.asked_at * 1000),
            "ended_at": round(one.asked.ended_at * 1000),
            "message": one.asked.words,
        }
        for one in known
    ]
