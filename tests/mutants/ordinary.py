"""An ordinary short feed into each sink: a defect with which none runs is no hidden one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.spark.job import InProcessRunner
from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers import MySql

_PATIENCE_S = 180.0  # an upper bound for a machine under load


@pytest.fixture
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "storage":
            yield f"file://{tmp_path}/out?protocol=canal-json&enable-tidb-extension=true"
        case "kafka":
            broker = request.getfixturevalue("kafka_broker")
            topic = f"ordinary-{uuid.uuid4().hex}"
            options = "protocol=canal-json&enable-tidb-extension=true&partition-num=2"
            yield f"kafka://{broker.bootstrap}/{topic}?{options}"
        case "mysql":
            yield request.getfixturevalue("mariadb_server").uri
        case "http":
            with HttpReceiver() as receiver:
                yield f"http://127.0.0.1:{receiver.port}/"
        case "delta" | "iceberg":
            yield f"{request.param}+file://{tmp_path}/lake?fsync=false"


@pytest.mark.parametrize(
    "sink", ["storage", "kafka", "mysql", "http", "delta", "iceberg"], indirect=True
)
def test_an_ordinary_feed_runs(sink: str, mysql_server: MySql, tmp_path: Path) -> None:
    database = f"ordinary_{uuid.uuid4().hex[:8]}"
    mysql_server.script(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, words VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    )
    config = tmp_path / "feed.toml"
    tables = "[sink.mysql-config]\ncreate-tables = true\n" if "mysql" in sink else ""
    config.write_text(f"{tables}[filter]\nrules = ['{database}.*']\n")
    prepared = service.prepare(mysql_server.uri, sink, config, "ordinary")
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    store.create_changefeed(prepared.spec, 0)
    claim = store.claim("ordinary", Holder.here(), time.time(), 3600)
    now = lambda: time.time_ns() // 1_000_000  # noqa: E731
    loop = Loop("ordinary", prepared.flow, store, claim, InProcessRunner(), now)
    try:
        rows = _caught_up(loop, mysql_server)
        mysql_server.script(
            f"INSERT INTO {database}.t VALUES (4, 'four')",
            f"UPDATE {database}.t SET words = 'II' WHERE id = 2",
            f"DELETE FROM {database}.t WHERE id = 1",
        )
        rows += _caught_up(loop, mysql_server)
    finally:
        loop.close()
        store.close()
        mysql_server.execute(f"DROP DATABASE {database}")
    assert rows > 0  # which ones is what the searchers must see


def _caught_up(loop: Loop, server: MySql) -> int:
    clock = server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
    wanted, end = int(str(clock)) << PHYSICAL_SHIFT, time.monotonic() + _PATIENCE_S
    rows = 0
    while True:
        step = loop.step()
        rows += step.rows
        if step.caught_up and step.watermark >= wanted:
            return rows
        assert time.monotonic() < end, "the feed never caught up"
