"""How far a lake's tables are, in a file of its own that only ever goes forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rowferry.change.plan import Plan
from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.lake.commit import CommitNote
from rowferry.flow.sink.lake.layout import PROGRESS, Progress
from rowferry.flow.sink.storage.files import Files, Stored
from rowferry.flow.sink.storage.ownership import Ownership
from rowferry.moment import moment

_TRIES: Final = 10


class ProgressFile:
    """`rowferry.progress` of a prefix."""

    def __init__(self, files: Files, ownership: Ownership) -> None:
        self._files, self._ownership = files, ownership

    def read(self) -> Progress:
        """Return what it says; where there is none, nothing is there."""
        moment("read lake progress")
        return self._parsed(self._files.get(PROGRESS))

    def advance(self, plan: Plan, note: CommitNote, changes: int, final: bool) -> int:
        """Note how far a plan is there; return the commit-ts up to which all is there.

        Args:
            plan: the plan.
            note: its commits.
            changes: how many of its schema changes were made.
            final: all of it is there.

        Raises:
            Fenced: another owner has claimed the prefix.
            SinkUnavailable: others change the file all the time.
        """
        watermark = plan.stretch.watermark
        for _ in range(_TRIES):
            moment("publish lake progress")
            stored = self._files.get(PROGRESS)
            old = self._parsed(stored)
            known = old.micro_batch if old.incarnation == note.incarnation else 0
            reached = max(old.checkpoint_ts, watermark or 0) if final else old.checkpoint_ts
            number = (plan.sink_state or {}).get("number", 0) if final else old.number
            number = max(old.number, number)
            rest = (note.incarnation, number, note.discards)
            new = Progress(reached, plan.micro_batch, changes, *rest)
            same = known == plan.micro_batch and old.discards == note.discards
            later = known > plan.micro_batch and old.discards >= note.discards
            if later or (same and old.changes > changes):
                new = replace(old, checkpoint_ts=reached, number=number)
            with self._ownership.fenced():
                if new == old and stored or self._files.swap(PROGRESS, new.content(), stored):
                    return new.checkpoint_ts
        raise SinkUnavailable(f"{self._files.shown(PROGRESS)} is changed by others all the time")

    def _parsed(self, stored: Stored | None) -> Progress:
        if stored is None:
            return Progress()
        return Progress.read(stored.data, self._files.shown(PROGRESS))
