"""Tasks that go on when their job has failed: whoever sends its rows again waits for their end.

Spark gives a job up as soon as one of its tasks has failed. It ends the others within seconds, and
until then they send: what is older than what the next try sends would come behind it.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Final

from pyspark import SparkContext

from rowferry.spark.versions import JAVA_GONE, JAVA_RAISED

_GROUP: Final = "spark.jobGroup.id"
_RUNNING: Final = "RUNNING"
_PATIENCE_S: Final = 30.0  # Spark looks every two seconds, and ends a worker two seconds later
_UNKNOWN_S: Final = 1.0  # until a job that was begun is known
_LOOK_S: Final = 0.05


class JobTasks:
    """The tasks of the next job of this thread."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"rowferry-{secrets.token_hex(8)}"
        context.setLocalProperty(_GROUP, self._group)

    def wait(self) -> None:
        """Return when none of them runs, or after a time in which Spark ends any."""
        begun = time.monotonic()
        with suppress(*JAVA_GONE, *JAVA_RAISED):  # then its workers go, too
            while time.monotonic() - begun < _PATIENCE_S:
                running = self._running()
                if running == 0 or (running is None and time.monotonic() - begun > _UNKNOWN_S):
                    return
                time.sleep(_LOOK_S)

    def forget(self) -> None:
        """Let the next job of this thread be another one's."""
        with suppress(*JAVA_GONE, *JAVA_RAISED):
            self._context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]

    def _running(self) -> int | None:
        """Return how many run, or are to run; None: nothing is known of the job."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._group)]
        known = [job for job in jobs if job is not None]
        if not known:
            return None
        if any(job.status == _RUNNING for job in known):
            return 1
        stages = [tracker.getStageInfo(number) for job in known for number in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)
