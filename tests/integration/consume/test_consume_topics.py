"""`rowferry consume` on topics that were written by hand, rightly and wrongly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consume_kit import Writer, codec_of, deletes, inserts, updates
from run_kit import Result, call

from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.consume import kafka_topics
from rowferry.downstream.consume.arrival import Arrival
from rowferry.downstream.consume.consumer import ConsumeOutcome, ConsumeRequest, consume
from rowferry.testing.servers import Kafka

TABLE = TableSchema(
    TableId("shop", "t"),
    0,
    0,
    (Column(1, "id", SqlType("int"), nullable=False), Column(2, "v", SqlType("blob"))),
    (Index(1, "PRIMARY", ("id",), True, True),),
)
ADDED = SchemaChange(30, DdlKind.ADD_COLUMN, "ALTER TABLE t ADD c INT", TABLE.id, TABLE)

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *words: call(tmp_path, capfd, monkeypatch, ["consume", *words])


def image(key: int, value: bytes = b"x") -> dict[str, Any]:
    return {"id": key, "v": value}


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.mark.parametrize("protocol", ["canal-json&enable-tidb-extension=true", "open-protocol"])
def test_rows_come_in_commit_order_when_all_partitions_have_passed(
    kafka_broker: Kafka, run: Run, protocol: str
) -> None:
    topic = f"consume-order-{protocol[:4]}"
    uri = f"kafka://{kafka_broker.bootstrap}/{topic}?protocol={protocol}"
    kafka_broker.create_topic(topic, 2)
    writer = Writer(kafka_broker, codec_of(uri), topic)
    mine, second = inserts(TABLE, 20, image(1)), inserts(TABLE, 10, image(2))
    moved = updates(TABLE, 40, image(1), image(1, b"\xff"))
    writer.write(0, mine, Watermark(20), mine, ADDED, moved, Watermark(40))
    if protocol == "open-protocol":
        writer.write(1, second, ADDED)  # it is sent to all partitions
    else:
        writer.write(1, second)
    writer.write(1, deletes(TABLE, 35, image(2)), Watermark(35), inserts(TABLE, 50, image(3)))

    found = run(uri, "--until", "end")
    assert found.code == 0, found.err
    shown = [(r.get("op") or r["ddl"], r["commitTs"]) for r in lines(found)]
    assert shown == [
        ("insert", 10),
        ("insert", 20),
        (ADDED.query, 30),
        ("delete", 35),
    ]
    assert found.err == (
        "6 rows, 1 schema changes, 1 repeats, 0 violations; "
        "2 changes wait for a watermark; watermark 35\n"
    )

    writer.write(1, Watermark(50))
    found = run(uri, "--until", "40", "--from", "20")
    assert found.code == 0, found.err
    rows = lines(found)
    assert [r["commitTs"] for r in rows] == [30, 35, 40]
    assert rows[2]["after"] == {"id": 1, "v": "/w=="}
    assert (rows[2]["database"], rows[2]["table"], rows[2]["op"]) == ("shop", "t", "update")
    assert rows[2]["at"].startswith(f"{topic}[0]@")


def test_violations_are_told_and_end_with_1(kafka_broker: Kafka, run: Run, tmp_path: Path) -> None:
    topic = "consume-wrong"
    uri = f"kafka://{kafka_broker.bootstrap}/{topic}?protocol=canal-json&enable-tidb-extension=true"
    kafka_broker.create_topic(topic, 3)
    writer = Writer(kafka_broker, codec_of(uri), topic)
    writer.write(0, inserts(TABLE, 10, image(1)), Watermark(20), inserts(TABLE, 15, image(2)))
    writer.write(1, Watermark(20), Watermark(19))
    writer.write(2, inserts(TABLE, 12, image(5)), inserts(TABLE, 11, image(5)), Watermark(20))
    found = run(uri, "--until", "end", "--print", "none")
    assert (found.code, found.out) == (1, "")
    said = found.err.splitlines()
    assert sorted(said[:-1]) == [
        f"violation: {topic}[0]@2: shop.t (2,) insert at 15: first seen after the watermark 20",
        f"violation: {topic}[1]@1: the watermark goes back from 20 to 19",
        f"violation: {topic}[2]@1: shop.t (5,) insert at 11: "
        "first seen after the key's change at 12",
    ]
    assert said[-1] == "4 rows, 0 schema changes, 0 repeats, 3 violations; watermark 20"

    config = tmp_path / "rules.toml"
    config.write_text('[sink]\ndispatchers = [{matcher = ["*.*"], partition = "0"}]\n')
    found = run(uri, "--until", "end", "--print", "none", "--config", str(config))
    wrong = [line for line in found.err.splitlines() if "belongs to" in line]
    assert wrong == [
        f"violation: {topic}[2]@{n}: a row of shop.t belongs to partition 0" for n in (0, 1)
    ]
    config.write_text('[sink]\ndispatchers = [{matcher = ["*.*"], topic = "other"}]\n')
    found = run(uri, "--until", "end", "--print", "none", "--config", str(config))
    assert f"violation: {topic}[0]@0: shop.t belongs to topic other" in found.err


def test_without_watermarks_rows_come_as_they_lie(kafka_broker: Kafka, run: Run) -> None:
    topics = ["consume-plain-a", "consume-plain-b"]
    uri = f"kafka://{kafka_broker.bootstrap}/{','.join(topics)}?protocol=canal-json"
    for topic in topics:
        kafka_broker.create_topic(topic)
        writer = Writer(kafka_broker, codec_of(uri), topic)
        writer.write(
            0, inserts(TABLE, 20 << 18, image(1), image(2)), inserts(TABLE, 1 << 18, image(3))
        )
    found = run(uri, "--until", "end")
    assert found.code == 0, found.err
    for topic in topics:
        mine = [r["after"]["id"] for r in lines(found) if r["at"].startswith(topic)]
        assert mine == [1, 2, 3]
    found = run(uri, "--until", "end", "--from", "end")
    assert (found.code, found.out) == (0, ""), found.err
    assert found.err == "0 rows, 0 schema changes, 0 repeats, 0 violations\n"
    refused = run(uri, "--until", str((78 << 18) - 1)).refusal()
    assert "carries no watermarks" in refused[1]


class Taken:
    """Keeps what it is given, and the last word on the progress."""

    def __init__(self) -> None:
        self.changes: list[Arrival] = []
        self.waiting = 0

    def take(self, changes: Iterable[Arrival]) -> None:
        self.changes += changes

    def tell(self, outcome: ConsumeOutcome) -> None:
        self.waiting = outcome.waiting


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_topics_and_partitions_that_come_later_are_read(
    kafka_broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "_LOOK_S", 0.0)
    at = f"kafka://{kafka_broker.bootstrap}"
    uri = f"{at}/consume-first?protocol=canal-json&enable-tidb-extension=true"
    config = tmp_path / "rules.toml"
    rules = '[{matcher = ["shop.*"], partition = "ts", topic = "consume-{schema}"}]'
    config.write_text(f"[sink]\ndispatchers = {rules}\n")
    kafka_broker.create_topic("consume-first")
    first = Writer(kafka_broker, codec_of(uri), "consume-first")
    later = Writer(kafka_broker, codec_of(uri), "consume-shop")
    taken = Taken()
    request = ConsumeRequest(uri, config, until_ts=50)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        running = worker.submit(consume, request, lambda _: [taken], stop, taken.tell)
        try:
            kafka_broker.create_topic("consume-shop")
            later.write(0, inserts(TABLE, 20, image(1)))
            wait_for(lambda: taken.waiting == 1)
            kafka_broker.add_partitions("consume-shop", 2)
            later = Writer(kafka_broker, codec_of(uri), "consume-shop")  # knows of both
            later.write(1, inserts(TABLE, 11, image(2)))
            wait_for(lambda: taken.waiting == 2)
            assert taken.changes == []
            first.write(0, Watermark(50))
            for partition in (0, 1):
                later.write(partition, Watermark(50))
            outcome = running.result(120)
        finally:
            stop.set()
    assert [str(c.where) for c in taken.changes] == ["consume-shop[1]@0", "consume-shop[0]@0"]
    assert (outcome.findings.violations, outcome.waiting) == (0, 0), outcome.findings.samples


def test_refusals_are_one_line(kafka_broker: Kafka, run: Run, tmp_path: Path) -> None:
    at = kafka_broker.bootstrap
    kafka_broker.create_topic("consume-garbage")
    writer = Writer(
        kafka_broker, codec_of(f"kafka://{at}/x?protocol=canal-json"), "consume-garbage"
    )
    writer._producer.produce("consume-garbage", b"{}")
    writer._producer.flush(30)
    good = f"kafka://{at}/consume-garbage?protocol=canal-json"
    for words, code, expected in (
        ([good, "--until", "soon"], "RF-1002", "--until 'soon': allowed: end | a commit-ts"),
        ([good, "--from", "0"], "RF-1002", "--from '0': allowed: beginning | end | a commit-ts"),
        ([good, "--print", "all"], "RF-1002", "--print 'all': allowed: rows | none"),
        ([good, "--until", "end"], "RF-5001", "consume-garbage[0]@0: row 1"),
        ([good + "&nonsense=1", "--until", "end"], "RF-1001", "nonsense"),
        ([f"kafka://{at}/no-such?protocol=canal-json"], "RF-4008", "'no-such' is not there"),
        (["blackhole://?protocol=canal-json"], "RF-1004", "cannot be read back"),
        ([f"file://{tmp_path}/none?protocol=csv"], "RF-1004", "is not there"),
        ([good, "--apply", "kafka://a@b/"], "RF-1004", "--apply"),
        (
            ["kafka://127.0.0.1:1/t?protocol=canal-json&read-timeout=500ms"],
            "RF-4001",
            "127.0.0.1:1",
        ),
    ):
        found = run(*words)
        assert found.code in (1, 2)
        told = found.refusal()
        assert told[0] == code, told
        assert expected in told[1]
