"""What is kept of a micro-batch once it was published: which log it read, and where that went.

Without it a row that was delivered cannot be followed back: positions only ever tell the last
place. No row is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.change.plan import Output, Plan, Segment
from rowferry.change.quarantine import TableKeys

MOST_SEGMENTS: Final = 32  # of a micro-batch that is kept whole
_MOST_OUTPUTS: Final = 256
_MOST_SNAPSHOTS: Final = 64
_MOST_KEYS: Final = 256  # that are parked, of a micro-batch that is kept whole


@dataclass(frozen=True, slots=True)
class PublishedBatch(JsonForm):
    """One micro-batch that had rows to read; or, folded, several that follow each other.

    Attributes:
        micro_batch: its number; the last one of several.
        first_batch: the first one of several; else the same number.
        first_ts, last_ts: bounds of what was read of the log; 0: nothing was.
        snapshots: the commit-ts of rows that are a table's content, not changes of it.
        segments: what was read, as it was planned, without the bytes; where not all of them are
            here, the first and the last.
        outputs: what the sink assigned to these segments.
        whole: all segments and outputs are here, of one micro-batch.
        published_at: when, in seconds since 1970; not part of the form.
        parked: keys, by table id, whose rows it has parked instead of sent.
    """

    FORM = FormRules(brief=True, unstored=("published_at",))

    micro_batch: int
    first_batch: int
    first_ts: int
    last_ts: int
    snapshots: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    outputs: tuple[Output, ...] = ()
    whole: bool = True
    published_at: float = 0.0
    parked: tuple[TableKeys, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> PublishedBatch | None:
        """Return what is kept of a plan; None: it has read nothing."""
        segments = plan.stretch.segments
        if not segments:
            return None
        log = [s for s in segments if not s.snapshot]
        ids = {one.table_id for s in segments for one in s.slices}
        asked = plan.quarantine.parked if plan.quarantine else ()
        parked = tuple(one for one in asked if one.table_id in ids)
        whole = len(segments) <= MOST_SEGMENTS and len(plan.outputs) <= _MOST_OUTPUTS
        whole = whole and sum(len(one.keys) for one in parked) <= _MOST_KEYS
        kept = segments if whole else _ends(log or segments)
        return cls(
            plan.micro_batch,
            plan.micro_batch,
            min((s.first_commit_ts for s in log), default=0),
            max((s.last_commit_ts for s in log), default=0),
            _some(s.first_commit_ts for s in segments if s.snapshot),
            tuple(replace(s, payload=b"") for s in kept),
            plan.outputs if whole else (),
            whole,
            parked=parked if whole else (),
        )

    @classmethod
    def folded(cls, batches: Sequence[PublishedBatch]) -> PublishedBatch:
        """Return one for several that follow each other, oldest first."""
        log = [s for batch in batches for s in batch.segments if not s.snapshot]
        return cls(
            batches[-1].micro_batch,
            batches[0].first_batch,
            min((b.first_ts for b in batches if b.first_ts), default=0),
            max(b.last_ts for b in batches),
            _some(ts for batch in batches for ts in batch.snapshots),
            _ends(log),
            (),
            False,
            batches[-1].published_at,
        )

    def bare(self) -> PublishedBatch:
        """Return its bounds alone."""
        return replace(self, segments=(), outputs=(), whole=False, parked=())

    def holds(self, commit_ts: int, snapshot: bool) -> bool:
        """Return whether a row of this commit-ts may have been part of it."""
        if snapshot:
            return commit_ts in self.snapshots
        return 0 < self.first_ts <= commit_ts <= self.last_ts


def _ends(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    ends = segments[:1] if len(segments) < 2 else (segments[0], segments[-1])
    return tuple(replace(s, payload=b"", slices=()) for s in ends)


def _some(stamps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(stamps)))[-_MOST_SNAPSHOTS:]
