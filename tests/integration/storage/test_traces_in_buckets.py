"""Changes of one row of a range source, traced to compressed files in each object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from object_store_kit import sink_uri

from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.trace.forms import TraceRequest, trace_form
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import ObjectServer

FORMATS = {
    "s3": {"protocol": "csv", "compression": "gzip"},
    "gcs": {"protocol": "parquet"},
    "azure": {"protocol": "canal-json", "compression": "zstd", "enable-tidb-extension": "true"},
}
NAME = "feed"
PATIENCE_S = 600.0


def test_each_change_has_its_object(
    server: ObjectServer, source: str, store: Store, prefix: str, tmp_path: Path
) -> None:
    kind = next(name for name in FORMATS if name in type(server).__module__ + prefix)
    database = f"traced_{kind}"
    table = TableId(database, "t")
    store.ddl(f"CREATE DATABASE {database}")
    store.ddl(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, v varchar(20))", ranges=2, handles=(0, 9)
    )
    _write(store, lambda t: t.insert(table, [{"id": i, "v": "first"} for i in (4, 5)]))
    meta = open_store(f"sqlite:///{tmp_path}/meta.db")
    desk = Operations(meta)
    more = {"sink": {"csv": {"include-commit-ts": True}}} if kind == "s3" else {}
    config = {"filter": {"rules": [f"{database}.*"]}, **more}
    desk.create(Wanted(source, sink_uri(server, prefix, None, **FORMATS[kind]), NAME, config))
    feed = meta.feed(NAME)
    assert feed is not None
    claim = meta.claim(NAME, Holder.here(), time.time(), 3600)
    now: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # noqa: E731
    loop = Loop(NAME, assemble(feed.spec), meta, claim, InProcessRunner(), now)

    def traced(changes: int, **asked: Any) -> dict[str, Any]:
        """Run until so many changes of the row have arrived."""
        request = TraceRequest(str(table), (("id", "5"),), **asked)
        end = time.monotonic() + PATIENCE_S
        while True:
            loop.step()
            form = trace_form(desk.trace_values(NAME, request))
            if len(form["changes"]) >= changes:
                return form
            assert time.monotonic() < end, form

    try:
        traced(1)
        _write(store, lambda t: t.update(table, [{"id": 5, "v": "second"}]))
        traced(2)
        _write(store, lambda t: t.delete(table, [{"id": 5}]))
        answer = traced(3, log=True)
    finally:
        loop.close()
        meta.close()
    changes = answer["changes"]
    assert [one["op"] for one in changes] == ["snapshot", "update", "delete"]
    assert [one["after"] and one["after"]["v"] for one in changes] == ["first", "second", None]
    assert (answer["complete"], answer["notes"]) == (True, [])
    assert len({one["place"]["file"] for one in changes}) == 3
    assert all(prefix in one["place"]["file"] for one in changes)
    batches = [one["micro_batch"]["first"] for one in changes]
    assert batches == sorted(set(batches))
    assert all(one["commit_ts"] for one in changes)
    assert all(one["log"] for one in changes[1:])  # the part of the range's log


def _write(store: Store, work: Callable[[Any], None]) -> None:
    with store.transaction() as transaction:
        work(transaction)
