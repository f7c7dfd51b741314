from __future__ import annotations

from typing import Any

import pytest
from decide_kit import chunk, decided, decisions, inserts, made

from rowferry.change.chunk import DdlKind, Op, SchemaChange
from rowferry.change.table import TableId
from rowferry.errors import BadEventFilter, BadFilterRule, BadOption, UnknownOption
from rowferry.flow.decide.decisions import Decisions

TABLE = made(
    "CREATE TABLE orders (id INT PRIMARY KEY, code INT, state VARCHAR(9), seen DATETIME, "
    "UNIQUE KEY u (code))"
)


def filters(*rules: dict[str, Any], **more: Any) -> Decisions:
    return decisions({"filter": {"event-filters": list(rules)}, **more})


def row(id_: int, state: str = "new", code: int = 0, seen: str = "") -> dict[str, Any]:
    return {"id": id_, "code": code, "state": state, "seen": seen or "2024-01-01 00:00:00"}


CHANGES = chunk(
    TABLE,
    (Op.INSERT, None, row(1)),
    (Op.UPDATE, row(1), row(1, "paid")),
    (Op.DELETE, row(1, "paid"), None),
)


def ids(found: Decisions, rows: Any = CHANGES) -> list[str]:
    return [op.name.lower() for op, _, _ in decided(found, rows)]


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        (["insert"], ["update", "delete"]),
        (["update", "delete"], ["insert"]),
        (["all dml"], []),
        (["all ddl", "create table"], ["insert", "update", "delete"]),
    ],
)
def test_events_of_rows(events: list[str], kept: list[str]) -> None:
    assert ids(filters({"matcher": ["shop.*"], "ignore-event": events})) == kept
    assert len(ids(filters({"matcher": ["other.*"], "ignore-event": events}))) == 3


def test_any_rule_that_fits_is_enough() -> None:
    rules = ({"matcher": ["*.*"]}, {"matcher": ["shop.orders"], "ignore-event": ["delete"]})
    assert ids(filters(*rules)) == ["insert", "update"]


@pytest.mark.parametrize(
    ("key", "expression", "kept"),
    [
        ("ignore-insert-value-expr", "state = 'new'", ["update", "delete"]),
        ("ignore-insert-value-expr", "state = 'paid'", ["insert", "update", "delete"]),
        ("ignore-update-old-value-expr", "state = 'new'", ["insert", "delete"]),
        ("ignore-update-old-value-expr", "state = 'paid'", ["insert", "update", "delete"]),
        ("ignore-update-new-value-expr", "state = 'paid'", ["insert", "delete"]),
        ("ignore-update-new-value-expr", "state = 'new'", ["insert", "update", "delete"]),
        ("ignore-delete-value-expr", "state = 'paid'", ["insert", "update"]),
        ("ignore-delete-value-expr", "state = 'new'", ["insert", "update", "delete"]),
    ],
)
def test_expressions_see_their_image_only(key: str, expression: str, kept: list[str]) -> None:
    assert ids(filters({"matcher": ["shop.*"], key: expression})) == kept


def test_expressions_are_judged_before_keys_are_split() -> None:
    moved = chunk(TABLE, (Op.UPDATE, row(1, "x"), row(2, "y")))
    rule = {"matcher": ["shop.*"], "ignore-delete-value-expr": "true"}
    assert ids(filters(rule), moved) == ["delete", "insert"]
    rule = {"matcher": ["shop.*"], "ignore-update-old-value-expr": "state = 'x'"}
    assert ids(filters(rule), moved) == []


@pytest.mark.parametrize(
    ("event", "kept"),
    [("delete", ["insert"]), ("insert", ["delete"]), ("update", []), ("all dml", [])],
)
def test_halves_of_a_split_update_are_a_delete_and_an_insert(event: str, kept: list[str]) -> None:
    moved = chunk(TABLE, (Op.UPDATE, row(1), row(2)))
    assert ids(filters({"matcher": ["shop.*"], "ignore-event": [event]}), moved) == kept
    both = filters({"matcher": ["shop.*"], "ignore-event": ["insert", "delete"]})
    assert ids(both, moved) == []
    stays = chunk(TABLE, (Op.UPDATE, row(1), row(1, "x")), (Op.UPDATE, row(1), row(2)))
    assert ids(both, stays) == ["update"]


