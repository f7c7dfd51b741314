"""A changefeed from the reference store to a receiver that misbehaves: every promise holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from http_feed_kit import Ferry

from rowferry.change.chunk import Rows, SchemaChange, Watermark
from rowferry.change.table import TableId
from rowferry.errors import RowRejected
from rowferry.refstore.client import Store
from rowferry.testing.feed import FeedFacts, WatchedFeed, Where
from rowferry.testing.rebuild import rebuild_changes
from rowferry.testing.receiver import HttpReceiver, ReceiverFault, Refusal
from rowferry.testing.validators import PerKeyOrder, WatermarkHolds

ODD: list[ReceiverFault | Refusal] = [
    Refusal(500, words=b"oops"),
    Refusal(429, {"Retry-After": "0"}),
    ReceiverFault.DROP,
    ReceiverFault.LOSE_ANSWER,
    ReceiverFault.HALF_ANSWER,
]
FACTS = FeedFacts(carries_before=True, carries_commit_ts=True, schema_changes_go_to="partition-0")


def _row(key: int, dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.1:
        return {"id": key, "v": None, "note": None, "price": None, "doc": None, "at": None}
    return {
        "id": key,
        "v": dice.randrange(-(1 << 63), 1 << 63),
        "note": f'ß"\\\n{dice.random()}',
        "price": f"{dice.randrange(10**6)}.25",
        "doc": json.dumps({"a": [dice.randrange(9), None], "b": "ü"}, ensure_ascii=False),
        "at": f"2024-02-{dice.randrange(1, 29):02}",
    }


def _write(store: Store, table: TableId, alive: set[int], dice: random.Random) -> None:
    with store.transaction() as work:
        new = [k for k in dice.sample(range(100), 8) if k not in alive]
        old = dice.sample(sorted(alive), min(len(alive), 6))
        work.insert(table, [_row(k, dice) for k in new])
        work.update(table, [_row(k, dice) for k in old[:4]])
        work.delete(table, [{"id": k} for k in old[4:]])
    alive.update(new)
    alive.difference_update(old[4:])


@pytest.mark.parametrize("protocol", ["json", "canal-json"])
def test_a_rebuilt_table_is_equal_whatever_the_receiver_does(
    source: str, store: Store, tmp_path: Path, protocol: str
) -> None:
    dice = random.Random(11)
    table = TableId("http_" + protocol.replace("-", "_"), "t")
    store.ddl(f"CREATE DATABASE {table.database}")
    store.ddl(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, v bigint, note varchar(100), "
        "price decimal(10,2), doc json, at date)",
        ranges=3,
        handles=(0, 99),
    )
    alive: set[int] = set()
    for _ in range(4):
        _write(store, table, alive, dice)
    with HttpReceiver() as receiver:
        options = (
            f"protocol={protocol}&enable-tidb-extension=true&max-batch-rows=3&compression=gzip"
        )
        sink = f"{receiver.uri}?{options}&max-retry=1&backoff=1ms&max-backoff=2ms"
        ferry = Ferry(source, store, tmp_path, table.database, sink)
        for turn in range(6):
            receiver.faults.extend(dice.choices(ODD, k=6))
            _write(store, table, alive, dice)
            if turn == 2:
                store.ddl(f"ALTER TABLE {table} ADD COLUMN more varchar(20)")
                ferry.start()  # another server, with what was published and what is pending
            ferry.catch_up()
        ferry.close()
    assert ferry.faults, "the receiver was never so bad that the feed had to repeat"
    assert len(receiver.taken) > len(receiver.once())
    assert {r.headers["Rowferry-Epoch"] for r in receiver.taken} == {"1", "2"}
    _judge(receiver, ferry, store, table)


def _judge(receiver: HttpReceiver, ferry: Ferry, store: Store, table: TableId) -> None:
    feed = WatchedFeed(FACTS, [PerKeyOrder(FACTS), WatermarkHolds(FACTS)])
    for place, request in enumerate(receiver.taken):
        for change, text in ferry.changes(request):
            where = Where("requests", place)
            match change:
                case Rows():
                    feed.note_rows(change, where, [text])
                case SchemaChange():
                    feed.note_schema_change(change, where)
                case Watermark():
                    feed.note_watermark(change.commit_ts)
    assert feed.finish() == []
    rebuilt = rebuild_changes(c for r in receiver.once() for c, _ in ferry.changes(r))
    wanted = {(row["id"],): row for row in store.scan(table).to_pylist()}
    assert rebuilt[table].by_key() == wanted
    assert "more" in rebuilt[table].rows.column_names


def test_a_refusal_stops_the_feed_and_it_goes_on_where_it_stopped(
    source: str, store: Store, tmp_path: Path
) -> None:
    table = TableId("http_refused", "t")
    store.ddl(f"CREATE DATABASE {table.database}")
    store.ddl(f"CREATE TABLE {table} (id bigint PRIMARY KEY)", ranges=1, handles=(0, 99))
    with HttpReceiver() as receiver:
        ferry = Ferry(source, store, tmp_path, table.database, f"{receiver.uri}?worker-count=1")
        ferry.catch_up()
        with store.transaction() as work:
            work.insert(table, [{"id": k} for k in range(5)])
        receiver.faults.append(Refusal(422, words=b"no such tenant"))
        with pytest.raises(RowRejected, match="422: no such tenant"):
            ferry.catch_up()
        ferry.catch_up()
        rows = [m for r in receiver.taken for m in json.loads(r.body) if "op" in m]
        assert sorted(m["after"]["id"] for m in rows) == [0, 1, 2, 3, 4]
        ferry.close()
