"""Connections that all show a server's rows as they were at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from rowferry.errors import RowferryError, SourceUnavailable
from rowferry.mysql import session
from rowferry.mysql import snapshot_position as positions
from rowferry.mysql.range_read import prepare
from rowferry.mysql.session import Connection, Flavour, Login, ServerFacts

_TRIES: Final = 40
_LOCK_S: Final = 3  # how long a lock may be waited for: new writers wait as long
_Connections: TypeAlias = "list[Connection[Any]]"


class Views(Protocol):
    """Where connections come from; each of them is lent to one thread at a time."""

    def lent(self, login: Login, flavour: Flavour) -> AbstractContextManager[Connection[Any]]:
        """Lend a connection, ready for reading rows."""


@dataclass(frozen=True, slots=True)
class PastViews:
    """TiDB's rows as of a timestamp of its own; every connection can show them."""

    ts: int

    @contextmanager
    def lent(self, login: Login, flavour: Flavour) -> Iterator[Connection[Any]]:
        """Open a connection that reads the past."""
        with closing(session.connect(login)) as connection:
            prepare(connection, login, flavour)
            session.rows(connection, login, f"SET @@tidb_snapshot = '{self.ts}'")
            yield connection


class OpenViews:
    """Open transactions of one moment; for threads of this process."""

    def __init__(self, connections: _Connections) -> None:
        self.count = len(connections)
        self._all = connections
        self._free: SimpleQueue[Connection[Any]] = SimpleQueue()
        for connection in connections:
            self._free.put(connection)

    @contextmanager
    def lent(self, login: Login, flavour: Flavour) -> Iterator[Connection[Any]]:
        """Wait for a connection that nobody uses."""
        connection = self._free.get()
        try:
            yield connection
        finally:
            self._free.put(connection)

    def close(self) -> None:
        """End the transactions."""
        for connection in self._all:
            with suppress(Exception):
                connection.close()


def open_views(login: Login, facts: ServerFacts, count: int) -> OpenViews:
    """Open transactions one after the other; they are of one moment if nobody writes meanwhile.

    Raises:
        LoginRefused, SourceUnavailable: the server does not let us in, or does not answer.
    """
    with ExitStack() as opened:
        connections = [_connected(opened, login, facts) for _ in range(count)]
        _begin(connections, login, facts)
        opened.pop_all()
        return OpenViews(connections)


def open_views_at_a_place(
    login: Login, facts: ServerFacts, count: int, may_lock: bool = True
) -> tuple[OpenViews, dict[str, Any]]:
    """Open transactions at one place of the log while others write; returns the place, too.

    If the log stands still for no moment, writers are held up for a moment by FLUSH TABLES WITH
    READ LOCK, where the user may do that and `may_lock` says so; otherwise there is only one view.

    Raises:
        SourceUnavailable: not even one view could be had.
        SourceUnsupported: the server keeps no log.
    """
    with ExitStack() as opened:
        asker = _connected(opened, login, facts)
        connections = [_connected(opened, login, facts) for _ in range(count)]
        for used in dict.fromkeys((count, 1)):
            some = connections[:used]
            place = _unlocked(asker, some, login, facts)
            if place is None and used == count and may_lock:
                place = _locked(asker, some, login, facts)
            if place is not None:
                opened.pop_all()
                for left in (asker, *connections[used:]):
                    left.close()
                return OpenViews(some), {"server": facts.identity, **place}
        raise SourceUnavailable(
            f"{login}: the log never stood still while rows were to be read; grant the user "
            "RELOAD, or try when fewer write"
        )


def _connected(opened: ExitStack, login: Login, facts: ServerFacts) -> Connection[Any]:
    connection = opened.enter_context(closing(session.connect(login)))
    prepare(connection, login, facts.flavour)
    return connection


def _begin(connections: _Connections, login: Login, facts: ServerFacts) -> None:
    for connection in connections:
        session.rows(connection, login, positions.snapshot(facts.flavour))


def _unlocked(
    asker: Connection[Any], connections: _Connections, login: Login, facts: ServerFacts
) -> positions.Place | None:
    for attempt in range(_TRIES):
        place = _attempt(asker, connections, login, facts)
        if place is not None:
            return place
        time.sleep(attempt % 10 * 0.003)
    return None


def _attempt(
    asker: Connection[Any], connections: _Connections, login: Login, facts: ServerFacts
) -> positions.Place | None:
    """Open all views; returns their place if it is one."""
    if facts.flavour is Flavour.MYSQL:
        moment = positions.QuietMoment(asker, login)
        _begin(connections, login, facts)
        return moment.place(asker, login)
    _begin(connections, login, facts)
    if len({positions.snapshot_offset(c, login) for c in connections}) > 1:
        return None
    return positions.snapshot_place(connections[0], login)


def _locked(
    asker: Connection[Any], connections: _Connections, login: Login, facts: ServerFacts
) -> positions.Place | None:
    """Open all views while nobody can commit; None: we may not, or others would wait too long."""
    with closing(session.connect(login)) as locker:
        try:
            session.rows(locker, login, f"SET SESSION lock_wait_timeout = {_LOCK_S}")
            session.rows(locker, login, "FLUSH TABLES WITH READ LOCK")
        except RowferryError:
            return None
        return _attempt(asker, connections, login, facts)
