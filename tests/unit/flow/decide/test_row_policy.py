"""Soft delete and active-active: every combination, against a table of rules and a plain model."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from decide_kit import KAFKA, STORAGE, Image, chunk, decided, decisions, made
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.table import TableSchema
from rowferry.errors import TableNotActiveActive
from rowferry.flow.decide.row_policy import Stamps, by_policy
from rowferry.testing.model import History, RowChange
from rowferry.testing.row_policy import PolicyRow, as_readers_see, policy_of

NULL, ZERO, ZERO_DATE = None, "0", "0000-00-00 00:00:00.000000"
TIME, LATER = "2025-03-10 00:00:00.000000", "2025-03-11 00:00:00.000000"
STATES = (NULL, ZERO, ZERO_DATE, TIME)
TABLE = made(
    "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, _tidb_origin_ts BIGINT UNSIGNED, "
    "_tidb_softdelete_time TIMESTAMP(6) NULL, _tidb_commit_ts BIGINT UNSIGNED)"
)
MYSQL = "mysql://u:p@h/"
MODE: dict[str, Any] = {
    "enable-active-active": True,
    "bdr-mode": True,
    "active-active-tables": ["*.*"],
}
# With the mode off, an update by whether the old and the new row count as deleted.
BECOMES = {
    (False, False): "passes",
    (False, True): "becomes a delete",
    (True, False): "passes",
    (True, True): "is dropped",
}


def flagged(active_active: bool, soft_delete: bool, table: TableSchema = TABLE) -> TableSchema:
    return replace(table, is_active_active_table=active_active, is_soft_delete_table=soft_delete)


def row(key: int, time: str | None, **more: Any) -> dict[str, Any]:
    found = {"id": key, "v": None, "_tidb_origin_ts": None, "_tidb_commit_ts": None}
    return {**found, "_tidb_softdelete_time": time, **more}


def listed(rows: Rows) -> list[tuple[Op, Image, Image]]:
    columns = (rows.op.tolist(), rows.before.to_pylist(), rows.after.to_pylist())
    return [(Op(o), b, a) for o, b, a in zip(*columns, strict=True)]


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("flags", list(product([False, True], repeat=2)))
def test_truth_table(flags: tuple[bool, bool], mode: bool) -> None:
    table = flagged(*flags)

    def kept(op: Op, before: Image, after: Image) -> list[tuple[Op, Image, Image]]:
        return listed(by_policy(chunk(table, (op, before, after)), mode))

    def stamped(image: dict[str, Any]) -> dict[str, Any]:
        return {**image, "_tidb_origin_ts": 0} if mode and any(flags) else image

    for time in STATES:
        one = row(1, time)
        # An insert, which is also what a snapshot's row is, passes in every state.
        assert kept(Op.INSERT, None, one) == [(Op.INSERT, None, stamped(one))]
        assert kept(Op.DELETE, one, None) == ([] if any(flags) else [(Op.DELETE, one, None)])
    for old, new in product(STATES, STATES):
        before, after = row(1, old), row(1, new)
        found = kept(Op.UPDATE, before, after)
        if not any(flags) or mode:
            assert found == [(Op.UPDATE, before, stamped(after))], (old, new)
            continue
        rule = BECOMES[old == TIME, new == TIME]
        assert (
            found
            == {
                "passes": [(Op.UPDATE, before, after)],
                "becomes a delete": [(Op.DELETE, before, None)],
                "is dropped": [],
            }[rule]
        ), (old, new)


def test_zero_of_a_number_is_not_deleted() -> None:
    sql = "CREATE TABLE n (id INT PRIMARY KEY, _TiDB_SoftDelete_Time BIGINT)"
    table = flagged(False, True, made(sql))

    def image(time: int | None) -> dict[str, Any]:
        return {"id": 1, "_TiDB_SoftDelete_Time": time}

    def op(old: int | None, new: int | None) -> list[Op]:
        change = (Op.UPDATE, image(old), image(new))
        return [o for o, _, _ in listed(by_policy(chunk(table, change), False))]

    assert [op(None, 0), op(0, 5), op(5, 0), op(5, 6)] == [
        [Op.UPDATE],
        [Op.DELETE],
        [Op.UPDATE],
        [],
    ]


def test_order_and_stamps_stay() -> None:
    table = flagged(False, True)
    rows = make_rows(
        table,
        pa.array([2, 1, 0, 1], pa.int8()),
        pa.array([10, 11, 12, 13], pa.uint64()),
        pa.array([5, 6, 7, 8], pa.int64()),
        pa.array([row(1, None), row(2, None), None, row(3, TIME)], table.image),
        pa.array([None, row(2, TIME), row(4, TIME), row(3, LATER)], table.image),
        physical_id=9,
    )
    found = by_policy(rows, False)
    assert [o for o, _, _ in listed(found)] == [Op.DELETE, Op.INSERT]
    assert found.commit_ts.tolist() == [11, 12]
    assert found.batch.column("seq").to_pylist() == [6, 7]
    assert found.physical_id == 9


def test_what_cannot_be_judged_is_refused() -> None:
    table = flagged(False, True)
    with pytest.raises(TableNotActiveActive, match=r"shop\.t.*does not give old rows"):
        by_policy(chunk(table, (Op.UPDATE, None, row(1, None))), False)
    keys = pa.struct([pa.field("id", table.image.field("id").type)])
    for op, before, after in ((0, None, row(1, TIME)), (2, {"id": 1}, None)):
        rows = make_rows(
            table,
            pa.array([op, 0], pa.int8()),
            pa.array([1, 1], pa.uint64()),
            pa.array([0, 1], pa.int64()),
            pa.array([before, None], keys),
            pa.array([after, row(2, None)], table.image),
        )
        with pytest.raises(TableNotActiveActive, match=r"shop\.t.*does not give old rows"):
            by_policy(rows, False)
        assert len(by_policy(rows, True)) == 1 + (op == 0)
    bare = flagged(True, False, made("CREATE TABLE b (id INT PRIMARY KEY)"))
    with pytest.raises(TableNotActiveActive, match=r"shop\.b has no column _tidb_softdelete_time"):
        by_policy(chunk(bare, (Op.INSERT, None, {"id": 1})), True)


# --- the mode is on ------------------------------------------------------------------------------


def test_the_sent_moment_and_what_others_wrote() -> None:
    table, at = flagged(True, False), (7 << 18) + 37
    rows = make_rows(
        table,
        pa.array([0, 0, 1], pa.int8()),
        pa.array([at] * 3, pa.uint64()),
        pa.array(range(3), pa.int64()),
        pa.array([None, None, row(3, None)], table.image),
        pa.array(
            [row(1, None), row(2, None, _tidb_commit_ts=77), row(3, None, _tidb_origin_ts=5)],
            table.image,
        ),
    )
    found = listed(by_policy(rows, True, cluster_index=3))
    assert [(a or {})["_tidb_origin_ts"] for _, _, a in found] == [(7 << 18) + 32 + 3, 77]


def test_a_key_that_changes_leaves_its_old_row_behind_as_deleted() -> None:
    table = flagged(True, False)
    at = 1_700_000_000_123 << 18
    changes = [
        (row(1, None, v="a"), row(2, None, v="b", _tidb_commit_ts=at + 16)),
        (row(3, TIME, v="c"), row(4, None, v="d")),
    ]
    rows = make_rows(
        table,
        pa.array([1, 1], pa.int8()),
        pa.array([at, at], pa.uint64()),
        pa.array([0, 1], pa.int64()),
        pa.array([b for b, _ in changes], table.image),
        pa.array([a for _, a in changes], table.image),
    )
    found = by_policy(rows, True)
    assert listed(found) == [
        (
            Op.INSERT,
            None,
            row(1, "2023-11-14 22:13:20.123000", v="a", _tidb_origin_ts=at + 16),
        ),
        (Op.INSERT, None, {**changes[0][1], "_tidb_origin_ts": at + 16}),
        (Op.INSERT, None, row(3, TIME, v="c", _tidb_origin_ts=at)),
        (Op.INSERT, None, row(4, None, v="d", _tidb_origin_ts=at)),
    ]
    assert found.batch.column("seq").to_pylist() == [0, 0, 1, 1]


# --- against the model ---------------------------------------------------------------------------

moments = st.sampled_from([NULL, ZERO_DATE, TIME, LATER])
stamps = st.sampled_from([None, 3, 1 << 30])
images = st.builds(
    lambda key, time, origin, commit: row(
        key, time, _tidb_origin_ts=origin, _tidb_commit_ts=commit
    ),
    st.integers(1, 3),
    moments,
    stamps,
    stamps,
)
changes = st.one_of(
    st.tuples(st.just(Op.INSERT), st.none(), images),
    st.tuples(st.just(Op.UPDATE), images, images),
    st.tuples(st.just(Op.DELETE), images, st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(changes, max_size=12), st.booleans(), st.booleans(), st.booleans())
def test_as_the_model(
    given_rows: list[tuple[Op, Image, Image]], active_active: bool, soft: bool, mode: bool
) -> None:
    table = flagged(active_active, soft)
    found = listed(by_policy(chunk(table, *given_rows), mode, cluster_index=2))
    wanted = [
        (r.op, r.before, r.after)
        for op, before, after in given_rows
        for r in policy_of(PolicyRow(op, before, after, 1), table, mode, cluster_index=2)
    ]
    assert found == wanted


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), moments | st.just("gone"))))
def test_readers_have_the_rows_of_the_model(steps: list[tuple[int, int, str | None]]) -> None:
    """What readers rebuild of decided rows is what the model's history says, change by change."""
    history, there, copy = History(), dict[int, dict[str, Any]](), dict[int, dict[str, Any]]()
    table = flagged(False, True).at(1)
    history.note_table(table)
    decide = decisions()
    for commit_ts, (key, to, time) in enumerate(steps, 2):
        old, new = there.pop(key, None), row(to, None if time == "gone" else time, v=str(commit_ts))
        if time == "gone" and old is None or time != "gone" and to != key and to in there:
            there |= {key: old} if old else {}
            continue
        op = Op.DELETE if time == "gone" else Op.INSERT if old is None else Op.UPDATE
        after = None if op is Op.DELETE else new
        there |= {to: new} if after else {}
        changed = RowChange(table.id, op, (to if after else key,), old, after)
        history.note_commit(commit_ts, [changed])
        for told, before, image in decided(decide, chunk(table, (op, old, after))):
            if told is not Op.INSERT and before is not None:
                copy.pop(before["id"], None)
            if image is not None:
                copy[image["id"]] = image
        seen = as_readers_see(history).rows_at(table.id, commit_ts)
        assert {k[0]: r for k, r in seen.items()} == copy


