"""What is left of statements that find their work, or a part of it, done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pymysql
import pytest

from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import RowRejected
from rowferry.mysql.ddl.partly_done import Ask, cut_off, partly_done

NO_SUCH, NO_CHECK, NO_KEY, COLUMN, KEY, PRIMARY = 1091, 3821, 1176, 1060, 1061, 1068
THERE, NO_TABLE, UNKNOWN_TABLE, NO_COLUMN, CONSTRAINT = 1050, 1146, 1051, 1054, 1826
NO_PARTITION, PARTITION = 1507, 1517


def server(
    columns: str = "id a there",
    keys: str = "PRIMARY k",
    constraints: str = "PRIMARY fk",
    partitions: str = "p0 p1",
    tables: str = "t",
) -> Ask:
    """Return what asks a server that has some tables in database d, all of which are alike."""
    held = {
        "COLUMNS": columns,
        "STATISTICS": keys,
        "TABLE_CONSTRAINTS": constraints,
        "PARTITIONS": partitions,
    }

    def ask(sql: str, values: Sequence[object]) -> list[tuple[str, ...]]:
        of = next(o for o in (*held, "TABLES") if f"information_schema.{o} " in sql)
        if of == "TABLES":
            return [("1",)] if values[0] == "d" and values[1] in tables.split() else []
        return [(name,) for name in held[of].split()]

    return ask


HERE = server()
NO_PRIMARY_KEY = server("id a", "k", "fk")


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
        (COLUMN, "ADD (there int, c enum('x,y'), d int)", "ADD c enum('x,y'), ADD d int"),
        (COLUMN, "ADD COLUMN (there int, c int), DROP a", "ADD c int, DROP a"),
        (COLUMN, "CHANGE x a int, ADD c int", "ADD c int"),
        (COLUMN, "RENAME COLUMN there TO a, ADD there int, MODIFY id int", "MODIFY id int"),
        (NO_COLUMN, "CHANGE COLUMN x a int, ADD c int", "ADD c int"),
        (NO_COLUMN, "RENAME COLUMN x TO there, MODIFY a bigint", "MODIFY a bigint"),
        (KEY, "ADD UNIQUE KEY k (a), ADD c enum('x,y')", "ADD c enum('x,y')"),
        (KEY, "ADD INDEX k (a), ADD INDEX (id)", "ADD INDEX (id)"),
        (KEY, "ADD CONSTRAINT k UNIQUE (a), ADD c int", "ADD c int"),
        (KEY, "ADD FULLTEXT k (a), ADD c int", "ADD c int"),
        (PRIMARY, "ADD PRIMARY KEY (id), ADD c int", "ADD c int"),
        (PRIMARY, "ADD CONSTRAINT x PRIMARY KEY (id), ADD c int", "ADD c int"),
        (NO_KEY, "RENAME KEY x TO y, RENAME INDEX k TO z", "RENAME INDEX k TO z"),
        (NO_KEY, "ALTER INDEX x INVISIBLE, ALTER a SET DEFAULT 1", "ALTER a SET DEFAULT 1"),
        (CONSTRAINT, "ADD CONSTRAINT fk FOREIGN KEY (a) REFERENCES x (a), ADD c int", "ADD c int"),
        (NO_PARTITION, "DROP PARTITION p0, p7", "DROP PARTITION `p0`"),
        (
            PARTITION,
            "ADD PARTITION (PARTITION p1 VALUES LESS THAN (1), PARTITION p2 VALUES IN (2, 3))",
            "ADD PARTITION (PARTITION p2 VALUES IN (2, 3))",
        ),
    ],
)
def test_what_has_nothing_to_do_is_left_out(number: int, clauses: str, left: str) -> None:
    for begin in ("ALTER TABLE t ", "ALTER TABLE `d`.`t` ", "ALTER ONLINE TABLE t WAIT 5 "):
        assert partly_done(begin + clauses, "d", number, HERE) == begin + left


def test_a_primary_key_that_is_not_there() -> None:
    sql = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)"
    left = "ALTER TABLE t ADD PRIMARY KEY (a)"
    assert partly_done(sql, "d", NO_SUCH, NO_PRIMARY_KEY) == left
    assert partly_done("ALTER TABLE t DROP `primary`, ADD c int", "d", NO_SUCH, HERE) != ""


@pytest.mark.parametrize(
    ("number", "sql"),
    [
        (NO_SUCH, "ALTER TABLE t DROP INDEX i"),
        (NO_SUCH, "ALTER TABLE t DROP INDEX i, DROP COLUMN b"),
        (NO_SUCH, "DROP INDEX i ON t"),
        (COLUMN, "ALTER TABLE t ADD there int, ADD (a int)"),
        (COLUMN, "ALTER TABLE t CHANGE there a int, ADD there int"),
        (COLUMN, "ALTER TABLE t ADD a int /*!50100 , ADD there int */"),
        (NO_COLUMN, "ALTER TABLE t CHANGE x a int"),
        (KEY, "ALTER TABLE t ADD KEY k (a)"),
        (KEY, "CREATE INDEX k ON t (a)"),
        (PRIMARY, "ALTER TABLE t ADD PRIMARY KEY (id)"),
        (CONSTRAINT, "ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (a) REFERENCES x (a)"),
        (NO_PARTITION, "ALTER TABLE t DROP PARTITION p7, p8"),
        (NO_PARTITION, "ALTER TABLE t REORGANIZE PARTITION p7 INTO (PARTITION p0, PARTITION p1)"),
        (PARTITION, "ALTER TABLE t ADD PARTITION (PARTITION p1 VALUES LESS THAN (1))"),
        (THERE, "CREATE TABLE t (a int)"),
        (THERE, "CREATE VIEW v AS SELECT 1"),
        (THERE, "CREATE SEQUENCE s"),
        (1007, "CREATE DATABASE d"),
        (1008, "DROP DATABASE d"),
        (UNKNOWN_TABLE, "DROP TABLE a"),
        (UNKNOWN_TABLE, "DROP TABLE a, b"),
        (4092, "DROP VIEW a, b"),
    ],
)
def test_a_statement_of_which_all_is_done(number: int, sql: str) -> None:
    assert partly_done(sql, "d", number, HERE) == ""


@pytest.mark.parametrize(
    ("number", "sql"),
    [
        (NO_SUCH, "ALTER TABLE t DROP INDEX k, DROP PRIMARY KEY, DROP PARTITION p"),
        (NO_SUCH, "ALTER TABLE t DROP INDEX i /*!50100 , DROP COLUMN a */"),
        (NO_SUCH, "ALTER TABLE t DROP"),
        (NO_SUCH, "ALTER TABLE t DROP i, "),
        (NO_SUCH, "no statement '"),
        (COLUMN, "ALTER TABLE t CHANGE there b int, ADD there int"),  # it is to be made
        (COLUMN, "ALTER TABLE t RENAME COLUMN a TO there, ADD INDEX there (a)"),
        (COLUMN, "CREATE TABLE t2 (a int, a int)"),  # nothing is made
        (NO_COLUMN, "ALTER TABLE t MODIFY x int"),
        (NO_COLUMN, "ALTER TABLE t CHANGE x y int, ADD there int"),
        (KEY, "ALTER TABLE t DROP KEY k, ADD KEY k (a)"),
        (PRIMARY, "ALTER TABLE t ADD PRIMARY KEY (id), ADD c int PRIMARY KEY"),
        (PRIMARY, "ALTER TABLE t ADD c int PRIMARY KEY"),
        (PRIMARY, "ALTER TABLE t ADD c int, ADD PRIMARY KEY (id) PARTITION BY KEY (id)"),
        (CONSTRAINT, "CREATE TABLE t2 (a int, CONSTRAINT fk FOREIGN KEY (a) REFERENCES x (a))"),
        (CONSTRAINT, "ALTER TABLE t ADD CONSTRAINT x CHECK (a > 0)"),  # it is another table's
        # The column that was to go, or the one that has its name by now?
        (NO_COLUMN, "ALTER TABLE t DROP COLUMN there, RENAME COLUMN gone TO there"),
        (NO_COLUMN, "ALTER TABLE t CHANGE gone There int, DROP there RESTRICT"),
        (NO_PARTITION, "ALTER TABLE t TRUNCATE PARTITION p7"),
        (NO_PARTITION, "ALTER TABLE t DROP PARTITION p0, p1"),
        (NO_PARTITION, "ALTER TABLE t REORGANIZE PARTITION p7 INTO (PARTITION p8)"),
        (NO_TABLE, "ALTER TABLE x ADD c int"),
        (NO_TABLE, "ALTER TABLE x RENAME TO y, ADD c int"),
        (NO_TABLE, "TRUNCATE TABLE x"),
        (NO_TABLE, "RENAME TABLE x TO y"),
        (UNKNOWN_TABLE, "DROP TABLE t, d.t"),
    ],
)
def test_what_is_not_certain_is_not_taken_for_done(number: int, sql: str) -> None:
    assert partly_done(sql, "d", number, HERE) is None


@pytest.mark.parametrize(
    ("tables", "sql", "left"),
    [
        ("b c", "RENAME TABLE a TO b, c TO e", "RENAME TABLE `d`.`c` TO `d`.`e`"),
        ("a e", "RENAME TABLE a TO b, c TO e", "RENAME TABLE `d`.`a` TO `d`.`b`"),
        ("b e", "RENAME TABLE a TO b, c TO e", ""),
        ("a c", "RENAME TABLE a TO b, c TO e", None),  # refused for something else
        ("a b c", "RENAME TABLE a TO b, c TO e", None),  # the name is another's
        ("b", "RENAME TABLE a TO b, c TO e", None),  # a table is lost
        ("b", "RENAME TABLE a TO b", ""),
        ("a b", "RENAME TABLE a TO b", None),
        ("a x", "RENAME TABLE a TO x, b TO a", ""),
        ("x b", "RENAME TABLE a TO x, b TO a", "RENAME TABLE `d`.`b` TO `d`.`a`"),
        ("c", "RENAME TABLE a TO b, b TO c", ""),
        ("b", "RENAME TABLE a TO b, b TO c", "RENAME TABLE `d`.`b` TO `d`.`c`"),
        (
            "x b",
            "RENAME TABLE a TO x, b TO a, x TO b",
            "RENAME TABLE `d`.`b` TO `d`.`a`, `d`.`x` TO `d`.`b`",
        ),
        ("x a", "RENAME TABLE a TO x, b TO a, x TO b", "RENAME TABLE `d`.`x` TO `d`.`b`"),
        ("a b", "RENAME TABLE a TO x, b TO a, x TO b", None),  # not at all, or all of it
        ("b", "ALTER TABLE a RENAME TO b", ""),
        ("b", "ALTER TABLE d.a RENAME d.b, ADD c int", "ALTER TABLE `d`.`b` ADD c int"),
        ("b", "ALTER TABLE a ADD c int, RENAME AS b", "ALTER TABLE `d`.`b` ADD c int"),
        ("a b", "ALTER TABLE a RENAME TO b, ADD c int", None),
    ],
)
def test_renames_that_are_done_in_part(tables: str, sql: str, left: str | None) -> None:
    """Servers differ in whether they look first for the old name or for the new one."""
    for number in (THERE, NO_TABLE):
        assert partly_done(sql, "d", number, server(tables=tables)) == left


@pytest.mark.parametrize("what", ["TABLE", "VIEW"])
def test_drops_that_are_done_in_part(what: str) -> None:
    """MySQL drops none where one is gone; MariaDB and TiDB drop the others, one by one."""
    sql = f"DROP {what} a, d.b, `c`"
    left = partly_done(sql, "d", UNKNOWN_TABLE, server(tables="b c"))
    assert left == f"DROP {what} `d`.`b`, `d`.`c`"
    assert partly_done(sql, "d", UNKNOWN_TABLE, server(tables="")) == ""


@pytest.mark.parametrize(
    ("tables", "sql", "left"),
    [
        ("b c", "RENAME TABLE a TO b, c TO e", "RENAME TABLE `d`.`c` TO `d`.`e`"),
        ("b e", "RENAME TABLE a TO b, c TO e", ""),
        ("a c", "RENAME TABLE a TO b, c TO e", "RENAME TABLE `d`.`a` TO `d`.`b`, "
         "`d`.`c` TO `d`.`e`"),
        ("a b", "RENAME TABLE a TO x, b TO a, x TO b", ""),  # something was altered: it is done
        ("b", "RENAME TABLE a TO b", ""),
        ("b c", "DROP TABLE a, b, c", "DROP TABLE `d`.`b`, `d`.`c`"),
        ("", "DROP TABLE a, b", ""),
        ("t", "ALTER TABLE t ADD a int, ADD b int", ""),
        ("t", "no statement '", ""),
    ],
)  # fmt: skip
def test_a_statement_of_several_tables_that_was_cut_off(tables: str, sql: str, left: str) -> None:
    assert cut_off(sql, "d", server(tables=tables)) == left


# --- the consumer --------------------------------------------------------------------------------


class Server:
    """A server of names only, and the client's connection to it."""

    def __init__(self, tables: Collection[str]) -> None:
        self.tables = set(tables)
        self.ran: list[str] = []
        self.answer: list[tuple[Any, ...]] = []

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: None  # settings of the session

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.answer

    def execute(self, sql: str, values: Any = None) -> None:
        if "information_schema" in sql:
            self.answer = [("1",)] if values[1] in self.tables else []
            return
        self.ran.append(sql)
        for old, new in _moves(sql):
            if old not in self.tables:
                raise _refusal(NO_TABLE if new else UNKNOWN_TABLE)
            if new and new in self.tables:
                raise _refusal(THERE)
        for old, new in _moves(sql):
            self.tables = (self.tables - {old}) | ({new} if new else set())


