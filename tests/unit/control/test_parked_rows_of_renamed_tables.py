"""Rows that were parked before their table got another name: where they go, and what they show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rowferry.change.chunk import Op
from rowferry.change.plan import Plan, Stretch
from rowferry.change.quarantine import ParkedRow, PlanQuarantine, RowPlace
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.feed.quarantining import Quarantining, outdated
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.parking import shape_of
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

OLD = replace(
    parse_create("CREATE TABLE shop.t (id INT PRIMARY KEY, email VARCHAR(40))"),
    table_id=7,
    version=5,
)
NEW = replace(OLD, id=TableId("crm", "people"), version=9)
MASKS = [
    {"matcher": ["shop.*"], "columns": ["email"], "action": "constant", "value": "x"},
    {"matcher": ["crm.*"], "columns": ["email"], "action": "constant", "value": "y"},
]
COMPUTED = {"matcher": ["*.*"], "column": "n", "type": "int", "expression": "id + 1"}


def flow_of(**config: Any) -> Flow:
    sink = Uri.parse("mysql://u@h:1/", "sink")
    return assemble(ChangefeedSpec("feed", Uri.parse("range://h:1", "source"), sink, config))


def parked(flow: Flow, table: TableSchema = OLD) -> ParkedRow:
    shape = shape_of(flow.decide.seen_as(table))
    where = (RowPlace(3, 0), table.id, table.table_id, table.version, None)
    return ParkedRow(*where, "1", Op.INSERT, 6, shape, "refused", 10, 0.0, wanted=True)


def sent_again(flow: Flow, row: ParkedRow, *versions: TableSchema) -> Plan | None:
    """Return the plan that sends a row again, where these versions of tables are known."""

    class Store:
        def parked(self, changefeed: str) -> tuple[ParkedRow, ...]:
            return (row,)

        def position(self, changefeed: str) -> dict[str, Any]:
            return {}

    store: Any = Store()
    quarantine = Quarantining(store, Claim("feed", Holder.here(), 1, 60.0), flow)
    quarantine.look()

    def make_plan(stretch: Stretch, asked: PlanQuarantine) -> Plan:
        return Plan(4, 1, 0, stretch, quarantine=asked)

    return quarantine.again({(v.table_id, v.version): v for v in versions}, make_plan)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"sink": {"dispatchers": [{"matcher": ["crm.*"], "target-schema": "copy"}]}},
        {"transform": {"masks": [{**MASKS[0], "matcher": ["*.*"]}], "computed": [COMPUTED]}},
    ],
)
def test_a_row_goes_where_its_table_is_written_now(config: dict[str, Any]) -> None:
    flow = flow_of(**config)
    plan = sent_again(flow, parked(flow), OLD, NEW)
    assert plan is not None and plan.quarantine is not None
    assert plan.quarantine.stays == ()
    (part,) = plan.stretch.segments[0].slices
    assert (part.table, part.version) == (NEW.id, NEW.version)


@pytest.mark.parametrize(
    "transform",
    [
        {"masks": MASKS},
        {"masks": MASKS[1:]},  # what was parked is in clear
        {"masks": MASKS[:1]},
        {
            "computed": [
                {**COMPUTED, "matcher": ["shop.*"]},
                {**COMPUTED, "matcher": ["crm.*"], "expression": "id + 2"},
            ]
        },
    ],
)
def test_a_row_of_other_masks_stays(transform: dict[str, Any]) -> None:
    flow = flow_of(transform=transform)
    row = parked(flow)
    words = "table shop.t is crm.people now, for which other rules of transform are"
    plan = sent_again(flow, row, OLD, NEW)
    assert plan is not None and plan.quarantine is not None
    assert plan.stretch.segments == ()
    assert words in plan.quarantine.stays[0].cause
    assert words in outdated(row, NEW, flow.decide)
    assert outdated(row, OLD, flow.decide) == ""


def test_a_row_of_a_table_that_left_the_filter_stays() -> None:
    flow = flow_of(filter={"rules": ["shop.*"]})
    row = parked(flow)
    plan = sent_again(flow, row, OLD, NEW)
    assert plan is not None and plan.quarantine is not None
    assert plan.stretch.segments == ()
    assert "is not captured any more; drop" in plan.quarantine.stays[0].cause
    without = flow_of(filter={"rules": ["none.*"]})
    assert "is not captured any more; drop" in outdated(row, OLD, without.decide)
