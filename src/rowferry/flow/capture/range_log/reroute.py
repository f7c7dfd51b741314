"""Patience with moving ranges: ask the master again, wait a little, give up after a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from rowferry.errors import SourceMismatch, SourceUnavailable
from rowferry.flow.capture.range_log.client import KnownRange, LogHead, Rerouted
from rowferry.flow.capture.range_log.kv_bytes import record_span
from rowferry.flow.capture.range_log.state import RangeTable

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


def require_cover(routes: Iterable[KnownRange], owners: Mapping[int, RangeTable]) -> None:
    """Make sure that ranges hold every key of each table or partition, by its physical id.

    A master that has not heard of all ranges yet must not hide rows behind a watermark.

    Raises:
        Rerouted: some keys are in none of them.
    """
    spans = {physical: record_span(physical) for physical in owners}
    reached = {physical: start for physical, (start, _) in spans.items()}
    for route in sorted(routes, key=lambda r: r.start_key):
        here = reached.get(route.physical_id)
        if here is not None and route.start_key <= here:
            end = route.end_key or spans[route.physical_id][1]
            reached[route.physical_id] = max(here, end)
    for physical, (_, end) in spans.items():
        if reached[physical] < end:
            name, key = owners[physical].schema.id, reached[physical].hex()
            raise Rerouted(f"table {name} has no range yet that holds key {key}")


def require_whole(range_id: int, head: LogHead, read_to: int) -> None:
    """Make sure that a log does not end before what was read of it: indexes would come twice.

    Raises:
        Rerouted: it does; for good, if it stays so.
    """
    if head.last_index < read_to:
        words = (
            f"range {range_id}: its log ends at index {head.last_index}, but was read up to "
            f"{read_to}"
        )
        cure = "it was put back to an older copy: create a new changefeed"
        raise Rerouted(words, SourceMismatch(f"{words}; {cure}"))
