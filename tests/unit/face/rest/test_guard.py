"""The door: logins, other sites, large bodies, errors inside; and who is told what."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rowferry.control.operator.actor import Role
from rowferry.control.operator.operations import Operations
from rowferry.errors import BadOption
from rowferry.face.credentials import KnownLogins, Token, User, hashed, token_digest
from rowferry.face.delays import Delays
from rowferry.face.gate import Gate, split_address
from rowferry.face.rest.guard import MOST_BYTES, Guard
from rowferry.face.sources import Sources

FEEDS = "/api/v2/changefeeds"
TOKEN, WORD = secrets.token_hex(8), secrets.token_hex(8)


def basic(name: str, word: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{word}".encode()).decode()


def test_a_token_or_a_user_opens_the_gate(asking: Callable[..., TestClient]) -> None:
    known = KnownLogins(
        {"ann": User(Role.ADMIN, hashed(WORD))}, (Token("t", Role.ADMIN, token_digest(TOKEN)),)
    )
    client = asking(Gate(known, Delays(free=100)))
    for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic("ann", WORD)):
        assert client.get(FEEDS, headers={"authorization": given}).status_code == 200
    wrong = [
        *("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Basic", "Basic !"),
        *(basic("ann", TOKEN), basic("bob", WORD), basic("", ""), f"Digest {TOKEN}"),
        f"Basic {TOKEN}",
    ]
    for given in wrong:
        answer = client.get(FEEDS, headers={"authorization": given})
        assert answer.status_code == 401, given
        assert answer.json()["error_code"] == "CDC:ErrUnauthorized"
        asks = answer.headers["www-authenticate"]
        assert "Bearer" in asks and "Basic" in asks
        assert TOKEN not in answer.text and WORD not in answer.text
    for path in ("/metrics", "/status", "/api/v2/captures", "/api/rowferry/overview", "/nope"):
        assert client.get(path).status_code == 401, path
    assert client.post(FEEDS, content=b"x" * (MOST_BYTES + 1)).status_code == 401
    for path in ("/health", "/api/v2/health", "/docs", "/docs/docs.js", "/openapi.json", "/"):
        assert client.get(path).status_code == 200, path


def test_only_what_was_set_up_is_asked_for(asking: Callable[..., TestClient]) -> None:
    assert (
        asking(Gate.of(TOKEN)).get(FEEDS).headers["www-authenticate"] == 'Bearer realm="rowferry"'
    )
    with_users = asking(Gate.of(users={"ann": WORD}))
    assert "Bearer" not in with_users.get(FEEDS).headers["www-authenticate"]
    assert with_users.get(FEEDS, headers={"authorization": "Bearer "}).status_code == 401


def test_another_sites_page_cannot_act(client: TestClient) -> None:
    path = f"{FEEDS}/one/pause"
    for origin in ("http://evil.example", "null", "https://testserver.evil.example"):
        answer = client.post(path, headers={"origin": origin})
        assert answer.status_code == 403 and "another site" in answer.json()["error_msg"]
    site = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert client.delete(f"{FEEDS}/one", headers=site).status_code == 403
    assert client.get(FEEDS, headers=site).status_code == 200
    forged = {"origin": "https://cdc.example", "x-forwarded-host": "cdc.example"}
    assert client.post(path, headers=forged).status_code == 403
    for headers in (
        {"origin": "http://testserver"},
        {"origin": "https://cdc.example", "sec-fetch-site": "same-origin"},
        {},
    ):
        assert client.post(path, headers=headers).status_code == 400  # there is no such changefeed


def test_large_bodies_are_refused(client: TestClient, operations: Operations) -> None:
    def pieces(count: int) -> Iterator[bytes]:
        yield from (b" " * 65536 for _ in range(count))

    for content in (b" " * (MOST_BYTES + 1), pieces(17), pieces(300)):
        answer = client.post(FEEDS, content=content)
        assert answer.status_code == 413
        assert answer.json()["error_msg"].startswith("[RF-1021] ")
    just = json.dumps({"sink_uri": "x"}).ljust(MOST_BYTES).encode()
    assert client.post(FEEDS, content=just).status_code == 400
    assert operations.store.feeds() == ()


def test_errors_inside_are_logged_and_not_shown(
    client: TestClient,
    operations: Operations,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(states: Any) -> Any:
        raise ZeroDivisionError(WORD)

    monkeypatch.setattr(operations, "feeds", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.get(FEEDS)
    assert answer.status_code == 500
    assert answer.json() == {
        "error_msg": "[RF-0000] the server failed inside; its log has the details",
        "error_code": "CDC:ErrInternalServerError",
    }
    assert f"GET {FEEDS} failed" in caplog.text and WORD in caplog.text


def test_browsers_are_kept_safe(client: TestClient) -> None:
    for path in ("/", "/docs", "/nope", FEEDS):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'self'" in headers["content-security-policy"]


def test_addresses() -> None:
    assert split_address("127.0.0.1:0", "--addr") == ("127.0.0.1", 0)
    assert split_address("[::1]:8300", "--addr") == ("::1", 8300)
    for wrong in ("8300", ":8300", "host:", "host:x", "host:65536", "host:-1"):
        with pytest.raises(BadOption, match="--addr .*HOST:PORT"):
            split_address(wrong, "--addr")


def test_sources_of_a_server() -> None:
    known = Sources.parse(["mysql://a:1/?x=y", "7=range://b:1"])
    assert known.choose() == known.choose(3) == "mysql://a:1/?x=y"
    assert known.choose(7) == "range://b:1"
    assert "b:1" not in repr(known)
    only = Sources.parse(["7=range://b:1"])
    for cluster in (0, 3):
        with pytest.raises(BadOption, match="--source"):
            only.choose(cluster)
    for wrong in (
        ["x=mysql://a"],
        ["0=mysql://a"],
        ["mysql://a", "mysql://b"],
        ["1=x://a", "1=x://b"],
    ):
        with pytest.raises(BadOption, match="--source"):
            Sources.parse(wrong)


def test_half_a_request_does_nothing() -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    messages = iter(
        [
            {"type": "http.request", "body": b"", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        asked.append(message["type"])

    scope = {"type": "http", "method": "POST", "path": f"{FEEDS}/one/pause", "headers": []}
    scope["headers"] = [(b"host", b"localhost")]
    asyncio.run(Guard(app, Gate(), ())(scope, receive, send))
    assert asked == []
