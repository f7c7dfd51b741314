"""`rowferry tso …`: the time, as a commit-ts."""

from __future__ import annotations

import typer

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import API, Client, connected

app = typer.Typer(help="The time as a commit-ts.")


@app.command("query")
@connected
def query(server: Client, out: Printer) -> None:
    """Print the commit-ts of now, for --start-ts and the like."""
    out.text(f"{commit_ts_now(server)}\n")


def commit_ts_now(server: Client) -> int:
    """Return the commit-ts of now, by the server's clock."""
    now = server.post(*API, "tso")
    return (int(now["timestamp"]) << PHYSICAL_SHIFT) + int(now["logic_time"])


@app.callback()
def tso() -> None:
    """The time as a commit-ts."""
