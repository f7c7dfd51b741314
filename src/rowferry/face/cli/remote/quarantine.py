"""`rowferry changefeed quarantine`: rows that the sink refused, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from rowferry.errors import BadQuarantine
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import OURS, Client, Id, connected
from rowferry.face.cli.signals import stop_on_signal

app = typer.Typer(
    no_args_is_help=True, help="Rows that the sink refused: list, show, send again, drop."
)
_COLUMNS: Final = ("row", "table", "key", "op", "commit_ts", "state", "cause")
_EVERY_S: Final = 0.5

Row = Annotated[str | None, typer.Option(metavar="ID", help="This row, by its id in the list")]
Table = Annotated[str | None, typer.Option(help="Rows of this table: db.table")]
Key = Annotated[str | None, typer.Option(help="Of the table, only rows of this key")]
Every = Annotated[bool, typer.Option("--all", help="All parked rows")]


@app.command("list")
@connected
def list_parked(server: Client, out: Printer, changefeed_id: Id) -> None:
    """List the parked rows, in the order in which they were parked."""
    _show(out, server.get(*_path(changefeed_id)))


@app.command("show")
@connected
def show(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    row: Annotated[str, typer.Option(metavar="ID", help="Its id in the list")],
) -> None:
    """Show one parked row with its values."""
    out.value(server.get(*_path(changefeed_id), row))


@app.command("retry")
@connected
def retry(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    row: Row = None,
    table: Table = None,
    row_key: Key = None,
    every: Every = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until they were sent")] = False,
) -> None:
    """Send rows again, with all changes that wait behind them, in their order."""
    body = _choice(row, table, row_key, every)
    known = server.post(*_path(changefeed_id), "retry", body=body)["parked"]
    if not wait:
        _show(out, known)
        return
    asked = {one["row"] for one in known if one["state"] == "sending"}
    with stop_on_signal() as stop:
        while any(one["state"] == "sending" for one in known) and not stop.wait(_EVERY_S):
            known = server.get(*_path(changefeed_id))
    _show(out, known)
    left = [one for one in known if one["row"] in asked and one["state"] != "sending"]
    if left:
        raise BadQuarantine(f"{len(left)} rows were refused again: {left[0]['cause']}")


@app.command("drop")
@connected
def drop(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    row: Row = None,
    table: Table = None,
    row_key: Key = None,
    every: Every = False,
) -> None:
    """Forget parked rows for good: the sink never gets them."""
    body = _choice(row, table, row_key, every)
    _show(out, server.post(*_path(changefeed_id), "drop", body=body)["parked"])


def _path(changefeed: str) -> tuple[str, ...]:
    return (*OURS, "changefeeds", changefeed, "quarantine")


def _choice(row: str | None, table: str | None, key: str | None, every: bool) -> dict[str, Any]:
    return {"row": row or "", "table": table or "", "key": key or "", "all": every}


def _show(out: Printer, rows: Sequence[Mapping[str, Any]]) -> None:
    out.answer(list(rows), _COLUMNS, [[one[column] for column in _COLUMNS] for one in rows])
