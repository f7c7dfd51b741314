"""How fast sinks of queueing services send, beside the bare client with the same messages.

    python bench/queues.py [--messages 100000] [--bytes 300] [--only redis,nats]

Each service runs here, alone; both send to one partition and wait until all is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import amqp
import nats
import pyarrow as pa

from rowferry.change.plan import Topic
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers.queues.nats_server import PASSWORD, USER, NatsServer
from rowferry.testing.servers.queues.rabbitmq import RabbitMq
from rowferry.testing.servers.queues.redis_server import RedisServer

LOGIN = f"{USER}:{PASSWORD}@"
AT_ONCE = 1000  # messages that a bare client has under way


def bare_redis(server: RedisServer, values: list[bytes]) -> None:
    client = server.client()
    for start in range(0, len(values), AT_ONCE):
        steps = client.pipeline(transaction=False)
        for value in values[start : start + AT_ONCE]:
            steps.xadd("bare", {"value": value})
        steps.execute()


def bare_nats(server: NatsServer, values: list[bytes]) -> None:
    async def send() -> None:
        client = await nats.connect(f"nats://{server.address}", user=USER, password=PASSWORD)
        js = client.jetstream(timeout=60, publish_async_max_pending=AT_ONCE)
        await js.add_stream(name="bare", subjects=["bare"])
        for value in values:
            await js.publish_async("bare", value)
        await js.publish_async_completed()
        await client.close()

    asyncio.run(send())


def bare_rabbitmq(server: RabbitMq, values: list[bytes]) -> None:
    connection = server.client()
    channel = connection.channel()
    channel.queue_declare(
        "bare", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
    )
    channel.confirm_select()
    confirmed = 0

    def note(tag: int, multiple: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1

    channel.events["basic_ack"].add(note)
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        for value in part:
            channel.basic_publish(amqp.Message(value, delivery_mode=2), routing_key="bare")
        while confirmed < start + len(part):
            connection.drain_events(timeout=60)
    connection.close()


SERVICES: dict[str, tuple[Any, str, Callable[[Any, list[bytes]], None]]] = {
    "redis": (RedisServer, "", bare_redis),
    "nats": (NatsServer, LOGIN, bare_nats),
    "rabbitmq": (RabbitMq, LOGIN, bare_rabbitmq),
}


def send(kind: str, login: str, server: Any, values: list[bytes]) -> None:
    topic = f"bench-{uuid4().hex}"
    uri = Uri.parse(f"{kind}://{login}{server.address}/{topic}?partition-num=1", "sink")
    source = Uri.parse("range://127.0.0.1:1", "source")
    made: Any = SINKS.load(kind)
    sink = made(ChangefeedSpec("bench", source, uri), CanalJson)
    sink.open(Owner("bench", 1), None)
    place = Topic(topic, 1, 1 << 20, lineage="bench.0")
    encoded = Encoded(pa.array(values, pa.large_binary()))
    sink.deliver(iter([Packet(0, 0, place, 0, encoded, 1, 1)]))
    sink.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--only", default=",".join(SERVICES))
    asked = parser.parse_args()
    values = [b"%0*d" % (asked.bytes, n) for n in range(asked.messages)]
    for kind in asked.only.split(","):
        start, login, bare = SERVICES[kind]
        with tempfile.TemporaryDirectory() as folder, start.start(Path(folder) / kind) as server:
            begin = time.perf_counter()
            bare(server, values)
            middle = time.perf_counter()
            send(kind, login, server, values)
            end = time.perf_counter()
            bare_rate, own_rate = (len(values) / s for s in (middle - begin, end - middle))
            share = own_rate / bare_rate
            print(f"{kind}: bare {bare_rate:,.0f}/s, sink {own_rate:,.0f}/s, {share:.0%}")


if __name__ == "__main__":
    main()
