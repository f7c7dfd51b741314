"""Who may use a server: everybody, or who brings a token or a password; and its TLS files."""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rowferry.control.operator.actor import Actor, Role, shown
from rowferry.errors import AccessDenied, BadOption, LoginDelayed
from rowferry.face.bearer import TokenIssuer
from rowferry.face.credentials import KnownLogins, Token, User, hashed, token_digest
from rowferry.face.delays import Delays
from rowferry.face.fresh import Fresh

LOG = logging.getLogger("audit")
ANYBODY: Final = "anybody"  # the name of all where nobody must log in
_REMEMBERED_S: Final = 60.0  # a password is hashed once in so long
_MOST_REMEMBERED: Final = 1024
_NOBODY: Final = KnownLogins()


class Gate:
    """Checks the `Authorization` of a request. Safe for use from several threads.

    Without tokens and users everyone may enter, and do everything.
    """

    def __init__(
        self,
        known: KnownLogins | Fresh[KnownLogins] | None = None,
        delays: Delays | None = None,
        issuer: TokenIssuer | None = None,
    ) -> None:
        self._known, self._issuer = known, issuer
        self._delays = delays or Delays()
        self._salt = secrets.token_bytes(16)
        self._remembered: dict[bytes, tuple[str, Role, float, KnownLogins]] = {}
        self._lock = threading.Lock()

    @classmethod
    def read(
        cls,
        token_file: Path | None = None,
        users_file: Path | None = None,
        issuer: TokenIssuer | None = None,
    ) -> Gate:
        """Read files with tokens and users; they are read again when they change.

        Raises:
            BadOption: a file cannot be read, is empty, or has a line of another form.
        """
        paths = [path for path in (token_file, users_file) if path is not None]
        if not paths:
            return cls(issuer=issuer)
        known = Fresh(paths, lambda: KnownLogins.read(token_file, users_file))
        return cls(known, issuer=issuer)

    @classmethod
    def of(cls, token: str = "", users: Mapping[str, str] | None = None) -> Gate:
        """Return a gate for one token, and for users with these passwords; all are admins."""
        made = {name: User(Role.ADMIN, hashed(word)) for name, word in (users or {}).items()}
        tokens = (Token("token", Role.ADMIN, token_digest(token)),) if token else ()
        return cls(KnownLogins(made, tokens))

    @property
    def is_open(self) -> bool:
        """Whether everyone may enter."""
        return self._known is None and self._issuer is None

    @property
    def challenge(self) -> str:
        """What a refused client is told to bring: the value of `WWW-Authenticate`."""
        known = self._now()
        kinds = ['Basic realm="rowferry", charset="UTF-8"'] if known.users else []
        bears = known.tokens or self._issuer is not None
        return ", ".join(kinds + (['Bearer realm="rowferry"'] if bears else []))

    def remembered(self, authorization: str, origin: str, face: str) -> Actor | None:
        """Return who was admitted with the same words a moment ago; None: ask `admit`."""
        if self.is_open:
            return Actor(ANYBODY, Role.ADMIN, origin, face)
        login = self._remembered.get(self._key(authorization))
        if login is None:
            return None
        name, role, until, known = login
        if known is not self._now() or time.time() >= until:
            return None
        return Actor(name, role, origin, face)

    def admit(self, authorization: str, origin: str, face: str) -> Actor:
        """Return who asks. May take a moment: passwords are hashed.

        Raises:
            AccessDenied: no login, or a wrong one; which of its parts is wrong is not told.
            LoginDelayed: too many wrong ones came from there.
        """
        before = self.remembered(authorization, origin, face)
        if before is not None:
            return before
        kind, _, word = authorization.strip().partition(" ")
        if not word.strip():
            raise AccessDenied(
                "a login is needed: send Authorization with the server's token, or a known user"
            )
        if wait_s := self._delays.wait_s(origin):
            raise LoginDelayed(f"too many logins failed: wait {wait_s:.0f} s before the next one")
        known = self._now()
        login = _login_of(known, self._issuer, kind.lower(), word.strip())
        if login is None:
            self._delays.failed(origin)
            LOG.warning("a login failed, from %s by %s", shown(origin), face)
            raise AccessDenied("the server does not know this login, or it has ended")
        name, role, until = login
        with self._lock:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[self._key(authorization)] = (name, role, until, known)
        return Actor(name, role, origin, face)

    def _now(self) -> KnownLogins:
        known = self._known
        return known.get() if isinstance(known, Fresh) else known or _NOBODY

    def _key(self, authorization: str) -> bytes:
        words = authorization.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(words, key=self._salt).digest()


def _login_of(
    known: KnownLogins, issuer: TokenIssuer | None, kind: str, word: str
) -> tuple[str, Role, float] | None:
    """Return name and role of whoever brings this, and until when it counts."""
    until = time.time() + _REMEMBERED_S
    if kind == "bearer":
        if token := known.token(word):
            return token.name, token.role, min(until, token.ends_at or until)
        holder = issuer.who(word) if issuer else None
        return holder and (holder[0], holder[1], min(until, holder[2]))
    if kind == "basic" and known.users:
        name, colon, password = _decoded(word).partition(":")
        role = known.user(name, password) if colon else None
        return None if role is None else (name, role, until)
    return None


def _decoded(word: str) -> str:
    try:
        return base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


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
        self._context()

    def context(self) -> ssl.SSLContext:
        """Return the context of a server; each handshake uses the files as they then are.

        Raises:
            BadOption: the files cannot be used together.
        """
        fresh = Fresh(self.paths, self._context)

        def newest(asked: ssl.SSLObject | ssl.SSLSocket, _name: object, _context: object) -> None:
            asked.context = fresh.get()

        first = self._context()
        first.sni_callback = newest
        return first

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(path for path in (self.cert, self.key, self.client_ca) if path)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A session that is taken up again would not be asked for its certificate again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as err:
            words = f"the certificate {self.cert} and the key {self.key} cannot be used: {err}"
            raise BadOption(words) from None
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as err:
            raise BadOption(f"the authority {self.client_ca} cannot be used: {err}") from None
        return context


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
