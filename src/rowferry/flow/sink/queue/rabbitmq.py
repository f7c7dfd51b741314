"""RabbitMQ as a sink: a quorum queue for each partition of a topic, `topic.partition`.

Messages are published with confirms: one counts as stored when most of its queue's members have
written it. The broker does not look for repeats: readers know them by `message_id`.
"""

from __future__ import annotations

import ssl
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import amqp

from rowferry.errors import (
    BadUri,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TopicRefused,
)
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import SinkTraits
from rowferry.flow.sink.queue.service import Batch, LaneName, id_of_copy, until_stored
from rowferry.flow.sink.queue.service_sink import (
    QueueOptions,
    ServiceSink,
    certificate,
    private_key,
    queue_traits,
    refuse_half,
)
from rowferry.flow.sink.web_calls import on_one_line
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, duration, flag, one_of, option, text
from rowferry.spec.uri_form import UriPart

KEY, EPOCH, NO_VALUE = "rowferry-key", "rowferry-epoch", "rowferry-no-value"
_PORT, _TLS_PORT = 5672, 5671
_LONGEST: Final = 255  # bytes of a queue's name
_PERSISTENT: Final = 2
# Without this the library reads from the socket before each message.
_ABOUT: Final = {"product": "rowferry", "capabilities": {"connection.blocked": False}}
_NOT_STORED: Final = "the broker did not store a message: its queue is full, or has no majority"
_FOR_GOOD: Final = (amqp.AccessRefused, amqp.NotAllowed, amqp.PreconditionFailed)


class RabbitMqOptions(QueueOptions, section="sink.rabbitmq-config"):
    """The options of the RabbitMQ sink."""

    virtual_host = option(text(), "/", "The virtual host.", uri=True)
    queue_type = option(
        one_of("quorum", "classic"),
        "quorum",
        "The type of queues that are created. A classic queue is on one node only.",
        uri=True,
    )
    timeout = option(
        duration(timedelta(milliseconds=1)),
        timedelta(seconds=30),
        "To connect, and to wait until messages are stored.",
        uri=True,
    )
    ca = option(
        text(), "", "File of the authorities that signed the broker.", uri=True, names="path"
    )
    cert = certificate()
    key = private_key()
    insecure_skip_verify = option(flag(), False, "Trust any broker: for tests only.", uri=True)


