"""Addresses with logins as options give them: as they are, or from where `ps` shows nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rowferry.errors import BadOption

_FILE: Final = "@"
_VARIABLE: Final = "env:"


def given_address(text: str | None) -> str | None:
    """Return an address: `@FILE` is what the file holds, `env:NAME` what the variable does.

    Every user of a machine sees the words of every command on it; files and variables are private.

    Raises:
        BadOption: the file cannot be read, the variable is not set, or there is nothing in it.
    """
    if text is None:
        return None
    if text.startswith(_FILE):
        return _from_file(text[len(_FILE) :], text)
    if text.startswith(_VARIABLE):
        found = os.environ.get(text[len(_VARIABLE) :], "").strip()
        if not found:
            raise BadOption(f"{text}: this environment variable is not set; give it the address")
        return found
    return text


def given_addresses(texts: list[str] | None) -> list[str] | None:
    """Return addresses as `given_address` does; an `ID=` may stand before each."""
    if texts is None:
        return None
    found = []
    for text in texts:
        head, equals, rest = text.partition("=")
        numbered = bool(equals) and head.isdecimal()
        address = given_address(rest if numbered else text)
        found.append(f"{head}={address}" if numbered else f"{address}")
    return found


def _from_file(path: str, shown: str) -> str:
    try:
        found = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not UTF-8 text"
        raise BadOption(f"{shown}: the file cannot be read: {why}") from None
    if not found or "\n" in found:
        raise BadOption(f"{shown}: the file must hold one line, the address")
    return found
