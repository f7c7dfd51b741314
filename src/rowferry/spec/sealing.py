"""Settings whose secrets are encrypted, and the keys for that.

    sealed~<id of the key>~<nonce, ciphertext and tag, in base64>

stands in the place of a secret: AES-256-GCM, which also tells whether anything was changed. What it
is bound to is all the rest of the settings: whoever can write them, but has no key, cannot let a
secret be sent to another address.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rowferry.errors import BadOption, SecretsLocked
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.secret_places import with_secrets
from rowferry.spec.uri import Uri

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_ID_BYTES: Final = 8
_BLANK: Final = "sealed~"
_TOKEN: Final = re.compile(r"sealed~([0-9a-f]{8})~([A-Za-z0-9_-]{39,})")
_LOCKED: Final = re.compile(r"sealed~([0-9a-f]{8})~[A-Za-z0-9_-]*")
_WHOLE: Final = re.compile(rf"(?:[^:/?#]*:\s*)?{_TOKEN.pattern}\s*")  # alone, or in a header
_UNKNOWN, _CHANGED = "unknown", "changed"  # stand for a secret that cannot be opened, and why
_AGAIN_S: Final = 1.0  # between two looks at the file
_VARIABLE: Final = "env:"


class SecretKeys:
    """The keys of a file: the first one encrypts, all of them decrypt.

    A file that has changed is read again. Safe for use from several threads.
    """

    def __init__(self, read: Callable[[], list[bytes]], mark: Callable[[], object]) -> None:
        self._read, self._mark_of = read, mark
        self._lock = threading.Lock()
        self._mark, self._looked_at = mark(), time.monotonic()
        self._keys = _by_id(read())

    @classmethod
    def given(cls, place: str) -> SecretKeys:
        """Read keys from a file, or with `env:NAME` from an environment variable.

        Raises:
            BadOption: there are none, others can read the file, or a line is no key.
        """
        if place.startswith(_VARIABLE):
            name = place[len(_VARIABLE) :]
            return cls(lambda: _keys_in(os.environ.get(name, ""), place), lambda: None)
        path = Path(place)
        return cls(lambda: _keys_of(path), lambda: _mark(path))

    @classmethod
    def of(cls, key: bytes) -> SecretKeys:
        """Use one key, which no file holds."""
        return cls(lambda: [key], lambda: None)

    @property
    def first(self) -> str:
        """The id of the key that encrypts."""
        self._refresh()
        return next(iter(self._keys))

    def holds(self, name: str) -> bool:
        """Return whether a key of this id is here."""
        return name in self._keys

    def seal(self, secret: str, bound_to: bytes) -> str:
        """Return the encrypted form of a secret."""
        name = self.first
        nonce = secrets.token_bytes(_NONCE_BYTES)
        made = nonce + AESGCM(self._keys[name]).encrypt(nonce, secret.encode(), bound_to)
        return f"{_BLANK}{name}~{base64.urlsafe_b64encode(made).decode().rstrip('=')}"

    def open(self, name: str, data: str, bound_to: bytes) -> str | None:
        """Return a secret; None: its key is not here.

        Raises:
            InvalidTag: it was changed, or it was encrypted for something else.
        """
        key = self._keys.get(name)
        if key is None:
            self._refresh()
            key = self._keys.get(name)
        if key is None:
            return None
        try:
            raw = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
            return AESGCM(key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound_to).decode()
        except (binascii.Error, ValueError):
            raise InvalidTag from None

    def seal_bytes(self, content: bytes, bound_to: bytes) -> bytes:
        """Return the encrypted form of any bytes."""
        name = self.first
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return name.encode() + nonce + AESGCM(self._keys[name]).encrypt(nonce, content, bound_to)

    def open_bytes(self, data: bytes, bound_to: bytes) -> bytes | None:
        """Return what `seal_bytes` encrypted; None: with another key, or it was changed."""
        key = self._keys.get(data[:_ID_BYTES].decode("ascii", "replace"))
        nonce, rest = data[_ID_BYTES:][:_NONCE_BYTES], data[_ID_BYTES + _NONCE_BYTES :]
        if key is None or len(nonce) < _NONCE_BYTES:
            return None
        try:
            return AESGCM(key).decrypt(nonce, rest, bound_to)
        except InvalidTag:
            return None

    def _refresh(self) -> None:
        """Read the file again if it has changed; what it said before counts if it is unusable."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < _AGAIN_S:
                return
            self._looked_at, mark = now, self._mark_of()
            if mark == self._mark:
                return
            try:
                self._keys = _by_id(self._read())
            except BadOption:
                return  # it may be half written: the next look tells
            self._mark = mark


