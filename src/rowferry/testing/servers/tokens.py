"""An endpoint that hands out unsigned tokens, for logins by OAUTHBEARER."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs

from rowferry.testing.servers.child import HOST

_LIFE_S: Final = 3600


class TokenEndpoint:
    """A token endpoint (grant `client_credentials`) for the block's time.

    Attributes:
        client_id: the only client that gets a token.
        client_secret: made anew for each endpoint.
        grants: how many tokens were given.
        asked: the form of each request.
    """

    def __init__(self) -> None:
        self.client_id = "rowferry"
        self.client_secret = secrets.token_hex(12)
        self.grants = 0
        self.asked: list[dict[str, list[str]]] = []
        endpoint = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body = endpoint._answer(self.headers.get("Authorization"), form.decode())
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

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self) -> str:
        """Return a token as the endpoint gives it."""
        now = int(time.time())
        claims = {"sub": self.client_id, "iat": now, "exp": now + _LIFE_S, "scope": "kafka"}
        return f"{_part({'alg': 'none', 'typ': 'JWT'})}.{_part(claims)}."

    def _answer(self, login: str | None, form: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(parse_qs(form))
        pair = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if login != f"Basic {pair}":
            return 401, {"error": "invalid_client"}
        self.grants += 1
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": _LIFE_S}


def _part(value: dict[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
