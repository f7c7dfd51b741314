"""What is done to a soak run, and when: as shares of its length, so that any length has all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from soak_watch import tree
from soak_world import Member, World

DOWN_S = 5.0  # how long something that was ended stays down


@dataclass
class Event:
    """Something that happens once. `began` and `ended` are seconds of the run; None: not yet."""

    at: float
    name: str
    do: Callable[[], None]
    restarts: bool = True
    began: float | None = None
    ended: float | None = None
    error: str = ""
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, clock: Callable[[], float]) -> None:
        """Do it, beside the run."""
        self.began = clock()

        def work() -> None:
            try:
                self.do()
            except Exception as err:  # told at the end of the run: it did not go as planned
                self.error = f"{type(err).__name__}: {err}"
            self.ended = clock()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        if self._thread is not None:
            self._thread.join()


class Events:
    """The plan of a run. `orphans` are processes of killed servers, which must go by themselves."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.orphans: set[int] = set()
        (failing,) = [feed for feed in world.feeds if feed.kind == "failing"]
        first, last = world.members[0], world.members[-1]
        # Servers first, then what they are connected to: their processes are made anew by that,
        # take over what others had, and connect again, which costs memory once. Behind it they
        # live on for most of the run, so that what grows all the time can be told from that.
        self.planned = [
            Event(0.04, "the failing sink begins to fail", lambda: self._fail(failing.id), False),
            Event(0.08, f"SIGTERM server {first.name}", lambda: self._drain(first)),
            Event(0.16, f"kill -9 server {last.name}", lambda: self._kill(last)),
            Event(0.24, f"kill -9 server {first.name}", lambda: self._kill(first)),
            Event(0.33, "restart PostgreSQL (meta)", lambda: self._stop(world.meta)),
            Event(0.42, "kill -9 MySQL (source)", lambda: self._crash(world.mysql)),
            Event(0.51, "kill -9 Kafka", lambda: self._crash(world.broker)),
            Event(0.60, "SIGTERM MariaDB (source)", lambda: self._stop(world.mariadb)),
            Event(0.70, "kill -9 MariaDB (sink)", lambda: self._crash(world.target)),
            Event(0.85, "the failing sink is cured", lambda: self._cure(failing), False),
        ]

    def due(self, now: float, length: float) -> Event | None:
        """Return the next event, if its time has come."""
        left = self.next()
        return left if left is not None and now >= left.at * length else None

    def next(self) -> Event | None:
        """Return the first event that has not begun."""
        return next((event for event in self.planned if event.began is None), None)

    def _fail(self, feed: str) -> None:
        self._world.receiver.failing.add(feed)

    def _cure(self, feed: object) -> None:
        self._world.receiver.failing.clear()
        self._world.resume(feed)  # type: ignore[arg-type]

    def _drain(self, member: Member) -> None:
        member.drain()
        time.sleep(DOWN_S)
        member.start()

    def _kill(self, member: Member) -> None:
        if member.process is not None:
            self.orphans |= set(tree(member.process.pid)) - {member.process.pid}
        member.kill()
        time.sleep(DOWN_S)
        member.start()

    def _crash(self, server: object) -> None:
        server.kill()  # type: ignore[attr-defined]
        time.sleep(DOWN_S)
        server.restart()  # type: ignore[attr-defined]

    def _stop(self, server: object) -> None:
        server.stop()  # type: ignore[attr-defined]
        time.sleep(DOWN_S)
        server.restart()  # type: ignore[attr-defined]
