"""Topics of the Kafka sink: asks the brokers for them, and makes them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewPartitions, NewTopic

from rowferry.errors import SinkUnavailable, SinkUnwritable, TopicRefused
from rowferry.flow.sink.kafka.client import Troubles, as_error, options_checked, words_of
from rowferry.flow.sink.kafka.options import BATCH_OVERHEAD, KafkaSettings
from rowferry.moment import moment

T = TypeVar("T")
_PATIENCE_S: Final = 0.5  # before the first look at what went wrong meanwhile
_AT_ONCE: Final = 100  # topics in one request
_TRIES: Final = 3  # of a request to make topics: brokers that are busy answer late
_NO_ID: Final = str(Uuid(0, 0))


class Topics:
    """Asks for topics and makes them (driver).

    Attributes:
        cluster: the id of the brokers' cluster, once topics were asked for; "": they have none.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.cluster = ""
        self._timeout_s = settings.timeout_s
        self._troubles = Troubles(settings.connection["bootstrap.servers"])
        with options_checked():
            own: Any = {**settings.connection, "error_cb": self._troubles, "log_level": 0}
            self._admin = AdminClient(own)

    def partition_counts(self) -> dict[str, int]:
        """Return all topics that this login may see, with their partition counts.

        Raises:
            SinkUnavailable: no broker answered.
            SinkUnwritable: a broker refused the login.
        """
        cluster = self._listed()
        self._troubles.forget()
        self.cluster = str(cluster.cluster_id or "")
        return {
            name: len(topic.partitions)
            for name, topic in cluster.topics.items()
            if topic.error is None
        }

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return the brokers' own ids of topics, which a topic that is made again does not keep.

        None: there is no such topic. "": the brokers have no ids, or this login may not see them.
        """
        moment("ask for topic ids")
        ids: dict[str, str | None] = {}
        for some in _parts(topics):
            futures = self._admin.describe_topics(
                TopicCollection(some), request_timeout=self._timeout_s
            )
            for topic, future in futures.items():
                try:
                    topic_id = str(future.result().topic_id)
                    ids[topic] = "" if topic_id == _NO_ID else topic_id
                except KafkaException as err:
                    if err.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        ids[topic] = None
                        continue
                    error = as_error(err.args[0], f"asking for topic {topic}", self._troubles)
                    if isinstance(error, SinkUnavailable):
                        raise error from None
                    ids[topic] = ""
        return ids

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be in each of these topics."""
        configured = self._settings.options.max_message_bytes
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        limits = {}
        for some in _parts(asked):
            for resource, configs in self._configs(some).items():
                limit = configs.get("max.message.bytes") if configs else None
                limits[resource.name] = (
                    configured if limit is None else min(configured, int(limit) - BATCH_OVERHEAD)
                )
        return limits

    def least_in_sync(self) -> int:
        """Return how many replicas must be in sync where a topic says nothing of its own."""
        return int(self.broker_settings()[0].get("min.insync.replicas") or 1)

    def broker_settings(self) -> tuple[Mapping[str, str | None], int]:
        """Return a broker's settings, as far as this login may see them, and how many there are."""
        brokers = self._listed().brokers
        (configs,) = self._configs(
            [ConfigResource(ConfigResource.Type.BROKER, str(min(brokers)))]
        ).values()
        return configs or {}, len(brokers)

    def topic_settings(self, topic: str) -> Mapping[str, str | None]:
        """Return a topic's settings, as far as this login may see them."""
        (configs,) = self._configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return configs or {}

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, so that it has `total`.

        Raises:
            TopicRefused: the broker refuses, with its words.
        """
        moment("add partitions")
        (future,) = self._admin.create_partitions(
            [NewPartitions(topic, total)], request_timeout=self._timeout_s
        ).values()
        try:
            future.result(self._timeout_s + 5)
        except KafkaException as err:
            if self.partition_counts().get(topic, 0) < total:
                raise self._not_created(topic, err.args[0]) from None

    def create(self, wanted: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Make topics, each with its partitions; those that are there already stay as they are.

        Args:
            wanted: the topics, with their partitions.
            config: their settings, where they differ from the broker's.

        Raises:
            TopicRefused: the broker refuses one, with its words.
        """
        made = self._create(wanted, in_earnest=True, config=config)
        end = time.monotonic() + self._timeout_s
        # A producer that asks a broker too early would not find them.
        while late := made.keys() - self.partition_counts().keys():
            if time.monotonic() > end:
                raise SinkUnavailable(
                    f"Kafka at {self._troubles.at}: topic {min(late)} was created, and it is not "
                    "there yet, or this login may not see it"
                )
            time.sleep(0.05)

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Ask whether topics could be made; makes none.

        Raises:
            TopicRefused: the broker would refuse one, with its words.
        """
        self._create(wanted, in_earnest=False)

    def check_write(self, topics: Iterable[str]) -> None:
        """Ask whether this login may write to topics that are there.

        Raises:
            SinkUnwritable: it may not.
        """
        moment("ask for rights on topics")
        needed = {AclOperation.WRITE, AclOperation.ALL}
        for some in _parts(topics):
            futures = self._admin.describe_topics(
                TopicCollection(some),
                include_authorized_operations=True,
                request_timeout=self._timeout_s,
            )
            for topic, future in futures.items():
                with self._asking(f"asking for rights on topic {topic}"):
                    rights = future.result().authorized_operations
                if rights is not None and not needed & set(rights):
                    raise SinkUnwritable(
                        f"Kafka at {self._troubles.at}: this login may not write to topic {topic}; "
                        "grant it the right WRITE"
                    )

    def _create(
        self,
        wanted: Mapping[str, int],
        in_earnest: bool,
        config: Mapping[str, str] | None = None,
    ) -> dict[str, int]:
        """Make topics, or only ask; return those that were not there.

        What is not answered in time, or only not possible for now, is asked again: the topic may
        have been made meanwhile.
        """
        made, left = dict(wanted), dict(wanted)
        for turn in range(_TRIES):
            late: dict[str, int] = {}
            for some in _parts(left.items()):
                for topic, error in self._ask_to_create(some, in_earnest, config):
                    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                        if turn == 0:
                            del made[topic]
                        continue
                    refusal = self._not_created(topic, error)
                    if turn + 1 == _TRIES or not isinstance(refusal, SinkUnavailable):
                        raise refusal
                    late[topic] = left[topic]
            if not late:
                break
            left = late
            time.sleep(_PATIENCE_S)
        return made

    def _ask_to_create(
        self,
        some: list[tuple[str, int]],
        in_earnest: bool,
        config: Mapping[str, str] | None,
    ) -> Iterator[tuple[str, KafkaError]]:
        """Yield the topics that are not made by this request, each with its error."""
        moment("create topics")
        factor = self._settings.options.replication_factor
        futures = self._admin.create_topics(
            [NewTopic(name, count, factor, config=dict(config or {})) for name, count in some],
            request_timeout=self._timeout_s,
            validate_only=not in_earnest,
        )
        for topic, future in futures.items():
            try:
                future.result(self._timeout_s + 5)
            except KafkaException as err:
                yield topic, err.args[0]
            except TimeoutError:
                yield topic, KafkaError(KafkaError._TIMED_OUT, "no answer")

    def _not_created(self, topic: str, error: KafkaError) -> SinkUnavailable | TopicRefused:
        refusal = as_error(error, f"creating topic {topic}", self._troubles)
        if isinstance(refusal, SinkUnavailable):
            return refusal
        return TopicRefused(
            f"topic {topic!r} cannot be created: {words_of(error)}; create it yourself, or correct "
            "replication-factor or the rights"
        )

    def _listed(self) -> ClusterMetadata:
        """Return what the brokers tell of themselves and of topics.

        A login that is refused is tried again and again by the library: not by us.
        """
        moment("list topics")
        wait_s, left_s = _PATIENCE_S, self._timeout_s
        while True:
            wait_s = min(wait_s, left_s)
            try:
                return self._admin.list_topics(timeout=wait_s)
            except KafkaException as err:
                self._admin.poll(0)
                failure = as_error(err.args[0], "listing topics", self._troubles)
                left_s -= wait_s
                if left_s <= 0 or isinstance(failure, SinkUnwritable):
                    raise failure from None
                wait_s *= 2  # a large cluster may need long for its answer

    def _configs(
        self, asked: list[ConfigResource]
    ) -> dict[ConfigResource, dict[str, str | None] | None]:
        """Return settings; None for those that this login may not see, though it may write."""
        moment("read topic settings")
        futures = self._admin.describe_configs(asked, request_timeout=self._timeout_s)
        configs: dict[ConfigResource, dict[str, str | None] | None] = {}
        for resource, future in futures.items():
            try:
                with self._asking(f"asking for settings of {resource.name}"):
                    entries = future.result()
                configs[resource] = {name: entry.value for name, entry in entries.items()}
            except SinkUnwritable:
                configs[resource] = None
        return configs

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as err:
            self._admin.poll(0)
            raise as_error(err.args[0], doing, self._troubles) from None


def _parts(many: Iterable[T]) -> Iterator[list[T]]:
    """Yield as many as one request should hold, in turn."""
    left = list(many)
    for start in range(0, len(left), _AT_ONCE):
        yield left[start : start + _AT_ONCE]
