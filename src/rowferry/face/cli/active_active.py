"""`rowferry active-active`: what a database that is not TiDB needs for the active-active mode."""

from __future__ import annotations

from typing import Annotated

import typer

from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule
from rowferry.face.cli.output import consoles
from rowferry.flow.decide.table_filter import named_by
from rowferry.flow.sink.mysql.emulation import triggers

app = typer.Typer(help="The active-active mode on servers that are not TiDB.")


@app.callback()
def _group() -> None:
    """Keep `prepare` a word of its own, though it is the only one."""


@app.command("prepare")
def prepare_command(
    tables: Annotated[list[str], typer.Argument(help="Tables as DATABASE.TABLE")],
    key: Annotated[
        list[str], typer.Option(help="A column of their primary key; repeat it for several")
    ],
    cluster_index: Annotated[
        int, typer.Option(min=0, max=15, help="The number of the cluster where they will run")
    ],
) -> None:
    """Print the triggers that stamp local writes; run them on the cluster, e.g. by its client."""
    out, _ = consoles()
    lines = ["DELIMITER $$"]
    for written in tables:
        database, table = named_by(written, case_sensitive=True)
        if database is None or table is None:
            raise BadFilterRule(f"{written!r} is not one table; write DATABASE.TABLE")
        made = triggers(TableId(database, table), key, cluster_index)
        lines += [f"{statement} $$" for statement in made]
    lines.append("DELIMITER ;")
    out.file.write("\n".join(lines) + "\n")
