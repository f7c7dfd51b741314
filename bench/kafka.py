"""MySQL's log to Kafka in each protocol, beside a bare producer of the same bytes, in one run.

    .venv/bin/python bench/kafka.py [--scale 0.1] [--tries 3] [--exactly-once] [--docs]

The log of sysbench-like changes is written by the server. Each protocol's feed delivers it to a
topic of four partitions, through Spark on two cores. The messages are then read back, and a plain
loop over `Producer.produce` sends them to another topic with the same settings: that is the
ceiling. With --exactly-once each feed runs a second time, in transactions: the difference is their
price. Server, broker and Spark share the machine.
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
    scratch,
    set_beside,
    shown,
    sysbench,
    table,
)
from confluent_kafka import Producer
from mysql_feeds import Feeds, Target
from mysql_load import Log
from report import Figure, machine, put_into_page

from rowferry.testing.servers.kafka import Kafka, Message
from rowferry.testing.servers.registry import SchemaRegistryServer


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--protocols", default="canal-json,open-protocol,avro")
    ask.add_argument("--exactly-once", action="store_true", help="each feed in transactions, too")
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
    text = table(figures, sysbench(log), before, "bare producer", AIM)
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
    messages = broker.read_all(topic)
    broker.delete_topic(topic)
    once = messages[: len(messages) // (tries + 1)]
    bare, size = measured(
        feed, log, once, lambda: _bare(broker, topic, once), protocol, "bare producer", tries
    )
    figures = [feed, bare]
    if exactly_once:
        figures.insert(1, _in_transactions(feeds, log, broker, target, tries))
        set_beside(figures[1], bare, size, log.changes)
    return shown(figures)


def _in_transactions(feeds: Feeds, log: Log, broker: Kafka, target: Target, tries: int) -> Figure:
    """Measure a feed with exactly-once; each try is a changefeed of its own, with a new ledger."""
    ledger = f"bench-ledger-{target.name}"

    def forget() -> None:
        if ledger in broker.topics():
            broker.delete_topic(ledger)

    parameters = f"{target.parameters}&exactly-once=true&ledger-topic={ledger}"
    place = f"{target.place}-once"
    once = feeds.figure(log, replace(target, parameters=parameters, place=place), tries, forget)
    once.name = f"{target.name}: exactly-once"
    return once


def _bare(broker: Kafka, topic: str, messages: list[Message]) -> float:
    """Return the seconds that a plain loop needs for the same messages."""
    name = f"{topic}-bare"
    broker.create_topic(name, PARTITIONS)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 20}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
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
    broker.delete_topic(name)
    return seconds


if __name__ == "__main__":
    main()
