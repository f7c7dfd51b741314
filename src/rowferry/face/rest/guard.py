"""What stands before every path: the gate, a limit for bodies, headers that keep browsers safe."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rowferry.errors import AccessDenied, RequestTooLarge, RowferryError
from rowferry.face.gate import Gate
from rowferry.face.rest.failures import failure, internal_failure

LOG = logging.getLogger(__name__)
MOST_BYTES: Final = 1 << 20  # of a body
_MOST_DRAINED: Final = 16 << 20  # of a body that is refused, so that the client reads why
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        b"frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    ),
)


class Guard:
    """An ASGI middleware around the whole app.

    Attributes:
        open_paths: what needs no login; a path that ends in `/` stands for all below it.
    """

    def __init__(self, app: ASGIApp, gate: Gate, open_paths: Iterable[str]) -> None:
        self.app = app
        self._gate = gate
        self._open = frozenset(p for p in open_paths if p == "/" or not p.endswith("/"))
        self._open_below = tuple(p for p in open_paths if p != "/" and p.endswith("/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with the reason why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def tell(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            status = self._refusal(scope, headers)
            if status:
                await self._refuse(status, scope, receive, tell)
                return
            body = await _whole_body(receive)
            if body is not None:
                await self.app(_as_json(scope), _replay(body, receive), tell)
        except RequestTooLarge as err:
            await failure(err)(scope, receive, tell)
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            if not begun:
                await internal_failure()(scope, receive, tell)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> int:
        """Return the status of a request that may not enter; 0: it may."""
        if scope["method"] not in _SAFE and _from_another_site(headers):
            return 403
        path = scope["path"]
        if path in self._open or path.startswith(self._open_below):
            return 0
        return 0 if self._gate.admits(headers.get("authorization", "")) else 401

    async def _refuse(self, status: int, scope: Scope, receive: Receive, send: Send) -> None:
        error: RowferryError = AccessDenied(
            "a page of another site asks; use this server's own page, or a client without Origin"
            if status == 403
            else "a login is needed: send Authorization with the server's token, or a known user"
        )
        answer = failure(error, status)
        if status == 401:
            answer.headers["www-authenticate"] = self._gate.challenge
        await answer(scope, receive, send)


def _from_another_site(headers: dict[str, str]) -> bool:
    """Return whether a browser sends this for a page that is not ours.

    Browsers add cached logins to such requests, and an open server asks for none.
    """
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") in ("same-origin", "none"):
        return False
    ours = (headers.get("host"), headers.get("x-forwarded-host"))
    return urlsplit(origin).netloc not in ours


async def _whole_body(receive: Receive) -> bytes | None:
    """Read the body; None: the client went away before its end, and nothing must be done.

    Raises:
        RequestTooLarge: it has more than `MOST_BYTES`; most of it was read and dropped.
    """
    parts: list[bytes] = []
    count = 0
    more = True
    while more and count <= _MOST_DRAINED:
        message = await receive()
        if message["type"] != "http.request":
            return None
        count += len(message.get("body", b""))
        if count <= MOST_BYTES:
            parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    if count > MOST_BYTES:
        raise RequestTooLarge(f"the body has more than {MOST_BYTES} bytes, the most that is read")
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _as_json(scope: Scope) -> Scope:
    """Return the scope with JSON as the body's type: clients of TiCDC often name none."""
    others = [(k, v) for k, v in scope["headers"] if k != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}
