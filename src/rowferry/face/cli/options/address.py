"""Addresses with logins as options give them: as they are, or from where `ps` shows nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from rowferry.errors import BadOption
from rowferry.spec.secret_reference import is_reference
from rowferry.spec.uri import Uri

if TYPE_CHECKING:
    from rowferry.secrets.sources import SecretSources

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
        address = os.environ.get(text[len(_VARIABLE) :], "").strip()
        if not address:
            raise BadOption(f"{text}: this environment variable is not set; give it the address")
        return address
    return text


def given_addresses(texts: list[str] | None) -> list[str] | None:
    """Return addresses as `given_address` does; an `ID=` may stand before each."""
    if texts is None:
        return None
    addresses = []
    for text in texts:
        head, equals, rest = text.partition("=")
        numbered = bool(equals) and head.isdecimal()
        address = given_address(rest if numbered else text)
        addresses.append(f"{head}={address}" if numbered else f"{address}")
    return addresses


def given_meta(text: str | None) -> str | None:
    """Return the address of a meta database as `given_address` does, and with its secrets.

    Raises:
        BadOption, SecretMissing: as `given_address`, or what a reference in it names is not there.
    """
    address = given_address(text)
    if address is None or not _may_refer(address):
        return address
    from rowferry.secrets.environment import sources_of_environment  # it knows every stage

    return meta_with_secrets(address, sources_of_environment())


def meta_with_secrets(address: str, secrets: SecretSources) -> str:
    """Return the address of a meta database with the secret that its password refers to.

    Raises:
        SecretMissing, BadOption: it cannot be had, or is no reference.
    """
    if not _may_refer(address):
        return address
    uri = Uri.parse(address, "--meta")
    resolved = secrets.resolved_uri(uri, "--meta")
    return address if resolved == uri else resolved.reveal()


def given_secret(text: str, what: str) -> str:
    """Return a password or a token that an option gives: it, or what a reference names.

    Raises:
        SecretMissing, BadOption: it cannot be had, or is no reference; `what` names the option.
    """
    if not is_reference(text):
        return text
    from rowferry.secrets.environment import sources_of_environment  # it knows every stage

    return sources_of_environment().value(text, what)


def _may_refer(address: str) -> bool:
    """Return whether a login in an address may be a reference; most addresses are left alone."""
    login, at, _ = address.partition("://")[2].rpartition("@")
    return bool(at) and is_reference(unquote(login.partition(":")[2]))


def _from_file(path: str, shown: str) -> str:
    try:
        content = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not UTF-8 text"
        raise BadOption(f"{shown}: the file cannot be read: {why}") from None
    if not content or "\n" in content:
        raise BadOption(f"{shown}: the file must hold one line, the address")
    return content
