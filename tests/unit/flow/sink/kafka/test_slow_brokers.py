"""Brokers that take little in a second, as with quotas: no message runs out of its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kafka_kit import kafka_of

from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.kafka import sender as module
from rowferry.flow.sink.kafka.sender import Sender, delivery_ms


class _SlowProducer:
    """Stands for the client library, with brokers that take so many bytes in a second."""

    def __init__(self, rate: int) -> None:
        self.rate, self.now = rate, 0.0
        self.longest_s, self.most = 0.0, 0
        self._queue: deque[tuple[float, int]] = deque()
        self._bytes = self._taken = 0

    def __len__(self) -> int:
        return len(self._queue)

    def produce_batch(self, topic: str, chunk: Sequence[dict[str, Any]], **about: Any) -> int:
        for one in chunk:
            self._queue.append((self.now, len(one["value"])))
            self._bytes += len(one["value"])
        self.most = max(self.most, self._bytes)
        return len(chunk)

    def poll(self, wait_s: float) -> None:
        self.now += wait_s
        self._taken += int(wait_s * self.rate)
        while self._queue and self._queue[0][1] <= self._taken:
            since, size = self._queue.popleft()
            self._taken -= size
            self._bytes -= size
            self.longest_s = max(self.longest_s, self.now - since)
        if not self._queue:
            self._taken = 0

    def flush(self, wait_s: float) -> int:
        self.poll(wait_s)
        return len(self)


@pytest.mark.parametrize("messages", [16, 1000])  # in a packet
@pytest.mark.parametrize(("rate", "least"), [(1 << 20, 0), (200 << 20, 48 << 20)])
def test_no_message_waits_longer_than_it_may(
    rate: int, least: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _SlowProducer(rate)
    monkeypatch.setattr(module.confluent_kafka, "Producer", lambda settings: slow)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: slow.now))
    settings = kafka_of()._settings
    one = Sender(settings, 10 << 20)
    packet = Encoded(pa.array([b"x" * 64000] * messages, pa.large_binary()))
    for size in range(1, 24):  # micro-batches that grow
        for _ in range(size << 20 >> 16):
            one.send("t", 0, Encoded(packet.values.slice(0, 1)))
        one.flush()
    while slow.now < 200 and slow.most < _ENOUGH:
        one.send("t", 0, packet)
    one.flush()
    assert slow.longest_s < delivery_ms(settings) / 2000
    assert slow.most > least  # fast ones have enough to do


_ENOUGH = 60 << 20
