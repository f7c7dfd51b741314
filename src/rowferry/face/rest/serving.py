"""Serving the app: uvicorn in a thread of its own, on a socket that is bound before it starts."""

from __future__ import annotations

import threading
from typing import Self

import uvicorn
from fastapi import FastAPI

from rowferry.errors import BadOption
from rowferry.face.gate import Tls, split_address
from rowferry.face.rest.door import BACKLOG, Door, DoorPatience, protocol

_START_S = 60.0
_GRACE_S = 5


class BoundAddress:
    """An address that is taken, though nobody answers there yet.

    Attributes:
        address: host:port, with the port that was chosen for 0.
    """

    def __init__(self, addr: str, most: int | None = None) -> None:
        """Take `HOST:PORT` (port 0: any free one), for so many connections; None: as may be.

        Raises:
            BadOption: the address is taken or of another form.
        """
        host, port = split_address(addr, "--addr")
        try:
            self.listener = Door.open(host, port, most)
        except OSError as err:
            raise BadOption(f"--addr {addr}: cannot be used: {err.strerror or err}") from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Give the address up. On repeat: nothing."""
        self.listener.close()


class Serving:
    """An app that is being served.

    Attributes:
        address: host:port, with the port that was chosen for 0.
        url: the same as a URL.
    """

    def __init__(self, server: uvicorn.Server, place: BoundAddress) -> None:
        self.address = place.address
        self.url = f"{'https' if server.config.is_ssl else 'http'}://{self.address}"
        self._server = server
        self._listener = listener = place.listener
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="rest", daemon=True
        )

    def start(self) -> Self:
        """Begin to answer; returns when it does."""
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(_START_S / 0.01)):
            if self._server.started or not self._thread.is_alive():
                break
            pause.wait(0.01)
        if not self._server.started:
            self.close()
            raise BadOption(f"{self.address}: the HTTP server did not start; the log says why")
        return self

    def close(self) -> None:
        """Finish the requests under way, for a few seconds, and stop. On repeat: nothing."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_GRACE_S + 5)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(
    app: FastAPI,
    where: str | BoundAddress,
    tls: Tls | None = None,
    patience: DoorPatience | None = None,
) -> Serving:
    """Serve an app at `HOST:PORT`, or at a place that was taken, until the handle is closed.

    Raises:
        BadOption: the address is taken or of another form, or the TLS files cannot be used.
    """
    context = tls.context() if tls else None
    place = BoundAddress(where) if isinstance(where, str) else where
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol(place.listener, patience or DoorPatience()),
        backlog=BACKLOG,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    config.load()
    if context is not None:
        config.ssl = context
    return Serving(uvicorn.Server(config), place).start()
