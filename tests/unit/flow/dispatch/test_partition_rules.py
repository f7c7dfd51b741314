"""Partition expressions: what each means, what is refused, what is asked of tables at creation."""

from __future__ import annotations

from typing import Any

import pytest
from dispatch_kit import rules, spec

from rowferry.change.table import TableId
from rowferry.errors import BadDispatchRule, BadFilterRule, BadInput, OptionsConflict, UnknownOption
from rowferry.flow.assemble import sink_traits
from rowferry.flow.dispatch.partition_rule import (
    ByColumns,
    ByCommitTs,
    ByIndex,
    ByTable,
    Fixed,
    PartitionRule,
    hashed_columns,
)
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.build import build_spec
from rowferry.spec.rules.dispatch import dispatch_rules

TABLE = TableId("shop", "orders")


def read(**rule: Any) -> PartitionRule:
    return rules(rule).partition_rule(TABLE)


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        ("default", ByTable()),
        ("table", ByTable()),
        ("", ByTable()),
        ("TS", ByCommitTs()),
        ("rowid", ByIndex()),
        ("pk", ByIndex()),
        ("Index-Value", ByIndex()),
        (0, Fixed(0)),
        (12, Fixed(12)),
        ("12", Fixed(12)),
        ("[a]", ByColumns(("a",))),
        ("[ a ,B,c c ]", ByColumns(("a", "B", "c c"))),
        (" [a, b] ", ByColumns(("a", "b"))),
        ("[`a,b`, `x``y`, ` z `]", ByColumns(("a,b", "x`y", " z "))),
    ],
)
def test_expressions(expression: Any, meaning: PartitionRule) -> None:
    assert read(partition=expression) == meaning


def test_index_and_columns_stand_beside_their_expression() -> None:
    assert read(partition="index-value", index="by_name") == ByIndex("by_name")
    assert read(partition="rowid", index="by_name") == ByIndex("by_name")
    assert read(partition="columns", columns=["a", "B"]) == ByColumns(("a", "B"))
    assert read(topic="x") == ByTable()


