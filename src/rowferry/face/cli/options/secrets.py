"""Options that say where keys and secrets come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rowferry.spec.sealing import SecretKeys

SecretKeyFile = Annotated[
    str | None,
    typer.Option(
        envvar="ROWFERRY_SECRET_KEY_FILE",
        help="File with the keys that secrets in the meta database are encrypted with; or env:NAME",
    ),
]
VaultAddr = Annotated[
    str | None,
    typer.Option(envvar="VAULT_ADDR", help="HashiCorp Vault, for vault:… references: https://…"),
]
VaultTokenFile = Annotated[
    Path | None, typer.Option(help="File with its token; default: the variable VAULT_TOKEN")
]
VaultRoleId = Annotated[
    str | None,
    typer.Option(envvar="VAULT_ROLE_ID", help="Log in there by an AppRole, instead of a token"),
]
VaultSecretIdFile = Annotated[
    Path | None,
    typer.Option(help="File with the AppRole's secret id; default: the variable VAULT_SECRET_ID"),
]
VaultNamespace = Annotated[str, typer.Option(envvar="VAULT_NAMESPACE", help="Its namespace")]
VaultCa = Annotated[
    Path | None,
    typer.Option(envvar="VAULT_CACERT", help="PEM file: whom its certificate must be signed by"),
]


def given_keys(place: str | None) -> SecretKeys | None:
    """Return the keys of a file; None: none was named.

    Raises:
        BadOption: the file cannot be used.
    """
    if not place:
        return None
    from rowferry.spec.sealing import SecretKeys

    return SecretKeys.given(place)
