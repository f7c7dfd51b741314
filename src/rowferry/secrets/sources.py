"""Settings with the secrets that their references name, just before stages are made of them.

What is stored, shown and compared are the references. Tasks get the values with their settings, and
need neither the variables nor the files nor the secret store; see `fixed`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from rowferry.errors import BadInput, RowferryError, SecretMissing
from rowferry.flow.assemble import secret_tables, sink_secret_tables
from rowferry.secrets.vault import Vault
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sealing import refuse_locked
from rowferry.spec.secret_places import Change, uri_with_secrets, with_secrets
from rowferry.spec.secret_reference import (
    SecretReference,
    as_literal,
    read_reference,
    references_of,
)
from rowferry.spec.uri import Uri

_MOST_BYTES: Final = 64 << 10
_OF_SOURCE: Final = "source"


class SecretSources:
    """Where this process finds secrets. Safe for use from several threads."""

    def __init__(self, vault: Vault | Callable[[], Vault] | None = None) -> None:
        """Use a secret store; one that must be made first is made when a reference names it."""
        self._vault = vault

    def resolved(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        """Return a changefeed with the secrets that it refers to.

        Raises:
            SecretsLocked: its secrets are encrypted, and the key is not here.
            SecretMissing: one cannot be had; the text names the reference.
            BadOption: something begins like a reference and is none.
        """
        refuse_locked(spec)
        values = self._values(lambda place: f"changefeed {spec.changefeed_id}")
        return with_secrets(spec, secret_tables(spec), values)

    def resolved_sink(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        """Return settings with the secrets of the sink, for who only reads what was written.

        What is the source's stays as it is: who reads may have no right to it. Raises as
        `resolved` does.
        """
        refuse_locked(spec)
        whole = _without_source(spec)
        resolved = with_secrets(whole, sink_secret_tables(spec), self._values(_place_words))
        return _with_source_of(resolved, spec)

    def fixed(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        """Return a changefeed for tasks: it holds what it referred to, and refers to nothing.

        `resolved` gives the same for it as for `spec`, in any process. Raises as `resolved` does.
        """
        whole = self.resolved(spec)
        return with_secrets(whole, secret_tables(whole), _literally)

    def fixed_sink(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        """Return what `fixed` does, of the sink; see `resolved_sink`."""
        whole = _without_source(self.resolved_sink(spec))
        fixed = with_secrets(whole, sink_secret_tables(spec), _literally)
        return _with_source_of(fixed, spec)

    def resolved_uri(self, uri: Uri, what: str, tables: Iterable[OptionTable] = ()) -> Uri:
        """Return a URI with the secrets that it refers to.

        Args:
            uri: it.
            what: names it, in errors.
            tables: the options that may be its parameters.

        Raises:
            SecretMissing, BadOption: as `resolved` does.
        """
        values = self._values(lambda place: what)
        return uri_with_secrets(uri, tables, lambda secret: values(secret, what))

    def value(self, text: str, what: str) -> str:
        """Return a secret: the one that a reference names, or the text. Raises as `resolved`."""
        return self._values(lambda place: place)(text, what)

    def refers(self, spec: ChangefeedSpec) -> bool:
        """Return whether a changefeed names secrets that are elsewhere, and may change there."""
        try:
            return any(references_of(spec, secret_tables(spec)))
        except BadInput:
            return False

    def _values(self, whose: Callable[[str], str]) -> Change:
        """Return what puts a value in the place of each reference; each is asked for once."""
        known: dict[SecretReference, str] = {}

        def value(text: str, place: str) -> str:
            reference = read_reference(text, place)
            if isinstance(reference, str):
                return reference
            if reference not in known:
                known[reference] = self._value(reference, whose(place))
            return known[reference]

        return value

    def _value(self, reference: SecretReference, whose: str) -> str:
        try:
            match reference.kind:
                case "env":
                    value = os.environ.get(reference.name, "")
                    if not value:
                        raise SecretMissing("this environment variable is not set here")
                case "file":
                    value = _content(reference.name)
                case "vault":
                    value = self._store().read(reference.name, reference.field)
        except RowferryError as err:
            raise SecretMissing(f"{whose}: {reference}: {err.words}") from None
        return value

    def _store(self) -> Vault:
        if self._vault is None:
            raise SecretMissing("no secret store is known here; give --vault-addr, or VAULT_ADDR")
        if not isinstance(self._vault, Vault):
            self._vault = self._vault()
        return self._vault


def _place_words(place: str) -> str:
    return f"the {place} URI" if place in ("source", "sink") else place


def _literally(secret: str, place: str) -> str:
    return as_literal(secret)


def _without_source(spec: ChangefeedSpec) -> ChangefeedSpec:
    return replace(spec, config={k: v for k, v in spec.config.items() if k != _OF_SOURCE})


def _with_source_of(resolved: ChangefeedSpec, spec: ChangefeedSpec) -> ChangefeedSpec:
    config: Mapping[str, Any] = spec.config
    own = {_OF_SOURCE: config[_OF_SOURCE]} if _OF_SOURCE in config else {}
    return replace(resolved, source=spec.source, config={**resolved.config, **own})


def _content(path: str) -> str:
    """Return what a file holds, without the line's end."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise SecretMissing("this is no file with a secret in it")
            raw = file.read(_MOST_BYTES + 1)
        secret = raw.decode().removesuffix("\n").removesuffix("\r")
    except OSError as err:
        raise SecretMissing(f"this file cannot be read: {err.strerror}") from None
    except UnicodeDecodeError:
        raise SecretMissing("this file is no UTF-8 text") from None
    if not secret or len(raw) > _MOST_BYTES:
        raise SecretMissing(f"this file is empty, or has more than {_MOST_BYTES} bytes")
    return secret


NO_STORE: Final = SecretSources()
