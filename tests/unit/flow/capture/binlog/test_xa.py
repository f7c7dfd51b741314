"""Prepared transactions: what is remembered of them, and what is planned when they end."""

from __future__ import annotations

from copy import deepcopy

from rowferry.change.plan import Segment
from rowferry.flow.capture.binlog.frame.xa import PreparedRows, statement_xid

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
