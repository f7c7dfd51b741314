"""What stands before every path: whom a request is for, the gate, limits, headers for browsers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rowferry.control.operator.actor import Actor, current_actor
from rowferry.errors import (
    AccessDenied,
    AnswerLate,
    BadInput,
    LoginDelayed,
    RequestTooLarge,
    RowferryError,
    ServerBusy,
)
from rowferry.face.gate import Gate
from rowferry.face.names import ServerNames
from rowferry.face.rest.failures import failure, internal_failure
from rowferry.face.rest.turns import RETRY_AFTER_S, Turns

LOG = logging.getLogger(__name__)
MOST_BYTES: Final = 1 << 20  # of a body
_MOST_DRAINED: Final = 16 << 20  # of a body that is refused, so that the client reads why
_MOST_LOGINS: Final = 16  # that are checked or wait for it
_DEEPEST: Final = 64  # lists and objects of a body inside one another
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
HEALTH: Final = ("/health", "/api/v2/health")
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
_WORDS: Final = {
    403: "a page of another site asks; use this server's own page, or a client without Origin",
    421: "the request asks for a server of another name: use this server's address, or start it "
    "with a login, or with --server-name",
}


class Guard:
    """An ASGI middleware around the whole app.

    Attributes:
        open_paths: what needs no login; a path that ends in `/` stands for all below it.
        names: under which the server may be asked where nobody must log in.
        turns: how many requests are carried out at once, and for how long.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        open_paths: Iterable[str],
        names: ServerNames | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.app = app
        self._gate = gate
        self._names = names or ServerNames()
        self._turns = turns or Turns()
        self._open = frozenset(p for p in open_paths if p == "/" or not p.endswith("/"))
        self._open_below = tuple(p for p in open_paths if p != "/" and p.endswith("/"))
        self._late: set[asyncio.Task[None]] = set()
        self._hashing = ThreadPoolExecutor(2, thread_name_prefix="logins")
        self._checking = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with the reason why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            await self._led(scope, receive, answer)
        except RowferryError as err:
            if not answer.begun:
                await self._refused(err)(scope, receive, answer.send)
        except Exception:
            LOG.exception("%s %s failed", scope["method"], _shown(scope["path"]))
            if not answer.begun:
                await internal_failure()(scope, receive, answer.send)

    async def _led(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Lead a request to the app.

        Raises:
            RowferryError: it may not enter, or not now.
        """
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        peer = (scope.get("client") or ("", 0))[0]
        self._refuse_foreign(scope, headers, peer)
        path = scope["path"]
        if not (path in self._open or path.startswith(self._open_below)):
            origin = self._names.asker(headers, peer)
            current_actor.set(await self._admitted(headers.get("authorization", ""), origin))
        body = await _whole_body(receive)
        if body is None:
            return
        _refuse_depth(body)
        leave = self._enter(scope)

        async def tell(message: Message) -> None:
            if not answer.is_late:
                await answer.send(message)

        async def carried_out() -> None:
            try:
                await self.app(_as_json(scope), _replay(body, receive), tell)
            except Exception:
                LOG.exception("%s %s failed", scope["method"], _shown(scope["path"]))
                if not answer.begun:
                    await internal_failure()(scope, receive, tell)
            finally:
                leave()

        task = asyncio.create_task(carried_out())
        self._late.add(task)  # whoever is not waited for must still be held by somebody
        task.add_done_callback(self._late.discard)
        done, _ = await asyncio.wait({task}, timeout=self._turns.answer_s)
        if not done and not answer.begun:
            answer.is_late = True
            raise AnswerLate(
                f"not done within {self._turns.answer_s:g} s; it may still come to its end"
            )

    def _enter(self, scope: Scope) -> Callable[[], None]:
        if scope["path"] in HEALTH:
            return lambda: None
        return self._turns.enter(reads=scope["method"] in _SAFE)

    def _refuse_foreign(self, scope: Scope, headers: dict[str, str], peer: str) -> None:
        """Refuse what is meant for another server, or sent by a page of another site.

        Raises:
            _Foreign: so it is.
        """
        asked_as = self._names.asked_as(headers, peer)
        if self._gate.is_open and scope["path"] not in HEALTH and not self._names.knows(asked_as):
            raise _Foreign(421)
        if scope["method"] not in _SAFE and _from_another_site(headers, asked_as):
            raise _Foreign(403)

    async def _admitted(self, authorization: str, origin: str) -> Actor:
        """Return who asks; passwords are hashed beside all other work, and not many at once."""
        actor = self._gate.remembered(authorization, origin, "rest")
        if actor is not None:
            return actor
        if self._checking >= _MOST_LOGINS:
            raise ServerBusy(f"{self._checking} logins are being checked, the most at once")
        self._checking += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._hashing, self._gate.admit, authorization, origin, "rest"
            )
        finally:
            self._checking -= 1

    def _refused(self, error: RowferryError) -> JSONResponse:
        """Return the answer to a request that was not led in."""
        if isinstance(error, _Foreign):
            return failure(AccessDenied(error.words), error.status)
        answer = failure(error)
        if isinstance(error, RequestTooLarge):
            answer.headers["connection"] = "close"
        if isinstance(error, ServerBusy | LoginDelayed):
            answer.headers["retry-after"] = str(RETRY_AFTER_S)
        elif isinstance(error, AccessDenied):
            answer.headers["www-authenticate"] = self._gate.challenge
        return answer


class _Foreign(AccessDenied):
    """A request that is not meant for this server, or not by whoever sends it."""

    def __init__(self, status: int) -> None:
        super().__init__(_WORDS[status])
        self.status = status


class _Answer:
    """What is sent, with headers that keep browsers safe; too late for what the app says?"""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.is_late = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await self._send(message)


def _from_another_site(headers: dict[str, str], asked_as: str) -> bool:
    """Return whether a browser sends this for a page that is not ours.

    Browsers add cached logins to such requests, and an open server asks for none.
    """
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") in ("same-origin", "none"):
        return False
    return urlsplit(origin).netloc != asked_as


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


def _refuse_depth(body: bytes) -> None:
    """Refuse JSON with more inside one another than anybody means.

    Raises:
        BadInput: so it is. What is no JSON is left to those who read it.
    """
    if body.count(b"[") + body.count(b"{") <= _DEEPEST:
        return
    words = f"lists and objects of the body stand in one another more than {_DEEPEST} deep"
    try:
        level = [json.loads(body)]
    except ValueError:
        return
    except RecursionError:
        raise BadInput(words) from None
    for _ in range(_DEEPEST):
        level = [part for one in level for part in _parts(one)]
    if any(isinstance(one, dict | list) for one in level):
        raise BadInput(words)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _shown(path: str) -> str:
    """Return the beginning of a path for a line of the log."""
    return ascii(path[:200])[1:-1]
