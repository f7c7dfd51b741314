"""Topic expressions, topics of tables and of schema changes, and which topics a rule reaches."""

from __future__ import annotations

import re

import pytest
from dispatch_kit import rules, spec

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.errors import BadDispatchRule, BadUri
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.dispatch.topics import LONGEST, TopicRule
from rowferry.spec.rules.dispatch import dispatch_rules


def topic(expression: str, database: str = "db", table: str = "t") -> str:
    return TopicRule.parse(expression).topic_of(TableId(database, table))


def test_substitution() -> None:
    assert topic("all.my-changes_1") == "all.my-changes_1"
    assert topic("{schema}") == "db"
    assert topic("x_{table}_y") == "x_t_y"
    assert topic("{schema}{table}") == "dbt"
    assert topic("x-{schema}.{table}") == "x-db.t"
    assert topic("{schema}_{table}", "Ünï", "a b") == "_n__a_b"
    assert topic("{schema}_{table}", "{table}", "{schema}") == "_table___schema_"


def test_names_that_a_topic_cannot_have() -> None:
    assert topic("{schema}", ".") == "_"
    assert topic("{schema}", "..") == "__"
    assert topic("{table}", table="...") == "..."
    long = topic("{schema}_{table}", "s" * 200, "ü" * 100)
    assert long == "s" * 200 + "_" * 49 and len(long) == LONGEST


@pytest.mark.parametrize(
    "expression",
    [
        "{table}{schema}",
        "{schema}{schema}",
        "{table}_{table}",
        "{Schema}",
        "{schema",
        "schema}",
        "a b",
        "ä",
        "a/b",
        "{schema}\n",
        "x\n",
        ".",
        "..",
        "x" * 250,
    ],
)
def test_invalid_expressions(expression: str) -> None:
    with pytest.raises(BadDispatchRule, match="invalid topic expression: "):
        TopicRule.parse(expression)
    with pytest.raises(BadDispatchRule, match=r"^\[RF-1012\] sink\.dispatchers\[1\]\.topic: inval"):
        rules({}, {"topic": expression})


@pytest.mark.parametrize("expression", ["fixed", "x_{schema}", "{table}", "a{schema}b"])
def test_one_table_per_topic_needs_both_names(expression: str) -> None:
    with pytest.raises(BadDispatchRule, match=re.escape("must contain {schema} and {table}")):
        rules({"topic": expression}, one_table=True)
    found = rules({"topic": "a.{schema}_{table}-b", "matcher": ["shop.*"]}, one_table=True)
    assert found.topic_of(TableId("shop", "orders")) == "a.shop_orders-b"
    assert found.topic_of(TableId("other", "t")) == "fallback"


@pytest.mark.parametrize("name", ["", ".", "a b", "{schema}", "ö", "x" * 250])
def test_default_topic(name: str) -> None:
    with pytest.raises(BadUri, match="topic"):
        DispatchRules(spec(), name)


ROUTES = rules(
    {"matcher": ["test.*"], "topic": "hello_{schema}"},
    {"matcher": ["quiet.*"], "partition": "ts"},
    {"matcher": ["*.*", "!*.skipped"], "topic": "{schema}_{table}"},
)


def test_topics_of_tables() -> None:
    assert ROUTES.topic_of(TableId("test", "a")) == "hello_test"
    assert ROUTES.topic_of(TableId("quiet", "a")) == "fallback"
    assert ROUTES.topic_of(TableId("Shop", "A")) == "Shop_A"
    assert ROUTES.topic_of(TableId("shop", "skipped")) == "fallback"


def change(table: TableId, previous: TableId | None = None) -> SchemaChange:
    target = TableId("routed", "elsewhere")
    return SchemaChange(1, DdlKind.RENAME_TABLE, "…", table, previous=previous, target=target)


