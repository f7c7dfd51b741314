"""A feed from a MySQL server to a queueing service in this process, or in one that is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

from kafka_feed_kit import KafkaFeed, Scene

from rowferry.moment import watched
from rowferry.testing.servers import Kafka, MySql
from rowferry.testing.servers.queues.amazon import REGION
from rowferry.testing.servers.queues.nats_server import PASSWORD, USER

LOGIN = f"{USER}:{PASSWORD}@"
SERVERS = {
    "redis": "redis_server",
    "nats": "nats_server",
    "rabbitmq": "rabbitmq_broker",
    "sqs": "amazon_server",
    "kinesis": "amazon_server",
}
LEAVES_REPEATS_OUT = frozenset({"redis", "nats", "sqs"})
SENDS = {  # the moment before each batch
    "redis": "add to a stream",
    "nats": "send to a stream",
    "rabbitmq": "publish to a queue",
    "sqs": "send to a FIFO queue",
    "kinesis": "put records",
}


class Seen(NamedTuple):
    """A message, with its place in its partition."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    id: str


@dataclass
class Queue:
    """One of the services."""

    kind: str
    server: Any

    @property
    def address(self) -> str:
        """What a sink URI begins with."""
        if self.kind in ("sqs", "kinesis"):
            return f"{self.kind}://{REGION}"
        login = "" if self.kind == "redis" else LOGIN
        return f"{self.kind}://{login}{self.server.address}"

    @property
    def parameters(self) -> str:
        """What every sink URI ends with."""
        if self.kind in ("sqs", "kinesis"):
            return f"&endpoint={self.server.endpoint}&access-key=of&secret-access-key=tests"
        return ""

    def read_all(self, topic: str) -> list[Seen]:
        counts: Counter[int] = Counter()
        found = []
        for message in self.server.read_all(topic):
            found.append(Seen(message.partition, counts[message.partition], *message[1:]))
            counts[message.partition] += 1
        return found


class QueueScene(Scene):
    """A database of a test's own, with a name that its topics have too."""

    def __init__(self, server: MySql, queue: Queue, folder: Path, test: str) -> None:
        super().__init__(server, cast(Kafka, queue), folder, test)
        self.queue = queue

    def feed(self, query: str, config: str = "", **more: str) -> KafkaFeed:
        """Make a feed of the whole database and create it, or go on with the one that is there."""
        place = {"address": self.queue.address, **more}
        return super().feed(query + self.queue.parameters, config, **place)

    def check_ids(self, topic: str = "") -> None:
        """See that an id belongs to one message, and which services leave repeats out."""
        seen = self.queue.read_all(topic or self.database)
        assert seen
        content: dict[tuple[int, str], tuple[bytes | None, bytes | None]] = {}
        for message in seen:
            known = content.setdefault(
                (message.partition, message.id), (message.key, message.value)
            )
            assert known == (message.key, message.value), message.id
        if self.queue.kind in LEAVES_REPEATS_OUT:
            assert len(content) == len(seen)

    def killed_run(self, query: str, config: str, after: int) -> None:
        """Run the feed in a process that is killed with -9 before one of its batches."""
        assert not self._feeds or all(feed._loop is None for feed in self._feeds)
        feeds, self._feeds = self._feeds, []
        child = get_context("spawn").Process(
            target=_run_until_killed, args=(self, query, config, after)
        )
        child.start()
        child.join(300)
        self._feeds = feeds
        assert child.exitcode == -signal.SIGKILL, child.exitcode


def _run_until_killed(scene: QueueScene, query: str, config: str, after: int) -> None:
    left = after

    def count(name: str) -> None:
        nonlocal left
        left -= name == SENDS[scene.queue.kind]
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    feed = scene.feed(query, config)
    with watched(count):
        while True:
            feed.step()