def add_key(file: Path, there: bool) -> None:
    """Make a key, and a file for it that only its owner can read; or put it first in one.

    Args:
        file: its path.
        there: the file is there; what it holds stays.

    Raises:
        BadOption: the file is there and should not be, or the other way round.
    """
    line = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode() + "\n"
    if there:
        _keys_of(file)
        line += file.read_text(encoding="ascii")
    made = file.with_name(f".{file.name}.new") if there else file
    try:
        number = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w", encoding="ascii") as out:
            out.write(line)
            out.flush()
            os.fsync(number)
        if there:
            made.replace(file)
    except FileExistsError:
        raise BadOption(
            f"{made} is there already; name another file, or add a key to it by --add"
        ) from None
    except OSError as err:
        raise BadOption(f"{made} cannot be written: {err.strerror}") from None


def key_id(key: bytes) -> str:
    """Return by which id a key is known; nothing about the key can be told from it."""
    return hashlib.sha256(b"rowferry secret key\0" + key).hexdigest()[:_ID_BYTES]


def _by_id(keys: Iterable[bytes]) -> dict[str, bytes]:
    return {key_id(key): key for key in keys}


def _keys_of(path: Path) -> list[bytes]:
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not ASCII text"
        raise BadOption(
            f"--secret-key-file {path} cannot be read: {why}; `rowferry meta new-key` makes one"
        ) from None
    if stat.S_IMODE(mode) & 0o007:
        raise BadOption(f"--secret-key-file {path}: every user can reach it; run: chmod 600 {path}")
    return _keys_in(text, str(path))


def _keys_in(text: str, where: str) -> list[bytes]:
    keys = []
    for line in (raw.strip() for raw in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise BadOption(
                f"--secret-key-file {where}: a line is no key; it has {_KEY_BYTES} bytes in "
                "base64, as `rowferry meta new-key` writes them"
            )
        keys.append(key)
    if not keys:
        raise BadOption(
            f"--secret-key-file {where} holds no key; `rowferry meta new-key` makes one"
        )
    return keys


def _mark(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def sealed(spec: ChangefeedSpec, tables: Iterable[OptionTable], keys: SecretKeys) -> ChangefeedSpec:
    """Return a changefeed with every secret encrypted."""
    tables = tuple(tables)
    blank = with_secrets(spec, tables, lambda secret, place: _BLANK, as_written=True)
    rest = _digest(blank.to_json())

    def seal(secret: str, place: str) -> str:
        return keys.seal(secret, _bound(rest, place))

    return with_secrets(spec, tables, seal, as_written=True)


def opened(form: Mapping[str, Any], keys: SecretKeys | None) -> dict[str, Any]:
    """Return the JSON form of a changefeed with its secrets decrypted.

    One that cannot be opened stays sealed; `refuse_locked` tells of it.
    """
    rest = _digest(form)

    def text(value: str, place: str) -> str:
        alone = _WHOLE.fullmatch(value) is not None

        def secret(match: re.Match[str]) -> str:
            try:
                plain = keys.open(match[1], match[2], _bound(rest, place)) if keys else None
            except InvalidTag:
                return f"{_BLANK}{match[1]}~{_CHANGED}"
            if plain is None:
                return f"{_BLANK}{match[1]}~{_UNKNOWN}"
            return plain if alone else quote(plain, safe="")

        return _TOKEN.sub(secret, value)

    def part(value: Any, place: str) -> Any:
        if isinstance(value, str):
            return text(value, place) if _BLANK in value else value
        if isinstance(value, dict):
            return {k: part(v, f"{place}.{k}" if place else str(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [part(one, place) for one in value]
        return value

    def uri(value: str, place: str) -> str:
        if _BLANK not in value:
            return value
        parsed = Uri.parse(value, place)
        parameters = tuple((key, text(one, place)) for key, one in parsed.parameters)
        password = text(parsed.password, place)
        return replace(parsed, password=password, parameters=parameters).reveal()

    form_plain = {**form, "config": part(form["config"], "")}
    return {**form_plain, **{place: uri(form[place], place) for place in ("source", "sink")}}


def key_ids(text: str) -> set[str]:
    """Return by which keys the secrets in a text are sealed."""
    return {match[1] for match in _LOCKED.finditer(text)}


def refuse_locked(spec: ChangefeedSpec) -> None:
    """Refuse a changefeed whose secrets could not be opened.

    Raises:
        SecretsLocked: the text names the key.
    """
    text = json.dumps(spec.to_json())
    match = _LOCKED.search(text)
    if match is None:
        return
    name = spec.changefeed_id
    if match[0].endswith(f"~{_CHANGED}"):
        raise SecretsLocked(
            f"changefeed {name}: its settings were changed by something else than Rowferry since "
            f"its secrets were encrypted (key {match[1]}); update it with all of its secrets"
        )
    raise SecretsLocked(
        f"changefeed {name}: its secrets are encrypted with key {match[1]}, which is not here; "
        "give --secret-key-file a file that holds this key"
    )


def _digest(form: Mapping[str, Any]) -> bytes:
    text = json.dumps(form, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(_TOKEN.sub(_BLANK, text).encode()).digest()


def _bound(rest: bytes, place: str) -> bytes:
    return rest + place.encode()
