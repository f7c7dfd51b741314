"""`rowferry sql`: statements about changefeeds, from the command line, a pipe or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from rowferry.control.operator.statements.tokens import split
from rowferry.errors import RowferryError, ServerUnavailable
from rowferry.face.cli.output import Printer, show_error
from rowferry.face.cli.remote.client import OURS, Client, connected

_PROMPT, _MORE = "rowferry> ", "       -> "
_ENDS = ("exit", "quit", "\\q")


@connected
def sql_command(
    server: Client,
    out: Printer,
    statement: Annotated[
        str | None,
        typer.Argument(help="One statement or several with semicolons; none: prompt, or a pipe"),
    ] = None,
) -> None:
    """Carry out SQL statements about changefeeds, in order; the first that fails ends it."""
    if statement is None and sys.stdin.isatty():
        _converse(server, out)
        return
    text = sys.stdin.read() if statement is None else statement
    complete, rest = split(text)
    for one in (*complete, *([rest.strip()] if rest else [])):
        _carry_out(server, out, one)


def _carry_out(server: Client, out: Printer, statement: str) -> None:
    answer = server.post(*OURS, "sql", body={"statement": statement})
    if out.as_json:
        out.value(answer)
        return
    if answer["rows"]:
        out.table(answer["columns"], answer["rows"])
    if answer["message"]:
        out.out.print(Text(answer["message"]), soft_wrap=True)


def _converse(server: Client, out: Printer) -> None:
    """Read statements from the prompt; an error is shown, and the next one may be typed."""
    with suppress(ImportError):
        import readline  # noqa: F401 (lets arrow keys edit the line)
    out.out.print(f"{server.address}; end a statement with ;  leave with exit", style="dim")
    for statement in _typed():
        try:
            _carry_out(server, out, statement)
        except ServerUnavailable:
            raise
        except RowferryError as err:
            show_error(out.err, err)


def _typed() -> Iterator[str]:
    text = ""
    while True:
        try:
            line = input(_MORE if text else _PROMPT)
        except EOFError:
            break
        except KeyboardInterrupt:
            text = ""
            continue
        if not text and line.strip().rstrip(";").lower() in _ENDS:
            break
        complete, text = split(f"{text}{line}\n")
        yield from complete
