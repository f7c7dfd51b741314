"""The part of Vault's HTTP API that reads secrets: KV version 2, tokens, namespaces, AppRole."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SmallVault:
    """What a store holds, and who may ask for it.

    Answers have the form, the statuses and the error texts of the API: 403 for a token that is not
    known or a path that its policy does not name, 404 for what is not there or was deleted.
    """

    address: str = ""
    namespace: str = ""
    tokens: dict[str, str] = field(default_factory=dict)  # token -> the path that it may read
    secrets: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # None: deleted
    role: tuple[str, str] = ("", "")
    given: int = 0  # tokens that a login gave
    asked: list[str] = field(default_factory=list)
    odd: bytes | None = None  # said to everybody instead

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any]:
        self.asked.append(path)
        if headers.get("X-Vault-Namespace", "") != self.namespace:
            return 403, {"errors": ["permission denied"]}
        if (method, path) == ("POST", "/v1/auth/approle/login"):
            form = json.loads(body)
            if (form.get("role_id"), form.get("secret_id")) != self.role:
                return 400, {"errors": ["invalid role or secret ID"]}
            self.given += 1
            token = f"hvs.of-role-{self.given}"
            self.tokens = {token: "kv/shop"}
            return 200, {"auth": {"client_token": token, "lease_duration": 60, "renewable": True}}
        mount, _, rest = path.removeprefix("/v1/").partition("/data/")
        allowed = self.tokens.get(headers.get("X-Vault-Token", ""))
        if method != "GET" or allowed is None or not f"{mount}/{rest}".startswith(allowed):
            return 403, {"errors": ["1 error occurred:\n\t* permission denied\n\n"]}
        if f"{mount}/{rest}" not in self.secrets:
            return 404, {"errors": []}
        found = self.secrets[f"{mount}/{rest}"]
        about = {"version": 3, "destroyed": False, "deletion_time": ""}
        return 200 if found else 404, {"data": {"data": found, "metadata": about}}


@contextmanager
def small_vault(**settings: Any) -> Iterator[SmallVault]:
    """Serve one on this machine."""
    vault = SmallVault(**settings)

    class Handler(http.server.BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, form = vault.answer(self.command, self.path, self.headers, body)
            said = json.dumps(form).encode() if vault.odd is None else vault.odd
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = _handle

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        vault.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield vault
        finally:
            server.shutdown()
