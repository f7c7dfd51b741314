"""The PostgreSQL sink beside a hand-made COPY of the same lines, in one run.

    .venv/bin/python bench/postgresql_sink.py [--rows 200000] [--tries 3] [--docs]

Rows are encoded before the clock starts. The ceiling is one COPY of all lines straight into a table
with a primary key; the sink takes the same rows as frames, streams them into staging tables and
merges them from there behind its fence, first as new rows, then as changes of rows that are there.
Server and sink share the machine; the server does not wait for the disk, whoever writes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from beside_bare import keep_run, table
from report import Figure, machine, put_into_page

from rowferry.change.chunk import Op, make_rows
from rowferry.change.plan import Topic
from rowferry.flow.encode.copy_rows.codec import CopyRows
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.postgresql.effects import lines_of
from rowferry.flow.sink.postgresql.sink import PostgresqlSink
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import Postgres

SHAPE = "id integer PRIMARY KEY, k integer NOT NULL, c varchar(120) NOT NULL, pad varchar(60)"
TABLE = parse_create("create table b.t (id int primary key, k int, c char(120), pad char(60))")
PACKET_ROWS = 20_000
BARE = "one COPY by hand"


def packets(codec: CopyRows, rows: int, op: Op) -> list[Packet]:
    """Return packets of rows whose keys count up."""
    topic = Topic("b.t", 1, 1 << 30)
    made: list[Packet] = []
    for start in range(0, rows, PACKET_ROWS):
        ids = pa.array(np.arange(start, min(start + PACKET_ROWS, rows)), pa.int64())
        words = ids.cast(pa.large_utf8())
        # A change gives other values: one that leaves a row as it was costs less.
        number, fill = (ids, "x") if op is Op.INSERT else (pc.add(ids, 1), "y")
        columns = [ids, number] + [pc.utf8_lpad(words, width, fill) for width in (119, 59)]
        after = pa.StructArray.from_arrays(columns, fields=list(TABLE.image))
        empty = pa.nulls(len(ids), TABLE.image)
        ops = pa.array(np.full(len(ids), op, np.int8))
        before = after if op is Op.UPDATE else empty
        chunk = make_rows(TABLE, ops, ids.cast(pa.uint64()), ids, before, after)
        messages = codec.batch(codec.encode_rows(chunk, 0), topic)
        made.append(Packet(0, len(made), topic, 0, messages, 1, 1))
    return made


def lines(parts: list[Packet]) -> list[bytes]:
    """Return the lines of packets, each packet's as one text."""
    frames = (
        RowFrame.from_message(p.messages.keys[0].as_py(), p.messages.values[0].as_buffer())
        for p in parts
        if p.messages.keys is not None
    )
    return [bytes(lines_of(frame.rows)) for frame in frames]


def copied(url: str, texts: list[bytes]) -> float:
    """Return how long one hand-made COPY of all lines takes."""
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS b.bare")
        cursor.execute(f"CREATE TABLE b.bare ({SHAPE})".encode())
        begin = time.perf_counter()
        with cursor.copy("COPY b.bare FROM STDIN") as copying:
            for text in texts:
                copying.write(text)
        return time.perf_counter() - begin


def measured(url: str, rows: int) -> Iterator[Figure]:
    """Yield what was done, with rows and MB of lines a second; the bare COPY comes first."""
    uris = Uri.parse("range://127.0.0.1:1", "source"), Uri.parse(url, "sink")
    spec = ChangefeedSpec("bench", *uris)
    codec = CopyRows(spec, PostgresqlSink.TRAITS)
    new, changed = (packets(codec, rows, op) for op in (Op.INSERT, Op.UPDATE))
    texts = lines(new)
    size = sum(map(len, texts))
    seconds = copied(url, texts)
    yield Figure(BARE, rows / seconds, size / seconds / 1e6)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS b.t")
        connection.execute(f"CREATE TABLE b.t ({SHAPE})".encode())
    sink = PostgresqlSink(spec, codec)
    try:
        sink.open(Owner("bench", 1), None)
        for name, parts in (("sink, new rows", new), ("sink, changed rows", changed)):
            begin = time.perf_counter()
            sink.deliver(iter(parts))
            seconds = time.perf_counter() - begin
            yield Figure(name, rows / seconds, size / seconds / 1e6, BARE)
    finally:
        sink.close()


def main() -> None:
    """Measure, and print the best of some tries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = parser.parse_args()
    before = machine()
    best: dict[str, Figure] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres.start(Path(folder) / "postgres") as server,
    ):
        url = server.url("postgres")
        server.execute("CREATE SCHEMA b")
        for _ in range(asked.tries):
            for one in measured(url, asked.rows):
                known = best.setdefault(one.name, one)
                best[one.name] = max(one, known, key=lambda f: f.rows_per_s)
    figures = list(best.values())
    for one in figures:
        if one.baseline:
            one.ratio = one.rows_per_s / best[BARE].rows_per_s
    keep_run("postgresql_sink", before, figures, rows=asked.rows)
    what = f"{asked.rows:,} rows of four columns, about 190 bytes each"
    text = table(figures, what, before, "COPY by hand", unit="rows")
    print(text)
    if asked.docs:
        put_into_page("postgresql sink", text)


if __name__ == "__main__":
    main()
