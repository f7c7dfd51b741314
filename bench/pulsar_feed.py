"""MySQL's log to Pulsar in each protocol, beside the bare client with the same bytes, in one run.

    .venv/bin/python bench/pulsar_feed.py [--scale 0.1] [--tries 3] [--docs]

The log of sysbench-like changes is written by the server. Each protocol's feed delivers it to a
topic of four partitions, through Spark on two cores. The messages are then read back, and a plain
loop over `Producer.send_async`, with the library's own batches, sends them to another topic: that
is the ceiling. Server, broker and Spark share the machine.
"""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Sequence

import pulsar
from beside_bare import (
    BY_KEY,
    PARTITIONS,
    feeds_of,
    keep_run,
    logged,
    measured,
    one_delivery,
    scratch,
    shown,
    sysbench,
    table,
)
from mysql_feeds import Feeds, Target
from mysql_load import Log
from report import Figure, machine, put_into_page

from rowferry.testing.servers.pulsar import Pulsar, StoredMessage


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--protocols", default="canal-json,open-protocol")
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    before = machine()
    with (
        scratch() as folder,
        logged(folder, asked.scale) as (server, log),
        Pulsar.start(folder / "pulsar", java_options=("-Xmx1g",)) as broker,
        feeds_of(server, folder) as feeds,
    ):
        figures = [
            figure
            for protocol in asked.protocols.split(",")
            for figure in _figures(feeds, log, broker, protocol, asked.tries)
        ]
    keep_run("pulsar", before, figures, scale=asked.scale, changes=log.changes)
    text = table(figures, sysbench(log), before, "bare client")
    print(text)
    if asked.docs:
        put_into_page("pulsar", text)


def _figures(feeds: Feeds, log: Log, broker: Pulsar, protocol: str, tries: int) -> Sequence[Figure]:
    topic = f"bench-{protocol}"
    more = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
    web = f"web-service-url={broker.web_url}&deduplication=required"
    parameters = f"protocol={protocol}&partition-num={PARTITIONS}&{web}{more}"
    target = Target(protocol, parameters, f"pulsar://{broker.address}/{topic}", BY_KEY)
    feed = feeds.figure(log, target, tries)
    messages = broker.read_all(topic)
    broker.delete_topic(topic)
    once = one_delivery(messages, tries + 1)
    bare, _ = measured(
        feed, log, once, lambda: _bare(broker, topic, once), protocol, "bare client", tries
    )
    return shown([feed, bare])


def _bare(broker: Pulsar, topic: str, messages: list[StoredMessage]) -> float:
    """Return the seconds that a plain loop needs for the same messages."""
    name = f"{topic}-bare"
    broker.create_topic(name, PARTITIONS)
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(f"pulsar://{broker.address}", logger=quiet)
    producers = [
        client.create_producer(
            f"persistent://public/default/{name}-partition-{number}",
            batching_enabled=True,
            block_if_queue_full=True,
            max_pending_messages=100_000,
        )
        for number in range(PARTITIONS)
    ]
    failed: list[pulsar.Result] = []

    def note(result: pulsar.Result, message_id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    began = time.perf_counter()
    for m in messages:
        key = None if m.key is None else base64.b64encode(m.key).decode()
        producers[m.partition].send_async(m.value, note, partition_key=key)
    for producer in producers:
        producer.flush()
    seconds = time.perf_counter() - began
    client.close()
    broker.delete_topic(name)
    if failed:
        raise SystemExit(f"the bare client failed {len(failed)} times: {failed[0]}")
    return seconds


if __name__ == "__main__":
    main()
