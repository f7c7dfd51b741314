"""A lease as its holder sees it: renewed in time, too late, never, or taken by another one."""

from __future__ import annotations

import threading

import pytest

from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.running import HeldLease

TTL_S = 6.0


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> HeldLease:
    return HeldLease(Claim("feed", Holder.here(), 1, TTL_S), clock(), clock)


def test_a_renewal_counts_from_before_it_was_asked_for(lease: HeldLease, clock: Clock) -> None:
    assert not lease.is_set()
    clock.now += 4
    lease.renewed(101.0)
    clock.now = 106.9
    assert not lease.has_run_out
    clock.now = 107.1
    assert lease.has_run_out


def test_one_that_ran_out_is_waited_for(lease: HeldLease, clock: Clock) -> None:
    clock.now += TTL_S + 1
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(lease.is_set()))
    waiting.start()
    waiting.join(0.05)
    assert (waiting.is_alive(), found) == (True, [])
    lease.renewed(clock.now)
    waiting.join(120)
    assert (found, lease.is_gone, lease.has_run_out) == ([False], False, False)


def test_one_that_is_never_renewed_is_gone(lease: HeldLease, clock: Clock) -> None:
    clock.now += 2 * TTL_S
    assert lease.is_set()
    lease.renewed(clock.now)  # comes too late: the changefeed has ended here
    assert lease.is_set()


def test_who_waits_hears_of_another_owner(lease: HeldLease, clock: Clock) -> None:
    clock.now += TTL_S + 1
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(lease.is_set()))
    waiting.start()
    lease.lose()
    waiting.join(120)
    assert found == [True]
