"""Partitions, the row hash, topic expressions and topics of schema changes.

Ours are kept in `dispatch/`; published ones join them where they are at hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from change_file import rows_of, spec_of
from outside import cases

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Topic
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadDispatchRule
from rowferry.flow.dispatch.by_topic import partitions_of
from rowferry.flow.dispatch.row_hash import row_hashes
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.dispatch.topics import TopicRule
from rowferry.mysql.ddl.statement import parse_create


def vectors(area: str) -> list[Any]:
    kept = Path(__file__).parent / "dispatch" / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    assert rows
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


def partition(given: dict[str, Any]) -> int:
    rule = {"matcher": ["*.*"], "partition": given["rule"]}
    rule |= {key: given[key] for key in ("index", "columns") if given.get(key)}
    rules = DispatchRules(spec_of("kafka://b/t", {"sink": {"dispatchers": [rule]}}), "t")
    ddl = given.get("ddl", f"create table `{given.get('table')}` (a int)")
    table = parse_create(ddl, given.get("schema", "test"))
    rules.check_tables([table])
    row = [given.get("row", {}).get(c.name) for c in table.columns]
    change = {"op": "insert", "commit_ts": given.get("commit_ts", 1), "after": row}
    found = partitions_of(
        rules.partition_rule(table.id),
        rows_of(table, [change]),
        Topic("t", given["partition_num"], 1),
    )
    return int(found[0])


@pytest.mark.parametrize(("given", "expected"), vectors("partition"))
def test_partition(given: dict[str, Any], expected: dict[str, Any]) -> None:
    if "error" in expected:
        with pytest.raises(BadDispatchRule):
            partition(given)
    else:
        assert partition(given) == expected["partition"]


@pytest.mark.parametrize(("given", "expected"), vectors("position-inertia"))
def test_hash(given: list[list[str]], expected: dict[str, str]) -> None:
    """Each piece as a column of its own, or of the same name where names repeat."""
    found = 0
    for head, *rest in given:
        column = Column(1, head, parse_create("create table t(a text)", "x").columns[0].type)
        table = TableSchema(TableId("", ""), 1, 1, (column,))
        change = {"op": "insert", "commit_ts": 1, "after": ["".join(rest)]}
        (one,) = row_hashes(rows_of(table, [change]), table.columns)
        found ^= int(one)
    assert f"{found:08x}" == expected["hash_hex"]


@pytest.mark.parametrize(("given", "expected"), vectors("topic-expression"))
def test_topic(given: dict[str, Any], expected: dict[str, Any]) -> None:
    def topic() -> str:
        rule = TopicRule.parse(given["expression"], given["check"] == "avro")
        return rule.topic_of(TableId(given["schema"], given["table"]))

    if "topic" in expected:
        assert topic() == expected["topic"]
    else:
        with pytest.raises(BadDispatchRule, match=re.escape(expected["error_contains"])):
            topic()


@pytest.mark.parametrize(("given", "expected"), vectors("event-router"))
def test_schema_change(given: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = spec_of("kafka://b/t", {"sink": {"dispatchers": given["dispatchers"]}})
    rules = DispatchRules(spec, given["default_topic"])
    if "ddl" not in given:
        assert rules.topic_of(TableId(given["schema"], given["table"])) == expected["topic"]
        return
    ddl = given["ddl"]
    old = ddl.get("previous") or [ddl.get("extra_schema"), ddl.get("extra_table") or ""]
    previous = TableId(*old) if old[0] else None
    table = TableId(ddl["schema"], ddl.get("table", ""))
    change = SchemaChange(1, DdlKind.NONE, "", table, previous=previous)
    assert rules.topic_of_change(change) == expected["topic"]
