"""`rowferry changefeed resnapshot`: one table again, beside the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from rowferry.errors import BadOption, BadResnapshot
from rowferry.face.cli.output import Printer
from rowferry.face.cli.remote.client import OURS, Client, Id, connected
from rowferry.face.cli.signals import stop_on_signal

_EVERY_S: Final = 0.5
_COLUMNS: Final = ("id", "table", "keys", "where", "state", "rows", "message")


@connected
def resnapshot(
    server: Client,
    out: Printer,
    changefeed_id: Id,
    table: Annotated[
        str | None, typer.Option(help="Read this one again: db.table; without it: list them")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Only rows for which this is true, as in event filters")
    ] = None,
    keys: Annotated[
        str | None, typer.Option(help="Only these keys: FIRST..LAST, FIRST.. or ..LAST")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option(metavar="ID", help="End this one where it is")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it has ended")] = False,
) -> None:
    """Read rows of one table again while the changefeed runs; or list, or cancel that."""
    path = (*OURS, "changefeeds", changefeed_id, "resnapshots")
    if cancel and (table or where or keys or wait):
        raise BadOption("--cancel stands alone")
    if not table and (where or keys or wait):
        raise BadOption("--table is needed: db.table")
    if cancel:
        _show(out, server.delete(*path, cancel))
        return
    if not table:
        _show(out, server.get(*path))
        return
    body = {"table": table, "where": where or "", "keys": keys or ""}
    one = server.post(*path, body=body)
    if wait:
        one = _waited(server, out, path, one)
    _show(out, [one])
    if one["state"] == "failed":
        raise BadResnapshot(one["message"])


def _waited(
    server: Client, out: Printer, path: Sequence[str], one: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Tell how far it is, until it has ended or somebody presses Ctrl-C."""
    shown = -1
    with stop_on_signal() as stop:
        while one["state"] in ("waiting", "running"):
            if one["rows"] > shown:
                shown = one["rows"]
                out.note(f"{one['table']}: {shown:,} of about {one['total']:,} rows")
            if stop.wait(_EVERY_S):
                out.note("it goes on; rowferry changefeed resnapshot --cancel ID would end it")
                break
            known = {other["id"]: other for other in server.get(*path)}
            one = known.get(one["id"], {**one, "state": "done"})
    return one


def _show(out: Printer, known: Sequence[Mapping[str, Any]]) -> None:
    rows = [[_cell(one, column) for column in _COLUMNS] for one in known]
    out.answer(list(known), _COLUMNS, rows)


def _cell(one: Mapping[str, Any], column: str) -> Any:
    if column == "keys":
        first, last = (",".join(map(str, one[end])) for end in ("first_key", "last_key"))
        return f"{first}..{last}" if first or last else ""
    if column == "rows" and one["state"] in ("waiting", "running"):
        return f"{one['rows']:,} of {one['total']:,}"
    return one[column]
