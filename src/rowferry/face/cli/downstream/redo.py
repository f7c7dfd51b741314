"""`rowferry redo`: complete the downstream from a redo log, when the source is lost."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.downstream.redo.apply import RedoState, apply, find_log
from rowferry.face.cli.options.address import given_address
from rowferry.face.cli.output import consoles, counted
from rowferry.flow.named_storage import storage_class
from rowferry.flow.redo.log import RedoLog
from rowferry.flow.redo.place import WHAT
from rowferry.registry import SINKS
from rowferry.secrets.environment import sources_of_environment
from rowferry.spec.uri import Uri

app = typer.Typer(
    help="The redo log of a changefeed: how far it reaches; complete the downstream from it."
)

Storage = Annotated[
    str,
    typer.Option(
        callback=given_address,
        help="Where the redo log is, as consistent.storage has it; @FILE and env:NAME hide it",
    ),
]
Changefeed = Annotated[
    str, typer.Option("--changefeed-id", "-c", help="Whose, where several lie there")
]


@app.command("meta")
def meta_command(
    storage: Storage,
    changefeed: Changefeed = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
) -> None:
    """Show how far the downstream is, and how far `apply` can bring it; writes nothing."""
    out, _ = consoles()
    _, state = _open_log(storage, changefeed)
    if as_json:
        document = {
            "changefeed": state.changefeed,
            "checkpoint_ts": state.checkpoint_ts,
            "resolved_ts": state.resolved_ts,
        }
        out.file.write(json.dumps(document) + "\n")
        return
    out.print(f"changefeed     {state.changefeed}", markup=False)
    reaches = (("checkpoint-ts", state.checkpoint_ts), ("resolved-ts", state.resolved_ts))
    for word, ts in reaches:
        out.print(f"{word:<14} {ts} ({_time_of(ts)})", markup=False, soft_wrap=True)


@app.command("apply")
def apply_command(
    storage: Storage,
    sink_uri: Annotated[
        str,
        typer.Option(callback=given_address, help="The downstream; @FILE and env:NAME hide it"),
    ],
    changefeed: Changefeed = "",
) -> None:
    """Bring the downstream to the consistent point; stop the changefeed's servers first."""
    out, err = consoles()
    secrets = sources_of_environment()
    target = Uri.parse(sink_uri, "sink")
    # A secret that is missing is told before anything is looked for.
    secrets.resolved_uri(target, "the sink URI", SINKS.load(target.scheme).TABLES)
    log, state = _open_log(storage, changefeed)
    total = len(state.kept.plan.stretch.segments) if state.kept else 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, console=err, transient=True) if err.is_terminal else nullcontext() as bar
    ):
        task = bar.add_task("applying", total=total) if bar is not None else None

        def tell(changes: int, segments: int) -> None:
            if bar is not None and task is not None:
                words = f"applying: {counted(changes, 'change')}"
                bar.update(task, completed=segments, description=words)

        state, changes = apply(log, state, sink_uri, secrets, tell)
    words = f"{counted(changes, 'change')} written" if state.kept else "there was nothing to write"
    out.print(
        f"{words}: the downstream has everything up to commit-ts {state.resolved_ts} "
        f"({_time_of(state.resolved_ts)}), and nothing of what came later",
        markup=False,
        soft_wrap=True,
    )


def _open_log(storage: str, changefeed: str) -> tuple[RedoLog, RedoState]:
    place = Uri.parse(storage, "storage")
    tables = storage_class(place, WHAT).TABLES
    place = sources_of_environment().resolved_uri(place, "--storage", tables)
    return find_log(place, changefeed)


def _time_of(commit_ts: int) -> str:
    if not commit_ts:
        return "no consistent point"
    return datetime.fromtimestamp((commit_ts >> PHYSICAL_SHIFT) / 1000, UTC).isoformat()
