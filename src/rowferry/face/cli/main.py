"""The `rowferry` command: its subcommands, and one line for every error."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from rowferry import __version__
from rowferry.errors import BadInput, RowferryError
from rowferry.face.cli.client import remember_flags
from rowferry.face.cli.output import consoles, show_error
from rowferry.registry import extras_named

# Where TiCDC's `cdc cli` has them too: everything that talks to a server.
_OF_SERVERS: Final = {
    "changefeed": "changefeed:app",
    "capture": "capture:app",
    "processor": "processor:app",
    "tso": "tso:app",
    "sql": "sql:sql_command",
}
_PLACES: Final = {
    "run": "run:run_command",
    "server": "server:server_command",
    "access": "access:app",
    **_OF_SERVERS,
    "consume": "consume:consume_command",
    "check-storage": "check_storage:check_storage_command",
    "table": "table:table_command",
    "verify": "verify:verify_command",
    "demo": "demo:demo_command",
    "active-active": "active_active:app",
    "meta": "meta:app",
    "warm": "warm:warm_command",
    "refstore": "refstore:app",
    "workload": "workload:app",
    "cli": "main:cli_app",
}


class _Imported(dict[str, Any]):
    """Commands by name; one is imported when asked for, so a short one does not wait for Spark."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = super().__getitem__(name).partition(":")
        found = getattr(import_module(f"rowferry.face.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
            command.no_args_is_help = True
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(name)(found)
            command = get_command(alone)
        command.name = name
        return command

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


class Commands(TyperGroup):
    """All commands."""

    places = _PLACES

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Imported(self.places)


class ServerCommands(Commands):
    """Those that talk to a server."""

    places = _OF_SERVERS


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
cli_app = typer.Typer(
    cls=ServerCommands, help="The same commands where TiCDC has them.", no_args_is_help=True
)
cli_app.callback()(remember_flags())


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rowferry {__version__}")
        raise typer.Exit


@app.callback()
def rowferry(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version"),
    ] = False,
) -> None:
    """Change data capture on Apache Spark: every committed row change, in order, without loss."""


def main() -> None:
    """Run the command line; an error of ours becomes one line and an exit code."""
    try:
        with extras_named("this command"):
            app()
    except BadInput as err:
        show_error(consoles()[1], err)
        sys.exit(2)
    except RowferryError as err:
        show_error(consoles()[1], err)
        sys.exit(1)
