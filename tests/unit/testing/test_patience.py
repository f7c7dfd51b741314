"""What a test waits for on a busy machine: its own fault, and servers that answer late."""

from __future__ import annotations

import pytest

import patience
from patience import patiently, until_it_fails
from rowferry.errors import RowferryError, SinkUnavailable, SinkUnwritable, SourceUnavailable


class Feed:
    """Meets a fault in each step."""

    def __init__(self, *faults: RowferryError) -> None:
        self.faults: list[RowferryError] = []
        self._to_come = iter(faults)

    def step(self) -> None:
        self.faults.append(next(self._to_come))


def test_another_fault_is_no_sign_of_the_planned_one() -> None:
    feed = Feed(SourceUnavailable("too slow"), SinkUnavailable("as planned"), SinkUnavailable("x"))
    until_it_fails(feed, "as planned")
    assert [fault.words for fault in feed.faults] == ["too slow", "as planned"]
    until_it_fails(feed, "too slow")  # it was met already
    assert len(feed.faults) == 2


@pytest.mark.parametrize("late", [SinkUnavailable, SourceUnavailable])
def test_who_answers_late_is_asked_again(
    late: type[RowferryError], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(range(3))

    def call() -> int:
        number = next(tries)
        if number < 2:
            raise late("too slow")
        return number

    monkeypatch.setattr(patience.time, "sleep", lambda _s: None)
    assert patiently(call) == 2


def test_a_refusal_is_not_repeated_and_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse() -> None:
        asked.append("unwritable")
        raise SinkUnwritable("no")

    def stay_away() -> None:
        raise SinkUnavailable("away")

    with pytest.raises(SinkUnwritable):
        patiently(refuse)
    assert len(asked) == 1
    monkeypatch.setattr(patience, "PATIENCE_S", -1.0)
    with pytest.raises(SinkUnavailable):
        patiently(stay_away)
    with pytest.raises(AssertionError, match="never failed so"):
        until_it_fails(Feed(SinkUnavailable("another")), "the planned one")