# --- as a part of the decisions ------------------------------------------------------------------


@pytest.mark.parametrize("sink", [STORAGE, KAFKA, MYSQL, "blackhole://"])
def test_every_sink_converts(sink: str) -> None:
    found = decisions({"soft-delete-tables": ["shop.t"]}, sink)
    rows = chunk(TABLE, (Op.UPDATE, row(1, None), row(1, TIME)), (Op.DELETE, row(2, TIME), None))
    assert decided(found, rows) == [(Op.DELETE, row(1, None), None)]
    assert found.seen_as(TABLE).is_soft_delete_table


def test_the_policy_comes_before_the_key_split() -> None:
    found = decisions({"soft-delete-tables": ["shop.t"]})
    rows = chunk(
        TABLE,
        (Op.UPDATE, row(1, None), row(2, None)),
        (Op.UPDATE, row(3, None), row(4, TIME)),
        (Op.UPDATE, row(5, TIME), row(6, LATER)),
    )
    assert decided(found, rows) == [
        (Op.DELETE, row(1, None), None),
        (Op.INSERT, None, row(2, None)),
        (Op.DELETE, row(3, None), None),
    ]


def test_with_the_mode_on_nothing_is_removed_and_the_own_commit_ts_stays_here() -> None:
    table = made(
        "CREATE TABLE t (id INT PRIMARY KEY, u INT UNIQUE, _tidb_origin_ts BIGINT UNSIGNED, "
        "_tidb_softdelete_time TIMESTAMP(6) NULL, _tidb_commit_ts BIGINT UNSIGNED)"
    )

    def image(key: int, other: int) -> dict[str, Any]:
        return {"id": key, "u": other, "_tidb_commit_ts": 64}

    found = decisions({**MODE, "cluster-index": 5}, MYSQL)
    rows = chunk(
        table,
        (Op.UPDATE, image(1, 1), image(1, 2)),
        (Op.UPDATE, image(1, 2), image(3, 2)),
        (Op.DELETE, image(3, 2), None),
    )
    kept = decided(found, rows)
    assert [op for op, _, _ in kept] == [Op.UPDATE, Op.INSERT, Op.INSERT]
    assert [(a or {}).get("_tidb_origin_ts") for _, _, a in kept] == [64, 64, 64]
    assert "_tidb_commit_ts" not in found.seen_as(table).by_name
    assert all("_tidb_commit_ts" not in (a or {}) for _, _, a in kept)


