"""What `rowferry changefeed …` prints: TiCDC's JSON forms, and tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rowferry.errors import RowferryError, ServerError, from_text
from rowferry.face.cli.output import Printer
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def show(out: Printer, found: Mapping[str, Any]) -> None:
    """Print an answer: its JSON, or a line for each key."""
    if out.as_json:
        out.value(found)
    else:
        rows = [(k, line(v) if isinstance(v, dict | list) else v) for k, v in found.items()]
        out.table(("key", "value"), rows)


def list_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of the API's list in the form of TiCDC's `list`."""
    summary = {
        "state": item["state"],
        "tso": item["checkpoint_tso"],
        "checkpoint": item["checkpoint_time"],
        "error": item["error"],
    }
    return {"id": item["id"], "keyspace": item["keyspace"], "summary": summary}


def query_form(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the API in the form of TiCDC's command, with the source beside it."""
    keys = (
        "upstream_id id keyspace sink_uri source_uri config create_time start_ts resolved_ts "
        "target_ts checkpoint_ts checkpoint_time state error creator_version task_status"
    ).split()
    form = {
        key: found.get(key)
        for key in keys
        if key not in ("error", "task_status") or found.get(key) is not None
    }
    return {"checkpoint_tso" if k == "checkpoint_ts" else k: v for k, v in form.items()}


def show_list(out: Printer, feeds: Sequence[Mapping[str, Any]]) -> None:
    """Print changefeeds as a table; on a terminal errors follow it, where they have room."""
    columns = ["id", "state", "lag", "rows/s", "tables", "owner", "from", "to"]
    rows = [_list_row(feed) for feed in feeds]
    if not out.out.is_terminal:
        out.table(
            [*columns, "error"],
            [[*row, _error_words(feed)] for row, feed in zip(rows, feeds, strict=True)],
        )
        return
    out.table(columns, rows)
    for feed in feeds:
        if words := _error_words(feed):
            out.fault(feed["id"], words, feed["error"].get("cure") or "")


def _list_row(feed: Mapping[str, Any]) -> tuple[Any, ...]:
    lag_ms = feed.get("lag_ms")
    return (
        feed["id"],
        feed["state"],
        None if lag_ms is None else f"{lag_ms / 1000:.1f} s",
        f"{feed.get('rows_per_s') or 0:,.0f}",
        feed.get("tables"),
        feed.get("owner"),
        _place(feed["source_uri"]),
        _place(feed["sink_uri"]),
    )


def _place(uri: str) -> str:
    """Return the part of a URI that says where: `query` shows the whole."""
    found = Uri.parse(uri, "")
    path = found.path.rstrip("/")
    return str(replace(found, user="", password="", path=path, parameters=()))


def _error_words(feed: Mapping[str, Any]) -> str | None:
    error = feed.get("error")
    return f"[{error['code']}] {error['message']}" if error else None


def show_check(out: Printer, found: Mapping[str, Any]) -> None:
    """Print what a dry run found."""
    if out.as_json:
        out.value(found)
        return
    rows = [("captured", table, found["outputs"].get(table)) for table in found["tables"]]
    rows += [("left out", table, "it has no usable key") for table in found["ineligible"]]
    rows += [("rule", None, words) for words in found["rules"]]
    out.table(("what", "name", "details"), rows)


def raise_if_wrong(found: Mapping[str, Any]) -> None:
    """Raise what a dry run found wrong, where it did."""
    if not found["ok"]:
        raise told_error(found.get("error"))


def told_error(form: Mapping[str, Any] | None) -> RowferryError:
    """Return the error that a server tells, as the one that it was."""
    words = str((form or {}).get("message") or "no reason was given")
    code = str((form or {}).get("code") or "")
    return from_text(words) or from_text(f"[{code}] {words}") or ServerError(words)


def changes(old: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting that an update changes; secrets are hidden."""
    lines = []
    for key in ("source_uri", "sink_uri"):
        if key in body:
            new = str(Uri.parse(body[key], key.partition("_")[0]))
            if new != old.get(key):
                lines.append(f"{key}: {old.get(key)} -> {new}")
    if body.get("target_ts", old.get("target_ts")) != old.get("target_ts"):
        lines.append(f"target_ts: {old.get('target_ts')} -> {body['target_ts']}")
    if "replica_config" in body:
        # Knows every stage's options; other commands need not wait for them.
        from rowferry.control.operator.redaction import redacted_config
        from rowferry.spec.secrets import HIDDEN

        spec = ChangefeedSpec(
            str(old["id"]),
            Uri.parse(body.get("source_uri") or old["source_uri"], "source"),
            Uri.parse(body.get("sink_uri") or old["sink_uri"], "sink"),
            body["replica_config"],
        )
        was, now = _flat(old.get("config") or {}), _flat(redacted_config(spec))
        for key in sorted({*was, *now}):
            before, after = (line(c[key]) if key in c else "(default)" for c in (was, now))
            if before != after or HIDDEN in after:  # nobody sees here whether a secret changes
                lines.append(f"{key}: {before} -> {after}")
    return lines


def _flat(config: Mapping[str, Any], lead: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{lead}{key}.")
        else:
            found[f"{lead}{key}"] = value
    return found
