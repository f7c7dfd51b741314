"""What a process may do downstream that was replaced by another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rowferry.change.plan import Plan, Stretch
from rowferry.errors import Fenced
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


class Downstream:
    """Sessions of a downstream whose fence has an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.ran: list[str] = []

    def begin(self, sql: str) -> list[tuple[Any, ...]]:
        return [(self.epoch, 0, 0)]

    def run(self, *statements: str) -> None:
        self.ran += statements

    def rollback(self) -> None:
        pass

    @contextmanager
    def one(self) -> Iterator[Downstream]:
        yield self


def test_who_was_replaced_takes_no_notes_away() -> None:
    """Without them, a replay by the one who writes now would write rows twice."""
    source, uri = Uri.parse("range://h:1", "source"), Uri.parse("postgresql://u@h/d", "sink")
    sink: Any = assemble(ChangefeedSpec("feed", source, uri, {})).sink
    sink._sessions = downstream = Downstream(9)
    plan = Plan(7, 1, 0, Stretch((), (), {}))
    sink._owner = Owner("feed", 8)
    with pytest.raises(Fenced):
        sink.discard(plan)
    assert downstream.ran == []
    sink._owner = Owner("feed", 9)
    assert sink.discard(plan) is True
    assert downstream.ran == [sink._ledger.forget_delivered(), "COMMIT"]
