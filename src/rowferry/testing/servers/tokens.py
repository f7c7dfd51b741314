"""An endpoint that hands out tokens, for logins by OAUTHBEARER and by OAuth 2."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

from rowferry.testing.servers.child import HOST

_LIFE_S: Final = 3600


class TokenEndpoint:
    """A token endpoint (grant `client_credentials`) for the block's time.

    Its tokens are unsigned, unless `made` makes them. Clients may find it by its discovery
    document, at `issuer`.

    Attributes:
        client_id: the only client that gets a token.
        client_secret: made anew for each endpoint.
        grants: how many tokens were given.
        asked: the form of each request.
    """

    def __init__(self, made: Callable[[], str] | None = None) -> None:
        self._made = made
        self.client_id = "rowferry"
        self.client_secret = secrets.token_hex(12)
        self.grants = 0
        self.asked: list[dict[str, list[str]]] = []
        endpoint = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, {"issuer": endpoint.issuer, "token_endpoint": endpoint.url})

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                login = self.headers.get("Authorization")
                self._send(*endpoint._answer(login, form.decode()))

            def _send(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where tokens are had."""
        return f"http://{HOST}:{self._server.server_port}/token"

    @property
    def issuer(self) -> str:
        """Where the discovery document is."""
        return f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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
