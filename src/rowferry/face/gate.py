"""Who may use a server: nobody is asked, a token, or users with passwords; and its TLS files."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

from rowferry.errors import BadOption


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks the `Authorization` of a request. Without a token and users everyone may enter.

    Attributes:
        token: admits `Bearer <token>`; empty: no token does.
        users: admits `Basic` with one of these names and its password.
    """

    token: str = field(default="", repr=False)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, token_file: Path | None = None, users_file: Path | None = None) -> Gate:
        """Read a file that holds the token, or one with a line `name:password` for each user.

        Raises:
            BadOption: a file cannot be read, is empty, or has a line of another form.
        """
        token = _text(token_file).strip() if token_file else ""
        if token_file and (not token or len(token.split()) != 1):
            raise BadOption(f"{token_file}: must hold one word, the token")
        users: dict[str, str] = {}
        for place, line in enumerate(_text(users_file).splitlines() if users_file else (), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, word = line.partition(":")
            if not colon or not name.strip() or not word.strip():
                raise BadOption(f"{users_file}, line {place}: write it as name:password")
            users[name.strip()] = word.strip()
        if users_file and not users:
            raise BadOption(f"{users_file}: names no user; write a line name:password for each")
        return cls(token, users)

    @property
    def is_open(self) -> bool:
        """Whether everyone may enter."""
        return not self.token and not self.users

    @property
    def challenge(self) -> str:
        """What a refused client is told to bring: the value of `WWW-Authenticate`."""
        kinds = ['Basic realm="rowferry", charset="UTF-8"'] if self.users else []
        return ", ".join(kinds + (['Bearer realm="rowferry"'] if self.token else []))

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this `Authorization` may enter.

        Takes as long for a wrong secret as for the right one.
        """
        if self.is_open:
            return True
        kind, _, word = authorization.strip().partition(" ")
        if kind.lower() == "bearer" and self.token:
            return compare_digest(word.strip().encode(), self.token.encode())
        if kind.lower() == "basic":
            given = _decoded(word.strip())
            fits = [compare_digest(given, f"{n}:{w}".encode()) for n, w in self.users.items()]
            return any(fits)
        return False


def _decoded(word: str) -> bytes:
    try:
        return base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not UTF-8 text"
        raise BadOption(f"{path}: cannot be read: {why}") from None


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a server: its certificate chain, its key, and whom it trusts as clients.

    Attributes:
        client_ca: with it, only clients with a certificate of this authority are let in.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raise BadOption when the files cannot be used together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as err:
            words = f"the certificate {self.cert} and the key {self.key} cannot be used: {err}"
            raise BadOption(words) from None
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as err:
            raise BadOption(f"the authority {self.client_ca} cannot be used: {err}") from None


def split_address(address: str, what: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` (`[::1]:8300` for IPv6).

    Raises:
        BadOption: it has another form; `what` names the setting.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadOption(f"{what} {address!r}: write it as HOST:PORT, for instance 127.0.0.1:8300")
    return host, int(port)
