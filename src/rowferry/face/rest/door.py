"""The door itself: how many connections are kept, and how long each may let a server wait.

Whoever connects costs a descriptor, and those of the sources, sinks and the meta database come from
the same stock. So connections are counted from the moment they are accepted, before any TLS, and
one that has not sent a whole request makes room for the next.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Self

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rowferry.face.descriptors import share_of_descriptors

MOST_CONNECTIONS: Final = 512
BACKLOG: Final = 128
_MOST_DROPPED: Final = 1 << 20  # bytes of a body that goes on though its answer was sent


class Phase(Enum):
    """What a connection is waiting for."""

    HEAD = auto()  # the next request
    BODY = auto()  # the rest of it
    ANSWER = auto()  # us
    REST = auto()  # a body that is answered already, and that nobody reads


@dataclass(frozen=True, slots=True)
class DoorPatience:
    """Seconds that a connection may spend in each phase, and without taking what it is sent."""

    head_s: float = 10.0
    body_s: float = 60.0
    answer_s: float = 300.0
    rest_s: float = 2.0
    taking_s: float = 30.0

    def of(self, phase: Phase) -> float:
        """Return how long one phase may last."""
        match phase:
            case Phase.HEAD:
                return self.head_s
            case Phase.BODY:
                return self.body_s
            case Phase.ANSWER:
                return self.answer_s
            case Phase.REST:
                return self.rest_s


class Door(socket.socket):
    """A listening socket that keeps a bounded number of connections.

    When it is full, the connection that has waited longest without a whole request is closed for
    the new one; when all are being answered, the new one is closed.
    """

    most = MOST_CONNECTIONS

    @classmethod
    def open(cls, host: str, port: int, most: int | None = None) -> Self:
        """Listen at an address; `most` connections, by default a share of our descriptors.

        Raises:
            OSError: the address cannot be used.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.create_server((host, port), family=family, backlog=BACKLOG)
        door = cls(fileno=made.detach())
        door.most = min(MOST_CONNECTIONS, share_of_descriptors()) if most is None else most
        door._inside = {}
        return door

    _inside: dict[int, Inside]

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection.

        Raises:
            ConnectionAbortedError: there is no room for it.
        """
        made, address = super().accept()
        inside = Inside(fileno=made.detach())
        inside.left = self._inside.pop
        if len(self._inside) >= self.most:
            waits = next((one for one in self._inside.values() if not one.is_served), None)
            if waits is None:
                inside.close()
                raise ConnectionAbortedError("too many connections")
            waits.turn_out()
        self._inside[inside.fileno()] = inside
        return inside, address

    def serves(self, descriptor: int, is_served: bool) -> None:
        """Note whether the connection of a descriptor has sent a request that is being answered."""
        if descriptor in self._inside:
            self._inside[descriptor].is_served = is_served


class Inside(socket.socket):
    """An accepted connection, which says when it is closed."""

    is_served = False
    left: Callable[..., Any] = dict[int, "Inside"]().pop

    def turn_out(self) -> None:
        """End it: whoever reads it sees its end, and closes it."""
        self.left(self.fileno(), None)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self.left(self.fileno(), None)
        super().close()


class PatientProtocol(H11Protocol):
    """HTTP on one connection, with an end to everything that a client may let us wait for."""

    door: Door
    patience: DoorPatience
    _timer: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    _at: tuple[Phase, object] | None = None
    _dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take what was sent; what belongs to an answered request only for a while."""
        if self._at is not None and self._at[0] is Phase.REST:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED:
                self.transport.abort()
                return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._timer, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the client some time to take what it was sent."""
        super().pause_writing()
        self._taking = self.loop.call_later(self.patience.taking_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on sending."""
        if self._taking is not None:
            self._taking.cancel()
        super().resume_writing()

    def _look(self) -> None:
        """Begin to count anew where another phase, or another request, has begun."""
        at = (self._phase(), self.cycle)
        if at == self._at or self.transport.is_closing():
            return
        self._at, self._dropped = at, 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.patience.of(at[0]), self.transport.abort)
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            self.door.serves(connection.fileno(), at[0] is Phase.ANSWER)

    def _phase(self) -> Phase:
        if self.cycle is None or self.cycle.response_complete:
            return Phase.REST if self.conn.their_state is h11.SEND_BODY else Phase.HEAD
        return Phase.BODY if self.cycle.more_body else Phase.ANSWER


def protocol(door: Door, patience: DoorPatience) -> type[PatientProtocol]:
    """Return the protocol of the connections of one door."""
    return type("Protocol", (PatientProtocol,), {"door": door, "patience": patience})