def test_topics_of_schema_changes() -> None:
    assert ROUTES.topic_of_change(change(TableId("shop", "a"))) == "shop_a"
    assert ROUTES.topic_of_change(change(TableId("shop", ""))) == "fallback"
    renamed = change(TableId("shop", "new"), previous=TableId("test", "old"))
    assert ROUTES.topic_of_change(renamed) == "hello_test"
    assert ROUTES.topic_of_change(change(TableId("shop", "t"), TableId("test", ""))) == "fallback"


def test_static_topics() -> None:
    assert rules().static_topics() == ("fallback",)
    found = rules({"topic": "b"}, {"topic": "x{table}"}, {"topic": "fallback"}, {"topic": "b"}, {})
    assert found.static_topics() == ("b", "fallback")


@pytest.mark.parametrize(
    ("expression", "matcher", "topic", "reached"),
    [
        ("", "a.*", "fallback", True),
        ("", "a.*", "other", False),
        ("fixed", "a.*", "fixed", True),
        ("fixed", "a.*", "fixed2", False),
        ("fixed", "a.*", "fallback", False),
        ("{schema}_{table}", "a.*", "a_b_c", True),
        ("{schema}_{table}", "a_b.*", "a_b_c", True),
        ("{schema}_{table}", "b.*", "a_b_c", False),
        ("{schema}_{table}", "*.c", "a_b_c", True),
        ("{schema}_{table}", "*.b", "a_b_c", False),
        ("{schema}_{table}", "*.*", "nothing-of-ours", False),
        ("{schema}{table}", "ab.c", "abc", True),
        ("{schema}{table}", "b.c", "abc", False),
        ("x-{schema}-{table}-y", "a.*", "x-a-b-y", True),
        ("x-{schema}-{table}-y", "a.*", "x-a-b", False),
        ("x.{schema}", "a.b", "x.a", True),
        ("x.{schema}", "a.b", "x.b", False),
        ("x.{schema}", "a.b", "x-a", False),
        ("{table}.y", "a.b", "b.y", True),
        ("{schema}_{table}", "größe.*", "gr__e_t", True),
        ("{schema}_{table}", "größe.*", "gr_e_t", False),
        ("{schema}.{table}", "a.`b c$`", "a.b_c_", True),
        ("{schema}.{table}", "a.b$*", "a.b_c", True),
        ("{schema}.{table}", "a.b$*", "a.bc", False),
        ("{schema}.{table}", "/^订 单\\$[ä-ö]/.?", "__._", False),
        ("{schema}.{table}", "/^订 单\\$[ä-ö]$/.?", "_____._", True),
        ("{schema}.{table}", "/[a-ö]/.?", "a._", True),
        ("x.{schema}", "订单.*", "x.__", True),
        ("x.{schema}", "订单.*", "x.___", False),
        ("{table}.y", "a.b", "b.z", False),
        ("{table}.y", "a.b", "c.y", False),
        ("{table}", "a.b", "somebody-elses", False),
        ("{table}", "a.*", "any", True),
        ("{table}", "a.B", "b", True),
        ("{table}", "a.größe", "gr__e", True),
    ],
)
def test_reach(expression: str, matcher: str, topic: str, reached: bool) -> None:
    written = {"matcher": [matcher], "topic": expression, "partition": 3}
    found = rules(written)
    (rule,) = dispatch_rules(spec(written))
    assert found.may_reach(rule, topic) is reached


def test_an_earlier_rule_takes_tables_away() -> None:
    found = rules({"matcher": ["a.*"], "topic": "x"}, {"topic": "{schema}_{table}", "partition": 1})
    ((rule, _),) = found.fixed_indexes()
    assert not found.may_reach(rule, "a_b")
    assert found.may_reach(rule, "b_a")
    found = rules({"matcher": ["ä.*"], "topic": "x"}, {"topic": "{schema}.{table}", "partition": 1})
    ((rule, _),) = found.fixed_indexes()
    assert found.may_reach(rule, "_.b"), "another database than ä may have this name"
