"""What is asked of a trace, and what it answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.errors import BadTrace

LIMIT: Final = 100
MOST: Final = 1000
SECONDS: Final = 20.0
MOST_SECONDS: Final = 120.0
_LEAST_TS: Final = 1 << 40  # smaller numbers are no commit-ts of this century


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Which row, and how far to look.

    Attributes:
        table: db.table, as it is captured.
        key: the columns of its key with their values, as readers of the sink see them.
        since, until: a commit-ts, or a time in ISO 8601; empty: no such limit.
        limit: how many changes are enough; the newest ones are shown.
        log: look transactions up in the source's log, too.
        seconds: what is not found by then is not looked for.
    """

    table: str
    key: tuple[tuple[str, str], ...]
    since: str = ""
    until: str = ""
    limit: int = LIMIT
    log: bool = False
    seconds: float = SECONDS

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last commit-ts that count; 0: no such limit.

        Raises:
            BadTrace: they, or the other limits, cannot be.
        """
        if not 0 < self.limit <= MOST:
            raise BadTrace(f"--limit {self.limit}: expected 1 to {MOST} changes")
        if not 0 < self.seconds <= MOST_SECONDS:
            raise BadTrace(f"--seconds {self.seconds:g}: expected up to {MOST_SECONDS:g}")
        since = _commit_ts("--since", self.since, upper=False)
        until = _commit_ts("--until", self.until, upper=True)
        if until and since > until:
            raise BadTrace(f"--since {self.since} lies behind --until {self.until}")
        return since, until


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The micro-batch that delivered a change; several where it is not known which of them."""

    first: int
    last: int
    published_at: float


@dataclass(frozen=True, slots=True)
class TracedChange:
    """A change of the row: what made it, and where it went.

    Attributes:
        op: insert, update or delete; snapshot: it was there when the table was read.
        commit_ts: 0: not known. Where `exact` is false, only its milliseconds are.
        log: where the transaction stands in the source's log, in the source's words; or where the
            part lies that was read together with it (`from`, `to`).
        place: where the change lies, in the words of its kind of sink.
        before, after: the images, where values may be shown.
    """

    op: str
    commit_ts: int
    exact: bool
    batch: BatchRange | None
    log: Mapping[str, str]
    place: Mapping[str, Any]
    key_only: bool = False
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The changes of a row, oldest first.

    Attributes:
        complete: all that is kept between the bounds was looked at.
        notes: what was not, and why; a line each.
        looked: how much was looked at, by what it is.
        values: images are shown.
    """

    changefeed: str
    table: str
    key: Mapping[str, str]
    changes: tuple[TracedChange, ...]
    complete: bool
    notes: tuple[str, ...] = ()
    looked: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    values: bool = False


def _commit_ts(option: str, text: str, upper: bool) -> int:
    if not text:
        return 0
    if text.isdecimal():
        stamp = int(text)
        if not _LEAST_TS < stamp < 1 << 63:
            raise BadTrace(f"{option} {text}: no commit-ts is so small or so great")
        return stamp
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadTrace(
            f"{option} {text}: expected a commit-ts, or a time such as 2026-03-01T10:00:00+00:00"
        ) from None
    ms = round(moment.timestamp() * 1000)
    if not _LEAST_TS >> PHYSICAL_SHIFT < ms < 1 << (63 - PHYSICAL_SHIFT):
        raise BadTrace(f"{option} {text}: no commit-ts is of that time")
    return ((ms + 1) << PHYSICAL_SHIFT) - 1 if upper else ms << PHYSICAL_SHIFT


# --- as answers show it --------------------------------------------------------------------------


def trace_form(trace: Trace) -> dict[str, Any]:
    """Return it as JSON; times in milliseconds, binary values in base64."""
    return {
        "changefeed": trace.changefeed,
        "table": trace.table,
        "key": dict(trace.key),
        "changes": [_change_form(one, trace.values) for one in trace.changes],
        "complete": trace.complete,
        "notes": list(trace.notes),
        "looked": dict(trace.looked),
        "seconds": round(trace.seconds, 3),
    }


def _change_form(change: TracedChange, values: bool) -> dict[str, Any]:
    batch = change.batch
    form: dict[str, Any] = {
        "op": change.op,
        "commit_ts": change.commit_ts if change.exact and change.commit_ts else None,
        "committed_at": physical_ms(change.commit_ts) if change.commit_ts else None,
        "micro_batch": None
        if batch is None
        else {
            "first": batch.first,
            "last": batch.last,
            "published_at": round(batch.published_at * 1000),
        },
        "log": dict(change.log),
        "place": dict(change.place),
    }
    if change.key_only:
        form["key_only"] = True
    if values:
        form |= {"before": _plain(change.before), "after": _plain(change.after)}
    return form


def _plain(image: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if image is None:
        return None
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in image.items()
    }


def place_words(target: Mapping[str, Any]) -> str:
    """Return where a change lies, in one line."""
    if "file" in target and "row" in target:
        return f"{target['file']} row {target['row']}"
    if "topic" in target:
        return f"{target['topic']}[{target['partition']}]@{target['offset']}"
    return ", ".join(f"{name} {value}" for name, value in target.items())


def log_words(log: Mapping[str, str]) -> str:
    """Return where a transaction stands in the log, in one line."""
    file = f"{log['file']}:" if "file" in log else ""
    if "offset" in log:
        return f"{file}{log['offset']}"
    if "from" not in log:
        return ""
    ranges = f"range {log['range']}:" if "range" in log else ""
    end = f"{log['to_file']}:{log['to']}" if "to_file" in log else log["to"]
    return f"{file}{ranges}{log['from']}..{end}"


def batch_words(first: int, last: int) -> str:
    """Return the number of a micro-batch, or of several."""
    return str(first) if first == last else f"{first}..{last}"
