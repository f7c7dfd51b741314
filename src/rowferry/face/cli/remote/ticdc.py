"""`rowferry cli`: the commands that talk to a server, where TiCDC's `cdc cli` has them."""

from __future__ import annotations

import typer

from rowferry.face.cli.main import OF_SERVERS, Commands
from rowferry.face.cli.remote.client import remember_flags


class ServerCommands(Commands):
    """Those that talk to a server."""

    places = OF_SERVERS


cli_app = typer.Typer(
    cls=ServerCommands, help="The same commands where TiCDC has them.", no_args_is_help=True
)
cli_app.callback()(remember_flags())
