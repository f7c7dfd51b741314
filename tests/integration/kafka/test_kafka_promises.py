"""A random workload on a server, fed to Kafka with faults in between: every promise holds."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import pytest
from kafka_feed_kit import NAME, KafkaFeed, Scene

from rowferry.change.chunk import Change, Rows, SchemaChange, Watermark
from rowferry.change.plan import Plan
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.control.feed import under_way
from rowferry.downstream.consume.arrival import Where
from rowferry.errors import SinkUnavailable
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.testing.feed import FeedFacts, WatchedFeed
from rowferry.testing.mysql_history import (
    JOURNAL,
    MySqlWriters,
    broken_order,
    make_history,
    make_tables,
    read_rows,
    settled,
)
from rowferry.testing.rebuild import compare, rebuild_changes
from rowferry.testing.validators import (
    BeforeImagesTrue,
    DeliveryOracle,
    NothingLostOrInvented,
    PerKeyOrder,
    RebuildMatches,
    SnapshotMeetsLog,
    SnapshotWindow,
    WatermarkHolds,
)

FACTS = FeedFacts(True, True, key_affinity=True)
BY_KEY = "[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'pk'\n"
Message = tuple[int, int, Change, list[bytes]]  # partition, offset, change, each row's own bytes


@pytest.mark.parametrize(
    "protocol",
    [
        "canal-json&enable-tidb-extension=true",
        "open-protocol&max-batch-size=5",
        "canal-json&enable-tidb-extension=true&exactly-once=true&transaction-lanes=2",
    ],
)
def test_every_promise(
    scene: Scene, protocol: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the faults every table with a key is read again, in parts, beside the stream.

    With transactions, each of which is begun anew, no table is read again: that would take minutes.
    """
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(rereads, "_LEAST_ROWS", 40)
    for name in ("_LEAST_PART_BYTES", "_FIRST_PART_BYTES", "_MOST_PART_BYTES"):
        monkeypatch.setattr(under_way, name, 1)
    server, database = scene.server, scene.database
    server.execute(f"DROP DATABASE {database}")
    make_tables(server, database, 100)
    ledger = f"&ledger-topic={database}-ledger" if "exactly-once" in protocol else ""
    feed = scene.feed(f"protocol={protocol}&partition-num=3{ledger}", BY_KEY)
    schemas = {t.id: t for t in feed.prepare().tables}
    first_rows = {t: list(read_rows(server, s).values()) for t, s in schemas.items()}
    # Slow ones: what counts is how often the feed stumbles over them, not how much it carries.
    writers = MySqlWriters(server, schemas, prepare=lambda cursor, dice: time.sleep(0.02))
    dice = random.Random(seed)
    first_mark, by_then = 0, 1 << 30
    windows: list[SnapshotWindow] = []

    def stumble(plan: object) -> None:
        if dice.random() < 0.2:
            raise SinkUnavailable("the answer was lost")

    def linger(plan: Plan) -> None:
        """Let writers go on between a part's planning and its reading."""
        if any(s.reread for s in plan.stretch.segments):
            time.sleep(0.15)

    feed.runner.before, feed.runner.after = linger, stumble
    writers.start(2, seed)
    try:
        while (
            len(writers.acknowledged) < 150
            or len(writers.acknowledged) < by_then + 60
            or not feed.faults
            or any(one.is_open for one in feed.resnapshots())
        ):
            step = feed.step()
            if not first_mark and step is not None and step.watermark:
                first_mark, by_then = step.watermark, len(writers.acknowledged)
                windows = [
                    SnapshotWindow(TableId(r.database, r.table), r.init_snapshot_ts, first_mark)
                    for r in feed.store.state(NAME).ranges
                    if r.init_snapshot_ts
                ]
                keyed_tables = [] if ledger else [t for t, s in schemas.items() if s.handle_index]
                for number, table in enumerate(keyed_tables):
                    feed.store.ask_resnapshot(NAME, Resnapshot(str(number), table))
            if dice.random() < 0.05:
                feed.run()
    finally:
        writers.stop()
    feed.catch_up()
    messages = list(read(feed, scene))
    keyed = {t for t, s in schemas.items() if s.handle_index}
    repeats = repeated(messages, keyed)
    if ledger:
        assert repeats == []
    outcomes = {r.outcome for r in feed.resnapshots()}
    assert outcomes == (set() if ledger else {ResnapshotOutcome.DONE})
    marks = sorted(
        {change.commit_ts for *_, change, _ in messages if isinstance(change, Watermark)}
    )
    again = [
        SnapshotWindow(table, low, next(m for m in marks if m > low))
        for table, low in feed.runner.rereads
    ]
    assert ledger or len({w.low for w in again}) > 3
    lows = {w.low for w in (*windows, *again)}
    dated = {
        token: stamp
        for *_, change, _ in messages
        if isinstance(change, Rows) and change.table.id.table == JOURNAL
        for token, stamp in zip(
            change.after.field("token").to_pylist(), change.commit_ts.tolist(), strict=True
        )
        if stamp not in lows
    }
    history = make_history(first_rows, schemas, settled(writers), dated)
    assert broken_order(history) == []
    oracle = DeliveryOracle(history, FACTS, windows, rereads=again)
    assert judge(oracle, messages) == []
    rebuilt = rebuild_changes(change for *_, change, _ in messages)
    source = {name: read_rows(server, schema) for name, schema in schemas.items()}
    found = compare(rebuilt, source)
    assert found.same, str(found)
    assert found.equal > 300


