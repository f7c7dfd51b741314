"""`rowferry meta`: back up, restore, migrate and check the meta database, and its keys."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowferry.errors import BadOption
from rowferry.face.cli.options.address import given_meta
from rowferry.face.cli.options.secrets import SecretKeyFile, given_keys
from rowferry.face.cli.output import Printer

if TYPE_CHECKING:
    from rowferry.spec.sealing import SecretKeys

app = typer.Typer(
    name="meta",
    help="The meta database: backup, restore, migrate, check, keys.",
    no_args_is_help=True,
)

Meta = Annotated[
    str,
    typer.Option(
        envvar="ROWFERRY_META",
        callback=given_meta,
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
    secret_key_file: SecretKeyFile = None,
) -> None:
    """Write all that is stored, as it is at one moment, to a file; servers may go on.

    Passwords of sources and sinks are in it as the database has them, encrypted or not: only its
    owner can read it.
    """
    from rowferry.control.store.backup import back_up

    keys = given_keys(secret_key_file)
    backup = back_up(meta, file, time.time())
    Printer("table").text(
        f"{file}: {backup.changefeeds} changefeeds, {backup.rows} rows, schema version "
        f"{backup.schema}\n{_needed(backup.keys, keys)}"
    )


@app.command("restore")
def restore_command(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote")],
    meta: Meta = DEFAULT,
    secret_key_file: SecretKeyFile = None,
) -> None:
    """Fill an empty database, of any kind, from a backup; those who ran changefeeds are fenced.

    Servers that use the old database must be stopped first.
    """
    from rowferry.control.store.backup import restore

    keys = given_keys(secret_key_file)
    backup = restore(meta, file, time.time())
    taken = datetime.fromtimestamp(backup.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    Printer("table").text(
        f"{file}: {backup.changefeeds} changefeeds, {backup.rows} rows, as of {taken}\n"
        + _needed(backup.keys, keys)
    )


def _needed(used: tuple[str, ...], keys: SecretKeys | None) -> str:
    """Return a line about the keys that are needed and not here; empty: none is."""
    missing = [one for one in used if keys is None or not keys.holds(one)]
    if not missing:
        return ""
    return (
        f"its secrets are encrypted with key {', '.join(missing)}: keep the key file apart from "
        "the backup, and give it to servers by --secret-key-file\n"
    )


@app.command("migrate")
def migrate_command(meta: Meta = DEFAULT) -> None:
    """Make or upgrade the tables; servers do so too when they start."""
    from rowferry.control.store.connection import Database

    with closing(Database(meta, migrate=False)) as database:
        before = database.version()
        database.migrate()
        after = database.version()
    change = f"schema version {after}" if before == after else f"{before or 'empty'} -> {after}"
    Printer("table").text(f"{database.name}: {change}\n")


@app.command("check")
def check_command(
    meta: Meta = DEFAULT, output: Output = "table", secret_key_file: SecretKeyFile = None
) -> None:
    """Look at every row without changing any; exit code 1 if something is wrong.

    With the key file, also whether all encrypted secrets can be opened.
    """
    from rowferry.control.store.checking import check

    printer = Printer(output)
    looks = check(meta, given_keys(secret_key_file))
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


@app.command("new-key")
def new_key_command(
    file: Annotated[Path, typer.Argument(help="The key file, which only its owner can read")],
    add: Annotated[
        bool, typer.Option("--add", help="Put the key first into a file that is there")
    ] = False,
) -> None:
    """Make a key for the secrets in the meta database.

    The first key of a file encrypts, all of them decrypt. Without its keys, a meta database and its
    backups have lost their secrets: keep a copy of the file, and not beside the backups.
    """
    from rowferry.spec.sealing import SecretKeys, add_key

    add_key(file, add)
    Printer("table").text(f"{file}: key {SecretKeys.given(str(file)).first}\n")


@app.command("rekey")
def rekey_command(meta: Meta = DEFAULT, secret_key_file: SecretKeyFile = None) -> None:
    """Encrypt all secrets with the first key of the file, also those that are in clear text.

    Servers may go on. The file must hold all keys that are in use.
    """
    from rowferry.control.store.rekeying import rekey

    keys = given_keys(secret_key_file)
    if keys is None:
        raise BadOption("rekey needs --secret-key-file; `rowferry meta new-key FILE` makes one")
    outcome = rekey(meta, keys)
    Printer("table").text(
        f"{outcome.written} of {outcome.settings} settings were encrypted anew, "
        f"with key {outcome.key}\n"
    )
