"""Upkeep of a sink's target between micro-batches: a small share of the time and of the slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from rowferry.change.plan import Plan, Receipt, Segment, Stretch
from rowferry.errors import TaskFailed
from rowferry.flow.assemble import Flow
from rowferry.flow.sink.contract import HasUpkeep, TableStatus, UpkeepPiece
from rowferry.moment import moment

LOG = logging.getLogger(__name__)
SLOT_SHARE: Final = 4  # one of so many slots
TIME_SHARE: Final = 4  # one part of so many of the time
FIRST_WAIT_S: Final = 30.0
LONGEST_WAIT_S: Final = 3600.0
STATUS_EVERY_S: Final = 10.0


@runtime_checkable
class HasSlots(Protocol):
    """A runner that can run several tasks at once."""

    @property
    def slots(self) -> int:
        """How many."""


class UpkeepRounds:
    """Rounds of upkeep of one changefeed's target. Not for use from several threads.

    One is between two micro-batches, so that it meets no commit of the feed. It carries out a few
    pieces, as tasks of a job of its own; the next one begins when three times as long has passed.
    One that fails is a warning: the feed goes on, and the next round comes later.
    """

    def __init__(
        self,
        changefeed: str,
        flow: Flow,
        run: Callable[[Plan], Sequence[Receipt]],
        runner: object,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it; `run` carries out a plan that has nothing but upkeep, by this runner."""
        self._id, self._run, self._runner, self._clock = changefeed, run, runner, clock
        self._sink = flow.sink if isinstance(flow.sink, HasUpkeep) else None
        self._hiding = flow.hiding
        self._not_before = self._status_at = float("-inf")
        self._wait_s = FIRST_WAIT_S

    def go(self, spec_version: int, epoch: int) -> tuple[TableStatus, ...] | None:
        """Do a round if it is time; return what the tables are made of, where that was looked up.

        Never raises what has gone wrong.
        """
        began = self._clock()
        if self._sink is None or began < self._not_before:
            return None
        statuses = None
        try:
            with self._hiding.in_errors():
                self._round(self._sink, spec_version, epoch)
                if began - self._status_at >= STATUS_EVERY_S:
                    self._status_at = began
                    statuses = self._sink.table_statuses()
        except Exception as err:  # whatever it is, no row of the feed depends on it
            LOG.warning(
                "changefeed %s: upkeep of its tables failed, and is tried again in %.0f s: %s",
                *(self._id, self._wait_s, err),
            )
            self._not_before = self._clock() + self._wait_s
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
            return None
        now = self._clock()
        self._wait_s = FIRST_WAIT_S
        self._not_before = now + (TIME_SHARE - 1) * (now - began)
        return statuses

    def _round(self, sink: HasUpkeep, spec_version: int, epoch: int) -> None:
        slots = self._runner.slots if isinstance(self._runner, HasSlots) else 1
        pieces = sink.due_upkeep(max(1, slots // SLOT_SHARE))
        if not pieces:
            return
        receipts = self._run(_plan(pieces, spec_version, epoch))
        made = {r.segment: r.note for r in receipts if r.is_of_output}
        if any(made.get(number) is None for number in range(len(pieces))):
            raise TaskFailed("a task of the upkeep ended without its result")
        moment("upkeep job done")
        done = [(piece, made[number] or {}) for number, piece in enumerate(pieces)]
        count = sink.commit_upkeep(done)
        size = sum(piece.bytes for piece in pieces)
        LOG.info(
            "changefeed %s: upkeep: %d pieces, %d bytes read, %d files replaced",
            *(self._id, len(pieces), size, count),
        )


def _plan(pieces: Sequence[UpkeepPiece], spec_version: int, epoch: int) -> Plan:
    """Return a plan of upkeep alone; it is nowhere recorded, as nobody has to go on with it."""
    segments = tuple(
        Segment(number, piece.work, (), 0, 0, log_bytes=piece.bytes, upkeep=True)
        for number, piece in enumerate(pieces)
    )
    return Plan(0, spec_version, 0, Stretch(segments, (), {}), epoch=epoch)