def _moves(sql: str) -> Iterator[tuple[str, str]]:
    verb, _, names = sql.replace("`d`.", "").replace("`", "").split(None, 2)
    for one in names.split(","):
        old, _, new = one.strip().partition(" TO ")
        yield old, new if verb == "RENAME" else ""


def _refusal(number: int) -> Exception:
    return pymysql.err.ProgrammingError(number, "no")


def consumer_of(server: Server) -> MySqlTarget:
    target = MySqlTarget.__new__(MySqlTarget)
    target._connection, target._name = server, "h:1"  # type: ignore[assignment]
    return target


@pytest.mark.parametrize(
    ("sql", "before", "after"),
    [
        ("RENAME TABLE a TO b, c TO e", "a c", "b e"),
        ("RENAME TABLE a TO b, c TO e", "b c", "b e"),
        ("RENAME TABLE a TO b, c TO e", "b e", "b e"),
        ("RENAME TABLE a TO b", "b", "b"),
        ("DROP TABLE a, b, c", "a b c", ""),
        ("DROP TABLE a, b, c", "b c", ""),
        ("DROP TABLE a, b, c", "", ""),
    ],
)
def test_a_consumer_carries_out_the_rest(sql: str, before: str, after: str) -> None:
    server = Server(before.split())
    consumer_of(server).change_schema("d", sql)
    assert server.tables == set(after.split())


@pytest.mark.parametrize("before", ["a b c", "b", ""])
def test_a_consumer_is_refused_what_was_not_done(before: str) -> None:
    server = Server(before.split())
    with pytest.raises(RowRejected, match="h:1, RENAME TABLE a TO b, c TO e: "):
        consumer_of(server).change_schema("d", "RENAME TABLE a TO b, c TO e")
    assert server.tables == set(before.split())
