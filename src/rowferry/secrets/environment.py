"""Where this process finds secrets, as flags or the environment say."""

from __future__ import annotations

import os
from pathlib import Path

from rowferry.errors import BadOption
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.secrets.vault import Vault, VaultLogin


def given_sources(
    addr: str | None,
    token_file: Path | None = None,
    role_id: str | None = None,
    secret_id_file: Path | None = None,
    namespace: str = "",
    ca: Path | None = None,
) -> SecretSources:
    """Return where the values of references come from; what is not given, the environment has.

    Raises:
        BadOption: the address, or the login there, cannot be used.
    """
    if not addr:
        return NO_STORE
    return SecretSources(_store(addr, token_file, role_id, secret_id_file, namespace, ca))


def sources_of_environment() -> SecretSources:
    """Return where the values of references come from, as Vault's own variables say.

    They are looked at when a reference names the store: many set them and have none.
    """
    addr = os.environ.get("VAULT_ADDR")
    if not addr:
        return NO_STORE

    def store() -> Vault:
        ca = os.environ.get("VAULT_CACERT", "")
        return _store(
            addr,
            role_id=os.environ.get("VAULT_ROLE_ID"),
            namespace=os.environ.get("VAULT_NAMESPACE", ""),
            ca=Path(ca) if ca else None,
        )

    return SecretSources(store)


def _store(
    addr: str,
    token_file: Path | None = None,
    role_id: str | None = None,
    secret_id_file: Path | None = None,
    namespace: str = "",
    ca: Path | None = None,
) -> Vault:
    if role_id:
        word = _GivenWord(secret_id_file, "VAULT_SECRET_ID", "--vault-secret-id-file")
        login = VaultLogin(role_id=role_id, secret_id=word)
    else:
        login = VaultLogin(token=_GivenWord(token_file, "VAULT_TOKEN", "--vault-token-file"))
    return Vault(addr, login, namespace, ca)


class _GivenWord:
    """A word from a file, which is read each time, or from the environment."""

    def __init__(self, file: Path | None, variable: str, option: str) -> None:
        self._file, self._option = file, option
        self._word = "" if file else os.environ.get(variable, "").strip()
        if not file and not self._word:
            raise BadOption(f"{option} is missing, and the variable {variable} is not set")
        self()

    def __call__(self) -> str:
        if self._file is None:
            return self._word
        try:
            secret = self._file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as err:
            why = err.strerror if isinstance(err, OSError) else "not ASCII text"
            raise BadOption(f"{self._option} {self._file} cannot be read: {why}") from None
        if not secret or not secret.isprintable():
            raise BadOption(f"{self._option} {self._file}: must hold one word")
        return secret
