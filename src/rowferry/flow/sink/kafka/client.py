"""What the Kafka sink asks of the client library; its errors are turned into ours here, once."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic

from rowferry.errors import (
    BadOption,
    MessageTooLarge,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TopicRefused,
)
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.kafka.options import Settings

_BATCH_BYTES: Final = 1_000_000
_QUEUED_MESSAGES: Final = 400_000
_QUEUED_BYTES: Final = 64 << 20
_PROPAGATION_MS: Final = 3000
_PATIENCE_S: Final = 0.5  # before a look at what went wrong meanwhile
_CHUNK: Final = 10_000  # messages handed to the library at once
_OVERHEAD: Final = 128  # of a batch with one message, at most
_FOR_GOOD: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_ALERT: Final = re.compile("alert [a-z ]*(certificate|unknown ca)")
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class Troubles:
    """The last thing that went wrong on a client's connections, from the library's own thread.

    Attributes:
        at: the brokers' address, for the words of errors.
    """

    def __init__(self, at: str = "") -> None:
        self.at = at
        self._lock = threading.Lock()
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Note an error: this is the library's `error_cb`."""
        with self._lock:
            # "All brokers are down" follows what says why.
            if self._last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
                self._last = error

    def last(self) -> KafkaError | None:
        """Return it; None when nothing went wrong."""
        with self._lock:
            return self._last

    def forget(self) -> None:
        """Begin anew: something worked, so what went wrong before is no reason any more."""
        with self._lock:
            self._last = None


def as_error(error: KafkaError, doing: str, troubles: Troubles | None = None) -> RowferryError:
    """Return our error for the library's, with its verdict."""
    why = troubles.last() if troubles else None
    told = why if why is not None and _for_good(why) else error
    at = f" at {troubles.at}" if troubles and troubles.at else ""
    words = f"Kafka{at}, {doing}: {_words(told)}"
    if why is not None and why is not told and _words(why) not in words:
        words += f" ({_words(why)})"
    if told.code() in _TOO_LARGE:
        return MessageTooLarge(
            f"{words}; raise max.message.bytes of the topic, or set large-message-handle-option"
        )
    if _for_good(told):
        return SinkUnwritable(f"{words}; correct the login, the rights or the option")
    return SinkUnavailable(words)


def _for_good(error: KafkaError) -> bool:
    # A broker that goes away in the middle of a handshake says nothing about certificates.
    gone = error.code() == KafkaError._SSL and "Disconnected" in error.str()
    # One that refuses ours says so only after the handshake, in what looks like a lost connection.
    return bool(error.code() in _FOR_GOOD and not gone) or bool(_ALERT.search(error.str()))


def _words(error: KafkaError) -> str:
    return " ".join(error.str().split())


