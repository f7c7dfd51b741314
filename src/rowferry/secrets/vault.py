"""Secrets from HashiCorp Vault, or what speaks its HTTP API: the KV secrets engine, version 2."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from rowferry.answers import UnfitAnswer, read_answer
from rowferry.errors import BadOption, SecretMissing
from rowferry.moment import moment
from rowferry.spec.uri import is_web_address

PATIENCE_S: Final = 10.0
_WHOLE_S: Final = 15.0  # for all of an answer
_MOST_BYTES: Final = 1 << 20
_LOGIN: Final = "auth/approle/login"
_AT_HOME: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class VaultLogin:
    """How we prove who we are: by a token, or by an AppRole, which gives one.

    Attributes:
        token: returns the token; asked each time, since a file of it may change.
        role_id: of an AppRole; empty: there is none.
        secret_id: returns the AppRole's secret.
    """

    token: Callable[[], str] | None = field(default=None, repr=False)
    role_id: str = ""
    secret_id: Callable[[], str] | None = field(default=None, repr=False)


class Vault:
    """A secret store. Safe for use from several threads."""

    def __init__(
        self, address: str, login: VaultLogin, namespace: str = "", ca: Path | None = None
    ) -> None:
        """Make a client; nothing is asked yet.

        Raises:
            BadOption: the address is none, or others could listen on the way to it; the file of
                certificates cannot be used, or nothing proves who we are.
        """
        known = is_web_address(address)
        at_home = known and urlsplit(address).hostname in _AT_HOME
        if not known or not (at_home or address.startswith("https://")):
            raise BadOption(f"--vault-addr {address!r}: write https://HOST:PORT")
        if ca is not None and not ca.is_file():
            raise BadOption(f"--vault-ca {ca}: there is no such file")
        if login.token is None and not (login.role_id and login.secret_id):
            raise BadOption(
                "--vault-addr needs --vault-token-file (or VAULT_TOKEN), or --vault-role-id with "
                "--vault-secret-id-file (or VAULT_SECRET_ID)"
            )
        self._address, self._login, self._namespace = address.rstrip("/"), login, namespace
        self._pool = urllib3.PoolManager(
            timeout=PATIENCE_S, retries=False, ca_certs=str(ca) if ca else None
        )
        self._lock = threading.Lock()
        self._token = ""  # of the AppRole

    def read(self, path: str, key: str) -> str:
        """Return a field of a secret; `path` is MOUNT/PATH.

        Raises:
            SecretMissing: the store does not answer, refuses, or has no such secret or field.
        """
        mount, _, rest = path.partition("/")
        asked = f"{quote(mount)}/data/{quote(rest)}"
        status, form = self._asked("GET", asked, self._token_now())
        if status == 403 and self._login.token is None:  # it may have ended
            status, form = self._asked("GET", asked, self._token_now(anew=True))
        if status == 404:
            raise self._missing(f"has no secret {path} (KV version 2), or it was deleted")
        if status == 403:
            raise self._missing(
                f"does not let us read {path}; give our token or role a policy with `read` on "
                f"{mount}/data/{rest}"
            )
        fields = _inside(form, "data", "data") if status == 200 else None
        if not isinstance(fields, dict):
            raise self._missing(f"answers {status} when asked for {path}")
        value = fields.get(key)
        if not isinstance(value, str) or not value:
            raise self._missing(f"has no text under {key!r} in its secret {path}")
        return value

    def _token_now(self, anew: bool = False) -> str:
        if self._login.token is not None:
            return self._login.token()
        with self._lock:
            if anew or not self._token:
                self._token = self._logged_in()
            return self._token

    def _logged_in(self) -> str:
        secret = self._login.secret_id() if self._login.secret_id else ""
        body = {"role_id": self._login.role_id, "secret_id": secret}
        status, form = self._asked("POST", _LOGIN, "", body)
        token = _inside(form, "auth", "client_token")
        if status != 200 or not isinstance(token, str):
            raise self._missing(
                f"does not let our AppRole in ({status}); check role id and secret id"
            )
        return token

    def _asked(
        self, method: str, path: str, token: str, body: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and content of an answer."""
        headers = {"X-Vault-Request": "true", "Accept": "application/json"}
        if token:
            headers["X-Vault-Token"] = token
        if self._namespace:
            headers["X-Vault-Namespace"] = self._namespace
        moment("ask secret store")
        try:
            answer = self._pool.request(
                method,
                f"{self._address}/v1/{path}",
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                redirect=False,
                preload_content=False,
            )
            text = read_answer(answer, _MOST_BYTES, _WHOLE_S)
        except (HTTPError, OSError) as err:
            raise self._missing(f"cannot be asked ({type(err).__name__}): {err}") from None
        except UnfitAnswer as err:
            raise self._missing(f"cannot be used: {err}") from None
        try:
            return answer.status, json.loads(text) if text else None
        except (ValueError, RecursionError):
            return answer.status, None

    def _missing(self, words: str) -> SecretMissing:
        return SecretMissing(f"the secret store at {self._address} {words}")


def _inside(form: Any, *keys: str) -> Any:
    for key in keys:
        form = form.get(key) if isinstance(form, dict) else None
    return form
