"""`rowferry consume`: read back what a changefeed wrote, check it, print or apply it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rowferry.change.chunk import Op
from rowferry.downstream.consume.arrival import Arrival, ArrivedRow, ArrivedStatement, Image
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.consumer import ConsumeOutcome, ConsumeRequest, Taker, consume
from rowferry.errors import BadOption
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.output import PLAIN_EVERY_S, consoles
from rowferry.face.cli.signals import stop_on_signal
from rowferry.secrets.environment import sources_of_environment
from rowferry.secrets.sources import SecretSources
from rowferry.spec.uri import Uri

if TYPE_CHECKING:
    from rowferry.downstream.consume.apply import Applier

_COLOURS = {Op.INSERT: "green", Op.UPDATE: "yellow", Op.DELETE: "red"}


def consume_command(
    sink_uri: Annotated[
        str,
        typer.Argument(
            callback=given_address,
            help="Where a changefeed wrote: kafka://HOST:PORT/topic?protocol=…, file://…, s3://…",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="The changefeed's settings; its dispatch rules are checked"),
    ] = None,
    print_: Annotated[
        str | None,
        typer.Option("--print", help="`rows` or `none`; default: rows, unless they are applied"),
    ] = None,
    apply: Annotated[
        str | None,
        typer.Option(
            callback=given_address,
            help="Apply to this database: mysql://<user>:<password>@<host>:<port>/",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="`end`: read what is there; or a commit-ts that watermarks must reach"),
    ] = None,
    from_: Annotated[
        str,
        typer.Option("--from", help="`beginning`, `end`, or a commit-ts: hand on what is above it"),
    ] = "beginning",
) -> None:
    """Read what a changefeed wrote, check its order, and print it or apply it.

    Ends with a line of counts; the exit code is 1 if something was wrong.
    """
    out, err = consoles()
    until_ts = _commit_ts("--until", until, ("end",))
    after_ts = _commit_ts("--from", from_, ("beginning", "end"))
    request = ConsumeRequest(
        sink_uri,
        config,
        after_ts=after_ts or 0,
        at_end=from_ == "end",
        until_ts=until_ts,
        until_end=until == "end",
    )
    prints, secrets = _prints(print_, apply), sources_of_environment()

    def answer() -> None:
        err.print("stopping; again to stop now", markup=False)

    with ExitStack() as held, stop_on_signal(answer) as stop:

        def takers(findings: ConsumeFindings) -> Iterable[Taker]:
            if prints:
                yield _Printer(out)
            if apply is not None:
                yield held.enter_context(closing(_applier(apply, findings, secrets)))

        outcome = consume(request, takers, stop, _Progress(err).tell, secrets)
    for note in outcome.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    for words in outcome.findings.samples:
        err.print(Text.assemble(("violation: ", "bold red"), words), soft_wrap=True)
    err.print(_summary(outcome), markup=False, soft_wrap=True)
    if outcome.findings.violations:
        raise typer.Exit(1)


def _applier(uri: str, findings: ConsumeFindings, secrets: SecretSources) -> Applier:
    # Imported here: its library comes with an extra, which who only reads need not have.
    from rowferry.downstream.consume.apply import Applier
    from rowferry.downstream.consume.mysql_target import MySqlTarget

    target = secrets.resolved_uri(Uri.parse(uri, "--apply"), "--apply")
    return Applier(MySqlTarget(target), findings)


def _commit_ts(option: str, text: str | None, words: tuple[str, ...]) -> int | None:
    if text is None or text in words:
        return None
    if not text.isdecimal() or int(text) == 0:
        allowed = " | ".join((*words, "a commit-ts"))
        raise BadOption(f"{option} {text!r}: allowed: {allowed}")
    return int(text)


def _prints(asked: str | None, apply: str | None) -> bool:
    if asked not in (None, "rows", "none"):
        raise BadOption(f"--print {asked!r}: allowed: rows | none")
    return asked == "rows" if asked else apply is None


def _summary(outcome: ConsumeOutcome) -> str:
    findings = outcome.findings
    words = (
        f"{findings.rows:,} rows, {findings.schema_changes:,} schema changes, "
        f"{findings.repeats:,} repeats, {findings.violations:,} violations"
    )
    if outcome.waiting:
        words += f"; {outcome.waiting:,} changes wait for a watermark"
    return words + (f"; watermark {outcome.watermark}" if outcome.watermark else "")


class _Printer:
    """Prints changes: JSON lines when piped, coloured lines on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def take(self, changes: Iterable[Arrival]) -> None:
        """Print some."""
        for change in changes:
            if self._console.is_terminal:
                self._console.print(_line(change), soft_wrap=True)
            else:
                text = json.dumps(_json(change), ensure_ascii=False, default=_plain)
                self._console.file.write(f"{text}\n")


class _Progress:
    """Says now and then how far reading is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = time.monotonic() + PLAIN_EVERY_S

    def tell(self, outcome: ConsumeOutcome) -> None:
        """Hear of the progress."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_EVERY_S
            self._console.print(_summary(outcome), style="dim", markup=False, soft_wrap=True)


def _json(change: Arrival) -> dict[str, Any]:
    where = {"at": str(change.where), "commitTs": change.commit_ts}
    match change:
        case ArrivedStatement():
            database, table = change.change.written_as
            return {"ddl": change.change.query, "database": database, "table": table, **where}
        case ArrivedRow():
            database, table = change.table.written_as
            images = {"before": change.before, "after": change.after}
            names = {"op": change.op.name.lower(), "database": database, "table": table}
            return {**names, **where, **images}


def _line(change: Arrival) -> Text:
    if isinstance(change, ArrivedStatement):
        return Text.assemble((f"{change.commit_ts} ", "dim"), (change.change.query, "bold cyan"))
    row = change.after if change.after is not None else change.before or {}
    return Text.assemble(
        (f"{change.commit_ts} ", "dim"),
        (f"{change.op.name.lower()} ", f"bold {_COLOURS[change.op]}"),
        (f"{change.table.written_as} ", "bold"),
        _shown(row),
        (f"  {change.where}", "dim"),
    )


def _shown(row: Image) -> str:
    return ", ".join(
        f"{n}={json.dumps(v, ensure_ascii=False, default=_plain)}" for n, v in row.items()
    )


def _plain(value: object) -> str:
    """Return bytes as base64 text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be shown")