def test_matchers_and_case() -> None:
    rule = {"matcher": ["SHOP.Orders"], "ignore-event": ["insert"]}
    assert ids(filters(rule)) == ["update", "delete"]
    assert len(ids(filters(rule, **{"case-sensitive": True}))) == 3
    # The rules of expressions go by the exact name in both cases.
    assert len(ids(filters({"matcher": ["SHOP.*"], "ignore-delete-value-expr": "1"}))) == 3
    assert len(ids(filters({"matcher": ["shop.*"], "ignore-delete-value-expr": "1"}))) == 2


# --- ignore-update-only-columns ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "after", "kept"),
    [
        (["state"], row(1, "paid"), False),
        (["STATE", "seen"], row(1, "paid", seen="2024-02-02 00:00:00"), False),
        (["state"], row(1, "paid", seen="2024-02-02 00:00:00"), True),
        (["state"], row(1), False),  # changes nothing
        (["nothing"], row(1), True),
        (["nothing", "state"], row(1, "paid"), False),
        (["code"], row(1, code=5), True),  # of a unique key
        (["id"], row(2), True),
    ],
)
def test_update_only_columns(columns: list[str], after: dict[str, Any], kept: bool) -> None:
    found = filters({"matcher": ["shop.*"], "ignore-update-only-columns": columns})
    rows = chunk(TABLE, (Op.INSERT, None, row(9)), (Op.UPDATE, row(1), after))
    assert (len(decided(found, rows)) > 1) is kept


def test_all_columns_of_a_table_without_keys_may_be_listed() -> None:
    bare = made("CREATE TABLE bare (a INT, b INT)")
    rule = {"matcher": ["shop.*"], "ignore-update-only-columns": ["a", "b"]}
    rows = chunk(bare, (Op.UPDATE, {"a": 1}, {"a": 2}))
    assert ids(filters(rule, **{"force-replicate": True}), rows) == []


def test_a_virtual_column_that_changes_with_listed_ones_keeps_no_update() -> None:
    table = made(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, m INT, twice INT AS (n * 2) VIRTUAL, "
        "kept INT AS (m * 2) STORED, low INT AS (m DIV 9) VIRTUAL, UNIQUE KEY u (low))"
    )
    rule = {"matcher": ["shop.*"], "ignore-update-only-columns": ["n", "m"]}
    old = {"id": 1, "n": 1, "m": 1, "twice": 2, "kept": 2, "low": 0}
    for change, kept in (
        ({"n": 2, "twice": 4}, []),
        ({"m": 2, "kept": 4}, ["update"]),
        ({"m": 1, "low": 1}, ["delete", "insert"]),  # of a key
    ):
        assert ids(filters(rule), chunk(table, (Op.UPDATE, old, {**old, **change}))) == kept


def test_unknown_columns_are_told() -> None:
    rule = {"matcher": ["shop.*"], "ignore-update-only-columns": ["nothing", "State"]}
    (told,) = filters(rule).check_tables([TABLE])
    assert told.endswith("ignore-update-only-columns: table shop.orders has no column 'nothing'")
    assert len(filters(rule, **{"case-sensitive": True}).check_tables([TABLE])) == 2


def test_update_without_its_old_image_is_kept() -> None:
    found = filters({"matcher": ["shop.*"], "ignore-update-only-columns": ["state"]})
    assert ids(found, chunk(TABLE, (Op.UPDATE, None, row(1)))) == ["update"]


# --- schema changes ------------------------------------------------------------------------------


def ddl(kind: DdlKind, query: str = "", name: str = "orders") -> SchemaChange:
    return SchemaChange(1, kind, query, TableId("shop", name))


@pytest.mark.parametrize(
    ("events", "kind", "kept"),
    [
        (["truncate table"], DdlKind.TRUNCATE_TABLE, False),
        (["truncate table"], DdlKind.DROP_TABLE, True),
        (["all ddl"], DdlKind.ADD_FOREIGN_KEY, False),
        (["alter table"], DdlKind.ADD_COLUMN, False),
        (["alter table"], DdlKind.RENAME_TABLE, False),
        (["alter table"], DdlKind.CREATE_TABLE, True),
        (["alter table"], DdlKind.ADD_FOREIGN_KEY, True),
        (["create index"], DdlKind.ADD_INDEX, False),
        (["multi schema change"], DdlKind.MULTI_SCHEMA_CHANGE, False),
        (["all dml"], DdlKind.DROP_TABLE, True),
    ],
)
def test_events_of_schema_changes(events: list[str], kind: DdlKind, kept: bool) -> None:
    found = filters({"matcher": ["shop.*"], "ignore-event": events})
    assert found.keeps_schema_change(ddl(kind)) is kept


