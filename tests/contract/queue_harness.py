"""Each queueing service behind a relay, with a topic of each test's own."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, cast
from uuid import uuid4

from lane_harness import LaneHarness
from sink_harness import FEED

from rowferry.change.plan import Plan
from rowferry.errors import Fenced
from rowferry.flow.sink.contract import LaneSink, Packet
from rowferry.testing.servers import Relay
from rowferry.testing.servers.queues.amazon import REGION, Amazon
from rowferry.testing.servers.queues.nats_server import PASSWORD, USER, NatsServer
from rowferry.testing.servers.queues.queue_server import QueueServer
from rowferry.testing.servers.queues.rabbitmq import RabbitMq
from rowferry.testing.servers.queues.redis_server import RedisServer


class QueueHarness(LaneHarness):
    """A service that all tests share.

    Attributes:
        fixture: the name of the fixture that lends the server.
        tls: the sink speaks TLS.
    """

    fixture: ClassVar[str]
    tls: ClassVar[bool] = False
    server: Any  # set by the fixture

    def __enter__(self) -> Self:
        self.topic = f"contract-{uuid4().hex}"
        server: QueueServer = self.server
        self.relay = Relay(server.tls_port if self.tls else server.port).__enter__()
        self._built: list[Any] = []
        self._epoch = 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sink in self._built:
            sink.close()
        self.relay.__exit__(kind, err, trace)

    def received(self) -> list[bytes]:
        return [m.value or b"" for m in self.server.read_all(self.topic)]

    def build(self, changefeed: str = FEED) -> LaneSink:
        found = super().build(changefeed)
        self._built.append(found)
        return cast(LaneSink, _OfEpoch(found, lambda: self._epoch))

    def opened(self, epoch: int = 1, state: dict[str, Any] | None = None) -> LaneSink:
        sink = super().opened(epoch, state)
        self._epoch = epoch
        return sink

    def publish(self, sink: LaneSink, plan: Plan) -> None:
        """An owner of before is refused, and changes nothing."""
        with suppress(Fenced):
            super().publish(sink, plan)

    def break_for_now(self) -> None:
        self.relay.cut()

    @abstractmethod
    def break_for_good(self) -> None: ...


class _OfEpoch:
    """A sink whose packets have the epoch of whoever has opened it last."""

    def __init__(self, sink: LaneSink, epoch: Callable[[], int]) -> None:
        self._sink, self._owner = sink, epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, packets: Iterator[Packet]) -> None:
        self._sink.deliver(replace(p, epoch=self._owner()) for p in packets)


class RedisHarness(QueueHarness):
    """With a login of the test's own."""

    scheme = "redis"
    fixture = "redis_server"
    server: RedisServer

    def __enter__(self) -> Self:
        self._login = secrets.token_hex(4), secrets.token_hex(8)
        user, word = self._login
        with self.server.client() as client:
            client.execute_command(
                *("ACL", "SETUSER", user, "on", f">{word}", "~*", "+@all", "-flushall")
            )
        return super().__enter__()

    def uri(self) -> str:
        login = ":".join(self._login)
        ca = f"&ca={self.server.certificates.ca}" if self.tls else ""
        place = f"{login}@127.0.0.1:{self.relay.port}/{self.topic}"
        return f"{self.scheme}://{place}?timeout=20s{ca}"

    def break_for_good(self) -> None:
        with self.server.client() as client:
            client.execute_command("ACL", "SETUSER", self._login[0], "-@write", "-@scripting")


class RedisTlsHarness(RedisHarness):
    """The same with TLS."""

    scheme = "redis+ssl"
    tls = True


class NatsHarness(QueueHarness):
    """A server with JetStream."""

    scheme = "nats"
    fixture = "nats_server"
    server: NatsServer

    def uri(self) -> str:
        ca = f"&ca={self.server.certificates.ca}" if self.tls else ""
        place = f"{USER}:{PASSWORD}@127.0.0.1:{self.relay.port}/{self.topic}"
        return f"{self.scheme}://{place}?timeout=20s{ca}"

    def break_for_good(self) -> None:
        self.server.seal(f"{self.topic}-0")


class NatsTlsHarness(NatsHarness):
    """The same with TLS."""

    scheme = "nats+ssl"
    tls = True


class RabbitMqHarness(QueueHarness):
    """A broker with quorum queues."""

    scheme = "rabbitmq"
    fixture = "rabbitmq_broker"
    server: RabbitMq

    def uri(self) -> str:
        ca = f"&ca={self.server.certificates.ca}" if self.tls else ""
        place = f"{USER}:{PASSWORD}@127.0.0.1:{self.relay.port}/{self.topic}"
        return f"{self.scheme}://{place}?timeout=20s{ca}"

    def break_for_good(self) -> None:
        for sink in self._built:  # its next connection may not write
            sink.close()
            sink._settings["userid"] = "limited"


class RabbitMqTlsHarness(RabbitMqHarness):
    """The same with TLS."""

    scheme = "rabbitmq+ssl"
    tls = True


class AmazonHarness(QueueHarness):
    """Amazon's services, in memory."""

    fixture = "amazon_server"
    server: Amazon

    def uri(self) -> str:
        keys = "access-key=of&secret-access-key=tests"
        place = f"{REGION}/{self.topic}?endpoint=http://127.0.0.1:{self.relay.port}"
        return f"{self.scheme}://{place}&{keys}&timeout=20s"

    def break_for_good(self) -> None:
        self.server.delete_topic(self.topic)


class SqsHarness(AmazonHarness):
    """FIFO queues."""

    scheme = "sqs"


class KinesisHarness(AmazonHarness):
    """Data streams."""

    scheme = "kinesis"


QUEUE_HARNESSES: dict[str, Callable[[Path], LaneHarness]] = {
    "kinesis": KinesisHarness,
    "nats": NatsHarness,
    "nats+ssl": NatsTlsHarness,
    "rabbitmq": RabbitMqHarness,
    "rabbitmq+ssl": RabbitMqTlsHarness,
    "redis": RedisHarness,
    "redis+ssl": RedisTlsHarness,
    "sqs": SqsHarness,
}
