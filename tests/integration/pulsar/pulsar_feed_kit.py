"""A feed from a MySQL server to Pulsar in this process: the feed to Kafka with another broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

from kafka_feed_kit import KafkaFeed, Scene

from rowferry.testing.servers import Kafka, MySql, Pulsar


class PulsarScene(Scene):
    """A database of a test's own, with a name that its topics have too."""

    def __init__(self, server: MySql, broker: Pulsar, folder: Path, test: str) -> None:
        super().__init__(server, cast(Kafka, broker), folder, test)
        self.pulsar = broker

    def feed(self, query: str, config: str = "", **more: str) -> KafkaFeed:
        """Make a feed of the whole database and create it."""
        web = f"web-service-url={self.pulsar.web_url}&deduplication=required"
        place = {"address": f"pulsar://{self.pulsar.address}", **more}
        return super().feed(f"{query}&{web}", config, **place)

    def stored(self) -> int:
        """Return how many messages the database's own topic holds."""
        stats = self.pulsar.ask(
            "GET", f"/persistent/public/default/{self.database}/partitioned-stats"
        )
        return int(stats["msgInCounter"])

    def repeats(self, topic: str = "") -> dict[Any, int]:
        """Return messages that are there more than once in one partition, each with how often."""
        stored = self.pulsar.read_all(topic or self.database)
        counts = Counter((m.partition, m.key, m.value) for m in stored)
        return {message: count for message, count in counts.items() if count > 1}
