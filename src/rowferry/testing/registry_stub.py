"""A schema registry in this process: as much of Confluent's API as a client needs, in memory.

For tests of clients: it can demand a login, speak TLS, and be told to fail. It takes every schema.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from rowferry.testing.http_stub import HttpStub, StubRequests


@dataclass
class RegistryStub:
    """What is registered, what was asked, and how the next requests are answered.

    Attributes:
        login: `user` and `password` with a colon between, which every request must show; "": none.
        requests: method and path of each request so far.
        faults: answers (status, body) that the next requests get instead of the right one.
        greeting: what the root answers; Confluent's is an empty object.
    """

    login: str = ""
    url: str = ""
    greeting: bytes = b"{}"
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[tuple[int, bytes]] = field(default_factory=list)
    schemas: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)

    def answer(self, method: str, path: str, login: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body for one request."""
        self.requests.append((method, path))
        if self.login and login != f"Basic {b64encode(self.login.encode()).decode()}":
            return 401, b'{"error_code":401,"message":"Unauthorized"}'
        if self.faults:
            return self.faults.pop(0)
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", [""]:
                return 200, self.greeting
            case "GET", ["subjects"]:
                return 200, json.dumps(sorted(self.subjects)).encode()
            case "POST", ["subjects", subject, "versions"]:
                return 200, json.dumps({"id": self._register(subject, json.loads(body))}).encode()
            case "GET", ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, json.dumps({"schema": self.schemas[int(number)]}).encode()
        return 404, b'{"error_code":40403,"message":"Not found"}'

    def _register(self, subject: str, form: dict[str, Any]) -> int:
        schema = form["schema"]
        known = [n for n, text in self.schemas.items() if text == schema]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number


@contextmanager
def registry_stub(login: str = "", tls: ssl.SSLContext | None = None) -> Iterator[RegistryStub]:
    """Serve a registry on a free port of this machine until the block ends."""
    stub = RegistryStub(login)

    class Answers(StubRequests):
        protocol_version = "HTTP/1.0"  # each request comes by a connection of its own

        def _answer(self) -> None:
            login = self.headers.get("Authorization") or ""
            self.answer(*stub.answer(self.command, self.path, login, self.body()))

        do_GET = do_POST = _answer

    with HttpStub(Answers, tls) as server:
        stub.url = server.url
        yield stub
