"""`rowferry processor …`: which server works on which changefeed."""

from __future__ import annotations

from typing import Annotated

import typer

from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import API, Client, Id, connected

app = typer.Typer(help="What servers do for changefeeds.")


@app.command("list")
@connected
def list_(server: Client, out: Printer) -> None:
    """List which server runs which changefeed."""
    processors = server.get(*API, "processors")["items"] or []
    columns = list(processors[0]) if processors else ["changefeed_id", "capture_id"]
    out.answer(processors, columns, [[item[name] for name in columns] for item in processors])


@app.command("query")
@connected
def query(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    capture_id: Annotated[
        str, typer.Option("-p", "--capture-id", help="A server's id, as `capture list` shows it")
    ],
) -> None:
    """Tell which tables a server reads for a changefeed."""
    processor = server.get(*API, "processors", changefeed_id, capture_id)
    numbers = [(number,) for number in processor.get("table_ids") or ()]
    out.answer(processor, ("table_id",), numbers)
