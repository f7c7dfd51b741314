"""What is left of an ALTER TABLE of which a part is done already."""

from __future__ import annotations

import pytest

from rowferry.flow.sink.mysql.partly_done import TableParts, left_to_do

THERE = TableParts({"id", "a", "there"}, {"primary", "k"}, {"primary", "fk"})
NO_PRIMARY = TableParts({"id", "a"}, {"k"}, {"fk"})
NO_SUCH, NO_CHECK, NO_KEY, COLUMN, KEY, PRIMARY = 1091, 3821, 1176, 1060, 1061, 1068


@pytest.mark.parametrize(
    ("number", "clauses", "left"),
    [
        (NO_SUCH, "DROP INDEX i, ADD COLUMN c int", "ADD COLUMN c int"),
        (NO_SUCH, "DROP KEY `I`, ADD KEY `i` (a), LOCK=NONE", "ADD KEY `i` (a), LOCK=NONE"),
        (NO_SUCH, "MODIFY a decimal(5,1), DROP `b`, DROP k2", "MODIFY a decimal(5,1)"),
        (NO_SUCH, "DROP FOREIGN KEY x, DROP KEY K, DROP COLUMN a", "DROP KEY K, DROP COLUMN a"),
        (NO_CHECK, "DROP CHECK x, DROP CONSTRAINT y, DROP CHECK fk", "DROP CHECK fk"),
        (NO_SUCH, "DROP i CASCADE, ADD (x int, y int);", "ADD (x int, y int)"),
        (COLUMN, "ADD there int, ADD COLUMN c int DEFAULT 5", "ADD COLUMN c int DEFAULT 5"),
        (COLUMN, "ADD COLUMN there int, DROP KEY k", "DROP KEY k"),
        (COLUMN, "ADD there int, ADD c int AFTER there", "ADD c int AFTER there"),
        (COLUMN, "ADD there int, ADD KEY i (there)", "ADD KEY i (there)"),
        (KEY, "ADD UNIQUE KEY k (a), ADD c enum('x,y')", "ADD c enum('x,y')"),
        (KEY, "ADD INDEX k (a), ADD INDEX (id)", "ADD INDEX (id)"),
        (PRIMARY, "ADD PRIMARY KEY (id), ADD c int", "ADD c int"),
        (NO_KEY, "RENAME KEY x TO y, RENAME INDEX k TO z", "RENAME INDEX k TO z"),
        (NO_KEY, "ALTER INDEX x INVISIBLE, ALTER a SET DEFAULT 1", "ALTER a SET DEFAULT 1"),
    ],
)
def test_what_has_nothing_to_do_is_left_out(number: int, clauses: str, left: str) -> None:
    for begin in ("ALTER TABLE t ", "ALTER TABLE `shop`.`t` ", "ALTER ONLINE TABLE t WAIT 5 "):
        assert left_to_do(begin + clauses, number, THERE) == begin + left


def test_a_primary_key_that_is_not_there() -> None:
    sql = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)"
    assert left_to_do(sql, NO_SUCH, NO_PRIMARY) == "ALTER TABLE t ADD PRIMARY KEY (a)"
    assert left_to_do("ALTER TABLE t DROP `primary`, ADD c int", NO_SUCH, THERE) != ""


@pytest.mark.parametrize(
    ("number", "sql"),
    [
        (NO_SUCH, "ALTER TABLE t DROP INDEX i"),  # nothing is left
        (NO_SUCH, "ALTER TABLE t DROP INDEX i, DROP COLUMN b"),
        (NO_SUCH, "ALTER TABLE t DROP INDEX k, DROP PRIMARY KEY, DROP PARTITION p"),
        (NO_SUCH, "ALTER TABLE t DROP INDEX i /*!50100 , DROP COLUMN a */"),
        (NO_SUCH, "DROP INDEX i ON t"),
        (NO_SUCH, "ALTER TABLE t DROP"),
        (NO_SUCH, "ALTER TABLE t DROP i, "),
        (NO_SUCH, "no statement '"),
        (COLUMN, "ALTER TABLE t CHANGE there b int, ADD there int"),  # it is to be made
        (COLUMN, "ALTER TABLE t RENAME COLUMN a TO there, ADD INDEX there (a)"),
        (KEY, "ALTER TABLE t DROP KEY k, ADD KEY k (a)"),
        (PRIMARY, "ALTER TABLE t ADD PRIMARY KEY (id)"),
        (PRIMARY, "ALTER TABLE t ADD PRIMARY KEY (id), ADD c int PRIMARY KEY"),
        (PRIMARY, "ALTER TABLE t ADD c int, ADD PRIMARY KEY (id) PARTITION BY KEY (id)"),
    ],
)
def test_what_is_not_certain_stays(number: int, sql: str) -> None:
    assert left_to_do(sql, number, THERE) == ""