@pytest.mark.parametrize(
    "expression",
    ["+3", "03", "1.0", "-1", -1, " 3", "3 ", "٣", "0x1", "1e1", "tables", "ts()", "[a", "a]", "*"]
    + ["1" * 5000],
)
def test_unknown_expressions_are_refused(expression: Any) -> None:
    with pytest.raises(BadDispatchRule) as caught:
        read(partition=expression)
    assert f"sink.dispatchers[0].partition = {str(expression)!r}" in str(caught.value)
    assert "allowed: default, table, ts, rowid, pk, index-value, columns, a list" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"partition": "[]"}, "partition = '[]' names no column"),
        ({"partition": "[ ]"}, "partition = '[ ]' names no column"),
        ({"partition": "[a,]"}, "is not a list of columns"),
        ({"partition": "[,a]"}, "is not a list of columns"),
        ({"partition": "[a,,b]"}, "is not a list of columns"),
        ({"partition": "[`a]"}, "is not a list of columns"),
        ({"partition": "[``]"}, "is not a list of columns"),
        ({"partition": "[`a`b]"}, "is not a list of columns"),
        ({"partition": "[[a]]"}, "is not a list of columns"),
        ({"partition": '["a", "b"]'}, "is not a list of columns"),
        ({"partition": "['a']"}, "is not a list of columns"),
        ({"partition": "[a, A]"}, "partition = '[a, A]' names the column 'a' twice"),
        ({"partition": "columns"}, 'needs columns = ["a", "b"] beside it'),
        ({"partition": "columns", "columns": []}, 'needs columns = ["a", "b"] beside it'),
        ({"partition": "columns", "columns": ["a", "a"]}, "columns = ['a', 'a'] names the column"),
        ({"partition": "columns", "columns": [""]}, "a column without a name"),
        ({"partition": "ts", "columns": ["a"]}, 'is read with partition = "columns" only'),
        ({"columns": ["a"]}, "columns = ['a'] is read with partition"),
        ({"partition": "table", "index": "i"}, "index = 'i' is read with partition"),
        ({"partition": 1.0}, "partition = 1.0: expected an expression or the number"),
        ({"partition": True}, "partition = True: expected an expression or the number"),
        ({"partition": ["a"]}, "partition = ['a']: expected an expression"),
        ({"index": 3}, "index = 3: expected text, got a whole number"),
        ({"columns": "a"}, "columns = 'a': expected a list of texts"),
        ({"matcher": []}, "sink.dispatchers[0] is for no table"),
        ({"matcher": "a.*"}, "matcher = 'a.*': expected a list of texts"),
    ],
)
def test_refusals(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(BadDispatchRule) as caught:
        read(**rule)
    assert words in str(caught.value)
    assert "sink.dispatchers[0]" in str(caught.value)


def test_a_refusal_names_its_rule_among_many() -> None:
    with pytest.raises(BadDispatchRule, match=r"sink\.dispatchers\[2\]\.partition = 'what'"):
        rules({"partition": "ts"}, {}, {"partition": "what"})
    with pytest.raises(BadFilterRule, match=r"sink\.dispatchers\[1\]\.matcher: at <cmdline>:1: "):
        rules({}, {"matcher": ["a"]})
    with pytest.raises(UnknownOption, match=r"'sink\.dispatchers\[1\]\.partitions'; did you mean"):
        rules({}, {"partitions": "ts"})


def build(*written: dict[str, Any]) -> tuple[DispatchRules, list[str]]:
    found, notices = build_spec(
        "range://h:1",
        "kafka://b/t?protocol=canal-json",
        {"sink": {"dispatchers": list(written)}},
        sinks=sink_traits,
    )
    return DispatchRules(found, "t"), notices


def test_the_old_name_is_understood_and_told() -> None:
    found, notices = build({"matcher": ["shop.*"], "dispatcher": "ts"})
    assert found.partition_rule(TABLE) == ByCommitTs()
    assert notices == ["sink.dispatchers[0].dispatcher is an old name; it is now partition"]
    with pytest.raises(OptionsConflict, match="dispatcher and partition cannot be configured both"):
        build({"matcher": ["*.*"], "dispatcher": "ts", "partition": "ts"})


def test_partition_0_is_a_value_under_the_old_name_too() -> None:
    for written in (0, "0"):
        found, _ = build({"matcher": ["*.*"], "dispatcher": written})
        assert found.partition_rule(TABLE) == Fixed(0)
        found, _ = build({"matcher": ["*.*"], "dispatcher": "", "partition": written})
        assert found.partition_rule(TABLE) == Fixed(0)


@pytest.mark.parametrize(("old", "new"), [(0, "ts"), ("ts", 0), (0, 0), (0, False), ("ts", [])])
def test_two_names_are_refused_whatever_their_values(old: Any, new: Any) -> None:
    words = r"sink\.dispatchers\[0\]: dispatcher and partition cannot be configured both"
    with pytest.raises(OptionsConflict, match=words):
        build({"matcher": ["*.*"], "dispatcher": old, "partition": new})


@pytest.mark.parametrize("key", ["dispatcher", "partition"])
@pytest.mark.parametrize("value", [False, True, [], ["a"], {}, 0.0, None])
def test_an_expression_of_another_type_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(BadDispatchRule) as caught:
        build({"matcher": ["*.*"], key: value})
    words = f"sink.dispatchers[0].{key} = {value!r}: expected an expression or the number of"
    assert words in str(caught.value)


def test_wrong_rules_fail_the_creation() -> None:
    for written in ({"matcher": ["a.b"], "partition": 1.5}, {"matcher": ["a.b"], "topics": "x"}):
        with pytest.raises(BadInput, match=r"sink\.dispatchers\[0\]"):
            build(written)
    with pytest.raises(BadInput, match="expected a list of rules"):
        build_spec(
            "range://h:1",
            "kafka://b/t?protocol=csv",
            {"sink": {"dispatchers": ["ts"]}},
            sinks=sink_traits,
        )


def test_rules_are_told_to_be_idle_without_topics() -> None:
    def told(*written: dict[str, Any]) -> list[str]:
        config = {"sink": {"dispatchers": [{"matcher": ["*.*"], **w} for w in written]}}
        return build_spec("range://h:1", "blackhole://", config, sinks=sink_traits)[1]

    assert told({"partition": 0}, {"topic": "x"}) == [
        "sink.dispatchers has no effect: partition, topic concern sinks with topics only, which "
        "this is not"
    ]
    assert told({"target-schema": "x", "partition": ""}) == []


def test_the_first_rule_that_fits_counts() -> None:
    found = rules(
        {"matcher": ["shop.*", "!shop.log"], "partition": "ts"},
        {"matcher": ["shop.log", "shop.orders"], "partition": 1},
    )
    assert found.partition_rule(TABLE) == ByCommitTs()
    assert found.partition_rule(TableId("SHOP", "Log")) == Fixed(1)
    assert found.partition_rule(TableId("other", "t")) == ByTable()
    assert rules().partition_rule(TABLE) == ByTable()


def test_names_are_compared_with_their_case_where_asked() -> None:
    found = rules({"matcher": ["Shop.*"], "partition": "ts"}, **{"case-sensitive": True})
    assert found.partition_rule(TableId("Shop", "orders")) == ByCommitTs()
    assert found.partition_rule(TABLE) == ByTable()


def test_routing_keys_are_kept_for_who_reads_them() -> None:
    (rule,) = dispatch_rules(spec({"target-schema": "{schema}_x", "target-table": "y"}))
    assert (rule.target_schema, rule.target_table) == ("{schema}_x", "y")


# --- tables --------------------------------------------------------------------------------------

ORDERS = parse_create(
    "CREATE TABLE shop.orders (B int, a int NOT NULL, c int, v int AS (c + 1) VIRTUAL, "
    "PRIMARY KEY (a, B), UNIQUE KEY By_C (c), KEY plain (c))"
)
KEYLESS = parse_create("CREATE TABLE shop.log (a int)")


def names(rule: ByIndex | ByColumns, table: Any = ORDERS) -> list[str] | None:
    found = hashed_columns(rule, table)
    return None if found is None else [c.name for c in found]


def test_hashed_columns() -> None:
    assert names(ByIndex()) == ["B", "a"]
    assert names(ByIndex("by_c")) == ["c"]
    assert names(ByIndex("primary")) == ["a", "B"]
    assert names(ByIndex(), KEYLESS) == []
    assert names(ByColumns(("C", "gone", "b"))) == ["c", "B"]
    assert names(ByColumns(("gone", "v"))) is None


def test_an_index_that_is_gone_stops_the_feed() -> None:
    with pytest.raises(BadDispatchRule, match=r"shop\.log has no index 'by_c' .* no unique one"):
        names(ByIndex("by_c"), KEYLESS)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"partition": "index-value", "index": "nope"}, "shop.orders has no index 'nope' to"),
        ({"partition": "index-value", "index": "plain"}, "[0].index = 'plain': this index of"),
        ({"partition": "[c, v]"}, "[0]: column v of table shop.orders is a virtual generated"),
        ({"partition": "columns", "columns": ["V"]}, "[0]: column v of table shop.orders is a"),
    ],
)
def test_tables_that_do_not_fit_are_refused_at_creation(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(BadDispatchRule) as caught:
        rules(rule).check_tables([KEYLESS, ORDERS] if "index" not in rule else [ORDERS])
    assert words in str(caught.value)
    rules({**rule, "matcher": ["other.*"]}).check_tables([ORDERS])


def test_an_index_over_a_virtual_column_is_refused_at_creation() -> None:
    table = parse_create(
        "CREATE TABLE shop.users (id int PRIMARY KEY, mail varchar(9), low varchar(9) AS "
        "(lower(mail)) VIRTUAL, kept varchar(9) AS (upper(mail)) STORED, UNIQUE KEY by_low (low), "
        "UNIQUE KEY by_kept (kept))"
    )
    words = r"\[0\]: column low of table shop\.users is a virtual generated"
    with pytest.raises(BadDispatchRule, match=words):
        rules({"partition": "index-value", "index": "by_low"}).check_tables([table])
    rules({"partition": "index-value", "index": "by_kept"}).check_tables([table])


def test_tables_that_fit() -> None:
    rules({"partition": "index-value", "index": "BY_C"}).check_tables([ORDERS])
    rules({"partition": "[c, not_yet]"}).check_tables([ORDERS, KEYLESS])
    rules().check_tables([ORDERS])


def test_fixed_indexes() -> None:
    found = rules({"partition": "ts"}, {"partition": 3}, {"partition": "0"})
    assert [(rule.place, number) for rule, number in found.fixed_indexes()] == [(1, 3), (2, 0)]
