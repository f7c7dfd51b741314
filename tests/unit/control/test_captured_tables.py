"""Which tables are captured after a plan."""

from __future__ import annotations

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.control.store.captured import captured_by

A, B, C = TableId("d", "a"), TableId("d", "b"), TableId("e", "c")


def _plan(
    slices: tuple[TableSlice, ...] = (),
    changes: tuple[SchemaChange, ...] = (),
    ranges: tuple[RangeProgress, ...] = (),
) -> Plan:
    segment = Segment(0, {}, slices, 1, 1)
    return Plan(1, 1, 0, Stretch((segment,), changes, {}, ranges))


def _table(name: TableId, table_id: int) -> TableSchema:
    return TableSchema(name, table_id, 1, ())


def test_rows_ranges_and_new_versions_mean_captured() -> None:
    progress = RangeProgress("e", "c", 3, 3, 1, "", "", Stage.LOG)
    found = captured_by(_plan((TableSlice(A, 1, 1),), ranges=(progress,)), [(B, 2)])
    assert found.present == {A: 1, B: 2, C: 3}
    assert not found.gone and not found.gone_databases


def test_a_range_of_no_table_is_not_captured() -> None:
    catalog = RangeProgress("", "", 0, 0, 1, "", "", Stage.LOG)
    assert captured_by(_plan(ranges=(catalog,)), []).present == {}


def test_dropped_tables_are_gone_also_when_they_had_rows() -> None:
    drop = SchemaChange(2, DdlKind.DROP_TABLE, "", A, dropped_table_id=1)
    found = captured_by(_plan((TableSlice(A, 1, 1),), (drop,)), [])
    assert found.present == {} and found.gone == {A}


def test_a_table_made_again_is_captured() -> None:
    drop = SchemaChange(2, DdlKind.DROP_TABLE, "", A, dropped_table_id=1)
    create = SchemaChange(3, DdlKind.CREATE_TABLE, "", A, _table(A, 9))
    found = captured_by(_plan(changes=(drop, create)), [])
    assert found.present == {A: 9} and found.gone == set()


def test_truncate_keeps_the_table_with_its_new_id() -> None:
    change = SchemaChange(2, DdlKind.TRUNCATE_TABLE, "", A, _table(A, 9), dropped_table_id=1)
    found = captured_by(_plan((TableSlice(A, 1, 1),), (change,)), [])
    assert found.present == {A: 9} and found.gone == set()


def test_a_rename_ends_the_old_name() -> None:
    change = SchemaChange(2, DdlKind.RENAME_TABLE, "", B, _table(B, 1), previous=A)
    found = captured_by(_plan((TableSlice(A, 1, 1),), (change,)), [])
    assert found.present == {B: 1} and found.gone == {A}


def test_a_dropped_database_takes_its_tables_along() -> None:
    drop = SchemaChange(2, DdlKind.DROP_DATABASE, "", TableId("d", ""))
    found = captured_by(_plan((TableSlice(A, 1, 1), TableSlice(C, 3, 1)), (drop,)), [])
    assert found.present == {C: 3} and found.gone_databases == {"d"}
