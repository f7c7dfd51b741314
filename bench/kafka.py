"""MySQL's log to Kafka in each protocol, beside a bare producer of the same bytes, in one run.

    .venv/bin/python bench/kafka.py [--scale 0.1] [--tries 3] [--no-exactly-once] [--docs]

The log of sysbench-like changes is written by the server. Each protocol's feed delivers it to a
topic of four partitions, through Spark on two cores. The messages are then read back, and a plain
loop over `Producer.produce` sends them to another topic with the same settings: that is the
ceiling. Each feed runs a second time with `exactly-once = true`: the difference is the price of the
transactions. Server, broker and Spark share the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from beside_bare import (
    AIM,
    BY_KEY,
    PARTITIONS,
    feeds_of,
    keep_run,
    logged,
    measured,
    one_delivery,
    scratch,
    set_beside,
    shown,
    sysbench,
    table,
)
from confluent_kafka import Consumer, Producer, TopicPartition
from mysql_feeds import Feeds, Target
from mysql_load import Log
from report import Figure, machine, put_into_page

from rowferry.flow.sink.kafka.ledger import CONFIG
from rowferry.testing.servers.kafka import Kafka, Message
from rowferry.testing.servers.registry import SchemaRegistryServer

LANES = 4  # that share the partitions out, with exactly-once
PLAIN = "of the feed without"
# As the sink's own producer has them.
SETTINGS = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "linger.ms": 20,
    "log_level": 0,
    "batch.num.messages": 100_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 800_000,
    "queue.buffering.max.kbytes": 1 << 20,
}


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--protocols", default="canal-json,open-protocol,avro")
    ask.add_argument("--exactly-once", action=argparse.BooleanOptionalAction, default=True)
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    before = machine()
    with (
        scratch() as folder,
        logged(folder, asked.scale) as (server, log),
        Kafka.start(folder / "kafka") as broker,
        SchemaRegistryServer.start(folder / "registry") as registry,
        feeds_of(server, folder) as feeds,
    ):
        figures = [
            figure
            for protocol in asked.protocols.split(",")
            for figure in _figures(
                feeds, log, broker, registry.url, protocol, asked.tries, asked.exactly_once
            )
        ]
    keep_run("kafka", before, figures, scale=asked.scale, changes=log.changes)
    text = table(figures, sysbench(log), before, "bare producer", AIM) + _prices(figures)
    print(text)
    if asked.docs:
        put_into_page("kafka", text)


def _figures(
    feeds: Feeds,
    log: Log,
    broker: Kafka,
    registry: str,
    protocol: str,
    tries: int,
    exactly_once: bool,
) -> Sequence[Figure]:
    topic = f"bench-{protocol}"
    more = {"canal-json": "enable-tidb-extension=true", "avro": f"schema-registry={registry}"}
    parameters = f"protocol={protocol}&partition-num={PARTITIONS}&{more.get(protocol, '')}"
    place = f"kafka://{broker.bootstrap}/{topic}"
    target = Target(protocol, parameters.rstrip("&"), place, BY_KEY)
    feed = feeds.figure(log, target, tries)
    sent = one_delivery(broker.read_all(topic), tries + 1)
    broker.delete_topic(topic)
    bare, size = measured(
        feed, log, sent, lambda: _bare(broker, topic, sent), protocol, "bare producer", tries
    )
    if not exactly_once:
        return shown([feed, bare])
    once = _in_transactions(feeds, log, broker, target, tries)
    # Whoever comes later finds all that runs warmer: so the feed comes again, and its best counts.
    again = replace(feeds.figure(log, target, tries), name=feed.name)
    broker.delete_topic(topic)
    feed = max(feed, again, key=lambda figure: figure.rows_per_s)
    for figure in (feed, once):
        set_beside(figure, bare, size, log.changes)
    once.other[PLAIN] = once.rows_per_s / feed.rows_per_s
    return shown([feed, once, bare])


def _in_transactions(feeds: Feeds, log: Log, broker: Kafka, target: Target, tries: int) -> Figure:
    """Measure a feed with exactly-once.

    Each try is a changefeed of its own and has a new ledger, which is there before the clock
    starts, as the topic is.
    """
    ledger = f"bench-ledger-{target.name}"

    def renew() -> None:
        if ledger in broker.topics():
            broker.delete_topic(ledger)
        broker.create_topic(ledger, LANES + 1, CONFIG)

    parameters = f"{target.parameters}&exactly-once=true&ledger-topic={ledger}"
    parameters += f"&transaction-lanes={LANES}"
    place = f"{target.place}-once"
    once = feeds.figure(log, replace(target, parameters=parameters, place=place), tries, renew)
    once.name = f"{target.name}: feed, exactly-once"
    return once


def _prices(figures: Sequence[Figure]) -> str:
    """Return what exactly-once leaves of each feed's speed, as a table of a page."""
    lines = [
        f"| {figure.name.partition(':')[0]} | {figure.other[PLAIN]:.0%} |"
        for figure in figures
        if PLAIN in figure.other
    ]
    if not lines:
        return ""
    return "\n".join(["", f"| `exactly-once = true` | {PLAIN} |", "|---|---|", *lines, ""])


def _bare(broker: Kafka, topic: str, messages: list[Message]) -> float:
    """Return the seconds that a plain loop needs for the same messages."""
    name = f"{topic}-bare"
    broker.create_topic(name, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **SETTINGS})
    began = time.perf_counter()
    for m in messages:
        while True:
            try:
                producer.produce(name, value=m.value, key=m.key, partition=m.partition)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    seconds = time.perf_counter() - began
    if (stored := _stored(broker, name)) != len(messages):
        raise SystemExit(f"the bare producer stored {stored:,} of {len(messages):,} messages")
    broker.delete_topic(name)
    return seconds


def _stored(broker: Kafka, topic: str) -> int:
    """Return how many messages a topic has."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench"})
    try:
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, n)) for n in range(PARTITIONS))
        return sum(last for _, last in ends)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
