"""Prepared transactions: what is remembered of them, and what is planned when they end."""

from __future__ import annotations

from copy import deepcopy

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.frame.xa import PreparedRows, statement_xid, without_tables

COMMIT = "XA COMMIT X'61',X'',1"


def remembered() -> PreparedRows:
    part = Segment(0, {"server": "s", "fixed_ts": 0}, (), 5, 5, 100)
    return PreparedRows("s", {statement_xid(COMMIT): [part.to_json()]})


def test_a_commit_leaves_positions_as_they_were() -> None:
    """The log is read ahead while a plan is carried out, whose position was recorded before."""
    rows = remembered()
    position = rows.to_json()
    recorded = deepcopy(position)
    (part,) = rows.end(COMMIT, True, 9, "here")
    assert (part.read["fixed_ts"], part.first_commit_ts, part.last_commit_ts) == (9, 9, 9)
    assert position == recorded
    assert rows.to_json() == {}


def test_a_rollback_plans_nothing() -> None:
    rows = remembered()
    assert rows.end(COMMIT.replace("COMMIT", "ROLLBACK"), False, 9, "here") == []
    assert rows.to_json() == {}


def test_rows_that_a_snapshot_has_are_taken_out() -> None:
    """Segments have the others by the same names, and those that have no others are left out."""
    slices = tuple(TableSlice(TableId("d", name), at, 1) for at, name in enumerate("abc", 1))
    read = {"names": [["d", "a", 0, 0], ["d", "b", 0, 1], ["d", "b", 3, 1], ["d", "c", 0, 2]]}
    part = Segment(0, read, slices, 5, 5, 100)
    assert without_tables([part], ()) == [part]
    (found,) = without_tables([part], {1})
    assert found.slices == slices[1:]
    assert found.read["names"] == [["d", "b", 0, 0], ["d", "b", 3, 0], ["d", "c", 0, 1]]
    assert without_tables([part], {1, 2, 3}) == []
    assert len(part.slices) == 3 and len(read["names"]) == 4
