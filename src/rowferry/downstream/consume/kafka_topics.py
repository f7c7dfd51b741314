"""Reading Kafka topics from a place on; the client library's errors are turned into ours here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from rowferry.errors import BadOption, TopicRefused
from rowferry.flow.sink.kafka.client import Troubles, as_error
from rowferry.flow.sink.kafka.options import KafkaSettings

_AT_ONCE: Final = 5000
_WAIT_S: Final = 0.1
_LOOK_S: Final = 3.0  # for new topics and partitions


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message as it lies in its topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class _Reader:
    def __init__(self, settings: KafkaSettings) -> None:
        """Connect with the settings of the sink.

        Raises:
            BadOption: the client refuses the settings.
        """
        self._settings, self._troubles = settings, Troubles()
        self._consumer = _consumer(settings, self._troubles)

    def close(self) -> None:
        """Let the connection go."""
        self._consumer.close()

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as err:
            self._consumer.poll(0)
            raise as_error(err.args[0], doing, self._troubles) from None


class TopicReader(_Reader):
    """Reads all partitions in use of some topics, each in its order.

    Attributes:
        partitions: how many partitions of each topic are read.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        wanted: Callable[[str], bool],
        named: Iterable[str],
        at_end: bool,
    ) -> None:
        """Connect and find the topics.

        Args:
            settings: how to connect; its partition count is how many partitions are in use.
            wanted: whether a topic is to be read.
            named: topics that must be there.
            at_end: begin behind what is there now.

        Raises:
            TopicRefused: a named topic is not there.
            SinkUnavailable, SinkUnwritable: no broker answers, or it refuses the login.
        """
        self.partitions: dict[str, int] = {}
        super().__init__(settings)
        self._wanted, self._at_end = wanted, at_end
        self._open: set[tuple[str, int]] = set()  # partitions whose end was not reached yet
        self._looked = 0.0
        self.look()
        missing = [name for name in named if name not in self.partitions]
        if missing:
            self.close()
            raise TopicRefused(f"topic {missing[0]!r} is not there; check its name and the broker")

    @property
    def at_end(self) -> bool:
        """Whether the end of every partition was reached once."""
        return not self._open

    def look(self) -> list[tuple[str, int]]:
        """Take in topics and partitions that are new; return them."""
        self._looked = time.monotonic()
        with self._asking("listing topics"):
            topics = self._consumer.list_topics(timeout=self._settings.timeout_s).topics
        new: list[tuple[str, int]] = []
        for name, topic in topics.items():
            if topic.error is None and topic.partitions and self._wanted(name):
                count = len(topic.partitions)
                used = min(self._settings.partitions or count, count)
                new += [(name, number) for number in range(self.partitions.get(name, 0), used)]
                self.partitions[name] = used
        if new:
            self._open.update(new)
            with self._asking("reading"):
                self._consumer.incremental_assign([self._start(*place) for place in new])
        return new

    def read(self) -> tuple[list[tuple[str, int]], Iterator[TopicMessage]]:
        """Wait a moment; return partitions that are new, then what has come.

        Raises:
            SinkUnavailable, SinkUnwritable: the broker does not answer, or refuses the login.
        """
        new = self.look() if time.monotonic() - self._looked > _LOOK_S else []
        with self._asking("reading"):
            return new, self._messages(self._consumer.consume(_AT_ONCE, timeout=_WAIT_S))

    def _start(self, topic: str, partition: int) -> TopicPartition:
        if not self._at_end:
            return TopicPartition(topic, partition, OFFSET_BEGINNING)
        place = TopicPartition(topic, partition)
        ends = self._consumer.get_watermark_offsets(place, timeout=self._settings.timeout_s)
        return TopicPartition(topic, partition, ends[1] if ends else OFFSET_BEGINNING)

    def _messages(self, messages: list[Any]) -> Iterator[TopicMessage]:
        for one in messages:
            error = one.error()
            if error is None:
                place = (one.topic(), one.partition(), one.offset())
                yield TopicMessage(*place, one.key(), one.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._open.discard((one.topic(), one.partition()))
            else:
                raise as_error(error, f"reading {one.topic()}", self._troubles)


class PartitionReader(_Reader):
    """Reads stretches of single partitions, wherever they lie."""

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: there is no such topic."""
        with self._asking("listing topics"):
            known = self._consumer.list_topics(topic, timeout=self._settings.timeout_s).topics
        there = known.get(topic)
        return 0 if there is None or there.error is not None else len(there.partitions)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the offset of the first message, and the one behind the last."""
        place = TopicPartition(topic, partition)
        with self._asking("reading"):
            ends = self._consumer.get_watermark_offsets(place, timeout=self._settings.timeout_s)
        return ends or (0, 0)

    def offset_at(self, topic: str, partition: int, ms: int) -> int | None:
        """Return the offset of the first message sent at or after a time; None: there is none."""
        place = TopicPartition(topic, partition, max(0, ms))
        with self._asking("reading"):
            (answer,) = self._consumer.offsets_for_times([place], timeout=self._settings.timeout_s)
        return None if answer.offset < 0 else int(answer.offset)

    def stretch(
        self, topic: str, partition: int, start: int, end: int, ends_at: float
    ) -> Iterator[TopicMessage]:
        """Yield the messages from one offset up to another, which does not belong to it.

        Raises:
            TimeoutError: the monotonic clock has come to `ends_at` before.
            SinkUnavailable, SinkUnwritable: the broker does not answer, or refuses the login.
        """
        with self._asking("reading"):
            self._consumer.assign([TopicPartition(topic, partition, start)])
        try:
            while True:
                with self._asking("reading"):
                    messages = self._consumer.consume(_AT_ONCE, timeout=_WAIT_S)
                for one in messages:
                    error = one.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return
                    if error is not None:
                        raise as_error(error, f"reading {topic}", self._troubles)
                    offset = int(one.offset() or 0)
                    if offset >= end:
                        return
                    yield TopicMessage(topic, partition, offset, one.key(), one.value())
                    if offset == end - 1:
                        return
                if time.monotonic() >= ends_at:
                    raise TimeoutError
        finally:
            self._consumer.unassign()


def _consumer(settings: KafkaSettings, troubles: Troubles) -> Consumer:
    client_settings: dict[str, Any] = {
        **settings.connection,
        "group.id": "rowferry-consume",  # nothing is stored under it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",  # what a transaction took back was never sent
        "fetch.wait.max.ms": 50,
        "error_cb": troubles,
        "log_level": 0,
    }
    try:
        return Consumer(client_settings)
    except KafkaException as err:
        raise BadOption(f"the Kafka client refuses its settings: {err.args[0].str()}") from None
