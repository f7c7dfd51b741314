"""On which processors the threads of changefeeds run.

One interpreter runs one thread at a time. Where many threads wait for it on several processors,
they spend more on waking each other up than on their work: 50 changefeeds on two processors need
1.07 of them and fall behind, and 0.64 of one alone, where they keep up. So a crowd shares one. What
is long is done by Spark, elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final

CROWD: Final = 8  # changefeeds
_NAMES: Final = ("feed-", "binlog")  # threads of changefeeds, and of those who read for them


def allowed() -> frozenset[int]:
    """Return the processors that this thread may use; empty where that cannot be known."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def spread(processors: Collection[int]) -> None:
    """Let this thread, and what it starts, run on all of the processors."""
    if processors:
        with suppress(OSError):  # they were taken from us since; we stay where we are
            os.sched_setaffinity(0, processors)


def settle(processors: Collection[int], changefeeds: int, place: int) -> None:
    """Put the threads of so many changefeeds on one of the processors, or on all of them.

    `place` is this server's among those of the machine: each has a processor of its own while there
    are enough. Two crowds on one processor fall behind for good, beside one that has nothing to do.
    """
    if not processors:
        return
    ordered = sorted(processors)
    wanted = {ordered[place % len(ordered)]} if changefeeds >= CROWD else set(ordered)
    for thread in threading.enumerate():
        if thread.native_id is not None and thread.name.startswith(_NAMES):
            with suppress(OSError):  # it has just ended, or the processor was taken from us
                os.sched_setaffinity(thread.native_id, wanted)
