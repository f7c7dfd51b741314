"""Waiting for what a machine under load takes its time for, and for nothing else.

A feed that a test drives step by step repeats, as a supervisor does, what fails in passing. On a
busy machine more fails so than the test has planned: a login that takes too long, a session that
was silent for too long. Such a fault is no sign that the planned one was met.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from rowferry.errors import RowferryError, SinkUnavailable, SourceUnavailable

PATIENCE_S: Final = 600.0  # an upper bound for a machine under load, never reached by working code
ResultT = TypeVar("ResultT")


class Stepped(Protocol):
    """A feed that a test drives; `faults` are those that were met so far, and repeated."""

    faults: list[RowferryError]

    def step(self) -> object:
        """Do one step."""


def patiently(call: Callable[[], ResultT]) -> ResultT:
    """Return what a call gives; while a server does not answer, it is repeated."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (SinkUnavailable, SourceUnavailable):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def until_it_fails(feed: Stepped, words: str) -> None:
    """Step until a fault was met that has these words."""
    end = time.monotonic() + PATIENCE_S
    while not any(words in str(fault) for fault in feed.faults):
        feed.step()
        assert time.monotonic() < end, f"it never failed so: {feed.faults[-1:]}"
