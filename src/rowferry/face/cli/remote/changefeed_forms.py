"""What `rowferry changefeed …` prints: TiCDC's JSON forms, and tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rowferry.errors import RowferryError, ServerError, from_text
from rowferry.face.cli.output import Printer
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

_IMAGES: Final = ("key", "before", "after")


def line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def show(out: Printer, answer: Mapping[str, Any]) -> None:
    """Print an answer: its JSON, or a line for each key."""
    rows = [(k, line(v) if isinstance(v, dict | list) else v) for k, v in answer.items()]
    out.answer(answer, ("key", "value"), rows)


def show_sample(out: Printer, answer: Mapping[str, Any]) -> None:
    """Print the last changes of a changefeed, newest first."""
    if out.as_json:
        out.value(answer)
        return
    if not answer["changes"]:
        out.note(answer["message"])
        return
    rows = [
        (one["commit_ts"], one["table"], one["op"], *(_image(one[k]) for k in _IMAGES))
        for one in answer["changes"]
    ]
    out.table(("commit_ts", "table", "op", *_IMAGES), rows)


def _image(image: Mapping[str, Any] | None) -> str | None:
    return None if image is None else line(image)


def list_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of the API's list in the form of TiCDC's `list`."""
    summary = {
        "state": item["state"],
        "tso": item["checkpoint_tso"],
        "checkpoint": item["checkpoint_time"],
        "error": item["error"],
    }
    return {"id": item["id"], "keyspace": item["keyspace"], "summary": summary}


def query_form(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the API in the form of TiCDC's command, with the source beside it."""
    keys = (
        "upstream_id id keyspace sink_uri source_uri config create_time start_ts resolved_ts "
        "target_ts checkpoint_ts checkpoint_time state error creator_version task_status"
    ).split()
    form = {
        key: answer.get(key)
        for key in keys
        if key not in ("error", "task_status") or answer.get(key) is not None
    }
    return {"checkpoint_tso" if k == "checkpoint_ts" else k: v for k, v in form.items()}


def show_list(out: Printer, feeds: Sequence[Mapping[str, Any]]) -> None:
    """Print changefeeds as a table; on a terminal errors follow it, where they have room."""
    columns = ["id", "state", "phase", "lag", "rows/s", "tables", "owner", "from", "to"]
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
        _phase(feed),
        None if lag_ms is None else f"{lag_ms / 1000:.1f} s",
        f"{feed.get('rows_per_s') or 0:,.0f}",
        feed.get("tables"),
        feed.get("owner"),
        _place(feed["source_uri"]),
        _place(feed["sink_uri"]),
    )


def _phase(feed: Mapping[str, Any]) -> str | None:
    """Return what a running changefeed does: `log`, or `snapshot 41%`."""
    snapshot = feed.get("snapshot")
    if feed.get("phase") != "snapshot" or not snapshot:
        return feed.get("phase")
    return f"snapshot {100 * snapshot['done'] // max(snapshot['all'], 1)}%"


def _place(uri: str) -> str:
    """Return the part of a URI that says where: `query` shows the whole."""
    parsed = Uri.parse(uri, "")
    path = parsed.path.rstrip("/")
    return str(replace(parsed, user="", password="", path=path, parameters=()))


def _error_words(feed: Mapping[str, Any]) -> str | None:
    error = feed.get("error")
    return f"[{error['code']}] {error['message']}" if error else None


def show_check(out: Printer, check: Mapping[str, Any]) -> None:
    """Print what a dry run found."""
    rows = [("captured", table, check["outputs"].get(table)) for table in check["tables"]]
    rows += [("left out", table, "it has no usable key") for table in check["ineligible"]]
    rows += [("rule", None, words) for words in check["rules"]]
    out.answer(check, ("what", "name", "details"), rows)


def raise_if_wrong(check: Mapping[str, Any]) -> None:
    """Raise what a dry run found wrong, where it did."""
    if not check["ok"]:
        raise reported_error(check.get("error"))


def reported_error(form: Mapping[str, Any] | None) -> RowferryError:
    """Return the error that a server tells, as the one that it was."""
    words = str((form or {}).get("message") or "no reason was given")
    code = str((form or {}).get("code") or "")
    return from_text(words) or from_text(f"[{code}] {words}") or ServerError(words)


def changes(old: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting that an update changes; secrets are hidden."""
    lines = []
    for key in ("source_uri", "sink_uri"):
        if key in body:
            written = Uri.parse(body[key], key.partition("_")[0])
            new = str(written)
            has_secret = Uri.parse(new, "") != written  # nobody sees here whether it changes
            if new != old.get(key) or has_secret:
                lines.append(f"{key}: {old.get(key)} -> {new}")
    if body.get("target_ts", old.get("target_ts")) != old.get("target_ts"):
        lines.append(f"target_ts: {old.get('target_ts')} -> {body['target_ts']}")
    if "replica_config" in body:
        # Knows every stage's options; other commands need not wait for them.
        from rowferry.control.operator.settings.redaction import redacted_config
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
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{lead}{key}.")
        else:
            flat[f"{lead}{key}"] = value
    return flat
