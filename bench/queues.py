"""How fast sinks of queueing services send, beside the bare client with the same messages.

    python bench/queues.py [--messages 100000] [--bytes 300] [--only redis,nats] [--docs]

Each service runs here, alone; both send to one partition and wait until all is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import amqp
import nats
import pyarrow as pa
from beside_bare import keep_run, shown, table
from report import Figure, best, machine, put_into_page

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


def bare_redis(server: RedisServer, values: list[bytes], name: str) -> None:
    client = server.client()
    for start in range(0, len(values), AT_ONCE):
        steps = client.pipeline(transaction=False)
        for value in values[start : start + AT_ONCE]:
            steps.xadd(name, {"value": value})
        steps.execute()
    _require(int(client.xlen(name)), values)


def bare_nats(server: NatsServer, values: list[bytes], name: str) -> None:
    async def send() -> None:
        client = await nats.connect(f"nats://{server.address}", user=USER, password=PASSWORD)
        js = client.jetstream(timeout=60, publish_async_max_pending=AT_ONCE)
        await js.add_stream(name=name, subjects=[name])
        for value in values:
            await js.publish_async(name, value)
        await js.publish_async_completed()
        stored = (await js.stream_info(name)).state.messages
        await client.close()
        _require(stored, values)

    asyncio.run(send())


def bare_rabbitmq(server: RabbitMq, values: list[bytes], name: str) -> None:
    connection = server.client()
    channel = connection.channel()
    channel.queue_declare(
        name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
    )
    channel.confirm_select()
    confirmed, early = 0, set[int]()  # all up to here; single ones behind it

    def note(tag: int, multiple: bool) -> None:
        nonlocal confirmed
        if multiple:
            confirmed = max(confirmed, tag)
        else:
            early.add(tag)
        while confirmed + 1 in early:
            confirmed += 1
            early.remove(confirmed)

    channel.events["basic_ack"].add(note)
    for sent, value in enumerate(values):
        while sent - confirmed >= AT_ONCE:
            connection.drain_events(timeout=60)
        channel.basic_publish(amqp.Message(value, delivery_mode=2), routing_key=name)
    while confirmed < len(values):
        connection.drain_events(timeout=60)
    connection.close()


def _require(stored: int, values: list[bytes]) -> None:
    """Refuse a ceiling that was reached by leaving messages out."""
    if stored != len(values):
        raise SystemExit(f"the bare client stored {stored:,} of {len(values):,} messages")


SERVICES: dict[str, tuple[Any, str, Callable[[Any, list[bytes], str], None]]] = {
    "redis": (RedisServer, "", bare_redis),
    "nats": (NatsServer, LOGIN, bare_nats),
    "rabbitmq": (RabbitMq, LOGIN, bare_rabbitmq),
}


def send(kind: str, login: str, server: Any, encoded: Encoded) -> None:
    topic = f"bench-{uuid4().hex}"
    uri = Uri.parse(f"{kind}://{login}{server.address}/{topic}?partition-num=1", "sink")
    source = Uri.parse("range://127.0.0.1:1", "source")
    made: Any = SINKS.load(kind)
    sink = made(ChangefeedSpec("bench", source, uri), CanalJson)
    sink.open(Owner("bench", 1), None)
    place = Topic(topic, 1, 1 << 20, lineage="bench.0")
    sink.deliver(iter([Packet(0, 0, place, 0, encoded, 1, 1)]))
    sink.close()


def measured(kind: str, values: list[bytes], tries: int) -> tuple[float, float]:
    """Return the seconds of the bare client and of the sink, the best of some tries."""
    start, login, bare = SERVICES[kind]
    with tempfile.TemporaryDirectory() as folder, start.start(Path(folder) / kind) as server:
        turns = itertools.count()
        slow = best(lambda: bare(server, values, f"bare{next(turns)}"), tries)
        encoded = Encoded(pa.array(values, pa.large_binary()))
        return slow, best(lambda: send(kind, login, server, encoded), tries)


def main() -> None:
    """Measure each service, and print the best of some tries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", default=",".join(SERVICES))
    parser.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = parser.parse_args()
    before = machine()
    values = [b"%0*d" % (asked.bytes, n) for n in range(asked.messages)]
    size = asked.messages * asked.bytes
    figures: list[Figure] = []
    for kind in asked.only.split(","):
        slow, own = measured(kind, values, asked.tries)
        ceiling = Figure(f"{kind}: bare client", asked.messages / slow, size / slow / 1e6)
        sink = Figure(f"{kind}: sink", asked.messages / own, size / own / 1e6, ceiling.name)
        sink.ratio = sink.rows_per_s / ceiling.rows_per_s
        figures += shown([sink, ceiling])
    keep_run("queues", before, figures, messages=asked.messages, bytes=asked.bytes)
    what = f"{asked.messages:,} messages of {asked.bytes} bytes to one partition"
    text = table(figures, what, before, "bare client", unit="messages")
    print(text)
    if asked.docs:
        put_into_page("queues", text)


if __name__ == "__main__":
    main()
