"""`rowferry access`: lines for the files that say who may use a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from rowferry.control.operator.actor import Role
from rowferry.errors import BadOption
from rowferry.face.cli.output import consoles
from rowferry.face.credentials import KnownLogins, read_text, token_line, user_line

app = typer.Typer(help="Users and tokens of a server: roles, hashed passwords, tokens with an end.")

Name = Annotated[str, typer.Argument(help="Who it is for; the history shows it")]
RoleName = Annotated[str, typer.Option("--role", help="viewer, operator or admin")]
File = Annotated[Path, typer.Option("--file", help="The file; it is made where there is none")]
_SHORTEST = 8


@app.command("user")
def user_command(name: Name, file: File, role: RoleName = "viewer") -> None:
    """Add a user to a file for `--users-file`, or change one; the password is asked for.

    The environment's ROWFERRY_PASSWORD counts instead of a question.
    """
    known = Role.read(role, "--role")
    word = os.environ.get("ROWFERRY_PASSWORD") or typer.prompt(
        "Password", hide_input=True, confirmation_prompt=True
    )
    if len(word) < _SHORTEST:
        raise BadOption(f"a password has at least {_SHORTEST} characters")
    _put(file, name, user_line(name, known, word), lambda: KnownLogins.read(None, file))


@app.command("token")
def token_command(
    name: Name,
    file: File,
    role: RoleName = "viewer",
    days: Annotated[int, typer.Option(min=0, help="It ends after so many days; 0: never")] = 90,
) -> None:
    """Make a token, add it to a file for `--token-file`, and print it: nothing else shows it."""
    ends = (datetime.now(UTC) + timedelta(days=days)).date() if days else None
    word, line = token_line(name, Role.read(role, "--role"), ends)
    _put(file, name, line, lambda: KnownLogins.read(file))
    consoles()[0].file.write(word + "\n")


@app.command("remove")
def remove_command(name: Name, file: File) -> None:
    """Take a user or a token out of a file; servers notice it within seconds."""
    lines = read_text(file).splitlines(keepends=True)
    rest = [line for line in lines if line.partition(":")[0] != name]
    if len(rest) == len(lines):
        raise BadOption(f"{file}: there is no {name!r}")
    _write(file, "".join(rest))


def _put(file: Path, name: str, line: str, check: Callable[[], object]) -> None:
    """Write a line in the place of the one of that name, or behind all others.

    Raises:
        BadOption: the file has a line that no server would take.
    """
    lines: list[str] = []
    if file.exists() and read_text(file).strip():
        check()
        lines = read_text(file).splitlines()
        if any(":" not in one for one in lines if one.strip() and not one.startswith("#")):
            raise BadOption(f"{file}: holds a token in clear; name another file")
    at = next((i for i, one in enumerate(lines) if one.partition(":")[0] == name), len(lines))
    lines[at : at + 1] = [line]
    _write(file, "\n".join(lines) + "\n")


def _write(file: Path, text: str) -> None:
    """Replace a file at one go; only its owner may read it."""
    new = file.with_name(f".{file.name}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(new, file)
    except OSError as err:
        raise BadOption(f"{file}: cannot be written: {err.strerror}") from None
