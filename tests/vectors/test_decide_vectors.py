"""Event filters, column selectors and routing expressions, against ours and published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from outside import cases

from rowferry.change.chunk import DdlKind, Op, SchemaChange, make_rows
from rowferry.change.table import TableId
from rowferry.errors import BadEventFilter, BadRoute
from rowferry.flow.assemble import decisions_of
from rowferry.flow.decide.column_select import ColumnSelectors
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.decide.table_route import TableRoutes
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.rules.dispatch import DispatchRule
from rowferry.spec.rules.filter import ColumnOptions
from rowferry.spec.uri import Uri

# What a schema change is called in the vectors, where it is not our own word for it.
KINDS = {
    "create schema": DdlKind.CREATE_DATABASE,
    "drop schema": DdlKind.DROP_DATABASE,
    "modify table comment": DdlKind.TABLE_COMMENT,
    "add table partition": DdlKind.ADD_PARTITION,
}


def vectors(area: str) -> list[Any]:
    rows = json.loads((Path(__file__).parent / "decide" / f"{area}.json").read_text("utf-8"))
    assert rows
    return [pytest.param(r["input"], r["expected"], id=r["id"]) for r in [*rows, *cases(area)]]


def decisions(given: dict[str, Any]) -> Decisions:
    rules = [{k.replace("_", "-"): v for k, v in r.items()} for r in given["event_filters"]]
    config = {
        "case-sensitive": given.get("case_sensitive", False),
        "filter": {"event-filters": rules},
        "force-replicate": True,
    }
    source, sink = Uri.parse("range://h", "source"), Uri.parse("blackhole://", "sink")
    return decisions_of(ChangefeedSpec("f", source, sink, config))


def skips(found: Decisions, given: dict[str, Any]) -> bool:
    table = TableId(given["schema"], given["table"])
    kind, _, ddl = given["event"].partition(":")
    if kind == "ddl":
        number = KINDS.get(ddl) or DdlKind[ddl.upper().replace(" ", "_")]
        return not found.keeps_schema_change(SchemaChange(1, number, given["query"], table))
    schema = parse_create(f"CREATE TABLE `{table.table}` (id INT PRIMARY KEY)", table.database)
    image = pa.array([{"id": 1}], schema.image)
    op, commit_ts, seq = (
        pa.array([value], type_)
        for value, type_ in ((int(Op[kind.upper()]), pa.int8()), (1, pa.uint64()), (0, pa.int64()))
    )
    return not list(found.rows(make_rows(schema, op, commit_ts, seq, image, image)))


@pytest.mark.parametrize(("given", "expected"), vectors("event-filter"))
def test_event_filter(given: dict[str, Any], expected: dict[str, Any]) -> None:
    if "error" in expected:
        with pytest.raises(BadEventFilter, match="is not valid"):
            decisions(given)
    else:
        assert skips(decisions(given), given) is expected["skip"]


@pytest.mark.parametrize(("given", "expected"), vectors("column-selector"))
def test_column_selector(given: dict[str, Any], expected: dict[str, Any]) -> None:
    rules = ColumnOptions.column_selectors.shape.parse(given["column_selectors"])
    found = ColumnSelectors(rules, case_sensitive=False)
    table = TableId(given["schema"], given["table"])
    assert found.selected(table, given["columns"]) == expected["selected"]


@pytest.mark.parametrize("key", ["target_schema", "target_table"])
@pytest.mark.parametrize(("given", "expected"), vectors("routing-expression"))
def test_routing_expression(given: dict[str, Any], expected: dict[str, Any], key: str) -> None:
    rule = DispatchRule(0, ("*.*",), **{key: given["expression"]})
    if "error" in expected:
        with pytest.raises(BadRoute):
            TableRoutes([rule], False, MYSQL_DIALECT)
        return
    routes = TableRoutes([rule], False, MYSQL_DIALECT)
    if "name" in expected and key == "target_table":
        table = TableId(given["schema"], given["table"])
        assert routes.target(table) == (given["schema"], expected["name"])
