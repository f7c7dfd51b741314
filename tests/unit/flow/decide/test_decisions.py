from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, make_rows
from rowferry.change.remembered import MOST
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadFilterRule, TableIneligible
from rowferry.flow.assemble import decisions_of, sink_traits
from rowferry.flow.decide.contract import Decision
from rowferry.flow.decide.decisions import Decisions
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

STORAGE = "file:///out?protocol=csv"


def decisions(config: dict[str, Any] | None = None, sink: str = STORAGE) -> Decisions:
    source, target = Uri.parse("range://h", "source"), Uri.parse(sink, "sink")
    return decisions_of(ChangefeedSpec("f", source, target, config or {}))


def table(name: str, *indexes: Index, nullable: bool = False) -> TableSchema:
    columns = (Column(1, "id", SqlType("bigint"), nullable), Column(2, "v", SqlType("text")))
    return TableSchema(TableId("shop", name), 1, 1, columns, indexes)


PRIMARY = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
UNIQUE = Index(2, "u", ("id",), unique=True)


def update(schema: TableSchema) -> Rows:
    def image(i: int) -> pa.StructArray:
        return pa.array([{"id": i, "v": "x"}], schema.image)

    op, commit_ts, seq = (pa.array([1], t) for t in (pa.int8(), pa.uint64(), pa.int64()))
    return make_rows(schema, op, commit_ts, seq, image(1), image(2))


def ops(found: Decisions, rows: Rows) -> list[int]:
    return [int(op) for part in found.rows(rows) for op in part.op]


def test_is_a_decision() -> None:
    found: Decision = decisions()
    assert found.keeps_table(TableId("shop", "orders"))


def test_no_rules_and_empty_rules_mean_all_tables() -> None:
    configs: list[dict[str, Any]] = [{}, {"filter": {}}, {"filter": {"rules": []}}]
    for config in configs:
        found = decisions(config)
        assert found.keeps_table(TableId("shop", "orders"))
        assert not found.keeps_table(TableId("mysql", "user"))
        assert not found.keeps_table(TableId("SYS", "x"))


@pytest.mark.parametrize("name", ["rowferry_fence", "Rowferry_Mark", "rowferry_delivered"])
def test_tables_that_a_changefeed_keeps_for_itself_are_not_taken_along(name: str) -> None:
    """Brought back to the other end, they would be written over those of another changefeed."""
    found = decisions({"filter": {"rules": ["*.*"]}})
    assert not found.keeps_table(TableId("shop", name))
    assert found.keeps_table(TableId("shop", "rowferry_orders"))


def test_case_of_names() -> None:
    rules = {"filter": {"rules": ["Shop.*"]}}
    assert decisions(rules).keeps_table(TableId("sHOP", "t"))
    assert not decisions({**rules, "case-sensitive": True}).keeps_table(TableId("shop", "t"))


def test_bad_rule() -> None:
    with pytest.raises(BadFilterRule):
        decisions({"filter": {"rules": ["a.b.c"]}})


# --- rows ----------------------------------------------------------------------------------------


def test_rows_of_a_table_that_is_not_captured() -> None:
    assert (
        ops(decisions({"filter": {"rules": ["*.*", "!shop.t"]}}), update(table("t", PRIMARY))) == []
    )


def test_key_change_is_split_unless_raw_changes_are_wanted() -> None:
    rows = update(table("t", PRIMARY))
    raw = {"output-raw-change-event": True}
    assert ops(decisions(), rows) == [Op.DELETE, Op.INSERT]
    assert ops(decisions({"sink": {"cloud-storage-config": raw}}), rows) == [Op.UPDATE]
    assert ops(decisions({"sink": {"kafka-config": raw}}), rows) == [Op.DELETE, Op.INSERT]
    kafka = "kafka://h:1/t?protocol=canal-json"
    assert ops(decisions({"sink": {"kafka-config": raw}}, kafka), rows) == [Op.UPDATE]
    mysql = {"sink": {"mysql-config": raw, "cloud-storage-config": raw}}
    assert ops(decisions(mysql, "mysql://h:1"), rows) == [Op.DELETE, Op.INSERT]


@pytest.mark.parametrize(
    ("schema", "eligible"),
    [
        (table("t", PRIMARY), True),
        (table("t", UNIQUE), True),
        (table("t", UNIQUE, nullable=True), False),
        (table("t"), False),
        (table("t", Index(3, "i", ("id",))), False),
    ],
)
def test_eligible_tables(schema: TableSchema, eligible: bool) -> None:
    assert decisions().captures(schema) is eligible
    assert bool(ops(decisions(), update(schema))) is eligible
    forced = decisions({"force-replicate": True})
    assert forced.captures(schema)
    assert ops(forced, update(schema)) != []