def repeated(messages: list[Message], keyed: Collection[TableId]) -> list[Change]:
    """Return what a partition has twice: rows of tables with keys, and watermarks."""
    counts: Counter[tuple[int, Any]] = Counter()
    twice: list[Change] = []
    for partition, _, change, raw in messages:
        signs: list[Any] = [change.commit_ts] if isinstance(change, Watermark) else []
        if isinstance(change, Rows) and change.table.id in keyed:
            signs = list(raw)
        for sign in signs:
            counts[partition, sign] += 1
            if counts[partition, sign] > 1:
                twice.append(change)
    return twice


def read(feed: KafkaFeed, scene: Scene) -> Iterator[Message]:
    for message in scene.broker.read_all(feed.topic):
        changes = list(feed.codec.decode_message(message.key, message.value))
        value = message.value or b""
        rows = sum(len(c) for c in changes if isinstance(c, Rows))
        own = iter(_parts(value) if "open-protocol" in feed.sink_uri and rows else [value] * rows)
        for change in changes:
            raw = list(islice(own, len(change))) if isinstance(change, Rows) else []
            yield message.partition, message.offset, change, raw
        assert next(own, None) is None


def _parts(batch: bytes) -> Iterator[bytes]:
    """Yield a batch's values: which rows share one may differ when a snapshot is read again."""
    while batch:
        end = 8 + int.from_bytes(batch[:8], "big")
        yield batch[8:end]
        batch = batch[end:]


def judge(oracle: DeliveryOracle, messages: list[Message]) -> list[str]:
    """Read all partitions side by side, each up to its next watermark in turn."""
    lanes: dict[int, list[list[Message]]] = defaultdict(lambda: [[]])
    for message in messages:
        lanes[message[0]][-1].append(message)
        if isinstance(message[2], Watermark):
            lanes[message[0]].append([])
    validators = (
        NothingLostOrInvented(oracle),
        PerKeyOrder(FACTS, oracle),
        WatermarkHolds(FACTS, oracle),
        RebuildMatches(oracle),
        BeforeImagesTrue(oracle),
        SnapshotMeetsLog(oracle),
    )
    feed = WatchedFeed(FACTS, validators, containers=[str(lane) for lane in lanes])
    rounds = max(len(stretches) for stretches in lanes.values())
    for turn in range(rounds):
        for lane, stretches in lanes.items():
            for _, offset, change, raw in stretches[turn] if turn < len(stretches) else ():
                where = Where(str(lane), offset)
                match change:
                    case Rows():
                        feed.note_rows(change, where, raw)
                    case SchemaChange():
                        feed.note_schema_change(change, where)
                    case Watermark():
                        feed.note_watermark(change.commit_ts, where)
    return feed.finish()
