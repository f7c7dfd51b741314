"""The last rows of a segment for people: few, short, and without values unless they are wanted."""

from __future__ import annotations

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sampled_change import SampledChange, SampleMode
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.sampling import Sampler

COLUMNS = (
    Column(1, "v", SqlType("longtext")),
    Column(2, "id", SqlType("bigint"), nullable=False),
    Column(3, "b", SqlType("longblob")),
)
KEY = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
TABLE = TableSchema(TableId("shop", "orders"), 1, 1, COLUMNS, (KEY,))
TYPE = pa.struct([("v", pa.large_utf8()), ("id", pa.int64()), ("b", pa.large_binary())])


def chunk(count: int) -> Rows:
    """Inserts 0, 1, …, then an update and a delete of the last ones."""
    ids = [*range(count), count - 1, count - 2]
    ops = [Op.INSERT] * count + [Op.UPDATE, Op.DELETE]
    images = [{"v": f"{i}" * 100, "id": i, "b": b"\xff" * 100} for i in ids]
    before = [None] * count + images[-2:]
    after = [*images[:-2], {"v": None, "id": count - 1, "b": None}, None]
    stamps = [100 + place for place in range(len(ids))]
    return make_rows(
        TABLE,
        pa.array([int(op) for op in ops], pa.int8()),
        pa.array(stamps, pa.uint64()),
        pa.array(range(len(ids)), pa.int64()),
        pa.array(before, TYPE),
        pa.array(after, TYPE),
    )


def sampled(mode: SampleMode, rows: Rows, snapshot: bool = False) -> list[SampledChange]:
    sampler = Sampler(mode, snapshot)
    sampler.saw(chunk(3))
    sampler.saw(rows)
    return [SampledChange.from_json(form) for form in sampler.forms() or ()]


def test_the_last_rows_with_their_values() -> None:
    *_, third, update, delete = found = sampled(SampleMode.VALUES, chunk(900))
    assert [one.op for one in found] == ["insert", "insert", "update", "delete"]
    assert (third.table, third.commit_ts, third.key) == (TABLE.id, 999, {"id": "899"})
    cut = ("899" * 100)[:48] + "…"
    assert third.after == {"id": "899", "v": cut, "b": "0x" + "f" * 46 + "…"}
    assert third.before is None
    assert update.after == {"id": "899", "v": None, "b": None}
    assert (delete.key, delete.after) == ({"id": "898"}, None)
    assert delete.before is not None and delete.before["id"] == "898"


def test_without_values() -> None:
    found = sampled(SampleMode.MASKED, chunk(900))
    assert found == [one.masked() for one in sampled(SampleMode.VALUES, chunk(900))]
    assert "89" not in str([(one.key, one.before, one.after) for one in found])
    assert {tuple(one.key.items()) for one in found} == {(("id", "***"),)}


def test_rows_of_a_snapshot_and_none_at_all() -> None:
    assert {one.op for one in sampled(SampleMode.MASKED, chunk(900), True)[:2]} == {"snapshot"}
    assert sampled(SampleMode.OFF, chunk(900)) == []
    assert Sampler(SampleMode.VALUES, False).forms() is None
