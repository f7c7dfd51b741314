"""A write to the catalog whose answer is lost: it happens once, or not at all."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from rowferry.errors import StoreUnavailable
from rowferry.refstore.master.leaders import Leaders
from rowferry.refstore.meta import RangeMeta
from rowferry.wire import store_pb2 as wire

CATALOG = RangeMeta(1, b"m", b"n", physical_id=0, leader="here")


class Channels:
    """A leader that loses the answer of its first write, carried out or not."""

    def __init__(self, carried_out: bool) -> None:
        self._carried_out = carried_out
        self.committed: dict[int, int] = {}
        self._losses = 1

    def call(self, address: str, method: str, request: Any, *more: object) -> Any:
        if method == "StoreData/Status":
            commit_ts = self.committed.get(request.start_ts, 0)
            kind = wire.StatusReply.COMMITTED if commit_ts else wire.StatusReply.ROLLED_BACK
            return wire.StatusReply(status=kind, commit_ts=commit_ts)
        lost = self._losses > 0
        self._losses -= 1
        if self._carried_out or not lost:
            self.committed[request.start_ts] = request.start_ts + 1000
        if lost:
            raise StoreUnavailable("no answer")
        return wire.WriteReply(commit_ts=self.committed[request.start_ts])


def written(channels: Channels) -> int:
    topology: Any = SimpleNamespace(range=lambda range_id: CATALOG)
    numbers = count(1)
    oracle: Any = SimpleNamespace(next=lambda: next(numbers))
    leaders = Leaders(topology, oracle, channels)  # type: ignore[arg-type]
    return leaders.write_catalog({b"m:ddl:1": b"[]"})


def test_a_write_that_happened_is_not_repeated() -> None:
    channels = Channels(carried_out=True)
    assert written(channels) == 1001
    assert channels.committed == {1: 1001}


def test_a_write_that_did_not_happen_is_done_again() -> None:
    channels = Channels(carried_out=False)
    assert written(channels) == 1002
    assert channels.committed == {2: 1002}
