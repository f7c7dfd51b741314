"""What measurements of feeds beside a bare client share: a log, its feeds, and the table."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mysql_feeds import Feeds
from mysql_load import Log, make, make_numbers
from report import RESULTS, Figure, load_average

from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MySql

PARTITIONS = 4
AIM = 0.6
BY_KEY = '[sink]\ndispatchers = [{matcher = ["*.*"], partition = "index-value"}]\n'


class KeptMessage(Protocol):
    """A message as a broker gives it back."""

    @property
    def partition(self) -> int:
        """Where it was."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value."""


M = TypeVar("M", bound=KeptMessage)


@contextmanager
def scratch() -> Iterator[Path]:
    """Lend a folder that goes with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def logged(folder: Path, scale: float) -> Iterator[tuple[MySql, Log]]:
    """Lend a server with a log of sysbench-like changes; scale 1: 1.6 million."""
    with MySql.start(folder / "server", options=("--max-binlog-size=1G",)) as server:
        make_numbers(server, scale)
        yield server, make(server, "sysbench", scale)


@contextmanager
def feeds_of(server: MySql, folder: Path) -> Iterator[Feeds]:
    """Lend feeds from a server, through Spark on two cores."""
    runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
    try:
        yield Feeds(server, folder, runner)
    finally:
        runner.close()


def one_delivery(messages: Sequence[M], deliveries: int) -> list[M]:
    """Return the first of several deliveries to a topic, all partitions side by side.

    Args:
        messages: all of the topic, in order inside each partition.
        deliveries: how often the same rows were sent there.
    """
    parts: dict[int, list[M]] = {}
    for message in messages:
        parts.setdefault(message.partition, []).append(message)
    first = [part[: len(part) // deliveries] for part in parts.values()]
    return [m for turn in zip_longest(*first) for m in turn if m is not None]


def set_beside(feed: Figure, bare: Figure, size: int, changes: int) -> None:
    """Say what a feed is of a bare client's speed with the same bytes."""
    feed.mb_per_s = size * feed.rows_per_s / changes / 1e6
    feed.baseline, feed.ratio = bare.name.rpartition(": ")[2], feed.rows_per_s / bare.rows_per_s


def measured(
    feed: Figure,
    log: Log,
    messages: Sequence[KeptMessage],
    send: Callable[[], float],
    protocol: str,
    client: str,
    tries: int,
) -> tuple[Figure, int]:
    """Measure a bare client, and set a feed beside it.

    Args:
        feed: the feed's figure.
        log: what it has delivered.
        messages: one delivery.
        send: sends them with the bare client; returns the seconds.
        protocol: the messages' protocol.
        client: how the bare client is called.
        tries: the best of so many counts.

    Returns:
        The bare client's figure, and the bytes of the messages.
    """
    seconds = min(send() for _ in range(tries))
    size = sum(len(m.key or b"") + len(m.value or b"") for m in messages)
    bare = Figure(f"{protocol}: {client}", log.changes / seconds, size / seconds / 1e6)
    bare.other = {"messages": len(messages), "s": round(seconds, 2)}
    feed.name = f"{protocol}: feed"
    set_beside(feed, bare, size, log.changes)
    return bare, size


def shown(figures: Sequence[Figure]) -> Sequence[Figure]:
    """Print figures for whoever waits, and return them."""
    for figure in figures:
        print(f"{figure.name}: {figure.rows_per_s:,.0f} row changes/s", file=sys.stderr)
    return figures


def sysbench(log: Log) -> str:
    """Say what a log of `logged` has."""
    return f"{log.changes:,} row changes of sysbench"


def keep_run(name: str, before: dict[str, Any], run: Sequence[Figure], **about: float) -> None:
    """Write the figures of a run, and the machine on which it was, among the results."""
    result = {
        **before,
        "load_average_after": load_average(),
        **about,
        "figures": [asdict(f) for f in run],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def table(
    figures: Sequence[Figure],
    what: str,
    about: dict[str, Any],
    client: str,
    aim: float = 0.0,
    unit: str = "row changes",
) -> str:
    """Return figures as a table of a page, each feed beside the bare client; `aim`: to reach."""
    lines = [
        f"{what}, {about['cpu']}, {about['cores']} cores, "
        f"load {about['load_average']} before the run.\n",
        f"| what | {unit}/s | MB/s | of the {client} |{' aim |' if aim else ''}",
        f"|---|---|---|---|{'---|' if aim else ''}",
    ]
    for f in figures:
        line = f"| {f.name} | {f.rows_per_s:,.0f} | {f.mb_per_s:,.0f} | "
        line += f"{f.ratio:.0%} |" if f.ratio else " |"
        if aim:
            outcome = "reached" if (f.ratio or 0) >= aim else f"missed ({aim:.0%})"
            line += f" {outcome if f.ratio else ''} |"
        lines.append(line)
    return "\n".join(lines) + "\n"
