"""Sending to one partition: batches that are cut here, and never by the client library."""

from __future__ import annotations

import base64
import operator
import threading
import time
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pulsar

from rowferry.change.event_counts import CALLS, SENT_BYTES, EventCounts
from rowferry.change.plan import Topic
from rowferry.errors import RowferryError, SinkUnavailable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.pulsar.client import CUT, NO_TOPIC, PulsarClient, as_error, name_of
from rowferry.flow.sink.pulsar.options import LARGEST_BATCH, PulsarSettings
from rowferry.flow.sink.pulsar.sequence import Sequence
from rowferry.flow.sink.pulsar.topics import lane_name
from rowferry.moment import moment

_PENDING_BYTES: Final = 64 << 20
_LATE_S: Final = 15.0  # behind the send timeout, reports must have come
_NEVER_MS: Final = 3_600_000  # the library's own timer must not cut a batch
_BASE64: Final = {"key-encoding": "base64"}
# Takes the two arguments of a callback, and nothing else happens: a batch's last message reports.
_NOTHING: Final = operator.is_


class Failure(NamedTuple):
    """What the library calls it that a batch failed, and where."""

    name: str
    topic: str
    partition: int


class Outbox:
    """What is under way in one call, over all lanes: reports come from the library's threads.

    Attributes:
        missing: a topic that is not there any more; "": none is known.
    """

    def __init__(self, settings: PulsarSettings, client: PulsarClient) -> None:
        self._settings, self._client = settings, client
        self._changed = threading.Condition()
        self._messages = self._bytes = 0
        self._failure: Failure | None = None
        self.missing = ""

    def begin(self, messages: int, size: int) -> None:
        """Wait until there is room for a batch, and count it."""
        most = self._settings.options.max_pending_messages
        with self._changed:
            self._wait(
                lambda: (
                    not self._messages
                    or (self._messages + messages <= most and self._bytes + size <= _PENDING_BYTES)
                )
            )
            self._messages += messages
            self._bytes += size

    def end(self, messages: int, size: int, failure: Failure | None) -> None:
        """Take in the report of a batch."""
        with self._changed:
            self._messages -= messages
            self._bytes -= size
            self._failure = self._failure or failure
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all is durable.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: some batch failed.
        """
        with self._changed:
            self._wait(lambda: not self._messages)
        self._client.log.forget()

    def error_of(self, failure: Failure) -> RowferryError:
        """Return our error for what went wrong in sending."""
        if failure.name == NO_TOPIC:
            self.missing = failure.topic
        where = f"sending to {failure.topic} partition {failure.partition}"
        return as_error(failure.name, where, self._client.log)

    def _wait(self, done: Any) -> None:
        end = time.monotonic() + self._settings.options.send_timeout.total_seconds() + _LATE_S
        while self._failure is None and not done():
            if not self._changed.wait(min(1.0, end - time.monotonic())):
                if time.monotonic() >= end:
                    raise SinkUnavailable(
                        f"Pulsar at {self._settings.at}, sending: the brokers took too long"
                    )
        if self._failure is not None:
            raise self.error_of(self._failure)


class Lane:
    """A producer for one partition and one micro-batch. Not for several threads.

    Messages arrive in the order in which they were added. Those that the brokers have under the
    same producer's name and sequence ids are not stored again.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        client: PulsarClient,
        outbox: Outbox,
        topic: Topic,
        partition: int,
        producer: str | None,
        sequence: Sequence,
        binary_keys: bool,
        counts: EventCounts,
    ) -> None:
        """Begin to send.

        Args:
            settings: the sink's.
            client: the connection.
            outbox: takes the reports.
            topic: where to send to.
            partition: which of its partitions.
            producer: the name under which repeats are known; None: they are not looked for.
            sequence: the ids.
            binary_keys: keys are no text: they are sent in base64.
            counts: what was sent.

        Raises:
            SinkUnavailable: no broker answers, or another process sends under this name.
            SinkUnwritable: a broker refuses.
        """
        self._settings, self._outbox = settings, outbox
        self._topic, self._partition = topic.name, partition
        self._sequence, self._binary_keys, self._counts = sequence, binary_keys, counts
        moment("create a producer")
        try:
            self._producer = client.client.create_producer(
                lane_name(topic.name, partition, topic.whole),
                producer_name=producer,
                send_timeout_millis=round(settings.options.send_timeout.total_seconds() * 1000),
                compression_type=_COMPRESSION[settings.options.compression_type],
                max_pending_messages=0,  # no limit: at one, it would cut a batch
                max_pending_messages_across_partitions=0,
                batching_enabled=True,
                batching_max_messages=2 * LARGEST_BATCH,
                batching_max_allowed_size_in_bytes=1 << 30,
                batching_max_publish_delay_ms=_NEVER_MS,
            )
        except pulsar.PulsarException as err:
            raise outbox.error_of(self._failed(name_of(err))) from None
        # A batch that ends where the stored ones end is never joined to what is not stored.
        self._stored = sequence.until(self._producer.last_sequence_id()) if producer else 0
        self._sent = 0
        self._values: list[bytes | None] = []  # of the batch that is being filled
        self._keys: list[bytes | None] = []
        self._size = 0

    def add(self, messages: Encoded) -> None:
        """Send messages, keeping back those of a batch that is not full.

        Raises:
            SinkUnavailable, SinkUnwritable, MessageTooLarge: an earlier message failed.
        """
        values = messages.values.to_pylist()
        keys = [None] * len(values) if messages.keys is None else messages.keys.to_pylist()
        sizes = messages.sizes
        start = 0
        while start < len(values):
            stop = self._room(sizes, start)
            if stop > start:
                self._values += values[start:stop]
                self._keys += keys[start:stop]
                self._size += int(sizes[start:stop].sum())
            if stop < len(values) or self._is_full():
                self._let_go()
            start = stop

    def finish(self) -> None:
        """Send what was kept back."""
        self._let_go()

    def close(self) -> None:
        """End the producer, so that another process may send under its name.

        What has no report yet fails, and does not arrive later.
        """
        moment("close a producer")
        try:
            self._producer.close()
        except pulsar.PulsarException:
            return  # its connection is gone

    def _room(self, sizes: npt.NDArray[np.int64], start: int) -> int:
        """Return up to where messages fit into the batch; at least one does into an empty one."""
        count = self._settings.batch_messages - len(self._values)
        if self._sent < self._stored:
            count = min(count, self._stored - self._sent - len(self._values))
        space = self._settings.options.batching_max_bytes - self._size
        fitting = int(np.searchsorted(np.cumsum(sizes[start : start + count]), space, "right"))
        return start + max(fitting, 0 if self._values else 1)

    def _is_full(self) -> bool:
        ends = self._sent + len(self._values)
        return len(self._values) >= self._settings.batch_messages or ends == self._stored

    def _let_go(self) -> None:
        """Send the batch."""
        count, size = len(self._values), self._size
        if not count:
            return
        values, keys = self._values, self._keys
        self._values, self._keys, self._size = [], [], 0
        self._outbox.begin(count, size)
        first = self._sequence.batch(count)
        self._sent += count
        moment("send a batch")
        last = count - 1
        for place, (value, key) in enumerate(zip(values, keys, strict=True)):
            self._producer.send_async(
                value,
                self._reporter(count, size) if place == last else _NOTHING,
                properties=_BASE64 if key is not None and self._binary_keys else None,
                partition_key=self._key(key),
                sequence_id=first + place,
            )
        # The library has no public call that sends a batch without waiting for its report.
        self._producer._producer.flush_async(_ignored)
        self._counts.add(f"{CALLS}.message", count)
        self._counts.add(SENT_BYTES, size)

    def _key(self, key: bytes | None) -> str | None:
        if key is None:
            return None
        return base64.b64encode(key).decode() if self._binary_keys else key.decode()

    def _failed(self, name: str) -> Failure:
        return Failure(name, self._topic, self._partition)

    def _reporter(self, count: int, size: int) -> Any:
        def report(result: pulsar.Result, message_id: Any) -> None:
            failure = None
            if result != pulsar.Result.Ok:
                failure = self._failed(name_of(result))
            elif count > 1 and message_id.batch_index() != count - 1:
                failure = self._failed(CUT)
            self._outbox.end(count, size, failure)

        return report


_COMPRESSION: Final = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def _ignored(result: pulsar.Result) -> None:
    """Take the report of a flush: the batch's own says the same."""
