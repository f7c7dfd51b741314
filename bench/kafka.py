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
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from confluent_kafka import Producer
from mysql_feeds import Feeds, Target
from mysql_load import Log, make, make_numbers
from report import RESULTS, Figure, load_average, machine

from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MySql
from rowferry.testing.servers.kafka import Kafka, Message
from rowferry.testing.servers.registry import SchemaRegistryServer

PARTITIONS = 4
AIM = 0.6
BY_KEY = '[sink]\ndispatchers = [{matcher = ["*.*"], partition = "index-value"}]\n'
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures: kafka -->", "<!-- end of figures: kafka -->"


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--protocols", default="canal-json,open-protocol,avro")
    ask.add_argument("--exactly-once", action="store_true", help="each feed in transactions, too")
    ask.add_argument("--docs", action="store_true", help=f"put the table into {PAGE.name}")
    asked = ask.parse_args()
    before = machine()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        with (
            MySql.start(folder / "server", options=("--max-binlog-size=1G",)) as server,
            Kafka.start(folder / "kafka") as broker,
            SchemaRegistryServer.start(folder / "registry") as registry,
        ):
            make_numbers(server, asked.scale)
            log = make(server, "sysbench", asked.scale)
            runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
            try:
                feeds = Feeds(server, folder, runner)
                figures = [
                    f
                    for protocol in asked.protocols.split(",")
                    for f in _figures(
                        feeds, log, broker, registry.url, protocol, asked.tries, asked.exactly_once
                    )
                ]
            finally:
                runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        **before,
        "load_average_after": load_average(),
        "scale": asked.scale,
        "changes": log.changes,
        "figures": [asdict(f) for f in figures],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kafka.json").write_text(json.dumps(result, indent=2) + "\n")
    text = _table(figures, log.changes, before)
    print(text)
    if asked.docs:
        page = PAGE.read_text()
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}")


def _figures(
    feeds: Feeds,
    log: Log,
    broker: Kafka,
    registry: str,
    protocol: str,
    tries: int,
    exactly_once: bool,
) -> Iterator[Figure]:
    topic = f"bench-{protocol}"
    more = {"canal-json": "enable-tidb-extension=true", "avro": f"schema-registry={registry}"}
    parameters = f"protocol={protocol}&partition-num={PARTITIONS}&{more.get(protocol, '')}"
    place = f"kafka://{broker.bootstrap}/{topic}"
    target = Target(protocol, parameters.rstrip("&"), place, BY_KEY)
    feed = feeds.figure(log, target, tries)
    messages = broker.read_all(topic)
    broker.delete_topic(topic)
    once = messages[: len(messages) // (tries + 1)]
    seconds = min(_bare(broker, topic, once) for _ in range(tries))
    size = sum(len(m.key or b"") + len(m.value or b"") for m in once)
    feed.mb_per_s = size * feed.rows_per_s / log.changes / 1e6
    bare = Figure(f"{protocol}: bare producer", log.changes / seconds, size / seconds / 1e6)
    bare.other = {"messages": len(once), "s": round(seconds, 2)}
    feed.name = f"{protocol}: feed"
    feed.baseline, feed.ratio = "bare producer", feed.rows_per_s / bare.rows_per_s
    figures = [feed, bare]
    if exactly_once:
        figures.insert(1, _in_transactions(feeds, log, broker, target, tries))
        figures[1].mb_per_s = size * figures[1].rows_per_s / log.changes / 1e6
        figures[1].baseline, figures[1].ratio = (
            feed.baseline,
            figures[1].rows_per_s / bare.rows_per_s,
        )
    for figure in figures:
        print(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s", file=sys.stderr)
        yield figure


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


def _table(figures: list[Figure], changes: int, about: dict[str, object]) -> str:
    lines = [
        f"{changes:,} row changes of sysbench, {about['cpu']}, {about['cores']} cores, "
        f"load {about['load_average']} before the run.\n",
        "| what | row changes/s | MB/s | of the bare producer | aim |",
        "|---|---|---|---|---|",
    ]
    for f in figures:
        share = f"{f.ratio:.0%}" if f.ratio else ""
        aim = ("reached" if f.ratio >= AIM else f"missed ({AIM:.0%})") if f.ratio else ""
        lines.append(f"| {f.name} | {f.rows_per_s:,.0f} | {f.mb_per_s:,.0f} | {share} | {aim} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
