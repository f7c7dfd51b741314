"""The `rowferry` command: its subcommands, and one line for every error."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from rowferry import __version__
from rowferry.errors import BadInput, RowferryError
from rowferry.registry import extras_named

# Where each command is, and what lists tell of it: to import them all for that takes seconds.
# Those of servers are where TiCDC's `cdc cli` has them, too.
OF_SERVERS: Final = {
    "changefeed": (
        "remote.changefeed:app",
        "Create changefeeds on a server, watch and change them.",
    ),
    "capture": ("remote.capture:app", "The servers that run changefeeds."),
    "processor": ("remote.processor:app", "What servers do for changefeeds."),
    "tso": ("remote.tso:app", "The time as a commit-ts."),
    "trace": (
        "remote.trace:trace_command",
        "Show every change of one row that a changefeed delivered, and where it went.",
    ),
    "sql": (
        "remote.sql:sql_command",
        "Carry out SQL statements about changefeeds, in order; the first that fails ends it.",
    ),
}
PLACES: Final = {
    "run": (
        "run:run_command",
        "Run one changefeed until stopped (Ctrl-C), caught up, or at a commit-ts.",
    ),
    "init": (
        "init:init_command",
        "Write a commented sample configuration; every key in it has its default.",
    ),
    "doctor": (
        "doctor:doctor_command",
        "Check what a changefeed from SOURCE to SINK needs, and say what helps; writes nothing.",
    ),
    "server": (
        "server:server_command",
        "Run changefeeds, together with all other servers on the same meta database.",
    ),
    "access": (
        "access:app",
        "Users and tokens of a server: roles, hashed passwords, tokens with an end.",
    ),
    **OF_SERVERS,
    "apply": (
        "remote.apply:apply_command",
        "Create, change and remove changefeeds until they are as files declare them.",
    ),
    "export": (
        "remote.apply:export_command",
        "Write changefeeds that exist in the form that `apply` reads, to standard output.",
    ),
    "consume": (
        "downstream.consume:consume_command",
        "Read what a changefeed wrote, check its order, and print it or apply it.",
    ),
    "check-storage": (
        "downstream.check_storage:check_storage_command",
        "Check every path, index, metadata, schema and data file; exit code 1 if a rule is broken.",
    ),
    "table": (
        "downstream.table:table_command",
        "Rebuild a table, or all, and print its first rows and count, or write it as Parquet.",
    ),
    "verify": (
        "downstream.verify:verify_command",
        "Compare the tables of A and B. Exit code: 0 equal, 1 different, 2 it cannot be said.",
    ),
    "lake": ("downstream.lake:app", "Tables of a lake: their state, leftovers and small files."),
    "redo": (
        "downstream.redo:app",
        "The redo log of a changefeed: how far it reaches; complete the downstream from it.",
    ),
    "demo": (
        "demo:demo_command",
        "Start a store, feed its changes to files while it changes, and prove the files right.",
    ),
    "active-active": (
        "active_active:app",
        "The active-active mode: triggers, and who is waited for by a purge.",
    ),
    "meta": ("meta:app", "The meta database: backup, restore, migrate, check, keys."),
    "warm": (
        "warm:warm_command",
        "Compile the kernels ahead of time, so that the first run need not.",
    ),
    "refstore": (
        "refstore:app",
        "The reference store: a small range-sharded database for demos and tests.",
    ),
    "workload": (
        "workload:app",
        "Write to a reference store: money transfers, or every column type.",
    ),
    "cli": ("remote.ticdc:cli_app", "The same commands where TiCDC has them."),
}


class _Imported(dict[str, Any]):
    """Commands by name; one is imported when asked for, so a short one does not wait for Spark."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = super().__getitem__(name).partition(":")
        target = getattr(import_module(f"rowferry.face.cli.{module}"), attribute)
        if isinstance(target, typer.Typer):
            command: Any = get_group(target)
            command.no_args_is_help = True
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(name)(target)
            command = get_command(alone)
        command.name = name
        return command

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


class Commands(TyperGroup):
    """All commands; while they are listed, none is imported."""

    places = PLACES

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Imported({name: place for name, (place, _) in self.places.items()})
        self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a list, one that has no more than a name and a line of help."""
        if self._listing and cmd_name in self.places:
            return TyperCommand(cmd_name, help=self.places[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


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
        _show(err)
        sys.exit(2)
    except RowferryError as err:
        _show(err)
        sys.exit(1)


def _show(err: RowferryError) -> None:
    from rowferry.face.cli.output import consoles, show_error  # a command has loaded it

    show_error(consoles()[1], err)
