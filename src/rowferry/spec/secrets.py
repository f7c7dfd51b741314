"""The secrets of a changefeed: which values they are, and texts of others without them."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from rowferry.errors import BadInput, RowferryError, TaskFailed
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri import FOREIGN, Uri, is_secret_parameter

HIDDEN: Final = "***"
_ANYWHERE: Final = 8  # a shorter secret may be part of an ordinary word: only whole words count
_LEAST: Final = 3


def secrets_of_uri(uri: Uri, tables: Iterable[OptionTable] = ()) -> Iterator[str]:
    """Yield the secret values of a URI; `tables` declare its parameters."""
    declared = {o.key: o.secret for table in tables for o in table.options if o.uri}
    yield uri.password
    for key, value in uri.parameters:
        if declared.get(key, uri.scheme in FOREIGN) or is_secret_parameter(key):
            yield from _parts(value)
        else:
            yield from _passwords(value)


def secrets_of_config(config: Mapping[str, Any], tables: Iterable[OptionTable]) -> Iterator[str]:
    """Yield the secret values of a configuration."""
    declared = {table.path(o.key): o.secret for table in tables for o in table.options}
    yield from _of_section(config, "", declared)


def secrets_of(spec: ChangefeedSpec, tables: Iterable[OptionTable]) -> frozenset[str]:
    """Return the secret values of a whole changefeed."""
    tables = tuple(tables)
    secrets = {
        *secrets_of_uri(spec.source, tables),
        *secrets_of_uri(spec.sink, tables),
        *secrets_of_config(spec.config, tables),
    }
    return frozenset(secrets - {"", HIDDEN})


def _of_section(
    content: Mapping[str, Any], section: str, declared: Mapping[str, bool]
) -> Iterator[str]:
    for key, value in content.items():
        path = f"{section}.{key}" if section else str(key)
        secret = declared.get(path, is_secret_parameter(str(key)))
        if isinstance(value, Mapping):
            yield from _of_section(value, path, declared)
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, str):
                yield from _parts(one) if secret else _passwords(one)
            elif isinstance(one, Mapping):
                yield from _of_section(one, path, declared)


def _parts(value: str) -> Iterator[str]:
    """Yield a secret value and the secrets inside it: of a header, its value; of a URL, its own."""
    if "://" in value:  # the address itself is no secret
        yield from _passwords(value)
        return
    yield value
    name, colon, rest = value.partition(":")
    words = (rest if colon else name).split()
    if colon or len(words) > 1:
        yield " ".join(words)
        yield from words[-1:]


def _passwords(value: str) -> Iterator[str]:
    """Yield the secrets of a URL inside a value."""
    if "://" not in value:
        return
    try:
        yield from secrets_of_uri(Uri.parse(value, ""))
    except BadInput:
        try:
            yield unquote(urlsplit(value).password or "")
        except ValueError:
            return


def _users(key: str, value: str) -> Iterator[str]:
    """Yield the users that an option names: it may be a name, or an address with a login."""
    if key.endswith(("user", "user-name", "client-id")):
        yield value
    elif "://" in value:
        try:
            yield unquote(urlsplit(value).username or "")
        except ValueError:
            return


class Hiding:
    """Takes secrets out of texts of others: a receiver may repeat what it was sent.

    Also their forms in a URL, in JSON and in base64, alone and behind a user's name.
    """

    def __init__(self, secrets: Iterable[str], users: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) < _LEAST:
                continue
            forms |= _forms(secret)
            for user in users:
                forms |= _in_base64(f"{user}:{secret}")
        # The longest first: a form may begin with another.
        words = sorted((f for f in forms if len(f) >= _LEAST), key=lambda f: (-len(f), f))
        self._pattern = re.compile("|".join(map(_bounded, words))) if words else None

    @classmethod
    def of(cls, spec: ChangefeedSpec, tables: Iterable[OptionTable]) -> Hiding:
        """Return what hides the secrets of a changefeed."""
        tables = tuple(tables)
        users = {spec.source.user, spec.sink.user}
        for table in tables:
            for key, value in (*spec.section(table.section).items(), *spec.sink.parameters):
                if isinstance(value, str):
                    users.update(_users(str(key), value))
        return cls(secrets_of(spec, tables), users - {""})

    def hide(self, text: str) -> str:
        """Return a text with `***` in place of every secret."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Let errors of ours leave without secrets; what they were made of is left behind."""
        try:
            yield
        except RowferryError as err:
            if not self._tells(err):
                raise
            raise type(err)(self.hide(err.words)) from None
        except Exception as err:
            if not self._tells(err):
                raise
            words = f"unforeseen {type(err).__name__}: {err}"
            raise TaskFailed(self.hide(words)) from None

    def _tells(self, err: BaseException | None) -> bool:
        """Return whether an error, or what it came from, has a secret in its words."""
        seen: set[int] = set()
        while err is not None and id(err) not in seen:
            seen.add(id(err))
            words = str(err)
            if self.hide(words) != words:
                return True
            err = err.__cause__ or err.__context__
        return False


NOTHING_HIDDEN: Final = Hiding(())


def _bounded(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _ANYWHERE else rf"(?<!\w){escaped}(?!\w)"


def _forms(secret: str) -> set[str]:
    quoted = quote(secret, safe="")
    forms = {secret, quoted, quote(secret), quote_plus(secret), json.dumps(secret)[1:-1]}
    forms.add(json.dumps(secret, ensure_ascii=False)[1:-1])
    forms.add(re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), quoted))
    return forms | _in_base64(secret)


def _in_base64(text: str) -> set[str]:
    raw = text.encode()
    both = {b64encode(raw).decode(), urlsafe_b64encode(raw).decode()}
    return both | {one.rstrip("=") for one in both} | {quote(one, safe="") for one in both}
