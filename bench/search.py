"""MySQL's log to OpenSearch, beside a bare bulk loader of the same documents, in one run.

    .venv/bin/python bench/search.py [--scale 0.1] [--tries 3] [--docs]

The log of sysbench-like changes is written by the server. The feed delivers it to empty indexes,
through Spark on two cores. One further feed goes through a front that keeps its requests; a plain
loop of four threads then sends the same bodies to empty indexes: that is the ceiling. All servers
and Spark share the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3
from beside_bare import (
    AIM,
    feeds_of,
    keep_run,
    logged,
    scratch,
    set_beside,
    shown,
    sysbench,
    table,
)
from mysql_feeds import Feeds, Target
from mysql_load import Log
from report import Figure, machine, put_into_page

from rowferry.spark.job import InProcessRunner
from rowferry.testing.search_front import SearchFront
from rowferry.testing.servers import OpenSearch

THREADS = 4
NOTES = "rowferry-ownership"
SETTINGS = ("number_of_shards", "number_of_replicas", "gc_deletes", "refresh_interval")


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    before = machine()
    with (
        scratch() as folder,
        logged(folder, asked.scale) as (server, log),
        OpenSearch.start(folder / "search", ("-Xmx2g", "-XX:TieredStopAtLevel=4")) as search,
    ):
        bodies, shapes = _recorded(Feeds(server, folder, InProcessRunner()), log, search)
        with feeds_of(server, folder) as feeds:
            figures = list(_figures(feeds, log, search, bodies, shapes, asked.tries))
    keep_run("search", before, figures, scale=asked.scale, changes=log.changes)
    text = table(figures, sysbench(log), before, "bare loader", AIM)
    print(text)
    if asked.docs:
        put_into_page("search", text)


def _target(address: str) -> Target:
    return Target("OpenSearch", "number-of-replicas=0", f"opensearch://{address}")


def _recorded(feeds: Feeds, log: Log, search: OpenSearch) -> tuple[list[bytes], dict[str, Any]]:
    """Return the bodies of a feed's bulk requests, and the indexes that it made."""
    with SearchFront(search.address) as front:
        feeds.figure(log, _target(front.address), 1, lambda: _empty(search, front))
        bodies = [r.body for r in front.taken if r.path.startswith("/_bulk")]
    return bodies, {name: search.ask("GET", f"/{name}")[name] for name in _indexes(search)}


def _indexes(search: OpenSearch) -> list[str]:
    names = [one["index"] for one in search.ask("GET", "/_cat/indices?format=json")]
    return [name for name in names if name != NOTES]


def _empty(search: OpenSearch, front: SearchFront | None = None) -> None:
    for name in [*_indexes(search), NOTES]:
        search.ask("DELETE", f"/{name}?ignore_unavailable=true")
    if front is not None:
        front.taken.clear()


def _figures(
    feeds: Feeds,
    log: Log,
    search: OpenSearch,
    bodies: list[bytes],
    shapes: dict[str, Any],
    tries: int,
) -> Sequence[Figure]:
    size = sum(map(len, bodies))
    feed = feeds.figure(log, _target(search.address), tries, lambda: _empty(search))
    feed.name = "feed"
    seconds = min(_bare(search, bodies, shapes) for _ in range(tries))
    bare = Figure("bare bulk loader", log.changes / seconds, size / seconds / 1e6)
    bare.other = {"requests": len(bodies), "s": round(seconds, 2)}
    set_beside(feed, bare, size, log.changes)
    return shown([feed, bare])


def _bare(search: OpenSearch, bodies: list[bytes], shapes: dict[str, Any]) -> float:
    """Return the seconds that a plain loop needs for the same requests."""
    _empty(search)
    for name, shape in shapes.items():
        own = shape["settings"]["index"]
        settings = {key: own[key] for key in SETTINGS if key in own}
        search.ask("PUT", f"/{name}", {"settings": settings, "mappings": shape["mappings"]})
    pool = urllib3.HTTPConnectionPool(search.address, maxsize=THREADS)
    query = "filter_path=errors,items.*.status,items.*.error"

    def send(body: bytes) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        answer = pool.request("POST", f"/_bulk?{query}", body=body, headers=headers)
        assert answer.status == 200, answer.data[:400]
        items = [one for item in json.loads(answer.data)["items"] for one in item.values()]
        # 409: four threads bring some changes of a document out of order.
        refused = [one for one in items if "error" in one and one["status"] != 409]
        assert not refused, refused[0]

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(send, bodies))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
