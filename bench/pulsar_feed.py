"""MySQL's log to Pulsar in each protocol, beside the bare client with the same bytes, in one run.

    .venv/bin/python bench/pulsar_feed.py [--scale 0.1] [--tries 3]

The log of sysbench-like changes is written by the server. Each protocol's feed delivers it to a
topic of four partitions, through Spark on two cores. The messages are then read back, and a plain
loop over `Producer.send_async`, with the library's own batches, sends them to another topic: that
is the ceiling. Server, broker and Spark share the machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pulsar
from mysql_feeds import Feeds, Target
from mysql_load import Log, make, make_numbers
from report import RESULTS, Figure, load_average, machine

from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MySql
from rowferry.testing.servers.pulsar import Pulsar, StoredMessage

PARTITIONS = 4
BY_KEY = '[sink]\ndispatchers = [{matcher = ["*.*"], partition = "index-value"}]\n'


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--protocols", default="canal-json,open-protocol")
    asked = ask.parse_args()
    before = machine()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        with (
            MySql.start(folder / "server", options=("--max-binlog-size=1G",)) as server,
            Pulsar.start(folder / "pulsar", java_options=("-Xmx1g",)) as broker,
        ):
            make_numbers(server, asked.scale)
            log = make(server, "sysbench", asked.scale)
            runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
            try:
                feeds = Feeds(server, folder, runner)
                figures = [
                    f
                    for protocol in asked.protocols.split(",")
                    for f in _figures(feeds, log, broker, protocol, asked.tries)
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
    (RESULTS / "pulsar.json").write_text(json.dumps(result, indent=2) + "\n")
    text = _table(figures, log.changes, before)
    print(text)


def _figures(feeds: Feeds, log: Log, broker: Pulsar, protocol: str, tries: int) -> Iterator[Figure]:
    topic = f"bench-{protocol}"
    more = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
    web = f"web-service-url={broker.web_url}&deduplication=required"
    parameters = f"protocol={protocol}&partition-num={PARTITIONS}&{web}{more}"
    target = Target(protocol, parameters, f"pulsar://{broker.address}/{topic}", BY_KEY)
    feed = feeds.figure(log, target, tries)
    messages = broker.read_all(topic)
    broker.delete_topic(topic)
    once = messages[: len(messages) // (tries + 1)]
    seconds = min(_bare(broker, topic, once) for _ in range(tries))
    size = sum(len(m.key or b"") + len(m.value or b"") for m in once)
    feed.mb_per_s = size * feed.rows_per_s / log.changes / 1e6
    bare = Figure(f"{protocol}: bare client", log.changes / seconds, size / seconds / 1e6)
    bare.other = {"messages": len(once), "s": round(seconds, 2)}
    feed.name = f"{protocol}: feed"
    feed.baseline, feed.ratio = "bare client", feed.rows_per_s / bare.rows_per_s
    for figure in (feed, bare):
        print(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s", file=sys.stderr)
        yield figure


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
    began = time.perf_counter()
    for m in messages:
        key = None if m.key is None else base64.b64encode(m.key).decode()
        producers[m.partition].send_async(m.value, _nothing, partition_key=key)
    for producer in producers:
        producer.flush()
    seconds = time.perf_counter() - began
    client.close()
    broker.delete_topic(name)
    return seconds


def _nothing(result: object, message_id: object) -> None:
    """Take a report."""


def _table(figures: list[Figure], changes: int, about: dict[str, object]) -> str:
    lines = [
        f"{changes:,} row changes of sysbench, {about['cpu']}, {about['cores']} cores, "
        f"load {about['load_average']} before the run.\n",
        "| what | row changes/s | MB/s | of the bare client |",
        "|---|---|---|---|",
    ]
    for f in figures:
        share = f"{f.ratio:.0%}" if f.ratio else ""
        lines.append(f"| {f.name} | {f.rows_per_s:,.0f} | {f.mb_per_s:,.0f} | {share} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