def test_schema_changes_of_databases() -> None:
    found = filters({"matcher": ["shop.orders"], "ignore-event": ["drop schema"]})
    assert not found.keeps_schema_change(ddl(DdlKind.DROP_DATABASE, name=""))
    assert found.keeps_schema_change(ddl(DdlKind.CREATE_DATABASE, name=""))


def test_rename_goes_by_the_old_name() -> None:
    found = filters({"matcher": ["shop.old"], "ignore-event": ["rename table"]})
    change = SchemaChange(
        1, DdlKind.RENAME_TABLE, "", TableId("shop", "new"), None, TableId("shop", "old")
    )
    assert not found.keeps_schema_change(change)


def test_statements_by_their_text() -> None:
    found = filters({"matcher": ["shop.*"], "ignore-sql": ["^drop", "add\\s+column"]})
    assert not found.keeps_schema_change(ddl(DdlKind.DROP_TABLE, "DROP TABLE orders"))
    assert not found.keeps_schema_change(ddl(DdlKind.ADD_COLUMN, "ALTER TABLE o ADD  COLUMN c INT"))
    assert found.keeps_schema_change(ddl(DdlKind.CREATE_TABLE, "CREATE TABLE drop_it (id INT)"))
    assert ids(found) == ["insert", "update", "delete"]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["all", "Insert", "add foreign key", "create hybrid index", ""])
def test_unknown_event(event: str) -> None:
    with pytest.raises(BadEventFilter) as caught:
        filters({"matcher": ["a.b"]}, {"matcher": ["a.b"], "ignore-event": [event]})
    words = f"filter.event-filters[1].ignore-event: event type {event!r} is not valid; known: add"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        ({}, BadEventFilter, "filter.event-filters[0] is for no table"),
        ({"matcher": "a.b"}, BadEventFilter, "[0].matcher = 'a.b': expected a list of texts"),
        ({"matcher": ["a"]}, BadFilterRule, "filter.event-filters[0].matcher: at <cmdline>"),
        ({"matcher": ["a.b"], "ignore": []}, UnknownOption, "filter.event-filters[0].ignore"),
        ({"matcher": ["a.b"], "ignore-sql": ["(?=x)"]}, BadEventFilter, "[0].ignore-sql: invalid"),
        ({"matcher": ["a.b"], "ignore-delete-value-expr": "a ="}, BadEventFilter, "character 4"),
    ],
)
def test_bad_rules(rule: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        filters(rule)
    assert words in str(caught.value)


def test_expression_that_does_not_fit_a_table() -> None:
    found = filters({"matcher": ["shop.*"], "ignore-insert-value-expr": "colour = 1"})
    words = r"shop\.orders: there is no column 'colour'"
    with pytest.raises(BadEventFilter, match=words):
        found.check_tables([TABLE])
    with pytest.raises(BadEventFilter, match=words):
        ids(found)
    other = made("CREATE TABLE t (id INT PRIMARY KEY)", "elsewhere")
    assert len(decided(found, inserts(other, [{"id": 1}]))) == 1


def test_start_ts_is_refused_by_name() -> None:
    with pytest.raises(BadOption, match=r"filter\.ignore-txn-start-ts: the range source"):
        decisions({"filter": {"ignore-txn-start-ts": [1]}})
    assert decisions({"filter": {"ignore-txn-start-ts": []}})


def test_a_table_that_is_another_one_at_the_same_commit_ts() -> None:
    """As after a second reset to one place: tasks keep what they know of the same settings."""
    found = filters(
        {"matcher": ["shop.*"], "ignore-insert-value-expr": "state = 'NEW'"},
        {"matcher": ["shop.*"], "ignore-update-only-columns": ["seen"]},
    )
    assert ids(found) == ["update", "delete"]
    cased = made(
        "CREATE TABLE orders (id INT PRIMARY KEY, code INT, state VARCHAR(9) COLLATE utf8mb4_bin, "
        "seen DATETIME, more INT)"
    )
    assert (cased.table_id, cased.version) == (TABLE.table_id, TABLE.version)
    changes = chunk(
        cased,
        (Op.INSERT, None, row(1)),
        (Op.UPDATE, row(1), {**row(1), "more": 2}),
        (Op.UPDATE, row(1), {**row(1), "seen": None}),
    )
    assert ids(found, changes) == ["insert", "update"]
    assert ids(found) == ["update", "delete"]
