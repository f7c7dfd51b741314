"""Patience with moving ranges: ask the master again, wait a little, give up after a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.range_log.client import Rerouted

T = TypeVar("T")

FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 0.5
PATIENCE_S = 20.0


def patiently(attempt: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Call `attempt` until it does not raise Rerouted; it must ask for fresh routes by itself.

    Raises:
        SourceUnavailable: the routes did not settle within `patience_s`; or what the last
            Rerouted says is to be raised then.
    """
    deadline = time.monotonic() + patience_s
    wait = FIRST_WAIT_S
    while True:
        try:
            return attempt()
        except Rerouted as err:
            if time.monotonic() > deadline:
                unsettled = SourceUnavailable(f"{what}: no leader answers ({err})")
                raise (err.final or unsettled) from None
            time.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_S)
