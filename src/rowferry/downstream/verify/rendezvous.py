"""Two servers, or a server and a lake, at one moment, while a changefeed runs between them.

The changefeed is asked to stand still, so that A's views can be opened at a place of the log that
it has not passed; then to go on to that place and stand there, while B's views are opened; then to
go on. Its owner obeys at some time, or not at all, if it dies: what counts is only what is stored.
If the place was reached by the last micro-batch that was published, and none after it had even
begun when B's views were open, then B's views show exactly what lies before the place. A lake needs
no views: it is read as of the commits that its tables had then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from rowferry.downstream.verify.lake import LakeSide
from rowferry.downstream.verify.side import DatabaseSide
from rowferry.downstream.verify.views import OpenViews, open_views, open_views_at_a_place
from rowferry.errors import NoSyncPoint, SourceMismatch

_TRIES: Final = 5
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Stood:
    """Where a changefeed stands.

    Attributes:
        reached: "at", "past" or "elsewhere", as its owner says of the last hold; "": nothing yet.
        last: the number of the micro-batch that was published last, then.
        now: the same, now.
        pending: another one is under way.
        lag_ms: how far it is behind; None: not known.
    """

    reached: str
    last: int
    now: int
    pending: bool
    lag_ms: int | None

    @property
    def is_still(self) -> bool:
        """Whether nothing has happened since it came to stand."""
        return self.reached == "at" and self.last == self.now and not self.pending


class Brake(Protocol):
    """What makes a changefeed stand still; see `rowferry.control.operator.hold`."""

    def hold(self, place: Mapping[str, Any] | None) -> None:
        """Ask for it: at a place of the log, or at the next border; instead of the last hold."""

    def look(self) -> Stood | None:
        """Return where it stands; None: the hold is over."""

    def release(self) -> None:
        """Let it go on; never raises."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where both sides stand.

    Attributes:
        place: of A's log, in the server's words.
        views: how many connections read from each side at most.
        held_s: for how long the changefeed was held.
    """

    place: dict[str, Any]
    views: int
    held_s: float = 0.0


@contextmanager
def met(
    a: DatabaseSide,
    b: DatabaseSide | LakeSide,
    brake: Brake,
    count: int,
    patience_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Meeting]:
    """Bring both sides to one moment: inside the block they are read as of it.

    The changefeed stands still for some seconds, and goes on before the block begins.

    Raises:
        NoSyncPoint: it did not come to a place of A's log in time.
        SourceMismatch: A is not the server that it reads.
    """
    waiting, began = _Waiting(brake, patience_s, wait), time.monotonic()
    with ExitStack() as opened:
        try:
            for _ in range(_TRIES):
                meeting = _attempt(a, b, waiting, count, opened)
                if meeting is not None:
                    break
                opened.close()
            else:
                raise NoSyncPoint("the changefeed did not stand still when it was asked to")
        finally:
            brake.release()
        try:
            yield replace(meeting, held_s=time.monotonic() - began)
        finally:
            a.views = None
            if isinstance(b, LakeSide):
                b.let_go()
            else:
                b.views = None


def _attempt(
    a: DatabaseSide, b: DatabaseSide | LakeSide, waiting: _Waiting, count: int, opened: ExitStack
) -> Meeting | None:
    """Try it once; None: something came in between."""
    if waiting.until_it_stands(None) != "at":
        return None
    views, place = open_views_at_a_place(a.login, a.facts, count)
    opened.enter_context(closing(views))
    reached = waiting.until_it_stands(place)
    if reached == "elsewhere":
        raise SourceMismatch(
            f"{a} is {a.facts.identity}, and the changefeed reads another server; give as A the "
            "one that it reads"
        )
    if reached != "at":
        return None  # it had read what A did not show yet
    copies: OpenViews | None = None
    if isinstance(b, LakeSide):
        b.hold()
    else:
        copies = open_views(b.login, b.facts, count)
        opened.enter_context(closing(copies))
    state = waiting.brake.look()
    if state is None or not state.is_still:
        return None
    a.views = views
    if not isinstance(b, LakeSide):
        b.views = copies
    return Meeting(place, max(views.count, copies.count if copies else 0))


class _Waiting:
    """Waits for a changefeed, all in all not longer than allowed."""

    def __init__(self, brake: Brake, patience_s: float, wait: Callable[[float], None]) -> None:
        self.brake = brake
        self._patience_s, self._wait = patience_s, wait

    def until_it_stands(self, place: Mapping[str, Any] | None) -> str:
        """Hold it, and wait until its owner says where it stands."""
        self.brake.hold(place)
        until = time.monotonic() + self._patience_s
        latest: Stood | None = None
        while time.monotonic() < until:
            seen = self.brake.look()
            if seen is None:
                break
            latest = seen
            if latest.reached:
                return latest.reached
            self._wait(_LOOK_S)
        where = f"{place['file']}:{place['offset']}" if place else "a border between micro-batches"
        lag = latest.lag_ms if latest else None
        behind = "" if lag is None else f" and is {lag / 1000:.0f} s behind"
        raise NoSyncPoint(
            f"the changefeed did not come to {where} within {self._patience_s:.0f} s{behind}; try "
            "again when it has caught up, or raise --hold-seconds"
        )
