"""Which rows wait, and how they travel: keys as texts, rows as images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Receipt, Segment, TableSlice
from rowferry.change.quarantine import (
    EVERY_KEY,
    KEY_SHAPE,
    ParkedKey,
    PlanQuarantine,
    RefusedKey,
    RefusedRows,
    as_error,
    by_table,
    refusals_in,
)
from rowferry.change.table import TableSchema
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.errors import QuarantineFull, RowsRefused, from_text
from rowferry.flow.assemble import sink_traits
from rowferry.flow.encode.sql_rows.codec import SqlRows
from rowferry.flow.parking import (
    Parking,
    diverted,
    joined_images,
    parked_rows,
    refusal_receipts,
    refused,
    shape_of,
    shown_images,
)
from rowferry.flow.sink.mysql.transactions import refused_key
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spark.receipts import read_receipts, receipt_batch
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def table_of(columns: str) -> TableSchema:
    return replace(parse_create(f"CREATE TABLE d.t ({columns})").at(7), table_id=12)


def changes(table: TableSchema, *images: tuple[Op, dict[str, object]]) -> Rows:
    ops = [op for op, _ in images]
    before = [None if op is Op.INSERT else image for op, image in images]
    after = [None if op is Op.DELETE else image for op, image in images]
    return make_rows(
        table,
        pa.array([int(op) for op in ops], pa.int8()),
        pa.array(range(100, 100 + len(ops)), pa.uint64()),
        pa.array(range(len(ops)), pa.int64()),
        pa.array(before, table.image),
        pa.array(after, table.image),
    )


ITEMS = table_of("id bigint PRIMARY KEY, name varchar(20)")


def parking(*keys: str, limit: int = 10) -> Parking:
    return Parking(PlanQuarantine(parked=by_table(ParkedKey(12, key) for key in keys)), limit)


def test_rows_of_parked_keys_are_taken_out_in_their_order() -> None:
    rows = changes(
        ITEMS,
        (Op.INSERT, {"id": 5, "name": "a"}),
        (Op.INSERT, {"id": 6, "name": "b"}),
        (Op.UPDATE, {"id": 5, "name": "c"}),
        (Op.DELETE, {"id": 5, "name": "c"}),
        (Op.DELETE, {"id": 6, "name": "b"}),
    )
    place = parking("5", "77")
    left = place.passed(rows)
    assert [r["id"] for r in left.batch.column("before").to_pylist() if r] == [6]
    assert left.commit_ts.tolist() == [101, 104]
    (receipt,) = place.receipts(3)
    assert not receipt.is_of_output
    taken = diverted(list(read_receipts(receipt_batch([receipt]).to_pylist())))
    assert [(t.key, Op(t.op), t.commit_ts) for t in taken] == [
        ("5", Op.INSERT, 100),
        ("5", Op.UPDATE, 102),
        ("5", Op.DELETE, 103),
    ]
    before, after = shown_images(taken[1].image)
    assert (before, after) == ({"id": 5, "name": "c"}, {"id": 5, "name": "c"})
    segment = Segment(
        *(2, {"kind": "parked"}, (TableSlice(ITEMS.id, 12, 7),), 100, 103),
        payload=joined_images(t.image for t in taken),
        parked=True,
    )
    (again,) = parked_rows(segment, {segment.slices[0]: ITEMS})
    assert again.op.tolist() == [0, 1, 2]
    assert again.batch.column("seq").to_pylist() == [(2 << 40) + n for n in range(3)]
    assert again.after.to_pylist() == rows.take(np.array([0, 2, 3])).after.to_pylist()


def test_other_tables_and_other_keys_pass_untouched() -> None:
    rows = changes(ITEMS, (Op.INSERT, {"id": 5, "name": "a"}))
    assert parking("6").passed(rows) is rows
    assert Parking(None, 0).passed(rows) is rows
    other = Parking(PlanQuarantine(parked=by_table([ParkedKey(13, "5")])), 1)
    assert other.passed(rows) is rows and other.receipts(0) == []


def test_segments_come_back_in_their_order() -> None:
    receipts: list[Receipt] = []
    for segment in (2, 0, 1):
        place = parking("5")
        place.passed(changes(ITEMS, (Op.INSERT, {"id": 5, "name": str(segment)})))
        receipts += place.receipts(segment)
    names = [shown_images(t.image)[1] for t in diverted(receipts)]
    assert [image["name"] for image in names if image] == ["0", "1", "2"]


def test_no_more_rows_than_allowed() -> None:
    rows = changes(ITEMS, *((Op.INSERT, {"id": 5, "name": str(n)}) for n in range(3)))
    parking("5", limit=3).passed(rows)
    with pytest.raises(QuarantineFull, match="more than 2 rows"):
        parking("5", limit=2).passed(rows)
    huge = changes(ITEMS, (Op.INSERT, {"id": 5, "name": np.random.bytes(9 << 20).hex()}))
    with pytest.raises(QuarantineFull, match="rows of up to 8388608 bytes"):
        parking("5").passed(huge)


@pytest.mark.parametrize("key", ["varchar(10)", "double", "json"])
def test_keys_that_only_the_database_can_compare_stand_for_their_table(key: str) -> None:
    columns = f"k {key} NOT NULL, a int, UNIQUE KEY (k)"
    table = table_of(columns)
    assert not has_exact_key(table)
    value = 1.5 if key == "double" else "x"
    rows = changes(table, (Op.INSERT, {"k": value, "a": 1}))
    place = parking(EVERY_KEY)
    assert len(place.passed(rows)) == 0
    assert [t.key for t in diverted(place.receipts(0))] == [EVERY_KEY]


@pytest.mark.parametrize(
    ("columns", "image", "text"),
    [
        ("k bigint PRIMARY KEY", {"k": -5}, "-5"),
        ("k bigint unsigned PRIMARY KEY", {"k": (1 << 64) - 1}, str((1 << 64) - 1)),
        ("k decimal(10,2) PRIMARY KEY", {"k": "-12.50"}, "-12.50"),
        ("k date PRIMARY KEY", {"k": "2024-01-02"}, "2024-01-02"),
        ("k datetime(3) PRIMARY KEY", {"k": "2024-01-02 03:04:05.678"}, "2024-01-02 03:04:05.678"),
        ("k timestamp PRIMARY KEY", {"k": "2024-01-02 03:04:05"}, "2024-01-02 03:04:05"),
        ("k time PRIMARY KEY", {"k": "-12:00:00"}, "-12:00:00"),
        ("k year PRIMARY KEY", {"k": 2024}, "2024"),
        ("k bit(9) PRIMARY KEY", {"k": 257}, "257"),
        ("k enum('a','b') PRIMARY KEY", {"k": 2}, "2"),
        ("k set('a','b') PRIMARY KEY", {"k": 3}, "3"),
        ("k varbinary(9) PRIMARY KEY", {"k": b"\0'x"}, "002778"),
        ("k int, j date, PRIMARY KEY (j, k)", {"k": 1, "j": "2024-01-02"}, "1,2024-01-02"),
    ],
)
def test_a_key_read_back_from_a_statement_is_the_key_of_the_row(
    columns: str, image: dict[str, object], text: str
) -> None:
    """What the sink tells is what the next run looks for."""
    table = table_of(columns)
    for op in (Op.INSERT, Op.UPDATE, Op.DELETE):
        rows = changes(table, (op, image))
        assert key_texts(rows).to_pylist() == [text]
        spec = ChangefeedSpec(
            "f", Uri.parse("mysql://h/", "source"), Uri.parse("mysql://h/", "sink"), {}
        )
        codec = SqlRows(spec, sink_traits("mysql"))
        encoded = codec.encode_rows(rows, 0)
        assert isinstance(encoded.keys, pa.LargeBinaryArray)
        assert refused_key(table, encoded.keys) == text


def test_shapes_tell_whether_rows_fit_and_keys_compare() -> None:
    same = table_of("id bigint PRIMARY KEY, name varchar(20)")
    wider = table_of("id bigint PRIMARY KEY, name varchar(20), more int")
    other = table_of("id decimal(20,1) PRIMARY KEY, name varchar(20)")
    assert shape_of(same.at(9)) == shape_of(ITEMS)
    assert shape_of(wider) != shape_of(ITEMS)
    assert shape_of(wider)[:KEY_SHAPE] == shape_of(ITEMS)[:KEY_SHAPE]
    assert shape_of(other)[:KEY_SHAPE] != shape_of(ITEMS)[:KEY_SHAPE]
    assert len(shape_of(ITEMS)) == 64


def test_refusals_reach_the_driver_as_receipts_and_as_errors() -> None:
    noted = RefusedRows()
    assert not noted.is_open
    noted.begin(2)
    noted.add(RefusedKey(1, "5", "first"))
    noted.add(RefusedKey(1, "5", "second"))
    noted.add(RefusedKey(1, "4", "with: \"quotes\" and 'é'"))
    with pytest.raises(QuarantineFull, match="more than 2 rows"):
        noted.add(RefusedKey(2, "5", "one too many"))
    found = noted.take()
    assert noted.take() == ()
    carried = list(read_receipts(receipt_batch(refusal_receipts(found)).to_pylist()))
    assert refused(carried) == (found[1], found[0])
    error = from_text(f"some trace\n{as_error(found)}\nmore")
    assert isinstance(error, RowsRefused) and refusals_in(error) == found
    noted.add(RefusedKey(1, "5", "left by a task that failed"))
    noted.begin(0)
    assert noted.take() == () and not noted.is_open
