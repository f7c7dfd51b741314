"""What the log tells of a changefeed: its start, how far it is now and then, what went wrong."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from rowferry import __version__
from rowferry.change.position import physical_ms
from rowferry.control.feed.lease import Claim
from rowferry.control.feed.loop import StepResult
from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.control.store.contract import FeedRecord
from rowferry.errors import RowferryError
from rowferry.spec.changefeed import ChangefeedSpec

LOG = logging.getLogger(__name__)
EVERY_S: Final = 60.0


def tell_start(spec: ChangefeedSpec, claim: Claim, before: FeedRecord) -> None:
    """Log that a changefeed was claimed, from whom, and with which settings; no secrets."""
    LOG.info(
        "changefeed %s: claimed with epoch %d by process %d, rowferry %s; %s",
        *(spec.changefeed_id, claim.epoch, os.getpid(), __version__, _predecessor(before)),
    )
    LOG.info("changefeed %s: from %s to %s", spec.changefeed_id, spec.source, spec.sink)
    settings = json.dumps(redacted_config(spec), ensure_ascii=False, sort_keys=True, default=str)
    LOG.info("changefeed %s: settings %s", spec.changefeed_id, settings)
    LOG.info("changefeed %s: goes on behind %s", spec.changefeed_id, _place(before.watermark))


def _predecessor(feed: FeedRecord) -> str:
    """Return who had it, and why it could be taken."""
    lease = feed.lease
    if lease is None:
        return "nobody had it" if feed.epoch else "it is new"
    late = time.time() - lease.expires_at
    if late >= 0:
        return f"{lease.holder} had it, whose lease ran out {late:.0f} s ago"
    return f"{lease.holder} had it, which has ended"


def _place(watermark: int) -> str:
    if not watermark:
        return "no checkpoint yet"
    at = datetime.fromtimestamp(physical_ms(watermark) / 1000, UTC)
    return f"checkpoint {watermark} ({at.isoformat(timespec='seconds')})"


class FeedDiary:
    """Logs what steps do: a line a minute, each warning, each fault."""

    def __init__(self, changefeed: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._id, self._clock = changefeed, clock
        self._noted_at = clock()
        self._rows = self._bytes = self._micro_batches = 0
        self._first = True

    def step(self, step: StepResult) -> None:
        """Take in what a step did."""
        for words in step.warnings:
            LOG.warning("changefeed %s: %s", self._id, words)
        if not step.published:
            return
        self._rows += step.rows
        self._bytes += step.bytes
        self._micro_batches += 1
        now = self._clock()
        if self._first or step.finished or now - self._noted_at >= EVERY_S:
            self._tell(step, now)

    def _tell(self, step: StepResult, now: float) -> None:
        snapshot = ""
        if step.snapshots:
            done, total = sum(s.done for s in step.snapshots), sum(s.total for s in step.snapshots)
            snapshot = f", snapshot {done} of {total}"
        LOG.info(
            "changefeed %s: %d rows, %d bytes in %d micro-batches since the last line; %s%s",
            *(self._id, self._rows, self._bytes, self._micro_batches),
            *(_place(step.watermark), snapshot),
        )
        self._rows = self._bytes = self._micro_batches = 0
        self._noted_at, self._first = now, False

    def fault(self, error: RowferryError, wait_s: float) -> None:
        """Take in an error that is tried again."""
        LOG.warning("changefeed %s: next try in %.0f s: %s", self._id, wait_s, error)