def test_ineligible_tables_refuse_creation() -> None:
    tables = [table("b"), table("ok", PRIMARY), table("a")]
    with pytest.raises(TableIneligible) as caught:
        decisions().check_tables(tables)
    words = str(caught.value)
    assert "shop.a, shop.b;" in words and "shop.ok" not in words
    assert "ignore-ineligible-table = true" in words and "force-replicate = true" in words


def test_ineligible_tables_left_out_or_forced() -> None:
    tables = [table("b"), table("ok", PRIMARY)]
    (told,) = decisions({"ignore-ineligible-table": True}).check_tables(tables)
    assert told.startswith("left out") and told.endswith("shop.b")
    assert decisions({"force-replicate": True}).check_tables(tables) == []
    assert decisions({"filter": {"rules": ["*.*", "!shop.b"]}}).check_tables(tables) == []


# --- schema changes ------------------------------------------------------------------------------


def ddl(
    kind: DdlKind, name: str, previous: str = "", schema: TableSchema | None = None
) -> SchemaChange:
    old = TableId(*previous.split(".")) if previous else None
    return SchemaChange(1, kind, "…", TableId(*name.split(".")), schema, old)


def test_schema_change_of_a_database() -> None:
    found = decisions({"filter": {"rules": ["shop.orders", "!old.*"]}})
    for kind in (DdlKind.CREATE_DATABASE, DdlKind.DROP_DATABASE, DdlKind.DATABASE_CHARSET):
        assert found.keeps_schema_change(ddl(kind, "shop."))
        assert not found.keeps_schema_change(ddl(kind, "old."))
        assert not found.keeps_schema_change(ddl(kind, "other."))
        assert not decisions().keeps_schema_change(ddl(kind, "tidb_cdc."))


def test_schema_change_of_a_table() -> None:
    found = decisions({"filter": {"rules": ["shop.*", "!shop.log"]}})
    assert found.keeps_schema_change(ddl(DdlKind.ADD_COLUMN, "shop.t", schema=table("t", PRIMARY)))
    assert found.keeps_schema_change(ddl(DdlKind.DROP_TABLE, "shop.t"))
    assert not found.keeps_schema_change(ddl(DdlKind.DROP_TABLE, "shop.log"))


def test_schema_change_of_a_table_without_a_key() -> None:
    created = ddl(DdlKind.CREATE_TABLE, "shop.t", schema=table("t"))
    assert not decisions().keeps_schema_change(created)
    assert decisions({"force-replicate": True}).keeps_schema_change(created)
    assert decisions().keeps_schema_change(ddl(DdlKind.CREATE_VIEW, "shop.t", schema=table("t")))
    keyed = ddl(DdlKind.ADD_PRIMARY_KEY, "shop.t", schema=table("t", PRIMARY))
    assert decisions().keeps_schema_change(keyed)


@pytest.mark.parametrize(
    ("previous", "name", "kept"),
    [
        ("test.t1", "test.t2", True),
        ("test.t1", "ignore.t1", True),
        ("ignore.t1", "ignore.t2", False),
    ],
)
def test_rename(previous: str, name: str, kept: bool) -> None:
    found = decisions({"filter": {"rules": ["test.t*"]}})
    rename = ddl(DdlKind.RENAME_TABLE, name, previous, table("t", PRIMARY))
    assert found.keeps_schema_change(rename) is kept


@pytest.mark.parametrize("previous", ["test.n1", "ignore.t1"])
def test_rename_into_the_feed_is_not_sent(previous: str) -> None:
    found = decisions({"filter": {"rules": ["test.t*"]}})
    rename = ddl(DdlKind.RENAME_TABLE, "test.t1", previous, table("t", PRIMARY))
    assert not found.keeps_schema_change(rename)


def test_versions_of_a_table_do_not_pile_up() -> None:
    found = decisions({"filter": {"rules": ["shop.*"]}})
    for version in range(500):
        schema = replace(table("t", PRIMARY), version=version)
        assert found.seen_as(schema).version == version
        found.check_tables([schema])
    assert len(found._seen) == len(found._events._policies) == 1


def test_tables_that_came_and_went_do_not_pile_up() -> None:
    found = decisions({"filter": {"rules": ["shop.*", "!shop.none"]}})
    for n in range(MOST + 10):
        assert found.keeps_table(TableId("shop", f"t{n}"))
    assert len(found._filter._tables) <= MOST
    assert not found.keeps_table(TableId("shop", "none"))


def test_rules_are_read_when_a_spec_is_built() -> None:
    with pytest.raises(BadFilterRule, match="stray characters"):
        config = {"filter": {"rules": ["a.b.c"]}}
        build_spec("range://h", STORAGE, config, tables=Decisions.TABLES, sinks=sink_traits)
