"""References: what stands in the place of a secret and says where the secret is.

env:NAME                   an environment variable of the process that runs the changefeed
file:/path/of/a/file       what a file of its machine holds
vault:MOUNT/PATH#FIELD     a field of a secret in HashiCorp Vault (KV version 2)
literal:TEXT               the text itself, whatever it begins with
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rowferry.errors import BadOption
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.secret_places import with_secrets

FORMS: Final = "env:NAME, file:/PATH or vault:MOUNT/PATH#FIELD"
_LITERAL: Final = "literal:"
_BEGINS: Final = re.compile(r"(env|file|vault|literal):", re.ASCII)
_ENV: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_FILE: Final = re.compile(r"file:(/[^\x00-\x1f\x7f]+)")
_STEP: Final = r"(?!\.{1,2}(?:[/#]|$))[A-Za-z0-9_.-]+"
_VAULT: Final = re.compile(rf"vault:({_STEP}(?:/{_STEP})+)#([A-Za-z0-9_.-]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a secret is.

    Attributes:
        name: the variable, the file, or the path in the secret store.
        field: of a secret store, the field of the secret.
    """

    kind: Literal["env", "file", "vault"]
    name: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f"#{self.field}" if self.field else "")


def is_reference(text: str) -> bool:
    """Return whether a text begins like a reference; it may still be a wrong one."""
    return _BEGINS.match(text) is not None


def read_reference(text: str, what: str) -> SecretReference | str:
    """Return where a secret is; or the secret, where the text is no reference.

    Raises:
        BadOption: it begins like a reference and is none; `what` names the setting.
    """
    if not is_reference(text):
        return text
    if text.startswith(_LITERAL):
        return text[len(_LITERAL) :]
    if match := _ENV.fullmatch(text):
        return SecretReference("env", match[1])
    if match := _FILE.fullmatch(text):
        return SecretReference("file", match[1])
    if match := _VAULT.fullmatch(text):
        return SecretReference("vault", match[1], match[2])
    raise BadOption(
        f"{what}: a secret that begins with {text.partition(':')[0]}: is a reference; write "
        f"{FORMS} (in a URI / as %2F and # as %23), or {_LITERAL} before the secret itself"
    )


def as_literal(secret: str) -> str:
    """Return a text that `read_reference` takes for this secret, whatever it begins with."""
    return f"{_LITERAL}{secret}" if is_reference(secret) else secret


def references_of(
    spec: ChangefeedSpec, tables: Iterable[OptionTable]
) -> Iterator[tuple[SecretReference, str]]:
    """Yield the references of a changefeed, each with the setting that it stands in."""
    references: list[tuple[SecretReference, str]] = []

    def note(secret: str, place: str) -> str:
        what = f"the {place} URI" if place in ("source", "sink") else place
        reference = read_reference(secret, what)
        if isinstance(reference, SecretReference):
            references.append((reference, what))
        return secret

    with_secrets(spec, tables, note)
    yield from references
