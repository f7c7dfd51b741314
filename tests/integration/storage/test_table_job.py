"""Tables of a bucket, rebuilt on Spark: small ones together, others by a shuffle; the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from object_store_kit import sink_uri
from pyspark.sql import SparkSession
from test_shapes import PLANNED_AT_MS, opened, rows_of, run, table

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import plan_tables
from rowferry.errors import BadOption
from rowferry.spark import rebuild_table
from rowferry.spark.rebuild_table import TableJob, read_table
from rowferry.spark.session import close_session, open_session
from rowferry.testing.servers import Minio

TABLES, ROWS = 70, 20  # more tables than one job takes


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    found = open_session("test", tmp_path / "spark", "local[2]")
    yield found
    close_session(found)


def test_tables_of_a_bucket(
    s3_server: Minio,
    prefix: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = sink_uri(s3_server, prefix, **{"protocol": "canal-json", "enable-tidb-extension": "true"})
    sink, codec = opened(uri)
    dice = random.Random(3)
    text = Column(2, "v", SqlType("varchar", length=9))
    rows: dict[str, list[dict[str, Any]]] = {}
    frames = {}
    for n in range(TABLES):
        keys = dice.sample(range(1000), ROWS if n else 0)  # one is empty
        images = [{"id": key, "v": dice.choice([None, "ä", "b"])} for key in keys]
        schema = table(f"t{n:02}", text)
        rows[f"t{n:02}"] = sorted(images, key=lambda row: row["id"])
        frames[schema] = codec.encode_rows(rows_of(schema, images), PLANNED_AT_MS)
    run(sink, 1, frames, TABLES)
    plans, job = plan_tables(open_storage(uri)), TableJob(spark)
    names = [plan.lineage.table.table for plan in plans]
    assert names == list(rows)

    frame = read_table(spark, uri, "shop.t01").orderBy("id")
    assert [row.asDict() for row in frame.collect()] == rows["t01"]
    # All of them as small tables; then one as if none were small.
    for how, some in (("small", plans), ("shuffled", plans[1:2])):
        if how == "shuffled":
            monkeypatch.setattr(rebuild_table, "_SMALL_BYTES", -1)
        folders = [tmp_path / how / plan.lineage.table.table for plan in some]
        written = [(r.plan, r.count) for r in job.write(some, folders)]
        assert written == [(p, len(rows[p.lineage.table.table])) for p in some]
        shown = list(job.show(some, 5))
        for plan, folder, found in zip(some, folders, shown, strict=True):
            wanted = rows[plan.lineage.table.table]
            stored = pq.read_table(folder).sort_by("id")
            assert (stored.column_names, stored.to_pylist()) == (["id", "v"], wanted)
            assert found.count == len(wanted)
            assert found.rows == tuple((row["id"], row["v"]) for row in wanted[:5])
        with pytest.raises(BadOption, match=f"{how}/t0. is there already"):
            list(job.write(some[:1], folders[:1]))
    done, total = job.tasks()
    assert 0 <= done <= total
