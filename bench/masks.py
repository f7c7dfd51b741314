"""What masks cost: rows/s of a task's work on one core, beside the same without a mask.

    .venv/bin/python bench/masks.py [--docs]

A column of e-mail addresses is masked in each way. `task` is what a task does with rows that it
has: decode an answer of the log, decide, encode, write the file. `changefeed` is all that one does:
plan, fetch, the task, publish; for it the aim holds. Times are those of the processor, tries take
turns, and the best of each counts, so that others on the machine change little.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Figure, keep, machine, one_core, put_into_page
from stages import ROWS, TS
from stages import image as plain_image

from rowferry.change.chunk import make_rows
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.feed.service import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.flow.capture.range_log.page import read_page
from rowferry.mysql.ddl.statement import parse_create
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.rows.kv_encode import encode_rows
from rowferry.spark.job import InProcessRunner
from rowferry.spec.build import build_spec
from rowferry.wire import range_cdc_pb2 as pb

TRIES = 9
MOST = 0.10  # of the rows of a second; the aim for each kind of mask
OF_OTHERS = "regex by RE2"  # its own time, by the pattern; measured, and no aim of ours
SQL = (
    "CREATE TABLE bench.t (id int unsigned PRIMARY KEY, k int unsigned NOT NULL, "
    "c char(120) NOT NULL, email varchar(60) NOT NULL)"
)
MASKS: dict[str, dict[str, Any]] = {
    "null": {"action": "null"},
    "constant": {"action": "constant", "value": "hidden"},
    "hash": {"action": "hash"},
    "truncate": {"action": "truncate", "length": 8},
    "keep-last": {"action": "keep-last", "length": 4},
    "regex": {"action": "regex", "pattern": "^[^@]+", "replacement": "x"},
    OF_OTHERS: {"action": "regex", "pattern": "(?i)^[^@]+", "replacement": "x"},
    "expression": {"action": "expression", "expression": "concat(left(email, 4), '...')"},
}
COMPUTED = {"matcher": ["*.*"], "column": "large", "type": "tinyint", "expression": "k > 2500"}


def table() -> TableSchema:
    """Return the table whose rows are masked."""
    return parse_create(SQL)


def image(count: int) -> pa.StructArray:
    """Return rows of it."""
    plain = plain_image(count)
    emails = [f"ada.lovelace.{i * 2654435761 % 10**9}@example.org" for i in range(count)]
    columns = [*(plain.field(i) for i in range(3)), pa.array(emails, pa.large_utf8())]
    return pa.StructArray.from_arrays(columns, fields=list(table().image))


def config(name: str) -> dict[str, Any]:
    """Return the configuration with one mask; empty: with none."""
    if not name:
        return {}
    if name == "computed column":
        return {"transform": {"computed": [COMPUTED]}}
    mask = {"matcher": ["*.*"], "columns": ["email"], **MASKS[name]}
    salt = {"salt": secrets.token_hex(16)} if name == "hash" else {}
    return {"transform": {**salt, "masks": [mask]}}


def answer() -> bytes:
    """Return an answer of the log with all rows."""
    keys, values = encode_rows(table(), 1, image(ROWS))
    found = pb.CdcPullLogResponse()
    for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
        found.log_data.add(key=key, value=value, commit_ts=TS)
    return found.SerializeToString()


def task(raw: bytes, protocol: str, name: str, file: Path) -> Callable[[], None]:
    """Return the work of a task."""
    uri = f"file:///tmp/bench?protocol={protocol}"
    spec, _ = build_spec(
        *("range://127.0.0.1:1", uri, config(name)),
        changefeed_id="bench",
        tables=option_tables,
        sinks=sink_traits,
    )
    flow, schema, decoder = assemble(spec), table().at(1), RowDecoder(table())
    op, stamps = pa.array(np.zeros(ROWS, np.int8)), pa.array(np.full(ROWS, TS, np.uint64))
    seq, before = pa.array(np.arange(ROWS, dtype=np.int64)), pa.nulls(ROWS, table().image)
    flow.decide.seen_as(schema)

    def work() -> None:
        page, _ = read_page(raw, 2, "bench")
        after = decoder.decode(page.raw, page.key_at, page.key_len, page.value_at, page.value_len)
        with file.open("wb") as out:
            for rows in flow.decide.rows(make_rows(schema, op, stamps, seq, before, after)):
                out.write(flow.encode.encode_rows(rows, 0).value_bytes())

    return work


def changefeed(master: str, name: str, folder: Path) -> Callable[[], None]:
    """Return the work of a changefeed that reads a table's snapshot, in this process."""

    def work() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        uri = f"file://{folder / 'out'}?protocol=csv"
        ready = prepare(f"range://{master}", uri, config(name), changefeed_id="bench")
        store = open_store(f"sqlite:///{folder / 'meta.db'}")
        store.create_changefeed(ready.spec)
        claim = store.claim("bench", Holder.here(), time.time(), 3600)
        runner = InProcessRunner()
        loop = Loop("bench", ready.flow, store, claim, runner, lambda: time.time_ns() // 1_000_000)
        while not loop.step().caught_up:
            pass
        loop.close()
        store.close()

    return work


def measured(works: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the processor's seconds of the best try of each."""
    best = dict.fromkeys(works, float("inf"))
    for work in works.values():
        work()
    for _ in range(TRIES):
        for name, work in works.items():
            began = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - began)
    return best


def write_docs(figures: list[Figure]) -> None:
    """Put the figures into the page."""
    lines = ["| what | mask | rows/s | of no mask |", "|---|---|---|---|"]
    for one in figures:
        what, _, mask = one.name.partition(", ")
        share = "" if not one.ratio else f"{one.ratio:.0%}"
        lines.append(f"| {what} | {mask} | {one.rows_per_s:,.0f} | {share} |")
    where = machine()
    lines += ["", f"On one core of {where['cpu']}, {where['at'][:10]}."]
    put_into_page("masks", "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="What masks cost.")
    parser.add_argument("--docs", action="store_true", help="write the figures to the page")
    asked = parser.parse_args()
    one_core()
    names, figures = ["", *MASKS, "computed column"], []

    def note(what: str, works: dict[str, Callable[[], None]]) -> None:
        seconds = measured(works)
        for name, taken in seconds.items():
            ratio = seconds[""] / taken if name else 0.0
            label = f"{what}, {name or 'no mask'}"
            figures.append(Figure(label, ROWS / taken, 0.0, "no mask", ratio))

    raw = answer()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        for protocol in ("csv", "canal-json"):
            works = {name: task(raw, protocol, name, folder / "out") for name in names}
            note(f"task to {protocol}", works)
        with LocalCluster(folder / "store", 1) as cluster, cluster.store() as store:
            store.ddl("CREATE DATABASE bench")
            store.ddl(SQL, ranges=4, handles=(0, ROWS))
            store.load(TableId("bench", "t"), image(ROWS))
            master = cluster.master_address
            works = {name: changefeed(master, name, folder / "feed") for name in names}
            note("changefeed to csv", works)
    keep("masks", figures)
    if asked.docs:
        write_docs(figures)
    whole = [f for f in figures if f.ratio and f.name.startswith("changefeed")]
    whole = [f for f in whole if not f.name.endswith(OF_OTHERS)]
    slow = [f"{f.name} ({f.ratio:.0%})" for f in whole if f.ratio < 1 - MOST]
    if slow:
        raise SystemExit(f"more than {MOST:.0%} are lost by: {', '.join(slow)}")


if __name__ == "__main__":
    main()
