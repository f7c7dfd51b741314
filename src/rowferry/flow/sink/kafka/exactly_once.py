"""What the Kafka sink does besides, with exactly-once: its ledger, its lanes, its announcer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from rowferry.change.event_counts import EventCounts
from rowferry.errors import SinkUnwritable, TopicRefused
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.kafka.announcer import Announcer
from rowferry.flow.sink.kafka.lanes import TransactionLanes
from rowferry.flow.sink.kafka.ledger import CONFIG
from rowferry.flow.sink.kafka.options import KafkaSettings
from rowferry.flow.sink.kafka.topics import Topics

_STATE_TOPIC: Final = "__transaction_state"  # where brokers keep transactions


class ExactlyOnce:
    """The two sides of an exactly-once changefeed.

    Attributes:
        lanes: what tasks do.
        announcer: what the driver does.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        changefeed: str,
        topics: Callable[[], Topics],
        counts: EventCounts,
    ) -> None:
        self._settings, self._topics = settings, topics
        self.lanes = TransactionLanes(settings, changefeed, counts)
        self.announcer = Announcer(settings, counts)

    @property
    def missing(self) -> set[str]:
        """Topics that are not there any more, as far as is known."""
        return self.lanes.missing | self.announcer.missing

    def probe(self, owner: Owner) -> None:
        """Ask the brokers whether they have transactions for this changefeed; writes nothing.

        Whether this login may use its transactional ids nobody tells: that shows when it opens.

        Raises:
            SinkUnwritable: they would take none, or none of this length.
            TopicRefused: the ledger cannot be made, or is not fit for it.
            SinkOwned: the ledger is another changefeed's.
        """
        counts = self._topics().partition_counts()
        self._check_brokers(counts.keys())
        ledger = self._settings.ledger
        if ledger in counts:
            self._topics().check_write([ledger])
            self._check_compacted()
            self.announcer.check(owner.changefeed)
            return
        self._refuse_missing()
        self._topics().check_create({ledger: self._partitions})

    def open(self, owner: Owner) -> str:
        """Make the ledger where it is missing, and claim it; return its id, "": not known.

        Raises:
            TopicRefused: it cannot be made, or is not fit for it.
            SinkOwned: it is another changefeed's.
        """
        ledger, topics = self._settings.ledger, self._topics()
        there = topics.partition_counts().get(ledger)
        if there is None:
            self._refuse_missing()
            topics.create({ledger: self._partitions}, CONFIG)
        elif there < self._partitions:
            topics.add_partitions(ledger, self._partitions)
        self._check_compacted()
        self.announcer.claim(owner, max(self._partitions, there or 0) - 1)
        return topics.ids([ledger])[ledger] or ""

    def drop(self) -> None:
        """End all producers; what was not committed is never shown."""
        self.lanes.drop()
        self.announcer.drop()

    def close(self) -> None:
        """Let connections go."""
        self.lanes.close()
        self.announcer.close()

    @property
    def _partitions(self) -> int:
        return self._settings.options.transaction_lanes + 1

    def _refuse_missing(self) -> None:
        if not self._settings.options.auto_create_topic:
            words = ", ".join(f"{key}={value}" for key, value in CONFIG.items())
            raise TopicRefused(
                f"`auto-create-topic` is false, and the ledger {self._settings.ledger} not found; "
                f"create it with {self._partitions} partitions and {words}, or allow it"
            )

    def _check_compacted(self) -> None:
        """Refuse a ledger whose last records may be deleted by their age."""
        policy = self._topics().topic_settings(self._settings.ledger).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise TopicRefused(
                f"the ledger {self._settings.ledger} has cleanup.policy = {policy}; set it to "
                "compact, or its notes are deleted after a while"
            )

    def _check_brokers(self, topics: Collection[str]) -> None:
        settings, brokers = self._topics().broker_settings()
        asked_ms = round(1000 * self._settings.transaction_s)
        longest = settings.get("transaction.max.timeout.ms")
        if longest is not None and asked_ms > int(longest):
            raise SinkUnwritable(
                f"transaction-timeout = {asked_ms // 1000}s is more than the brokers' "
                f"transaction.max.timeout.ms = {longest}; lower it"
            )
        replicas = settings.get("transaction.state.log.replication.factor")
        if _STATE_TOPIC not in topics and replicas is not None and int(replicas) > brokers:
            raise SinkUnwritable(
                f"the brokers keep transactions in {replicas} replicas "
                f"(transaction.state.log.replication.factor), and there are {brokers}; lower it "
                "there, or leave exactly-once out"
            )
