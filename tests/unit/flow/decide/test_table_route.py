from __future__ import annotations

from typing import Any

import pytest
from decide_kit import STORAGE, chunk, decisions, made

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadRoute
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.decide.table_route import WrittenNames


def routing(*rules: dict[str, Any], sink: str = STORAGE) -> Decisions:
    return decisions({"sink": {"dispatchers": list(rules)}}, sink)


def table(name: str, database: str = "shop") -> TableSchema:
    return made(f"CREATE TABLE {name} (id INT PRIMARY KEY)", database)


def test_first_rule_with_a_target_that_fits() -> None:
    found = routing(
        {"matcher": ["shop.log*"], "partition": "ts"},
        {
            "matcher": ["shop.*"],
            "target-schema": "{schema}_copy",
            "target-table": "{schema}_{table}",
        },
        {"matcher": ["*.*"], "target-table": "x"},
    )
    assert found.seen_as(table("orders")).written_as == ("shop_copy", "shop_orders")
    assert found.seen_as(table("logs")).written_as == ("shop_copy", "shop_logs")
    assert found.seen_as(table("orders", "b")).written_as == ("b", "x")


@pytest.mark.parametrize("sink", [STORAGE, "blackhole://", "mysql://h:1"])
def test_rows_in_every_sink(sink: str) -> None:
    found = routing({"matcher": ["shop.*"], "target-schema": "copy"}, sink=sink)
    (part,) = found.rows(chunk(table("orders"), (Op.INSERT, None, {"id": 1})))
    assert part.table.id == ("shop", "orders")
    assert part.table.written_as == ("copy", "orders")


@pytest.mark.parametrize("key", ["target-schema", "target-table"])
@pytest.mark.parametrize("expression", ["{Schema}", "{table", "}", "a{bad}b"])
def test_bad_expression(key: str, expression: str) -> None:
    with pytest.raises(BadRoute) as caught:
        routing({"matcher": ["*.*"], key: expression})
    assert f"sink.dispatchers[0].{key} = {expression!r}: braces" in str(caught.value)


# --- two tables of one name ----------------------------------------------------------------------

ALL_IN_ONE = {"matcher": ["a.*", "b.*"], "target-schema": "all"}


def test_two_tables_of_one_name() -> None:
    found = routing(ALL_IN_ONE)
    found.names([table("t", "a"), table("u", "b")]).check()
    with pytest.raises(BadRoute) as caught:
        found.names([table("t", "a"), table("t", "b")]).check()
    assert "a.t and b.t would both be written as all.t" in str(caught.value)
    with pytest.raises(BadRoute):
        found.names([table("t", "all"), table("t", "a")]).check()
    routing().names([table("t", "a"), table("t", "b")]).check()


def created(schema: TableSchema) -> SchemaChange:
    return SchemaChange(1, DdlKind.CREATE_TABLE, f"CREATE TABLE {schema.id} (…)", schema.id, schema)


def dropped(schema: TableSchema) -> SchemaChange:
    return SchemaChange(1, DdlKind.DROP_TABLE, f"DROP TABLE {schema.id}", schema.id)


def dropping(database: str) -> SchemaChange:
    return SchemaChange(
        1, DdlKind.DROP_DATABASE, f"DROP DATABASE {database}", TableId(database, "")
    )


def renamed(old: TableSchema, new: TableSchema) -> SchemaChange:
    query = f"RENAME TABLE {old.id} TO {new.id}"
    return SchemaChange(1, DdlKind.RENAME_TABLE, query, new.id, new, old.id)


def follow(names: WrittenNames, *changes: SchemaChange) -> None:
    for change in changes:
        names.check_change(change)
        names.follow(change)


def test_a_name_is_taken_later() -> None:
    found = routing(ALL_IN_ONE)
    first, second, third = table("t", "a"), table("t", "b"), table("v", "b")
    names = found.names([first])
    for one in (created(second), renamed(third, second)):
        with pytest.raises(BadRoute, match="a.t and b.t would both be written as all.t"):
            names.check_change(one)
    follow(names, dropped(first), created(second), renamed(second, third), created(first))
    follow(names, dropping("a"), created(second))
    seen = found.change_seen_as(renamed(second, third), second, names)
    assert seen.query == "RENAME TABLE `all`.`t` TO `all`.`v`"
    assert (seen.written_as, seen.previous_target) == (("all", "v"), ("all", "t"))


