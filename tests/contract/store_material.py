"""Changefeeds, tables and plans for the tests of the meta store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Output, Plan, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.store.contract import MetaStore
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

NOW = 1_800_000_000.0
TTL_S = 15.0
ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")
SOURCE = Uri.parse("range://reader:source-pw@master:7000", "source")
SINK = Uri.parse("file:///data/out?protocol=csv&session-token=sink-pw", "sink")


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def make_spec(changefeed: str = "feed-1", **config: Any) -> ChangefeedSpec:
    return ChangefeedSpec(changefeed, SOURCE, SINK, config)


def make_table(name: TableId = ORDERS, table_id: int = 7, version: int = 10) -> TableSchema:
    columns = (Column(1, "id", SqlType("bigint"), nullable=False),)
    return TableSchema(name, table_id, version, columns)


def make_range(
    range_id: int, name: TableId = ORDERS, table_id: int = 7, index: int = 1
) -> RangeProgress:
    return RangeProgress(
        database=name.database,
        table=name.table,
        table_id=table_id,
        physical_id=table_id,
        range_id=range_id,
        start_key=f"{range_id:04x}",
        end_key=f"{range_id + 1:04x}",
        stage=Stage.LOG,
        init_snapshot_version=3,
        init_snapshot_ts=2**62,
        current_snapshot_version=4,
        current_snapshot_ts=2**63 - 1,
        last_snapshot_key="ff00",
        last_log_index=index,
    )


def make_plan(
    number: int = 1,
    *,
    table: TableSchema | None = None,
    changes: tuple[SchemaChange, ...] = (),
    ranges: tuple[RangeProgress, ...] = (),
    gone: tuple[int, ...] = (),
    watermark: int | None = None,
    sink_state: dict[str, Any] | None = None,
    spec_version: int = 1,
) -> Plan:
    slices = (TableSlice(table.id, table.table_id, table.version),) if table else ()
    segment = Segment(
        0, {"from": number, "text": "naïve \x00 ∞"}, slices, 10, 20, payload=b"\xff\x00"
    )
    return Plan(
        micro_batch=number,
        spec_version=spec_version,
        planned_at_ms=1_800_000_000_000 + number,
        stretch=Stretch((segment,), changes, {"after": number}, ranges, gone, watermark),
        outputs=(Output(0, 0, {"file": number}),),
        sink_state=sink_state,
    )


def run_plan(store: MetaStore, claim: Claim, plan: Plan, *versions: TableSchema) -> None:
    store.record(claim, plan, versions)
    store.publish(claim, plan)


def someone_else(instance: str = "there") -> Holder:
    return Holder("other-host", 4711, "another realm", 1, instance)
