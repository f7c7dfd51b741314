"""Users with hashed passwords and tokens with a role and an end, as files hold them.

    users:   name:role:scrypt$16384$8$1$<salt>$<hash>
    tokens:  name:role:2027-01-31:sha256$<hash>      (or `never`)

A token is made by us and cannot be guessed, so a plain hash of it is enough.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from datetime import time as day_time
from hmac import compare_digest
from pathlib import Path
from typing import Final

from rowferry.control.operator.actor import Role
from rowferry.errors import BadOption

NEVER: Final = "never"
_COST: Final = (1 << 14, 8, 1)  # n, r, p: 16 MiB and some 50 ms for each guess
_MOST_MEMORY: Final = 64 << 20
_NAME: Final = re.compile(r"[\w.@+-]{1,100}")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who has a password."""

    role: Role
    hashed: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Token:
    """A word that a client brings.

    Attributes:
        ends_at: seconds since 1970; None: never.
    """

    name: str
    role: Role
    digest: bytes = field(repr=False)
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class KnownLogins:
    """All who are known."""

    users: Mapping[str, User] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()

    @classmethod
    def read(cls, token_file: Path | None = None, users_file: Path | None = None) -> KnownLogins:
        """Read the files.

        Raises:
            BadOption: one cannot be read, is empty, or has a line of another form.
        """
        return cls(_users(users_file), _tokens(token_file))

    def user(self, name: str, password: str) -> Role | None:
        """Return the role of a user; None: name or password is wrong, which takes as long."""
        user = self.users.get(name)
        right = is_right(password, user.hashed if user else _NOBODY)
        return user.role if user and right else None

    def token(self, word: str) -> Token | None:
        """Return the token that a word is, unless it has ended."""
        digest = token_digest(word)
        fits = [one for one in self.tokens if compare_digest(one.digest, digest)]
        now = time.time()
        return next((t for t in fits if t.ends_at is None or now < t.ends_at), None)


def hashed(password: str, cost: tuple[int, int, int] = _COST) -> str:
    """Return what is kept of a password."""
    salt = secrets.token_bytes(16)
    n, r, p = cost
    made = _scrypt(password, salt, cost)
    return "$".join(["scrypt", str(n), str(r), str(p), _written(salt), _written(made)])


def is_right(password: str, kept: str) -> bool:
    """Return whether this is the password of which that was kept."""
    cost, salt, right = _parts(kept)
    return compare_digest(_scrypt(password, salt, cost), right)


def user_line(name: str, role: Role, password: str) -> str:
    """Return a user's line for the file."""
    return f"{check_name(name)}:{role}:{hashed(password)}"


def token_line(name: str, role: Role, ends: date | None) -> tuple[str, str]:
    """Make a token; returns it, and its line for the file."""
    word = secrets.token_urlsafe(32)
    until = ends.isoformat() if ends else NEVER
    return word, f"{check_name(name)}:{role}:{until}:sha256${token_digest(word).hex()}"


def check_name(name: str) -> str:
    """Return a name that may stand in the files.

    Raises:
        BadOption: it may not.
    """
    if not _NAME.fullmatch(name):
        raise BadOption(f"{name!r}: a name has letters, digits and _ . @ + - only, 100 at most")
    return name


def read_text(path: Path) -> str:
    """Return what a file says.

    Raises:
        BadOption: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not UTF-8 text"
        raise BadOption(f"{path}: cannot be read: {why}") from None


def _lines(path: Path | None) -> list[tuple[str, str]]:
    """Return the lines of a file that say something, each with its place."""
    text = read_text(path) if path else ""
    return [
        (f"{path}, line {place}", line.strip())
        for place, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]


def _users(path: Path | None) -> dict[str, User]:
    users: dict[str, User] = {}
    for where, line in _lines(path):
        name, _, rest = line.partition(":")
        role, _, kept = rest.partition(":")
        if not _NAME.fullmatch(name) or not kept.startswith("scrypt$"):
            raise BadOption(
                f"{where}: write it as name:role:scrypt$…; `rowferry access user` makes such a "
                "line, passwords do not stand in the file"
            )
        if name in users:
            raise BadOption(f"{where}: this user is there already")
        try:
            _parts(kept)
        except ValueError:
            raise BadOption(f"{where}: what is kept of the password is damaged") from None
        users[name] = User(Role.read(role, where), kept)
    if path and not users:
        raise BadOption(f"{path}: names no user; `rowferry access user` adds one")
    return users


def _tokens(path: Path | None) -> tuple[Token, ...]:
    lines = _lines(path)
    if path and not lines:
        raise BadOption(f"{path}: holds no token; `rowferry access token` adds one")
    if len(lines) == 1 and ":" not in lines[0][1]:
        word = lines[0][1]
        if len(word.split()) != 1:
            raise BadOption(f"{path}: must hold one word, the token, or lines of tokens")
        return (Token("token", Role.ADMIN, token_digest(word)),)
    return tuple(_token(where, line) for where, line in lines)


def _token(where: str, line: str) -> Token:
    parts = line.split(":")
    if len(parts) != 4 or not _NAME.fullmatch(parts[0]) or not parts[3].startswith("sha256$"):
        raise BadOption(
            f"{where}: write it as name:role:end:sha256$…; `rowferry access token` makes such lines"
        )
    name, role, end, kept = parts
    try:
        digest = bytes.fromhex(kept.removeprefix("sha256$"))
        day = None if end == NEVER else date.fromisoformat(end)
    except ValueError:
        raise BadOption(f"{where}: the end is a day such as 2027-01-31, or {NEVER}") from None
    if len(digest) != hashlib.sha256().digest_size:
        raise BadOption(f"{where}: what is kept of the token is damaged")
    ends_at = datetime.combine(day, day_time.max, UTC).timestamp() if day else None
    return Token(name, Role.read(role, where), digest, ends_at)


def token_digest(word: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()


def _scrypt(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    words = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(words, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=32)


def _parts(kept: str) -> tuple[tuple[int, int, int], bytes, bytes]:
    """Take apart what is kept of a password.

    Raises:
        ValueError: it has another form, or would take more memory than a guess may.
    """
    kind, n, r, p, salt, made = kept.split("$")
    cost = (int(n), int(r), int(p))
    if kind != "scrypt" or cost[0] * cost[1] * 128 * cost[2] >= _MOST_MEMORY or min(cost) < 1:
        raise ValueError(kind)
    try:
        salt_and_hash = (
            base64.b64decode(salt, validate=True),
            base64.b64decode(made, validate=True),
        )
    except binascii.Error as err:
        raise ValueError(str(err)) from None
    if len(salt_and_hash[0]) < 8 or len(salt_and_hash[1]) != 32:
        raise ValueError("too short")
    return cost, *salt_and_hash


def _written(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY: Final = hashed("")  # a wrong name costs what a wrong password does
