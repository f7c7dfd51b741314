"""Lanes side by side: what belongs to one lane is done in order, by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from queue import Queue
from typing import Final, TypeVar

T = TypeVar("T")
_WAITING: Final = 1  # items that may wait for each thread: memory stays bounded


def in_lanes(
    items: Iterator[T],
    lane_of: Callable[[T], Hashable],
    width: int,
    work: Callable[[T, threading.Event], None],
) -> None:
    """Call `work` on every item, in at most `width` threads, each lane's items in their order.

    On return all of it is done. The first error, also one of `items`, ends it and is raised: no
    further call begins, and the event that calls under way were given is set.
    """
    stop = threading.Event()
    errors: list[BaseException] = []
    queues: list[Queue[T | None]] = []
    threads: list[threading.Thread] = []
    seats: dict[Hashable, Queue[T | None]] = {}

    def serve(waiting: Queue[T | None]) -> None:
        while (item := waiting.get()) is not None:
            if stop.is_set():
                continue  # the giver may be waiting for room
            try:
                work(item, stop)
            except BaseException as err:
                errors.append(err)
                stop.set()

    def seat_of(lane: Hashable) -> Queue[T | None]:
        if lane not in seats:
            if len(queues) < width:
                queues.append(Queue(_WAITING))
                threads.append(threading.Thread(target=serve, args=(queues[-1],), daemon=True))
                threads[-1].start()
            seats[lane] = queues[len(seats) % width]
        return seats[lane]

    try:
        for item in items:
            if stop.is_set():
                break
            seat_of(lane_of(item)).put(item)
    except BaseException:
        stop.set()
        raise
    finally:
        for waiting in queues:
            waiting.put(None)
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
