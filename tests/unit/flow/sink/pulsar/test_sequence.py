"""Sequence ids: whatever way a replay cuts its batches, nothing that is not stored is dropped."""

from __future__ import annotations

import random

import pytest

from rowferry.errors import SinkUnwritable
from rowferry.flow.sink.pulsar.sequence import Sequence
from rowferry.flow.sink.queue.lineage import OLDEST, SendLineage

LINEAGE = SendLineage("token", 40)


class Broker:
    """What a broker does with batches: it looks at the first id, and drops or stores all of one."""

    def __init__(self) -> None:
        self.last = -1
        self.stored: list[int] = []

    def take(self, first_id: int, messages: list[int]) -> None:
        if first_id > self.last:
            self.last = first_id
            self.stored += messages


def send(broker: Broker, micro_batch: int, count: int, dice: random.Random, until: int) -> None:
    """Send `count` messages in batches of any size, and fail behind `until` of them."""
    ids = Sequence(LINEAGE, micro_batch)
    stored, place = ids.until(broker.last), 0
    while place < min(count, until):
        size = min(dice.randint(1, 9), count - place)
        if place < stored:
            size = min(size, stored - place)
        first = micro_batch * 1000
        broker.take(ids.batch(size), list(range(first + place, first + place + size)))
        place += size


def test_replays_of_any_cut_store_each_message_once(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        broker, wanted = Broker(), []
        for micro_batch in range(41, 44):
            count = dice.randint(0, 40)
            for _ in range(dice.randint(0, 3)):
                send(broker, micro_batch, count, dice, dice.randint(0, 40))
            send(broker, micro_batch, count, dice, count)
            wanted += range(micro_batch * 1000, micro_batch * 1000 + count)
        assert broker.stored == wanted


def test_ids_grow_from_batch_to_batch_and_inside_of_one() -> None:
    ids = Sequence(LINEAGE, 41)
    first, second = ids.batch(3), ids.batch(1000)
    assert 0 < first < first + 2 < second < second + 999 < ids.batch(1)
    assert second + 999 < Sequence(LINEAGE, 42).batch(1) < 1 << 63
    assert Sequence(LINEAGE, 40 + OLDEST).batch(1 << 28) + 1000 < 1 << 63


def test_more_messages_than_ids() -> None:
    with pytest.raises(SinkUnwritable, match="more partitions"):
        Sequence(LINEAGE, 41).batch((1 << 28) + 1)


def test_a_lineage_in_a_plan() -> None:
    assert SendLineage.parse(str(LINEAGE)) == LINEAGE
