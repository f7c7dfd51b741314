"""`rowferry lake`: what the tables of a lake are made of, and keeping them in shape."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.errors import BadInput, BadOption, BadUri, NoSuchVersion
from rowferry.face.cli.downstream.table import commit_ts
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.output import consoles, counted, show_error, size
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.flow.sink.lake.history import commit_at
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.sink import LakeSink
from rowferry.flow.sink.lake.upkeep import LakeUpkeep
from rowferry.registry import SINKS
from rowferry.secrets.environment import sources_of_environment
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.option import parse_duration
from rowferry.spec.uri import Uri

app = typer.Typer(help="Tables of a lake: their state, leftovers and small files.")

LakeUri = Annotated[
    str,
    typer.Argument(callback=given_address, help="The sink URI, e.g. delta+file:///data/lake"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]


@app.command("status")
def status_command(uri: LakeUri, as_json: AsJson = False) -> None:
    """Show each table: commits, files, rows, deleted rows that lie in files, size, commit-ts."""
    out, _ = consoles()
    upkeep = _upkeep(uri)
    tables = list(upkeep.status())
    reached = upkeep.progress().checkpoint_ts
    if as_json:
        document = {"checkpoint_ts": reached, "tables": [asdict(one) for one in tables]}
        out.file.write(json.dumps(document, ensure_ascii=False) + "\n")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("table", "mode", "version", "files", "rows", "deleted", "size", "commit-ts"):
        table.add_column(head)
    for one in tables:
        numbers = (one.version, one.files, one.rows, one.deleted)
        shown = [f"{n:,}" for n in numbers]
        table.add_row(one.directory, one.mode, *shown, size(one.bytes), str(one.checkpoint_ts))
    out.print(table)
    out.print(f"{counted(len(tables), 'table')}, all up to commit-ts {reached}")


@app.command("at")
def at_command(
    uri: LakeUri,
    when: Annotated[
        str, typer.Argument(help="A commit-ts, or a time such as 2026-01-31T12:00:00Z")
    ],
    table: Annotated[
        list[str] | None, typer.Option(help="Filter rule of tables; may be given again")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which version of each table holds everything up to a moment, and how to read it."""
    out, err = consoles()
    wanted = commit_ts(when, "the moment")
    keeps = TableFilter(table) if table else None
    sink = _sink(uri)
    reached = sink.upkeep().progress().checkpoint_ts
    names = {table_at(directory): directory for directory in sink.tables().directories()}
    chosen = [
        name
        for name in sorted(names)
        if keeps is None or keeps.matches_table(name.database, name.table)
    ]
    if not chosen:
        raise BadInput(f"{Uri.parse(uri, 'sink')} holds no such table; check --table")
    documents: list[dict[str, Any]] = []
    failures: list[NoSuchVersion] = []
    for name in chosen:
        history = sink.history(names[name])
        try:
            commit = commit_at(history, wanted, reached)
            history.require(commit.version)
        except NoSuchVersion as reason:
            failures.append(reason)
            continue
        documents.append(
            {
                "table": str(name),
                "version": commit.version,
                "checkpoint_ts": commit.checkpoint_ts,
                "read": history.readers(commit.version),
            }
        )
    if as_json:
        out.file.write(json.dumps({"tables": documents}, ensure_ascii=False) + "\n")
    else:
        for document in documents:
            _show_version(out, document)
    for failure in failures[1:]:
        show_error(err, failure)
    if failures:
        raise failures[0]


def _show_version(out: Console, document: dict[str, Any]) -> None:
    upto = document["checkpoint_ts"]
    time_text = datetime.fromtimestamp((upto >> PHYSICAL_SHIFT) / 1000, UTC).isoformat()
    line = f"{document['table']}: version {document['version']}, all up to commit-ts {upto}"
    out.print(f"{line} ({time_text})", markup=False, soft_wrap=True, highlight=False)
    for reader, text in document["read"].items():
        out.print(f"  {reader:<10} {text}", markup=False, soft_wrap=True, highlight=False)


@app.command("optimize")
def optimize_command(uri: LakeUri) -> None:
    """Merge small files and drop deleted rows; the changefeed may run meanwhile."""
    out, _ = consoles()
    for directory, count in _upkeep(uri).optimize(_now_ms()):
        out.print(f"{directory}: {counted(count, 'lake file')} replaced", markup=False)


@app.command("orphans")
def orphans_command(
    uri: LakeUri,
    remove: Annotated[
        bool, typer.Option(help="Delete them; only while the changefeed does not run")
    ] = False,
) -> None:
    """List files that no commit names, such as those that a crash has left."""
    _removal(uri, list(_upkeep(uri).orphans()), remove)


@app.command("expire")
def expire_command(
    uri: LakeUri,
    older_than: Annotated[
        str, typer.Option(help="How long readers may still look at an earlier version")
    ] = "168h",
    remove: Annotated[bool, typer.Option(help="Delete them; else they are listed")] = False,
) -> None:
    """List or delete files that were replaced some time ago, and old ones of a Delta log."""
    try:
        age: timedelta = parse_duration(older_than)
    except ValueError as err:
        raise BadOption(f"--older-than {older_than!r}: {err}") from None
    now = _now_ms()
    before = now - int(age.total_seconds() * 1000)
    upkeep = _upkeep(uri)
    paths = list(upkeep.expired(before, now))
    if remove:
        upkeep.forget(before)
    _removal(uri, paths, remove)


def _removal(uri: str, paths: list[str], remove: bool) -> None:
    out, _ = consoles()
    upkeep = _upkeep(uri)
    for path in paths:
        if remove:
            upkeep.remove(path)
        out.print(path, markup=False, soft_wrap=True)
    out.print(f"{counted(len(paths), 'lake file')}{' deleted' if remove else ''}")


def _upkeep(uri: str) -> LakeUpkeep:
    return _sink(uri).upkeep()


def _sink(uri: str) -> LakeSink:
    place = Uri.parse(uri, "sink")
    loaded: Any = SINKS.load(place.scheme)
    if not issubclass(loaded, LakeSink):
        known = [name for name in SINKS.names() if issubclass(SINKS.load(name), LakeSink)]
        raise BadUri(f"{place.scheme}:// holds no tables of a lake; known: {', '.join(known)}")
    place = sources_of_environment().resolved_uri(place, "the sink URI", loaded.TABLES)
    sink: LakeSink = loaded(ChangefeedSpec("", Uri.parse(NO_PLACE, "source"), place), None)
    return sink


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
