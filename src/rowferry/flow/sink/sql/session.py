"""What a sink asks of its sessions, what they are refused, and connections that are kept."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol, TypeVar

from rowferry.change.event_counts import RETRIES, EventCounts
from rowferry.errors import RowferryError
from rowferry.moment import moment

_KEPT_S: Final = 30.0  # how long a connection may lie idle
_TRIES: Final = 9
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class SqlRefusal(Exception, ABC):
    """The downstream refused a statement.

    Whoever knows what the statement was about words it for people, by `as_error`.
    """

    @property
    @abstractmethod
    def is_conflict(self) -> bool:
        """Whether it only met another transaction."""

    @property
    @abstractmethod
    def is_about_row(self) -> bool:
        """Whether one row is refused for what it holds, and others may be taken."""

    @abstractmethod
    def as_error(self, about: str) -> RowferryError:
        """Return it as an error of ours, with its verdict."""


class SqlSession(Protocol):
    """One connection. Not for use from several threads at once."""

    counts: EventCounts | None
    place: str

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises:
            SqlRefusal: the server refuses it.
            SinkUnavailable: the connection is lost.
        """

    def rollback(self) -> None:
        """End the transaction: nothing of it stays. Raises as `ask`."""

    def close(self) -> None:
        """Let the connection go; what was not committed is lost. Never raises."""


SessionT = TypeVar("SessionT", bound=SqlSession)


class SqlSessions(ABC, Generic[SessionT]):
    """Connections for rows, kept for the next transaction. For use from several threads."""

    def __init__(self, counts: EventCounts | None = None) -> None:
        """Make none yet; `counts` takes what their sessions run."""
        self.counts = counts or EventCounts()
        self._idle: list[tuple[SessionT, float]] = []  # since when
        self._lock = threading.Lock()

    @abstractmethod
    def _open(self) -> SessionT:
        """Return a new connection that counts.

        Raises:
            SinkUnwritable, SinkUnavailable: it cannot be had.
        """

    def take(self) -> SessionT:
        """Lend a connection until `give`; one that failed is closed instead. Raises as `_open`."""
        with self._lock:
            if self._idle and time.monotonic() - self._idle[-1][1] < _KEPT_S:
                return self._idle.pop()[0]
        self.close()  # servers end connections that are silent for long
        moment("lend connection")
        return self._open()

    def give(self, session: SessionT) -> None:
        """Take a connection back."""
        with self._lock:
            self._idle.append((session, time.monotonic()))

    @contextmanager
    def one(self) -> Iterator[SessionT]:
        """Lend a connection for a block; one that failed is not kept."""
        session = self.take()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self.give(session)

    def close(self, keep: int = 0) -> None:
        """Let connections go that are not lent, all but the last `keep`."""
        with self._lock:
            cut = max(len(self._idle) - keep, 0)
            gone, self._idle = self._idle[:cut], self._idle[cut:]
        for session, _ in gone:
            session.close()


class Tries:
    """How often one transaction was tried, and whether it is tried again where it met others."""

    def __init__(self, counts: EventCounts) -> None:
        self._counts, self._tried = counts, 0

    def begin(self) -> None:
        """Begin the next try."""
        self._counts.add(RETRIES, int(self._tried > 0))
        self._tried += 1

    def goes_on(self, refusal: SqlRefusal, stop: threading.Event) -> bool:
        """Wait for the next try; return whether there is one. `stop` ends the waiting."""
        if not refusal.is_conflict or self._tried >= _TRIES:
            return False
        pause = min(_FIRST_PAUSE_S * 2 ** (self._tried - 1), _LONGEST_PAUSE_S)
        return not stop.wait(pause * random.random())
