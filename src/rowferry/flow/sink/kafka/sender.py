"""The producer of the Kafka sink: queues messages in order, and waits until they are durable."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from rowferry.change.event_counts import CALLS, SENT_BYTES, EventCounts
from rowferry.errors import SinkUnavailable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.kafka.client import Troubles, as_error, options_checked
from rowferry.flow.sink.kafka.options import BATCH_OVERHEAD, KafkaSettings
from rowferry.moment import moment

_BATCH_BYTES: Final = 1_000_000
_QUEUED_MESSAGES: Final = 400_000
_QUEUED_BYTES: Final = 64 << 20
# A message's time runs while it is queued, so that no more may wait than goes out in a part of it:
# as many bytes as went out lately, but at least so many.
_LEAST_QUEUED: Final = 2 << 20
_LATELY_S: Final = 5.0
_PROPAGATION_MS: Final = 3000
_CHUNK: Final = 10_000  # messages handed to the library at once
_REPORTS_S: Final = 5.0  # how long reports of failed messages may come behind a fatal error
# Messages that failed, the newest first, each with those before it.
_Failures: TypeAlias = "tuple[KafkaError, Any, _Failures] | None"
# Dropped because an earlier one had failed.
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class Sender:
    """A producer for topics whose messages have one largest size. Not for several threads.

    Messages of one partition arrive in the order in which they were sent. Once something failed,
    nothing more can be sent: make a new one.

    Attributes:
        missing: a topic that is not there any more; "": none is known.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        largest: int,
        counts: EventCounts | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Make one, which connects by itself.

        Args:
            settings: how to connect and to send.
            largest: the size of the largest message.
            counts: where to count what was sent.
            more: further settings of the client library, which win.
        """
        self._counts = counts or EventCounts()
        self._settings = settings
        self.missing = ""
        self._troubles = Troubles(settings.connection["bootstrap.servers"])
        self._failures: _Failures = None
        self._fatal: KafkaError | None = None
        self._queued: deque[tuple[int, int]] = deque()  # messages and bytes of each chunk
        self._messages, self._bytes = 0, 0
        self._gone: deque[tuple[float, int]] = deque()  # when how many bytes went out lately
        self._lately = 0
        with options_checked():
            self._producer = confluent_kafka.Producer(
                {
                    **settings.connection,
                    **settings.producing,
                    "error_cb": self._troubles,
                    "log_level": 0,
                    "linger.ms": 20,  # `flush` does not wait for it
                    "message.timeout.ms": delivery_ms(settings),
                    # Topics are there before they are written: one that is missing was deleted.
                    "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
                    "batch.num.messages": 100_000,
                    # The broker's limit holds for a batch, so no batch may exceed a message's.
                    "batch.size": max(min(_BATCH_BYTES, largest), 1),
                    "message.max.bytes": max(largest + BATCH_OVERHEAD, 1000),
                    "queue.buffering.max.messages": 2 * _QUEUED_MESSAGES,
                    "queue.buffering.max.kbytes": 1 << 20,
                    **(more or {}),
                }
            )

    def send(self, topic: str, partition: int, messages: Encoded) -> None:
        """Queue messages, waiting while too many are under way.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: an earlier message failed.
        """
        moment("produce")
        values = messages.values.to_pylist()
        if messages.keys is None:
            batch = [{"value": v} for v in values]
        else:
            pairs = zip(messages.keys.to_pylist(), values, strict=True)
            batch = [{"key": k, "value": v} for k, v in pairs]
        size = messages.nbytes
        most = min(max(_LEAST_QUEUED * len(batch) // max(size, 1), 1), _CHUNK)
        for start in range(0, len(batch), most):
            chunk = batch[start : start + most]
            self._make_room()
            with self._served():
                taken = self._producer.produce_batch(
                    topic, chunk, partition=partition, on_delivery=self._note
                )
            self._raise_failure()
            if taken != len(chunk):
                self._refused(topic, partition, chunk)
            part = size * len(chunk) // max(len(batch), 1)
            self._counts.add(f"{CALLS}.message", len(chunk))
            self._counts.add(SENT_BYTES, part)
            self._queued.append((len(chunk), part))
            self._messages += len(chunk)
            self._bytes += part
        self._serve(0)
        self._raise_failure()

    def flush(self) -> None:
        """Wait until all is durable.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: some message failed.
        """
        moment("flush producer")
        began = time.monotonic()
        end = began + delivery_ms(self._settings) / 1000 + 5
        left = 1
        while left:
            with self._served():
                left = self._producer.flush(0.5)
            self._raise_failure()
            if time.monotonic() > end:
                raise SinkUnavailable(
                    f"Kafka at {self._troubles.at}, sending: the brokers took too long"
                )
        self._raise_failure()
        self._troubles.forget()
        took = max(time.monotonic() - began, _LATELY_S)
        self._went_out(int(self._bytes * _LATELY_S / took))
        self._queued.clear()
        self._messages = self._bytes = 0
        moment("producer flushed")

    def give_up(self) -> None:
        """Forget what is queued, so that nothing of it arrives later."""
        moment("purge producer")
        with self._served():
            self._producer.purge()
            self._producer.flush(1.0)

    def _make_room(self) -> None:
        while True:
            waiting, before = len(self._producer), self._bytes
            while self._queued and self._messages - self._queued[0][0] >= waiting:
                messages, size = self._queued.popleft()
                self._messages -= messages
                self._bytes -= size
            self._went_out(before - self._bytes)
            most = min(max(self._lately, _LEAST_QUEUED), _QUEUED_BYTES)
            if waiting < _QUEUED_MESSAGES and self._bytes < most:
                return
            self._serve(0.01)
            self._raise_failure()

    def _went_out(self, size: int) -> None:
        now = time.monotonic()
        if size:
            self._gone.append((now, size))
            self._lately += size
        while self._gone and self._gone[0][0] < now - _LATELY_S:
            self._lately -= self._gone.popleft()[1]

    def _note(self, error: KafkaError | None, message: Any) -> None:
        """Keep a failure; only failures are reported.

        The library may call this while it raises a fatal error: then calls fail here, and only
        assignments work. So failures are a chain, the newest first.
        """
        if error is not None:
            self._failures = (error, message, self._failures)

    def _serve(self, wait_s: float) -> None:
        with self._served():
            self._producer.poll(wait_s)

    @contextmanager
    def _served(self) -> Iterator[None]:
        """Keep a fatal error, which the library raises wherever it happens to call back."""
        try:
            yield
        except (KafkaException, SystemError) as err:
            cause: BaseException | None = err
            while cause is not None and not isinstance(cause, KafkaException):
                cause = cause.__cause__
            # A fatal error may come with its cause or, when it interrupts a callback, without:
            # the report of the message that failed follows, and says why.
            bare = KafkaError(KafkaError._FATAL, "the client can send no more")
            self._fatal = bare if cause is None else cause.args[0]

    def _refused(self, topic: str, partition: int, chunk: Sequence[dict[str, Any]]) -> None:
        self._serve(0)
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
        report = self._first_failure()
        # A fatal error comes ahead of the message that it is about, or behind the reports of those
        # that were dropped for it. Each call may raise again, and then serves only a few reports.
        end = time.monotonic() + _REPORTS_S
        while self._cause_unknown(report) and len(self._producer) and time.monotonic() < end:
            self._serve(0.05)
            report = self._first_failure()
        if report is not None and not (self._fatal is not None and self._cause_unknown(report)):
            error, message = report
            if error.code() in _NO_TOPIC:
                self.missing = message.topic()
            where = f"sending to {message.topic()} partition {message.partition()}"
            raise as_error(error, where, self._troubles)
        if self._fatal is not None:
            raise as_error(self._fatal, "sending", self._troubles)

    def _cause_unknown(self, report: tuple[KafkaError, Any] | None) -> bool:
        """Tell whether something failed, and no report says yet what failed first."""
        return self._fatal is not None if report is None else report[0].code() in _PURGED

    def _first_failure(self) -> tuple[KafkaError, Any] | None:
        """Return the first failure; of those only that tell more than that another one was."""
        first, chain = None, self._failures
        while chain is not None:
            error, message, chain = chain
            if first is None or error.code() not in _PURGED or first[0].code() in _PURGED:
                first = error, message
        return first


def delivery_ms(settings: KafkaSettings) -> int:
    """How long a message may take before it counts as failed: three requests and a reconnect."""
    return int(3 * settings.producing["request.timeout.ms"]) + 5000