class Topics:
    """Asks for topics and makes them (driver)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._troubles = Troubles(settings.connection["bootstrap.servers"])
        with _options_checked():
            told: Any = {**settings.connection, "error_cb": self._troubles, "log_level": 0}
            self._admin = AdminClient(told)

    def partition_counts(self) -> dict[str, int]:
        """Return all topics that this login may see, with their partition counts.

        Raises:
            SinkUnavailable: no broker answered.
            SinkUnwritable: a broker refused the login.
        """
        found = self._listed()
        self._troubles.forget()
        return {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None
        }

    def largest_message(self, topic: str | None) -> int:
        """Return how long a message may be in a topic; None: in one that is still to be made."""
        if topic is None:
            kind, name, key = ConfigResource.Type.BROKER, self._broker(), "message.max.bytes"
        else:
            kind, name, key = ConfigResource.Type.TOPIC, topic, "max.message.bytes"
        configured = self._settings.max_message_bytes
        try:
            found = self._config(ConfigResource(kind, name)).get(key)
        except SinkUnwritable:
            return configured  # this login may write but not look at settings
        return configured if found is None else min(configured, int(found) - _OVERHEAD)

    def least_in_sync(self) -> int:
        """Return how many replicas must be in sync where a topic says nothing of its own."""
        try:
            found = self._config(ConfigResource(ConfigResource.Type.BROKER, self._broker()))
        except SinkUnwritable:
            return 1
        return int(found.get("min.insync.replicas") or 1)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic; one that is there already stays as it is.

        Raises:
            TopicRefused: the broker refuses it, with its words.
        """
        if self._create(topic, partitions, in_earnest=True):
            self._wait_for(topic, partitions)

    def check_create(self, topic: str, partitions: int) -> None:
        """Ask whether a topic could be made; makes none.

        Raises:
            TopicRefused: the broker would refuse it, with its words.
        """
        self._create(topic, partitions, in_earnest=False)

    def check_write(self, topic: str) -> None:
        """Ask whether this login may write to a topic that is there.

        Raises:
            SinkUnwritable: it may not.
        """
        future = self._admin.describe_topics(
            TopicCollection([topic]),
            include_authorized_operations=True,
            request_timeout=self._timeout_s,
        )[topic]
        with self._asking(f"asking for rights on topic {topic}"):
            rights = future.result().authorized_operations
        if rights is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(rights):
            raise SinkUnwritable(
                f"Kafka at {self._troubles.at}: this login may not write to topic {topic}; grant "
                "it the right WRITE"
            )

    def _create(self, topic: str, partitions: int, in_earnest: bool) -> bool:
        """Make a topic, or only ask; return whether it was not there."""
        factor = self._settings.replication_factor
        future = self._admin.create_topics(
            [NewTopic(topic, partitions, factor)],
            request_timeout=self._timeout_s,
            validate_only=not in_earnest,
        )[topic]
        try:
            future.result(self._timeout_s + 5)
        except KafkaException as err:
            error = err.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            found = as_error(error, f"creating topic {topic}", self._troubles)
            if isinstance(found, SinkUnavailable):
                raise found from None
            raise TopicRefused(
                f"topic {topic!r} cannot be created: {_words(error)}; create it yourself, or "
                "correct replication-factor or the rights"
            ) from None
        except TimeoutError:
            raise SinkUnavailable(
                f"Kafka at {self._troubles.at}, creating topic {topic}: no answer"
            ) from None
        return True

    def _wait_for(self, topic: str, partitions: int) -> None:
        """Wait until the brokers tell of a new topic: a producer would otherwise not find it."""
        end = time.monotonic() + self._timeout_s
        while self.partition_counts().get(topic, 0) < partitions:
            if time.monotonic() > end:
                raise SinkUnavailable(f"Kafka: topic {topic} was created but is not there yet")
            time.sleep(0.05)

    def _broker(self) -> str:
        return str(min(self._listed().brokers))

    def _listed(self) -> ClusterMetadata:
        """Return what the brokers tell of themselves and of topics.

        A login that is refused is tried again and again by the library: not by us.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            left = end - time.monotonic()
            try:
                return self._admin.list_topics(timeout=max(min(left, _PATIENCE_S), 0.001))
            except KafkaException as err:
                self._admin.poll(0)
                found = as_error(err.args[0], "listing topics", self._troubles)
                if left <= _PATIENCE_S or isinstance(found, SinkUnwritable):
                    raise found from None

    def _config(self, what: ConfigResource) -> dict[str, str | None]:
        future = self._admin.describe_configs([what], request_timeout=self._timeout_s)[what]
        with self._asking(f"asking for settings of {what.name}"):
            return {name: entry.value for name, entry in future.result().items()}

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as err:
            self._admin.poll(0)
            raise as_error(err.args[0], doing, self._troubles) from None


@contextmanager
def _options_checked() -> Iterator[None]:
    """Turn what the library says about options into our words; it never shows their values."""
    try:
        yield
    except KafkaException as err:
        raise BadOption(f"the Kafka client refuses its settings: {err.args[0].str()}") from None


class Sender:
    """A producer for topics whose messages have one largest size. Not for several threads.

    Messages of one partition arrive in the order in which they were sent. Once something failed,
    nothing more can be sent: make a new one.

    Attributes:
        missing: a topic that is not there any more; "": none is known.
    """

    def __init__(self, settings: Settings, largest: int) -> None:
        self._settings = settings
        self.missing = ""
        self._troubles = Troubles(settings.connection["bootstrap.servers"])
        self._failed: tuple[KafkaError, str] | None = None
        self._queued: deque[tuple[int, int]] = deque()  # messages and bytes of each chunk
        self._messages, self._bytes = 0, 0
        with _options_checked():
            self._producer = confluent_kafka.Producer(
                {
                    **settings.connection,
                    **settings.producing,
                    "error_cb": self._troubles,
                    "log_level": 0,
                    "linger.ms": 20,  # `flush` does not wait for it
                    "message.timeout.ms": _delivery_ms(settings),
                    # Topics are there before they are written: one that is missing was deleted.
                    "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
                    "batch.num.messages": 100_000,
                    # The broker's limit holds for a batch, so no batch may exceed a message's.
                    "batch.size": max(min(_BATCH_BYTES, largest), 1),
                    "message.max.bytes": max(largest + _OVERHEAD, 1000),
                    "queue.buffering.max.messages": 2 * _QUEUED_MESSAGES,
                    "queue.buffering.max.kbytes": 1 << 20,
                }
            )

    def send(self, topic: str, partition: int, messages: Encoded) -> None:
        """Queue messages, waiting while too many are under way.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: an earlier message failed.
        """
        values = messages.values.to_pylist()
        if messages.keys is None:
            batch = [{"value": v} for v in values]
        else:
            pairs = zip(messages.keys.to_pylist(), values, strict=True)
            batch = [{"key": k, "value": v} for k, v in pairs]
        size = messages.nbytes
        for start in range(0, len(batch), _CHUNK):
            chunk = batch[start : start + _CHUNK]
            self._make_room()
            taken = self._producer.produce_batch(
                topic, chunk, partition=partition, on_delivery=self._note
            )
            if taken != len(chunk):
                self._refused(topic, partition, chunk)
            part = size * len(chunk) // max(len(batch), 1)
            self._queued.append((len(chunk), part))
            self._messages += len(chunk)
            self._bytes += part
        self._producer.poll(0)
        self._raise_failure()

    def flush(self) -> None:
        """Wait until all is durable.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: some message failed.
        """
        end = time.monotonic() + _delivery_ms(self._settings) / 1000 + 5
        while self._producer.flush(0.5):
            self._raise_failure()
            if time.monotonic() > end:
                raise SinkUnavailable(
                    f"Kafka at {self._troubles.at}, sending: the brokers took too long"
                )
        self._raise_failure()
        self._troubles.forget()
        self._queued.clear()
        self._messages = self._bytes = 0

    def give_up(self) -> None:
        """Forget what is queued, so that nothing of it arrives later."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _make_room(self) -> None:
        while True:
            waiting = len(self._producer)
            while self._queued and self._messages - self._queued[0][0] >= waiting:
                messages, size = self._queued.popleft()
                self._messages -= messages
                self._bytes -= size
            if waiting < _QUEUED_MESSAGES and self._bytes < _QUEUED_BYTES:
                return
            self._producer.poll(0.01)
            self._raise_failure()

    def _note(self, error: KafkaError | None, message: Any) -> None:
        """Keep the first failure; only failures are reported."""
        if error is not None and self._failed is None:
            where = f"sending to {message.topic()} partition {message.partition()}"
            self._failed = (error, where)
            if error.code() in _NO_TOPIC:
                self.missing = message.topic()

    def _refused(self, topic: str, partition: int, chunk: Sequence[dict[str, Any]]) -> None:
        self._producer.poll(0)
        self._raise_failure()  # what failed first says more
        first: Iterable[KafkaError] = (m["_error"] for m in chunk if m.get("_error") is not None)
        error = next(iter(first), None)
        where = f"sending to {topic} partition {partition}"
        if error is None:
            raise SinkUnavailable(
                f"Kafka at {self._troubles.at}, {where}: the client took only a part of all"
            )
        if error.code() in _NO_TOPIC:
            self.missing = topic
        raise as_error(error, where, self._troubles)

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise as_error(*self._failed, self._troubles)


def _delivery_ms(settings: Settings) -> int:
    """How long a message may take before it counts as failed: three requests and a reconnect."""
    return int(3 * settings.producing["request.timeout.ms"]) + 5000
