"""An endpoint that hands out tokens, for logins by OAUTHBEARER and by OAuth 2."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

from rowferry.testing.http_stub import HttpStub, StubRequests

_LIFE_S: Final = 3600


class TokenEndpoint(HttpStub):
    """A token endpoint (grant `client_credentials`) for the block's time.

    Its tokens are unsigned, unless `made` makes them. Clients may find it by its discovery
    document, at `issuer`.

    Attributes:
        client_id: the only client that gets a token.
        client_secret: made anew for each endpoint.
        grants: how many tokens were given.
        asked: the form of each request.
        issuer: where the discovery document is.
        url: where tokens are had.
    """

    def __init__(self, made: Callable[[], str] | None = None) -> None:
        self._made = made
        self.client_id = "rowferry"
        self.client_secret = secrets.token_hex(12)
        self.grants = 0
        self.asked: list[dict[str, list[str]]] = []
        endpoint = self

        class Answer(StubRequests):
            protocol_version = "HTTP/1.0"  # each request comes by a connection of its own

            def do_GET(self) -> None:
                self._send(200, {"issuer": endpoint.issuer, "token_endpoint": endpoint.url})

            def do_POST(self) -> None:
                login = self.headers.get("Authorization")
                self._send(*endpoint._answer(login, self.body().decode()))

            def _send(self, status: int, form: dict[str, Any]) -> None:
                headers = {"Content-Type": "application/json"}
                self.answer(status, json.dumps(form).encode(), headers)

        super().__init__(Answer)
        self.issuer, self.url = self.url, f"{self.url}/token"

    def token(self) -> str:
        """Return a token as the endpoint gives it."""
        if self._made is not None:
            return self._made()
        now = int(time.time())
        claims = {"sub": self.client_id, "iat": now, "exp": now + _LIFE_S, "scope": "kafka"}
        return f"{_part({'alg': 'none', 'typ': 'JWT'})}.{_part(claims)}."

    def _answer(self, login: str | None, form: str) -> tuple[int, dict[str, Any]]:
        asked = parse_qs(form)
        self.asked.append(asked)
        if self._made is not None and not login:  # such clients tell who they are in the form
            who = [*asked.get("client_id", []), *asked.get("client_secret", [])]
            login = f"Basic {base64.b64encode(':'.join(who).encode()).decode()}"
        pair = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if login != f"Basic {pair}":
            return 401, {"error": "invalid_client"}
        self.grants += 1
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": _LIFE_S}


def _part(value: dict[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
