"""TRACE CHANGEFEED: the changes of one row as a table."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from rowferry.control.operator.operations import Operations
from rowferry.control.operator.statements.parsed import TraceRow
from rowferry.control.operator.trace.forms import (
    LIMIT,
    TraceRequest,
    batch_words,
    log_words,
    place_words,
    trace_form,
)

_COLUMNS: Final = ("time", "commit_ts", "op", "micro_batch", "log", "gtid", "place")
_VALUES: Final = ("before", "after")


def traced(
    operations: Operations, asked: TraceRow
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...], str]:
    """Return columns, rows and a line of words."""
    request = TraceRequest(
        asked.table, asked.key, asked.since, asked.until, asked.limit or LIMIT, asked.log
    )
    look = operations.trace_values if asked.values else operations.trace
    form = trace_form(look(asked.name, request))
    rows = tuple(_row(one, asked.values) for one in form["changes"])
    return (*_COLUMNS, *(_VALUES if asked.values else ())), rows, summary(form)


def summary(form: dict[str, Any]) -> str:
    """Return how many changes there are, and what was not looked at."""
    key = ", ".join(f"{name}={value}" for name, value in form["key"].items())
    count = len(form["changes"])
    words = f"{count} change{'' if count == 1 else 's'} of {form['table']} {key}"
    if not form["complete"]:
        words += "; there may be more"
    return "; ".join([words, *form["notes"]])


def _row(one: dict[str, Any], values: bool) -> tuple[Any, ...]:
    batch = one["micro_batch"]
    cells = (
        _time(one["committed_at"]),
        one["commit_ts"],
        one["op"],
        batch_words(batch["first"], batch["last"]) if batch else None,
        log_words(one["log"]) or None,
        one["log"].get("gtid"),
        place_words(one["place"]),
    )
    images = tuple(_image(one[name]) for name in _VALUES) if values else ()
    return (*cells, *images)


def _image(image: dict[str, Any] | None) -> str | None:
    return None if image is None else json.dumps(image, ensure_ascii=False)


def _time(ms: int | None) -> str | None:
    """Return a moment in local time with milliseconds, as other statements write it."""
    if ms is None:
        return None
    moment = datetime.fromtimestamp(ms / 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"
