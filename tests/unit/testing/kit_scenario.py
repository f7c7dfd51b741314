"""Small histories and the feeds that a sound changefeed would make of them, as lists of events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.testing.feed import Delivered, FeedFacts, WatchedFeed, Where
from rowferry.testing.model import History, Row, RowChange
from rowferry.testing.validators import AllPromises, DeliveryOracle

ACCOUNT = TableId("bank", "account")
FULL = FeedFacts(carries_before=True, carries_commit_ts=True)


def account(version: int = 1, *extra: Column) -> TableSchema:
    return TableSchema(
        ACCOUNT,
        7,
        version,
        (
            Column(1, "id", SqlType("bigint"), nullable=False),
            Column(2, "owner", SqlType("varchar", length=20)),
            Column(3, "balance", SqlType("bigint")),
            *extra,
        ),
        (Index(1, "PRIMARY", ("id",), unique=True, primary=True),),
    )


def row(key: int, owner: str, balance: int, **more: Any) -> dict[str, Any]:
    return {"id": key, "owner": owner, "balance": balance, **more}


def insert(new: dict[str, Any], table: TableId = ACCOUNT) -> RowChange:
    return RowChange(table, Op.INSERT, (new["id"],), None, new)


def update(old: dict[str, Any], new: dict[str, Any], table: TableId = ACCOUNT) -> RowChange:
    return RowChange(table, Op.UPDATE, (new["id"],), old, new)


def delete(old: dict[str, Any], table: TableId = ACCOUNT) -> RowChange:
    return RowChange(table, Op.DELETE, (old["id"],), old, None)


def bank() -> History:
    """Two accounts whose total stays 100, a third that comes and goes."""
    found = History()
    found.note_table(account())
    found.note_commit(10, [insert(row(1, "ann", 60)), insert(row(2, "bob", 40))])
    found.note_commit(
        20,
        [
            update(row(1, "ann", 60), row(1, "ann", 50)),
            update(row(2, "bob", 40), row(2, "bob", 50)),
        ],
    )
    found.note_commit(30, [insert(row(3, "cy", 0))])
    found.note_commit(40, [update(row(3, "cy", 0), row(3, "cyd", 0))])
    found.note_commit(50, [delete(row(3, "cyd", 0))])
    found.note_commit(60, [update(row(1, "ann", 50), row(1, "ann", 0))] * 1)
    found.note_commit(70, [update(row(1, "ann", 0), row(1, "ann", 50))])
    return found


@dataclass(frozen=True)
class Mark:
    commit_ts: int
    container: str = ""


@dataclass(frozen=True)
class Ddl:
    change: SchemaChange
    container: str = "topic/0"


Event = Delivered | Mark | Ddl


def good_feed(oracle: DeliveryOracle, *marks: int, container: str = "topic/0") -> list[Event]:
    """Return the events of a sound feed, with watermarks at these commit-ts."""
    found: list[Event] = []
    rest = sorted(marks)
    for number, change in enumerate(oracle.expected):
        while rest and rest[0] < change.commit_ts:
            found.append(Mark(rest.pop(0)))
        version = oracle.versions.at(change.table, change.commit_ts)
        found.append(
            Delivered(
                change.table,
                version.version if version else 0,
                change.op,
                change.commit_ts,
                change.key,
                change.before,
                change.after,
                Where(container, number),
                digest=1,
            )
        )
    return found + [Mark(m) for m in rest]


def run(events: list[Event], facts: FeedFacts, *consumers: Any, **options: Any) -> list[str]:
    feed = WatchedFeed(facts, consumers, **options)
    for event in events:
        match event:
            case Delivered():
                feed.note_row(event)
            case Mark():
                feed.note_watermark(event.commit_ts, Where(event.container))
            case Ddl():
                feed.note_schema_change(event.change, Where(event.container))
    return feed.finish()


def broken_promises(events: list[Event], oracle: DeliveryOracle, **options: Any) -> set[str]:
    """Return which promises of P1 to P7 the events break."""
    failures = run(events, oracle.facts, AllPromises.of(oracle, **options))
    return {f.partition(":")[0] for f in failures}


def with_row(events: list[Event], place: int, **changes: Any) -> list[Event]:
    """Return the events with one row changed."""
    found = list(events)
    assert isinstance(found[place], Delivered)
    found[place] = found[place]._replace(**changes)
    return found


def add_column(commit_ts: int, name: str = "note", default: Any = "x") -> SchemaChange:
    schema = account(commit_ts, Column(4, name, SqlType("varchar", length=9), default=default))
    return SchemaChange(
        commit_ts, DdlKind.ADD_COLUMN, f"ALTER TABLE account ADD {name}", ACCOUNT, schema
    )


def truncate(commit_ts: int) -> SchemaChange:
    return SchemaChange(
        commit_ts, DdlKind.TRUNCATE_TABLE, "TRUNCATE account", ACCOUNT, account(commit_ts)
    )


def renamed(schema: TableSchema, name: str, version: int) -> TableSchema:
    return replace(schema, id=TableId(schema.id.database, name), version=version)


def chunk(table: TableSchema, changes: list[tuple[int, RowChange]]) -> Rows:
    """Return changes as a chunk."""
    return make_rows(
        table,
        pa.array([int(c.op) for _, c in changes], pa.int8()),
        pa.array([ts for ts, _ in changes], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([c.before for _, c in changes], table.image),
        pa.array([c.after for _, c in changes], table.image),
    )


@st.composite
def histories(draw: Any, most: int = 12) -> History:
    """Valid transactions over five keys; now and then a new column or a TRUNCATE."""
    found = History()
    found.note_table(account())
    state: dict[int, Row] = {}
    more: dict[str, str] = {}
    for commit_ts in range(10, 10 + 10 * draw(st.integers(2, most)), 10):
        event = draw(st.integers(0, 19))
        if event == 0 and not more:
            found.note_schema_change(add_column(commit_ts))
            more = {"note": "x"}
            state = {k: {**r, **more} for k, r in state.items()}
            continue
        if event == 1 and not more:
            found.note_schema_change(truncate(commit_ts))
            state = {}
            continue
        changes = []
        for _ in range(draw(st.integers(1, 4))):
            key = draw(st.integers(1, 5))
            new = {"id": key, "owner": draw(st.sampled_from("abc")), **more}
            new["balance"] = draw(st.integers(-2, 2))
            if key not in state:
                changes.append(insert(new))
            elif draw(st.booleans()):
                changes.append(delete(state.pop(key)))
                continue
            else:
                changes.append(update(state[key], new))
            state[key] = new
        found.note_commit(commit_ts, changes)
    return found