def test_a_rename_that_readers_do_not_see_says_nothing() -> None:
    """Of `c` to `d`, both written as `all`: no database takes `RENAME TABLE all TO all`."""
    found = routing({"matcher": ["*.*"], "target-table": "all"})
    old, new = table("c", "a"), table("d", "a")
    seen = found.change_seen_as(renamed(old, new), old, found.names([old]))
    assert (seen.kind, seen.query, seen.previous, seen.previous_target) == (
        DdlKind.NONE,
        "",
        None,
        None,
    )
    assert seen.schema is not None
    assert (seen.written_as, seen.schema.id) == (("a", "all"), new.id)


def test_a_table_that_leaves_the_filter_gives_its_name_free() -> None:
    config = {"sink": {"dispatchers": [ALL_IN_ONE]}, "filter": {"rules": ["*.t"]}}
    found = decisions(config)
    names = found.names([table("t", "a"), table("u", "b")])  # the second one is not captured
    follow(names, renamed(table("t", "a"), table("u", "a")), created(table("t", "b")))
    follow(names, renamed(table("t", "b"), table("u", "b")))
    names.check()


def test_a_dropped_database_takes_no_tables_of_others() -> None:
    found = routing(ALL_IN_ONE)
    tables = [table("t", "a"), table("v", "a"), table("u", "b")]
    for _ in range(2):  # publishing may be repeated
        names = found.names(tables)
        assert found.change_seen_as(dropping("a"), names=names).query == ""
        names.follow(dropping("a"))
        assert found.change_seen_as(dropping("b"), names=names).query == "DROP DATABASE `all`"


# --- schema changes ------------------------------------------------------------------------------


def test_databases_follow_rules_for_all_their_tables() -> None:
    found = routing(
        {"matcher": ["part.t"], "target-schema": "x"},
        {"matcher": ["split.*"], "target-schema": "{table}"},
        {"matcher": ["*.*"], "target-schema": "{schema}_2"},
    )
    expected = {"whole": "`whole_2`", "part": "`part_2`", "split": "split"}
    for name, written in expected.items():
        change = SchemaChange(
            1, DdlKind.CREATE_DATABASE, f"CREATE DATABASE {name}", TableId(name, "")
        )
        seen = found.change_seen_as(change)
        assert seen.query == f"CREATE DATABASE {written}"
        assert seen.written_as == (written.strip("`"), "")


def test_a_database_follows_rules_for_some_of_its_tables() -> None:
    def target(name: str) -> str:
        query = f"CREATE DATABASE {name}"
        change = SchemaChange(1, DdlKind.CREATE_DATABASE, query, TableId(name, ""))
        return found.change_seen_as(change).written_as.database

    found = routing(
        {"matcher": ["one.a", "many.a"], "target-schema": "x"},
        {"matcher": ["one.b"], "target-schema": "x", "target-table": "c"},
        {"matcher": ["many.b"], "target-table": "c"},
    )
    assert (target("one"), target("none")) == ("x", "none")
    with pytest.raises(
        BadRoute, match="ambiguous schema routing for schema many: .* x and to many"
    ):
        target("many")


def test_schema_change_carries_the_table_as_seen() -> None:
    found = routing({"matcher": ["shop.*"], "target-schema": "copy"})
    schema = table("orders")
    change = SchemaChange(1, DdlKind.ADD_COLUMN, "ALTER TABLE orders ADD v INT", schema.id, schema)
    seen = found.change_seen_as(change)
    assert seen.query == "ALTER TABLE `copy`.`orders` ADD v INT"
    assert (seen.table, seen.target) == (schema.id, ("copy", "orders"))
    assert seen.schema is not None and seen.schema.written_as == ("copy", "orders")


def test_without_routes_nothing_is_touched() -> None:
    change = SchemaChange(1, DdlKind.NONE, "not 'a statement", TableId("shop", "t"))
    assert routing({"matcher": ["*.*"], "topic": "x"}).change_seen_as(change) == change
    with pytest.raises(BadRoute, match="names in a statement cannot be replaced"):
        routing({"matcher": ["*.*"], "target-table": "x"}).change_seen_as(change)
