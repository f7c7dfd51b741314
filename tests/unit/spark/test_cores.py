"""Where the threads of changefeeds run: a crowd of them shares one processor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from rowferry.spark import cores


@pytest.fixture
def threads() -> Iterator[dict[str, threading.Thread]]:
    done = threading.Event()
    found = {n: threading.Thread(target=done.wait, name=n) for n in ("feed-a", "binlog", "other")}
    for thread in found.values():
        thread.start()
    yield found
    done.set()
    for thread in found.values():
        thread.join()


def where(thread: threading.Thread) -> frozenset[int]:
    assert thread.native_id is not None
    return frozenset(os.sched_getaffinity(thread.native_id))


def test_a_crowd_shares_one_processor(threads: dict[str, threading.Thread]) -> None:
    everywhere = cores.allowed()
    cores.settle(everywhere, cores.CROWD, 0)
    assert len(where(threads["feed-a"])) == 1
    assert where(threads["binlog"]) == where(threads["feed-a"])
    assert where(threads["other"]) == everywhere == cores.allowed()
    cores.settle(everywhere, cores.CROWD - 1, 0)
    assert [where(thread) for thread in threads.values()] == [everywhere] * 3


def test_each_server_of_a_machine_has_its_own(threads: dict[str, threading.Thread]) -> None:
    everywhere = cores.allowed()
    chosen = []
    for place in range(len(everywhere) + 1):
        cores.settle(everywhere, cores.CROWD, place)
        chosen.append(where(threads["feed-a"]))
    assert len(set(chosen)) == len(everywhere)
    assert chosen[0] == chosen[-1]  # there are not enough


def test_what_a_changefeed_starts_may_run_anywhere() -> None:
    everywhere = cores.allowed()
    found = []

    def run() -> None:
        cores.settle(everywhere, cores.CROWD, 1)
        found.append(cores.allowed())
        cores.spread(everywhere)
        found.append(cores.allowed())
        cores.spread({100_000})  # there is no such one
        found.append(cores.allowed())

    thread = threading.Thread(target=run, name="feed-b")
    thread.start()
    thread.join()
    assert len(found[0]) == 1
    assert found[1:] == [everywhere, everywhere]


def test_nothing_is_done_where_nothing_is_known(threads: dict[str, threading.Thread]) -> None:
    before = [where(thread) for thread in threads.values()]
    cores.settle(frozenset(), 100, 0)
    assert [where(thread) for thread in threads.values()] == before
