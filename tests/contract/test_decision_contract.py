"""What decisions promise; see `rowferry.flow.decide.contract`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.assemble import decisions_of
from rowferry.flow.decide.contract import Decision
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

# Settings under which every promise must hold.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "filtered": {"filter": {"rules": ["shop.*", "!shop.secret"]}},
    "raw": {"sink": {"cloud-storage-config": {"output-raw-change-event": True}}},
    "forced": {"force-replicate": True},
    "case-sensitive": {"case-sensitive": True, "filter": {"rules": ["shop.*"]}},
}
KEY = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
IMAGE = pa.struct([("id", pa.int64()), ("v", pa.int64())])


def table(name: str = "orders", database: str = "shop", keyless: bool = False) -> TableSchema:
    columns = (
        Column(1, "id", SqlType("bigint"), nullable=False),
        Column(2, "v", SqlType("bigint")),
    )
    return TableSchema(TableId(database, name), 1, 1, columns, () if keyless else (KEY,))


TABLES = [
    table(),
    table("secret"),
    table("ORDERS"),
    table("log", keyless=True),
    table(database="mysql"),
    table(database="other"),
]


@pytest.fixture(params=sorted(VARIANTS))
def decision(request: pytest.FixtureRequest) -> Decision:
    return build(request.param)


def build(variant: str) -> Decision:
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = Uri.parse("file:///data?protocol=csv", "sink")
    return decisions_of(ChangefeedSpec("feed", source, sink, VARIANTS[variant]))


def chunk(schema: TableSchema, count: int = 12) -> Rows:
    """Inserts, updates (each second one moves its row to another key) and deletes, in turn."""
    op = [(Op.INSERT, Op.UPDATE, Op.DELETE)[i % 3] for i in range(count)]
    old = [None if o == Op.INSERT else {"id": i, "v": i} for i, o in enumerate(op)]
    moved = [i + 100 * (i % 2) for i in range(count)]
    new = [
        None if o == Op.DELETE else {"id": moved[i] if o == Op.UPDATE else i, "v": -i}
        for i, o in enumerate(op)
    ]
    return make_rows(
        schema,
        pa.array(op, pa.int8()),
        pa.array(range(1, count + 1), pa.uint64()),
        pa.array(range(count), pa.int64()),
        pa.array(old, IMAGE),
        pa.array(new, IMAGE),
    )


def outcome(decision: Decision, rows: Rows) -> list[Any]:
    return [row for part in decision.rows(rows) for row in part.batch.to_pylist()]


@pytest.mark.parametrize("schema", TABLES, ids=lambda t: str(t.id))
def test_rows_pass_where_their_table_is_captured(decision: Decision, schema: TableSchema) -> None:
    found = outcome(decision, chunk(schema))
    assert bool(found) is decision.captures(schema)
    if not decision.keeps_table(schema.id):
        assert not decision.captures(schema)


@pytest.mark.parametrize("schema", TABLES, ids=lambda t: str(t.id))
def test_it_has_no_state(decision: Decision, schema: TableSchema) -> None:
    """What passed before does not matter: tasks build their own, and a chunk may come again."""
    first = outcome(decision, chunk(schema))
    for other in TABLES:
        list(decision.rows(chunk(other)))
        decision.keeps_schema_change(SchemaChange(9, DdlKind.DROP_TABLE, "", other.id))
    assert outcome(decision, chunk(schema)) == first


def test_the_chunk_itself_is_not_changed(decision: Decision) -> None:
    rows = chunk(table())
    before = rows.batch.to_pylist()
    list(decision.rows(rows))
    assert rows.batch.to_pylist() == before


def test_order_is_kept(decision: Decision) -> None:
    found = outcome(decision, chunk(table()))
    stamps = [row["commit_ts"] for row in found]
    assert stamps == sorted(stamps)
    assert set(stamps) == set(range(1, 13))
    assert [r["seq"] for r in found] == sorted(r["seq"] for r in found)


def test_every_row_keeps_what_it_said(decision: Decision) -> None:
    """Applied to a table by key, the outcome does what the chunk did."""
    wanted, found = apply(chunk(table()).batch.to_pylist()), outcome(decision, chunk(table()))
    assert apply(found) == wanted


def apply(rows: list[Any]) -> dict[int, Any]:
    state: dict[int, Any] = {}
    for row in rows:
        if row["before"] is not None:
            state.pop(row["before"]["id"], None)
        if row["after"] is not None:
            state[row["after"]["id"]] = row["after"]
    return state


def test_a_chunk_in_pieces_has_the_same_outcome(decision: Decision) -> None:
    rows = chunk(table())
    whole = outcome(decision, rows)
    parts = [rows.take(np.arange(i, i + 3)) for i in range(0, 12, 3)]
    sliced = [Rows(rows.table, rows.batch.slice(i, 3)) for i in range(0, 12, 3)]
    assert [row for part in parts for row in outcome(decision, part)] == whole
    assert [row for part in sliced for row in outcome(decision, part)] == whole


def test_an_empty_chunk_is_nothing(decision: Decision) -> None:
    assert [len(part) for part in decision.rows(chunk(table(), 0)) if len(part)] == []


def test_the_partition_of_a_chunk_stays(decision: Decision) -> None:
    rows = chunk(table())
    parts = list(decision.rows(Rows(rows.table, rows.batch, physical_id=77, half=Op.DELETE)))
    assert {(part.physical_id, part.half) for part in parts} == {(77, Op.DELETE)}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_schema_change_passes_where_rows_do(variant: str) -> None:
    decision = build(variant)
    for schema in TABLES:
        change = SchemaChange(9, DdlKind.ADD_COLUMN, "ALTER …", schema.id, schema)
        assert decision.keeps_schema_change(change) is decision.captures(schema)


def test_system_databases_never_pass(decision: Decision) -> None:
    for name in ("mysql", "MYSQL", "information_schema", "sys"):
        assert not decision.keeps_table(TableId(name, "user"))
        change = SchemaChange(9, DdlKind.CREATE_DATABASE, "", TableId(name, ""))
        assert not decision.keeps_schema_change(change)
