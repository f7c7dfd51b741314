"""`rowferry meta`: back up, restore, migrate and check the meta database."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rowferry.face.cli.given_address import given_address
from rowferry.face.cli.output import Printer

app = typer.Typer(
    name="meta", help="The meta database: backup, restore, migrate, check.", no_args_is_help=True
)

Meta = Annotated[
    str,
    typer.Option(
        envvar="ROWFERRY_META",
        callback=given_address,
        help="The meta database: sqlite:///path, mysql://…, mariadb://… or postgresql://…",
    ),
]
Output = Annotated[str, typer.Option("--output", "-o", help="table | json")]
DEFAULT = "sqlite:///.rowferry/meta.db"

# Each command imports what it needs: others start without the database's libraries.


@app.command("backup")
def backup_command(
    file: Annotated[Path, typer.Argument(help="A new file, e.g. meta.jsonl.gz")],
    meta: Meta = DEFAULT,
) -> None:
    """Write all that is stored, as it is at one moment, to a file; servers may go on.

    The file holds the passwords of sources and sinks: only its owner can read it.
    """
    from rowferry.control.store.backup import back_up

    found = back_up(meta, file, time.time())
    Printer("table").text(
        f"{file}: {found.changefeeds} changefeeds, {found.rows} rows, schema version "
        f"{found.schema}\n"
    )


@app.command("restore")
def restore_command(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote")],
    meta: Meta = DEFAULT,
) -> None:
    """Fill an empty database, of any kind, from a backup; those who ran changefeeds are fenced.

    Servers that use the old database must be stopped first.
    """
    from rowferry.control.store.backup import restore

    found = restore(meta, file, time.time())
    taken = datetime.fromtimestamp(found.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    Printer("table").text(
        f"{file}: {found.changefeeds} changefeeds, {found.rows} rows, as of {taken}\n"
    )


@app.command("migrate")
def migrate_command(meta: Meta = DEFAULT) -> None:
    """Make or upgrade the tables; servers do so too when they start."""
    from rowferry.control.store.connection import Database

    with closing(Database(meta, migrate=False)) as database:
        before = database.version()
        database.migrate()
        after = database.version()
    told = f"schema version {after}" if before == after else f"{before or 'empty'} -> {after}"
    Printer("table").text(f"{database.name}: {told}\n")


@app.command("check")
def check_command(meta: Meta = DEFAULT, output: Output = "table") -> None:
    """Look at every row without changing any; exit code 1 if something is wrong."""
    from rowferry.control.store.checking import check

    printer = Printer(output)
    looks = check(meta)
    if printer.as_json:
        printer.value(
            [{"what": k.what, "rows": k.rows, "findings": list(k.findings)} for k in looks]
        )
    else:
        printer.table(
            ("what", "rows", "findings"),
            [(look.what, look.rows, len(look.findings) or "none") for look in looks],
        )
        for look in looks:
            for words in look.findings:
                printer.text(f"{look.what}: {words}\n")
    if any(look.findings for look in looks):
        raise typer.Exit(1)
