"""The `rowferry` command: its subcommands, and one line for every error."""

from __future__ import annotations

import sys

import typer

from rowferry.errors import BadInput, RowferryError
from rowferry.face.cli.check_storage import check_storage_command
from rowferry.face.cli.consume import consume_command
from rowferry.face.cli.demo import demo_command
from rowferry.face.cli.output import consoles, show_error
from rowferry.face.cli.refstore import app as refstore_app
from rowferry.face.cli.run import run_command
from rowferry.face.cli.table import table_command
from rowferry.face.cli.workload import app as workload_app

app = typer.Typer(
    help="Change data capture on Apache Spark: every committed row change, in order, without loss.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("run")(run_command)
app.command("consume")(consume_command)
app.command("check-storage")(check_storage_command)
app.command("table")(table_command)
app.command("demo")(demo_command)
app.add_typer(refstore_app, name="refstore")
app.add_typer(workload_app, name="workload")


def main() -> None:
    """Run the command line; an error of ours becomes one line and an exit code."""
    try:
        app()
    except BadInput as err:
        show_error(consoles()[1], err)
        sys.exit(2)
    except RowferryError as err:
        show_error(consoles()[1], err)
        sys.exit(1)
