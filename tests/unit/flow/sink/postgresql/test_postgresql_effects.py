"""What changes amount to: the last of each key, keys that go first, rows that are counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.postgresql.effects import cut, keyless_effect, lines_of, net_effect
from rowferry.flow.sink.postgresql.merging import keyless_delete

COLUMNS = (Column(1, "id", SqlType("int"), nullable=False), Column(2, "u", SqlType("int")))
KEY = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
OTHER = Index(2, "u", ("u",), unique=True)


def frame(changes: list[tuple[Op, str, str | None]], *indexes: Index) -> RowFrame:
    table = TableSchema(TableId("d", "t"), 1, 1, COLUMNS, indexes)
    ops, keys, rows = zip(*changes, strict=True)
    return RowFrame(
        table,
        np.array(ops, np.int8),
        np.ones(len(ops), np.uint64),
        np.arange(len(ops)),
        pa.array([k.encode() for k in keys], pa.large_binary()),
        pa.array([r and r.encode() for r in rows], pa.large_binary()),
    )


MOVES = [
    (Op.INSERT, "1\n", "1\t5\n"),
    (Op.DELETE, "2\n", None),
    (Op.UPDATE, "1\n", "1\t6\n"),
    (Op.INSERT, "2\n", "2\t5\n"),
    (Op.DELETE, "3\n", None),
]


def test_of_each_key_the_last_change_counts() -> None:
    effect = net_effect([frame(MOVES, KEY)])
    assert bytes(lines_of(effect.gone)) == b"3\n"
    assert bytes(lines_of(effect.stays)) == b"1\t6\n2\t5\n"
    assert effect.apart


def test_with_other_unique_keys_what_was_deleted_on_the_way_goes_first() -> None:
    effect = net_effect([frame(MOVES, KEY, OTHER)])
    assert sorted(effect.gone.to_pylist()) == [b"2\n", b"3\n"]
    assert bytes(lines_of(effect.stays)) == b"1\t6\n2\t5\n"
    assert not effect.apart


def test_parts_hold_everything_once_and_first_what_goes() -> None:
    parts = list(cut(net_effect([frame(MOVES, KEY, OTHER)]), 3))
    assert [(len(p.gone), len(p.stays)) for p in parts] == [(2, 1), (0, 1)]
    assert [k for p in parts for k in p.keys.to_pylist()] == [b"1\n", b"2\n"]
    assert parts[1].named() == "table d.t, row id = 2"


def test_rows_without_a_key_are_counted() -> None:
    changes = [
        (Op.INSERT, "", "1\t1\n"),
        (Op.INSERT, "", "1\t1\n"),
        (Op.DELETE, "1\t1\n", None),
        (Op.UPDATE, "7\t7\n", "8\t8\n"),
        (Op.DELETE, "9\t9\n", None),
        (Op.DELETE, "9\t9\n", None),
    ]
    effect = keyless_effect(frame(changes))
    assert sorted(effect.gone.to_pylist()) == [b"7\t7\n", b"9\t9\n", b"9\t9\n"]
    assert sorted(effect.stays.to_pylist()) == [b"1\t1\n", b"8\t8\n"]


def test_rows_without_a_key_are_found_by_what_was_written() -> None:
    """A column that the downstream computes may have another value than the source's."""
    table = frame(MOVES).table
    whole = keyless_delete(table, "stage", frozenset())
    assert 'ROW(t."id", t."u")::text' in whole and 'ROW(s."id", s."u")::text' in whole
    written = keyless_delete(table, "stage", frozenset({"u"}))
    assert 'ROW(t."id")::text' in written and 'ROW(s."id")::text' in written
    assert '"u"' not in written
