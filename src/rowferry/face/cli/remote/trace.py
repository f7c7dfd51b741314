"""`rowferry trace`: every change of one row that a changefeed delivered, and where it went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import typer

from rowferry.control.operator.trace.forms import (
    LIMIT,
    SECONDS,
    batch_words,
    log_words,
    place_words,
)
from rowferry.errors import BadTrace
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import API, Client, Id, connected

_COLUMNS: Final = ("time", "op", "commit-ts", "micro-batch", "log", "place")


@partial(connected, own_key=True)
def trace_command(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    table: Annotated[str | None, typer.Option(help="The row's table: db.table")] = None,
    row_key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="Its key, once for each column of it"),
    ] = None,
    since: Annotated[str, typer.Option(help="Only changes from this commit-ts, or time, on")] = "",
    until: Annotated[str, typer.Option(help="Only changes up to this commit-ts, or time")] = "",
    limit: Annotated[int, typer.Option(help="So many changes are enough, the newest")] = LIMIT,
    log: Annotated[
        bool, typer.Option("--log", help="Look transactions up in the source's log, too")
    ] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Show the row before and after each change")
    ] = False,
    seconds: Annotated[float, typer.Option(help="How long to look at most")] = SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Show every change of one row that a changefeed delivered, and where it went."""
    if not table:
        raise BadTrace("--table is needed: db.table")
    if not row_key:
        raise BadTrace("--key is needed: COLUMN=VALUE, once for each column of the key")
    answer = server.get(
        *API,
        *("changefeeds", changefeed_id, "trace"),
        table=table,
        key=row_key,
        since=since,
        until=until,
        limit=str(limit),
        log=_flag(log),
        values=_flag(values),
        seconds=str(seconds),
    )
    if as_json or out.form == "json":
        out.value(answer)
        return
    changes = answer["changes"]
    with_gtid = any("gtid" in one["log"] for one in changes)
    columns = [*_COLUMNS, *(["gtid"] if with_gtid else []), *(["row"] if values else [])]
    out.table(columns, [_row(one, with_gtid, values) for one in changes])
    for line in answer["notes"]:
        out.note(line)
    out.note(_summary(answer))


def _flag(given: bool) -> str:
    return "true" if given else "false"


def _row(one: Mapping[str, Any], with_gtid: bool, values: bool) -> list[Any]:
    batch = one["micro_batch"]
    cells = [
        _time(one["committed_at"]),
        one["op"],
        one["commit_ts"],
        batch_words(batch["first"], batch["last"]) if batch else None,
        log_words(one["log"]),
        place_words(one["place"]),
    ]
    cells += [one["log"].get("gtid")] if with_gtid else []
    return [*cells, _change(one)] if values else cells


def _change(one: Mapping[str, Any]) -> str:
    """Return the rows of a change: the old one, an arrow, the new one."""
    images = (one["before"], one["after"])
    return " -> ".join(json.dumps(i, ensure_ascii=False) for i in images if i is not None)


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "milliseconds")


def _summary(answer: Mapping[str, Any]) -> str:
    key = ", ".join(f"{name}={value}" for name, value in answer["key"].items())
    count = len(answer["changes"])
    looked = ", ".join(f"{n:,} {what}" for what, n in answer["looked"].items())
    words = f"{count} change{'' if count == 1 else 's'} of {answer['table']} {key}"
    more = "" if answer["complete"] else "; there may be more"
    return f"{words}; looked at {looked or 'nothing'} in {answer['seconds']:.1f} s{more}"
