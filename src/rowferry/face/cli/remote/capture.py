"""`rowferry capture …`: the servers of the fleet."""

from __future__ import annotations

import typer

from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import API, Client, connected

app = typer.Typer(help="The servers that run changefeeds.")
COLUMNS = ("id", "is-owner", "address", "cluster-id")


@app.command("list")
@connected
def list_(server: Client, out: Printer) -> None:
    """List the servers that are alive."""
    captures = server.get(*API, "captures")["items"] or ()
    items = [{name: item[name.replace("-", "_")] for name in COLUMNS} for item in captures]
    out.answer(items, COLUMNS, [list(item.values()) for item in items])