def test_the_moment_of_a_row_that_does_not_tell_it() -> None:
    """Rows of a snapshot win over none; a log whose rows nobody stamps is refused."""
    table = flagged(True, True)
    told, silent = row(1, NULL, _tidb_commit_ts=805), row(2, NULL)

    def moments(stamps: Stamps, *changes: tuple[Op, Image, Image]) -> list[int]:
        rows = chunk(table, *changes)
        late = pa.array([1 << 60] * len(changes), pa.uint64())  # of the transaction
        columns = (rows.batch.column("op"), late, rows.batch.column("seq"))
        made = make_rows(table, *columns, rows.before, rows.after)
        found = by_policy(made, True, 5, stamps)
        return [after["_tidb_origin_ts"] for _, _, after in listed(found) if after]

    inserts = [(Op.INSERT, None, told), (Op.INSERT, None, silent)]
    assert moments(Stamps.NEVER_WIN, *inserts) == [805, 5]
    assert moments(Stamps.BY_TRANSACTIONS, *inserts) == [805, (1 << 60) + 5]
    assert moments(Stamps.BY_ROWS, inserts[0]) == [805]
    later = (Op.UPDATE, told, {**told, "_tidb_commit_ts": 821})
    assert moments(Stamps.BY_ROWS, later) == [821]
    foreign = (Op.UPDATE, {**told, "_tidb_origin_ts": 837}, {**told, "_tidb_commit_ts": 853})
    assert moments(Stamps.BY_ROWS, foreign) == [853]
    lost = (Op.UPDATE, {**told, "_tidb_origin_ts": 854}, {**told, "_tidb_commit_ts": 853})
    for wrong in (inserts[1], (Op.UPDATE, told, told), lost):
        with pytest.raises(TableNotActiveActive, match=r"t has a row in its log that no trigger"):
            moments(Stamps.BY_ROWS, inserts[0], wrong)


@pytest.mark.parametrize(
    ("source", "refused"), [("mysql", True), ("mariadb", True), ("range", False)]
)
def test_sources_whose_rows_must_be_stamped(source: str, refused: bool) -> None:
    found = decisions(MODE, MYSQL, source=f"{source}://u:p@h:1/" if refused else "range://h:1")
    rows = chunk(TABLE, (Op.INSERT, None, row(1, NULL)))
    (snapshot,) = found.rows(rows, snapshot=True)
    assert snapshot.after.field("_tidb_origin_ts").to_pylist() == [0]
    if refused:
        with pytest.raises(TableNotActiveActive, match="no trigger has stamped"):
            list(found.rows(rows))
    else:
        assert [len(part) for part in found.rows(rows)] == [1]
