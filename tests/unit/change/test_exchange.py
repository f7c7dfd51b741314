"""Statements that exchange what names mean, and those that only look like it."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.mysql.ddl.exchange import MovedNames, traded_tables


@pytest.mark.parametrize(
    ("sql", "traded"),
    [
        ("RENAME TABLE a TO x, b TO a, x TO b", "d.a d.b"),
        ("RENAME TABLES `A` TO x, e.b TO a, x TO e.b", "d.a e.b"),
        ("RENAME TABLE a TO x, b TO a, c TO b, x TO c", "d.a d.b d.c"),
        ("RENAME TABLE u TO v, a TO x, b TO a, x TO b", "d.a d.b"),
        ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE e.t WITHOUT VALIDATION", "d.p e.t"),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", "d.t"),
        ("ALTER TABLE t ALGORITHM=INPLACE, CHANGE `a` `B` int, CHANGE COLUMN b A int", "d.t"),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO c, CHANGE c a int", "d.t"),
        ("RENAME TABLE a TO x", ""),
        ("RENAME TABLE a TO old, new TO a", ""),
        ("RENAME TABLE a TO x, x TO a", ""),
        ("ALTER TABLE a RENAME TO b", ""),
        ("ALTER TABLE t RENAME COLUMN a TO b, ADD a int", ""),
        ("ALTER TABLE t CHANGE a a bigint, CHANGE b b bigint", ""),
        ("ALTER TABLE p DROP PARTITION p0", ""),
        ("CREATE TABLE t (a int)", ""),
        ("what is this", ""),
    ],
)
def test_what_a_second_run_would_take_back(sql: str, traded: str) -> None:
    assert " ".join(map(str, sorted(traded_tables(sql, "d")))) == traded


def test_names_are_followed_from_statement_to_statement() -> None:
    a, b, x = (TableId("d", name) for name in "abx")
    moved = MovedNames()
    for pair in ((a, x), (b, a)):
        moved.move([pair])
        assert not moved.traded()
    moved.move([(x, b)])
    assert moved.traded() == {a, b}
    moved.drop(a)
    assert not moved.traded()