class RabbitMqSink(ServiceSink):
    """Messages in queues of RabbitMQ."""

    SERVICE = "RabbitMQ"
    TRAITS: ClassVar[SinkTraits] = queue_traits(
        "RabbitMQ", "sink.rabbitmq-config", UriPart("Host and port", "rabbit.example:5672")
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (RabbitMqOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or not one broker.
            OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        options = spec.options(RabbitMqOptions)
        uri = spec.sink
        refuse_half(options.cert, options.key)
        parts = urlsplit(f"//{uri.address}")
        if not parts.hostname or "," in uri.address:
            raise BadUri(
                "the sink URI must name one broker; write it as rabbitmq://host:5672/topic"
            )
        encrypted = uri.scheme.endswith("+ssl")
        port = parts.port or (_TLS_PORT if encrypted else _PORT)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        wait_s = options.timeout.total_seconds()
        self._settings: dict[str, Any] = {
            "host": f"{host}:{port}",
            "userid": uri.user or "guest",
            "password": uri.password or "guest",
            "virtual_host": options.virtual_host,
            "connect_timeout": wait_s,
            "read_timeout": wait_s,
            "write_timeout": wait_s,
            "client_properties": _ABOUT,
        }
        if encrypted:
            verifies = not options.insecure_skip_verify
            self._settings["ssl"] = {
                "ca_certs": options.ca or None,
                "certfile": options.cert or None,
                "keyfile": options.key or None,
                "cert_reqs": ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE,
                "server_hostname": parts.hostname if verifies else None,
            }
        self._options = options
        super().__init__(spec, codec, options, f"{host}:{port}")

    def _connect(self) -> RabbitQueues:
        return RabbitQueues(self._settings, self._options, self._at)


class RabbitQueues:
    """A connection to one broker; see `QueueService`. Not for several threads."""

    most_messages: ClassVar[int] = 1000
    most_bytes: ClassVar[int] = 1 << 20
    message_bytes: ClassVar[int] = 256
    width = 1

    def __init__(self, settings: Mapping[str, Any], options: RabbitMqOptions, at: str) -> None:
        self._settings, self._options, self._at = settings, options, at
        self._wait_s = options.timeout.total_seconds()
        self._connection: amqp.Connection | None = None
        self._channel: amqp.Channel | None = None  # in confirm mode
        self._sent = 0  # messages of that channel
        self._answered: set[int] = set()
        self._up_to = 0  # all messages up to this one are answered
        self._refused: set[int] = set()  # of the last batch
        self._failed = ""
        self.cluster = ""

    # --- topics ----------------------------------------------------------------------------------

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts."""
        counts = {}
        for topic in wanted:
            count = 0
            while self._is_there(_queue(topic, count)):
                count += 1
            if count:
                counts[topic] = count
        return counts

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return "" for topics that are there: a broker does not tell one from another."""
        return {t: "" if self._is_there(_queue(t, 0)) else None for t in topics}

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be: as the options say."""
        return dict.fromkeys(topics, self._options.max_message_bytes)

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make queues; those that are there already stay as they are.

        Raises:
            TopicRefused: the broker refuses one, with its words.
        """
        self.check_create(wanted)
        kind = {"x-queue-type": self._options.queue_type}
        for topic, partitions in wanted.items():
            for number in range(partitions):
                name = _queue(topic, number)
                if self._is_there(name):
                    continue
                moment("create a queue")
                try:
                    with self._translated(f"creating queue {name}"):
                        self._open().channel().queue_declare(
                            name, durable=True, auto_delete=False, arguments=kind
                        )
                except SinkUnwritable as err:
                    raise TopicRefused(f"topic {topic!r} cannot be created: {err}") from None
                moment("queue created")

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Refuse names that no queue can have, and see that the broker is there; makes nothing.

        Raises:
            TopicRefused: a topic's name is too long, or the broker's own.
        """
        for topic, partitions in wanted.items():
            if len(_queue(topic, partitions)) > _LONGEST or topic.startswith("amq."):
                raise TopicRefused(
                    f"topic {topic!r} cannot be created: a queue's name has {_LONGEST} bytes at "
                    "most, and does not begin with amq."
                )
        self._connect()

    def check_write(self, topics: Iterable[str]) -> None:
        """A broker tells of rights only when something is sent: see that it is there."""
        self._connect()

    # --- messages --------------------------------------------------------------------------------

    def stored(self, lane: LaneName) -> int:
        """Return 0: nobody can tell."""
        return 0

    def send(self, batch: Batch) -> None:
        """Publish a batch. Where the broker stores a part, all from the first missing one follow.

        Those behind it that were stored have another id then, so that readers do not take them
        for repeats.
        """
        name = _queue(batch.lane.topic, batch.lane.partition)
        doing = f"sending to queue {name}"
        ids = batch.ids()

        def attempt() -> str:
            nonlocal batch, ids
            refused = self._publish(batch, ids, name, doing)
            if not refused:
                return ""
            named = zip(batch.ids(), ids, strict=True)
            ids = [
                known if n in refused else id_of_copy(own) for n, (own, known) in enumerate(named)
            ]
            batch, ids = batch.behind(min(refused)), ids[min(refused) :]
            return _NOT_STORED

        until_stored(attempt, self._wait_s, f"{self._at}, {doing}")

    def close(self) -> None:
        """Let the connection go."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            moment("close the broker's connection")
            with suppress(OSError, amqp.AMQPError):
                connection.collect()  # without a farewell: it may not be read any more

    # --- pieces ----------------------------------------------------------------------------------

    def _connect(self) -> None:
        moment("connect to RabbitMQ")
        with self._translated("connecting"):
            self._open()

    def _publish(self, batch: Batch, ids: list[str], queue: str, doing: str) -> set[int]:
        """Publish messages and wait for all answers; return the places of those not stored."""
        self._connect()
        moment("publish to a queue")
        with self._translated(doing):
            channel = self._confirming()
            before, self._refused = self._sent, set()
            for message_id, key, value in zip(ids, batch.keys, batch.values, strict=True):
                headers: dict[str, Any] = {EPOCH: batch.lane.epoch}
                if key is not None:
                    headers[KEY] = key
                if value is None:
                    headers[NO_VALUE] = True
                message = amqp.Message(
                    value or b"",
                    message_id=message_id,
                    delivery_mode=_PERSISTENT,
                    application_headers=headers,
                )
                channel.basic_publish(message, routing_key=queue, mandatory=True)
                self._sent += 1
            self._wait(doing)
        moment("published to a queue")
        return {tag - before - 1 for tag in self._refused}

    def _open(self) -> amqp.Connection:
        if self._connection is None:
            made = amqp.Connection(**self._settings)
            try:
                made.connect()
            except BaseException:
                made.collect()
                raise
            self._connection = made
            weakref.finalize(self, _left, made)  # whoever forgets us leaves no socket
        return self._connection

    def _confirming(self) -> amqp.Channel:
        if self._channel is None:
            channel = self._open().channel()
            channel.confirm_select()
            channel.events["basic_ack"].add(self._take)
            channel.events["basic_nack"].add(self._refuse)
            channel.events["basic_return"].add(self._give_back)
            self._channel, self._sent, self._up_to = channel, 0, 0
            self._answered, self._failed = set(), ""
        return self._channel

    def _wait(self, doing: str) -> None:
        end = time.monotonic() + self._wait_s
        while self._up_to < self._sent and not self._failed:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the broker took too long")
            self._open().drain_events(timeout=left)
        if self._failed:
            raise SinkUnavailable(f"{self._at}, {doing}: {self._failed}")

    def _take(self, tag: int, multiple: bool) -> None:
        """Note that messages are stored, or (see `_refuse`) answered at least."""
        if multiple:
            self._up_to = max(self._up_to, tag)
        else:
            self._answered.add(tag)
        while self._up_to + 1 in self._answered:
            self._up_to += 1
            self._answered.discard(self._up_to)

    def _refuse(self, tag: int, multiple: bool) -> None:
        """Note that messages are not stored."""
        first = self._up_to + 1 if multiple else tag
        self._refused |= set(range(first, tag + 1)) - self._answered
        self._take(tag, multiple)

    def _give_back(self, *about: Any) -> None:
        self._failed = "there is no such queue"

    def _is_there(self, queue: str) -> bool:
        moment("ask for a queue")
        with self._translated(f"asking for queue {queue}"):
            channel = self._open().channel()
            try:
                channel.queue_declare(queue, passive=True)
            except amqp.NotFound:
                return False
            channel.close()
        return True

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (amqp.AMQPError, OSError) as err:
            self.close()
            raise self._error(err, doing) from None

    def _error(self, err: Exception, doing: str) -> RowferryError:
        reason = on_one_line(str(err) or type(err).__name__)
        words = f"{self._at}, {doing}: {reason}"
        if isinstance(err, ssl.SSLCertVerificationError):
            return SinkUnwritable(f"{words}; correct ca")
        if isinstance(err, _FOR_GOOD):
            return SinkUnwritable(f"{words}; correct the login, its rights or the queue")
        if isinstance(err, amqp.NotFound):
            return SinkUnavailable(words)
        return SinkUnavailable(f"{words}; start the broker, or correct host and port in the URI")


def _queue(topic: str, partition: int) -> str:
    return f"{topic}.{partition}"


def _left(connection: amqp.Connection) -> None:
    """End a connection that nobody needs any more. On repeat: nothing."""
    with suppress(OSError, amqp.AMQPError):
        connection.collect()
