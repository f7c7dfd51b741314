"""How statements begin, read strictly and leniently, and the clauses of ALTER TABLE."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.clauses import accept_of_partitions, read_renames, split_clauses
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import Head, WrittenName, read_head


def words(head: Head) -> str:
    """Return a head in few words; in brackets what stands between verb and subject."""
    between = f"[{' '.join(sorted(head.between))}] " if head.between else ""
    names = [name.within("d") for name in head.tables]
    told = [f"{head.verb} {between}{head.subject}", "if" if head.conditional else ""]
    told += [head.index, head.database.database if head.database else ""]
    told += [" ".join(map(str, names)), f"like {head.like.within('d')}" if head.like else ""]
    return " ".join(filter(None, told)) + ("" if head.is_known else " ?")


def head(sql: str, strict: bool) -> str:
    cursor = TokenCursor(sql)
    found = words(read_head(cursor, strict))
    return f"{found} | {cursor.sql[cursor.peek().start :]}".removesuffix(" | ")


# Every form that MySQL and MariaDB have, and what is left to read behind the head.
KNOWN = {
    "ALTER TABLE t ADD x int": "ALTER TABLE d.t | ADD x int",
    "alter online ignore table if exists `e`.`t``s` wait 5 force": (
        "ALTER [IGNORE ONLINE] TABLE if e.t`s | force"
    ),
    "ALTER TABLE t NOWAIT DROP a": "ALTER TABLE d.t | DROP a",
    "ALTER DATABASE e CHARSET latin1": "ALTER DATABASE e | CHARSET latin1",
    "ALTER SCHEMA READ ONLY = 1": "ALTER DATABASE | READ ONLY = 1",
    "ALTER DATABASE ENCRYPTION 'Y'": "ALTER DATABASE | ENCRYPTION 'Y'",
    "CREATE TABLE t (a int)": "CREATE TABLE d.t | (a int)",
    "CREATE OR REPLACE TEMPORARY TABLE IF NOT EXISTS e . t AS SELECT 1": (
        "CREATE [OR REPLACE TEMPORARY] TABLE if e.t | AS SELECT 1"
    ),
    "CREATE TABLE t LIKE e.u": "CREATE TABLE d.t like e.u",
    "CREATE TABLE t (LIKE `u`)": "CREATE TABLE d.t like d.u",
    "CREATE OR REPLACE DATABASE f": "CREATE [OR REPLACE] DATABASE f",
    "CREATE DATABASE IF NOT EXISTS `table`": "CREATE DATABASE if table",
    "CREATE OR REPLACE ONLINE UNIQUE INDEX IF NOT EXISTS i USING HASH ON e.t (a)": (
        "CREATE [ONLINE OR REPLACE UNIQUE] INDEX if i e.t | (a)"
    ),
    "CREATE INDEX `on` TYPE BTREE ON t (a) WAIT 5": "CREATE INDEX on d.t | (a) WAIT 5",
    "CREATE VIEW IF NOT EXISTS v AS SELECT 1": "CREATE VIEW if d.v | AS SELECT 1",
    "DROP TABLES IF EXISTS t, e.u NOWAIT CASCADE": "DROP TABLE if d.t e.u",
    "DROP TEMPORARY TABLE t": "DROP [TEMPORARY] TABLE d.t",
    "DROP VIEW v, w RESTRICT": "DROP VIEW d.v d.w",
    "DROP SCHEMA IF EXISTS e": "DROP DATABASE if e",
    "DROP INDEX IF EXISTS `PRIMARY` ON t LOCK = NONE": "DROP INDEX if PRIMARY d.t | LOCK = NONE",
    "RENAME TABLES IF EXISTS a WAIT 3 TO b, e.c NOWAIT TO a": "RENAME TABLE if d.a d.b e.c d.a",
    "TRUNCATE t WAIT 2 REUSE STORAGE": "TRUNCATE TABLE d.t",
    "TRUNCATE TABLE `table` DROP STORAGE": "TRUNCATE TABLE d.table",
    "SET STATEMENT a = 1, b = 'FOR' FOR DROP /*M!100100 TABLE */ t": "DROP TABLE d.t",
}


@pytest.mark.parametrize("sql", KNOWN)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_what_is_known_is_read_alike(sql: str, strict: bool) -> None:
    assert head(sql, strict) == KNOWN[sql]


UNKNOWN = {
    "": "",
    "INSERT INTO t VALUES (1)": "",
    "CREATE WONDER t": "CREATE ",
    "CREATE WONDER TABLE t (a int)": "CREATE [WONDER] TABLE d.t ?",
    "CREATE OR TABLE t (a int)": "CREATE [OR] TABLE d.t ?",
    "CREATE INDEX i WONDER 5 ON t (a)": "CREATE INDEX i d.t ?",
    "RENAME TABLE a SOON TO b": "RENAME TABLE d.a d.b ?",
    "ALTER TABLES t FORCE": "ALTER ",
    "DROP USER t": "DROP ",
    "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE TABLE t": "CREATE ",
    "CREATE DEFINER = `a`@`b` TRIGGER x AFTER INSERT ON t FOR EACH ROW SET @a = 1": "CREATE ",
    "RENAME USER a TO b": "RENAME ",
}


@pytest.mark.parametrize("sql", UNKNOWN)
def test_what_is_not_known_is_passed_over_or_refused(sql: str) -> None:
    assert words(read_head(TokenCursor(sql), strict=False)) == (UNKNOWN[sql] or " ")
    with pytest.raises(BadStatement, match="not a statement that is understood|expected (ON|TO)"):
        read_head(TokenCursor(sql))


@pytest.mark.parametrize(
    "sql", ["DROP TABLE", "ALTER TABLE 5", "RENAME TABLE a", "CREATE TABLE t LIKE", "DROP INDEX i"]
)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_name_that_is_missing_is_refused(sql: str, strict: bool) -> None:
    with pytest.raises(BadStatement, match="expected"):
        read_head(TokenCursor(sql), strict)


def test_where_names_stand() -> None:
    sql = 'DROP TABLE `a` . `b`, "c"'
    names = read_head(TokenCursor(sql, ansi_quotes=True)).tables
    assert [sql[n.start : n.end] for n in names] == ["`a` . `b`", '"c"']
    assert names[1] == WrittenName("", "c", 22, 25)
    with pytest.raises(BadStatement, match="expected the name of a table"):
        read_head(TokenCursor(sql))


# --- clauses -------------------------------------------------------------------------------------


def clauses(sql: str, strict: bool) -> list[str]:
    cursor = TokenCursor(sql)
    found = split_clauses(cursor, strict)
    return [sql[c.tokens[0].start : c.tokens[-1].end] if c.tokens else "" for c in found]


def test_clauses() -> None:
    sql = "ADD (a int, b enum('x,y')), DROP c /* , */, ENGINE x PARTITION BY LIST (a) (p, q)"
    expected = ["ADD (a int, b enum('x,y'))", "DROP c", "ENGINE x PARTITION BY LIST (a) (p, q)"]
    for strict in (True, False):
        assert clauses(sql, strict) == expected
        assert clauses("", strict) == [""]


@pytest.mark.parametrize("sql", ["ADD a int DEFAULT (, RENAME TO b", "ADD a int), RENAME TO b"])
def test_parentheses_that_do_not_fit(sql: str) -> None:
    assert clauses(sql, strict=False)[1] == "RENAME TO b"
    with pytest.raises(BadStatement):
        clauses(sql, strict=True)


RENAMES = {
    "RENAME TABLE a TO b, e.c TO a": "d.a>d.b e.c>d.a",
    "/* by a tool */ ALTER TABLE a RENAME AS e.`b`": "d.a>e.b",
    "ALTER TABLE a ADD `rename` int, RENAME = b, ALGORITHM = COPY": "d.a>d.b",
    "ALTER TABLE a RENAME COLUMN x TO y, RENAME INDEX i TO j, RENAME KEY k TO l": "",
    "ALTER TABLE a COMMENT 'RENAME TO b', ADD x int DEFAULT (1, 2)": "",
    "DROP TABLE a": "",
    "GRANT ALTER ON a TO b": "",
}


@pytest.mark.parametrize("sql", RENAMES)
def test_renames(sql: str) -> None:
    found = [f"{old.within('d')}>{new.within('d')}" for old, new in read_renames(sql)]
    assert " ".join(found) == RENAMES[sql]


@pytest.mark.parametrize(
    ("sql", "verb", "other", "takes"),
    [
        ("EXCHANGE PARTITION p WITH TABLE e.u WITHOUT VALIDATION", "EXCHANGE", "u", False),
        ("CONVERT PARTITION p TO TABLE e.u", "CONVERT", "u", False),
        ("CONVERT TABLE e.u TO PARTITION p VALUES IN (1)", "CONVERT", "u", True),
        ("COALESCE PARTITION 2", "COALESCE", "", False),
        ("ADD PARTITION PARTITIONS 4", "ADD", "", False),
    ],
)
def test_single_partitions(sql: str, verb: str, other: str, takes: bool) -> None:
    found = accept_of_partitions(TokenCursor(sql))
    assert found is not None and (found.verb, found.takes) == (verb, takes)
    assert (found.other and found.other.within("d")) == (TableId("e", other) if other else None)


@pytest.mark.parametrize("sql", ["PARTITION BY HASH (a)", "FORCE PARTITION BY HASH (a)", "ADD p"])
def test_what_is_done_to_no_single_partition(sql: str) -> None:
    cursor = TokenCursor(sql)
    assert accept_of_partitions(cursor) is None
    assert cursor.place == 0
