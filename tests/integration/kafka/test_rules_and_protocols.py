"""Every dispatch rule with every protocol: where rows, schema changes and watermarks arrive."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from kafka_feed_kit import Mark, Scene, Statement

from rowferry.change.chunk import Op
from rowferry.downstream.consume.arrival import ArrivedRow
from rowferry.errors import TopicRefused
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.testing.servers import SchemaRegistryServer

PARTITIONS = 3
ROUNDS = 12
# Table -> the rule as TOML, and the columns that are hashed (a number: that partition).
RULES: dict[str, tuple[str, Any]] = {
    "by_none": ('partition = "default"', ()),
    "by_table": ('partition = "table"', ()),
    "by_ts": ('partition = "ts"', None),
    "by_rowid": ('partition = "rowid"', ("id",)),
    "by_pk": ('partition = "pk"', ("id",)),
    "by_index": ('partition = "index-value", index = "by_b"', ("b",)),
    "by_columns": ('partition = "columns", columns = ["C", "b"]', ("c", "b")),
    "by_list": ('partition = "[id, c]"', ("id", "c")),
    "by_number": ("partition = 2", 2),
    "by_text": ('partition = "1"', 1),
}


@dataclass(frozen=True)
class Kind:
    """A protocol, and what it tells and sends."""

    query: str
    whole_updates: bool = True  # tells updates from inserts
    dates: bool = True  # tells each row's commit-ts
    ddl: tuple[int, ...] = ()  # partitions that get schema changes
    marks: bool = False
    alone: bool = False  # a topic for each table


EVERYWHERE = tuple(range(PARTITIONS))
KINDS = {
    "canal": Kind("protocol=canal-json", dates=False, ddl=(0,)),
    "canal_more": Kind("protocol=canal-json&enable-tidb-extension=true", ddl=(0,), marks=True),
    "canal_packets": Kind("protocol=canal", dates=False, ddl=(0,)),
    "debezium": Kind("protocol=debezium", dates=False, ddl=EVERYWHERE),
    "debezium_more": Kind(
        "protocol=debezium&enable-tidb-extension=true&debezium-disable-schema=true",
        ddl=EVERYWHERE,
        marks=True,
    ),
    "debezium_avro": Kind(
        "protocol=debezium-avro&enable-tidb-extension=true&avro-enable-watermark=true",
        ddl=EVERYWHERE,
        marks=True,
        alone=True,
    ),
    "simple": Kind("protocol=simple", ddl=EVERYWHERE, marks=True),
    "simple_avro": Kind("protocol=simple&encoding-format=avro", ddl=EVERYWHERE, marks=True),
    "open": Kind("protocol=open-protocol", ddl=EVERYWHERE, marks=True),
    "avro": Kind("protocol=avro", whole_updates=False, dates=False, alone=True),
    "avro_more": Kind(
        "protocol=flat-avro&enable-tidb-extension=true&avro-enable-watermark=true",
        ddl=EVERYWHERE,
        marks=True,
        alone=True,
    ),
}


@dataclass(frozen=True)
class Expected:
    op: Op
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def image(key: int, b: int, c: str) -> dict[str, Any]:
    return {"id": key, "b": b, "c": c}


def history() -> tuple[list[list[str]], list[Expected]]:
    """Transactions (`%` stands for the table) and what they are: each kind of change in turn."""
    transactions, expected = [], []
    for n in range(ROUNDS):
        key = 10 * n
        rows = [image(key + i, 100 * n + i, f"c{n % 3}") for i in range(4)]
        values = ", ".join(f"({r['id']}, {r['b']}, '{r['c']}')" for r in rows)
        changed = image(key, rows[0]["b"] + 50, "other")
        moved = {**rows[1], "id": key + 7}
        transactions += [
            [f"INSERT INTO % VALUES {values}"],
            [
                f"UPDATE % SET b = b + 50, c = 'other' WHERE id = {key}",
                f"UPDATE % SET id = {key + 7} WHERE id = {key + 1}",
                f"DELETE FROM % WHERE id = {key + 2}",
            ],
        ]
        expected += [Expected(Op.INSERT, None, r) for r in rows]
        # b is the column of a unique key: such an update comes as two changes, as a moved row does.
        expected += [Expected(Op.DELETE, rows[0], None), Expected(Op.INSERT, None, changed)]
        expected += [Expected(Op.DELETE, rows[1], None), Expected(Op.INSERT, None, moved)]
        expected += [Expected(Op.DELETE, rows[2], None)]
    for n in range(ROUNDS):
        last = image(10 * n + 3, 100 * n + 3, f"c{n % 3}")
        transactions.append([f"UPDATE % SET c = 'end' WHERE id = {last['id']}"])
        expected.append(Expected(Op.UPDATE, last, {**last, "c": "end"}))
    return transactions, expected


def partition(database: str, table: str, row: Expected) -> int:
    """Where a row belongs, in plain words."""
    rule = RULES[table][1]
    if isinstance(rule, int):
        return rule
    values = row.before if row.op is Op.DELETE else row.after
    found = zlib.crc32(f"{database}{table}".encode())
    for name in rule:
        value = (values or {})[name]
        if value is not None:
            found ^= zlib.crc32(f"{name}{value}".encode())
    return found % PARTITIONS


@pytest.mark.parametrize("name", list(KINDS))
def test_every_rule(
    scene: Scene, name: str, schema_registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 4_000)  # order must hold across segments
    kind, database = KINDS[name], scene.database
    for table in RULES:
        scene.sql(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, b INT NOT NULL, c VARCHAR(20), "
            "UNIQUE KEY by_b (b))"
        )
    topic = ', topic = "{schema}.{table}"' if kind.alone else ""
    rules = [f"{{matcher = ['*.{t}'], {text}{topic}}}" for t, (text, _) in RULES.items()]
    query = f"{kind.query}&partition-num={PARTITIONS}"
    if kind.alone:
        query += f"&schema-registry={schema_registry.url}"
    feed = scene.feed(query, f"[sink]\ndispatchers = [{', '.join(rules)}]\n")
    feed.catch_up()
    transactions, expected = history()
    scene.sql(*(s for one in transactions for s in ("BEGIN", *_for_each(one), "COMMIT")))
    scene.sql(*(f"ALTER TABLE {table} ADD COLUMN d INT" for table in RULES))
    scene.sql(*(f"INSERT INTO {table} VALUES (-1, -1, NULL, 5)" for table in RULES))
    feed.catch_up()
    assert feed.faults == []
    assert feed.runner.segments > 3
    everything = {
        topic: feed.read(topic)
        for topic in ([f"{database}.{t}" for t in RULES] if kind.alone else [database])
    }
    for table in RULES:
        found = everything[f"{database}.{table}" if kind.alone else database]
        mine = [r for r in found if isinstance(r, ArrivedRow) and r.table.id.table == table]
        check_rows(kind, database, table, mine, expected)
        check_schema_changes(kind, table, found)
    for topic, found in everything.items():
        check_watermarks(kind, found, topic)


def _for_each(statements: list[str]) -> list[str]:
    return [s.replace("%", table) for s in statements for table in RULES]


def check_rows(
    kind: Kind, database: str, table: str, found: list[ArrivedRow], expected: list[Expected]
) -> None:
    last = Expected(Op.INSERT, None, {**image(-1, -1, ""), "c": None, "d": 5})
    wanted = [*expected, last]
    assert len(found) == len(wanted), table
    lanes: dict[int, list[ArrivedRow]] = defaultdict(list)
    for row in found:
        lanes[int(row.where.container)].append(row)
    if table == "by_ts":  # where each is found by its own commit-ts
        assert len(lanes) > 1
        assert not kind.dates or all(
            r.commit_ts % PARTITIONS == lane for lane, rows in lanes.items() for r in rows
        )
        together = {_told(kind, r.op, r.key, r.after) for r in found}
        assert together == {_told(kind, w.op, _key(w), w.after) for w in wanted}
        return
    homes: dict[int, list[Expected]] = defaultdict(list)
    for one in wanted:
        homes[partition(database, table, one)].append(one)
    assert lanes.keys() == homes.keys(), table
    for lane, rows in lanes.items():
        have = [_told(kind, r.op, r.key, r.after) for r in rows]
        assert have == [_told(kind, w.op, _key(w), w.after) for w in homes[lane]], (table, lane)


def _key(row: Expected) -> tuple[Any, ...]:
    return ((row.after or row.before or {})["id"],)


def _told(kind: Kind, op: Op, key: tuple[Any, ...], after: dict[str, Any] | None) -> Any:
    """What the protocol tells of a change."""
    known = op if kind.whole_updates or op is Op.DELETE else Op.INSERT
    return (known, key, None if after is None else tuple(sorted(after.items())))


def check_schema_changes(
    kind: Kind, table: str, found: list[ArrivedRow | Statement | Mark]
) -> None:
    mine = [s for s in found if isinstance(s, Statement) and s.change.table.table == table]
    assert sorted(int(s.where.container) for s in mine) == sorted(kind.ddl), table
    assert all("ADD COLUMN" in s.change.query for s in mine)
    for statement in mine:  # after the rows of before, ahead of those of after
        lane = [r for r in found if r.where.container == statement.where.container]
        rows = [r for r in lane if isinstance(r, ArrivedRow) and r.table.id.table == table]
        assert all(
            (r.where.number > statement.where.number) == ("d" in (r.after or {})) for r in rows
        )


def check_watermarks(kind: Kind, found: list[ArrivedRow | Statement | Mark], topic: str) -> None:
    marks: dict[str, list[int]] = defaultdict(list)
    for one in found:
        if isinstance(one, Mark):
            marks[one.where.container].append(one.commit_ts)
        elif isinstance(one, ArrivedRow) and kind.marks:
            assert one.commit_ts > max(marks[one.where.container], default=0), topic
    if not kind.marks:
        assert not marks
        return
    assert sorted(marks) == [str(n) for n in EVERYWHERE], topic
    (same,) = {tuple(stamps) for stamps in marks.values()}
    assert list(same) == sorted(same)


def test_an_index_out_of_reach_fails_the_creation(scene: Scene) -> None:
    with pytest.raises(TopicRefused, match=r"partition = 3: .* 3 partitions in use, 0 to 2"):
        scene.feed(
            "protocol=canal-json&partition-num=3",
            "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 3}]\n",
        )
    assert scene.topics() == {}
