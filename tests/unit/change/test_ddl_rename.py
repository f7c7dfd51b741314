from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.rename import rename_tables


def new_name(table: TableId) -> TableId:
    """Tables of `keep` stay, those of `same` stay in it, all others go to another database."""
    if table.database == "keep":
        return table
    database = table.database if table.database == "same" else f"{table.database}2"
    return TableId(database, table.table and f"{table.table}_2")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "create table if not exists `a b`.t (id int references u(id), `references` int, "
            "foreign key (x) references `d`.`v` (id)) comment='references q'",
            "create table if not exists `a b2`.`t_2` (id int references `a b2`.`u_2`(id), "
            "`references` int, foreign key (x) references `d2`.`v_2` (id)) comment='references q'",
        ),
        ("CREATE TABLE t LIKE keep.u", "CREATE TABLE `db2`.`t_2` LIKE keep.u"),
        ("create table t (like d.u)", "create table `db2`.`t_2` (like `d2`.`u_2`)"),
        (
            "alter table t rename to d.u, rename column a to b",
            "alter table `db2`.`t_2` rename to `d2`.`u_2`, rename column a to b",
        ),
        (
            "alter table t rename index a to b, rename u",
            "alter table `db2`.`t_2` rename index a to b, rename `db2`.`u_2`",
        ),
        (
            "alter table d.p exchange partition p0 with table q",
            "alter table `d2`.`p_2` exchange partition p0 with table `db2`.`q_2`",
        ),
        (
            "alter table t convert partition p0 to table q",
            "alter table `db2`.`t_2` convert partition p0 to table `db2`.`q_2`",
        ),
        (
            "alter online table t wait 5 force, convert table d.q to partition p0 values in (1)",
            "alter online table `db2`.`t_2` wait 5 force, convert table `d2`.`q_2` to partition p0"
            " values in (1)",
        ),
        (
            "set statement max_statement_time = 1 for drop table t",
            "set statement max_statement_time = 1 for drop table `db2`.`t_2`",
        ),
        ("create event e do truncate table t", "create event e do truncate table t"),
        (
            "drop table if exists a, keep.c cascade",
            "drop table if exists `db2`.`a_2`, keep.c cascade",
        ),
        ("truncate t", "truncate `db2`.`t_2`"),
        ("TRUNCATE TABLE same.t;", "TRUNCATE TABLE `same`.`t_2`;"),
        (
            "RENAME TABLE a TO b, d.c TO keep.e",
            "RENAME TABLE `db2`.`a_2` TO `db2`.`b_2`, `d2`.`c_2` TO keep.e",
        ),
        ("create unique index i on t (a)", "create unique index i on `db2`.`t_2` (a)"),
        ("drop index i on d.t", "drop index i on `d2`.`t_2`"),
        (
            "create or replace view v as select * from t",
            "create or replace view `db2`.`v_2` as select * from t",
        ),
        ("drop view v, w", "drop view `db2`.`v_2`, `db2`.`w_2`"),
        ("create database if not exists zz", "create database if not exists `zz2`"),
        ("drop schema `q`", "drop schema `q2`"),
        ("alter database character set utf8mb4", "alter database character set utf8mb4"),
        ("/*!40000 drop table t */", "/*!40000 drop table `db2`.`t_2` */"),
        (
            "ALTER TABLE /* c */ t ADD x INT -- end",
            "ALTER TABLE /* c */ `db2`.`t_2` ADD x INT -- end",
        ),
        (
            "create table t (a int) with system versioning",
            "create table `db2`.`t_2` (a int) with system versioning",
        ),
        ('create table "t" ("a" int)', 'create table `db2`.`t_2` ("a" int)'),
        # A quote in a comment begins no text, and a comment may stand before any word.
        (
            "alter table t -- it's\n /*!50100 rename to u */ -- isn't",
            "alter table `db2`.`t_2` -- it's\n /*!50100 rename to `db2`.`u_2` */ -- isn't",
        ),
        (
            "/* by a tool */ rename table t to u",
            "/* by a tool */ rename table `db2`.`t_2` to `db2`.`u_2`",
        ),
        (
            "drop table /*!50100 t /* and */ , u */",
            "drop table /*!50100 `db2`.`t_2` /* and */ , `db2`.`u_2` */",
        ),
        ("drop user t", "drop user t"),
        ("grant all on t to u", "grant all on t to u"),
    ],
)
def test_names(sql: str, expected: str) -> None:
    assert rename_tables(sql, "db", new_name) == expected


def test_a_name_stays_bare_in_its_database() -> None:
    assert rename_tables("drop table t", "same", new_name) == "drop table `t_2`"


def test_a_name_that_stays_is_found_beside_one_that_moves() -> None:
    def only_t(table: TableId) -> TableId:
        return TableId("copy", "t") if table.table == "t" else table

    moved = rename_tables("create table t (a int references u (id))", "db", only_t)
    assert moved == "create table `copy`.`t` (a int references `db`.`u` (id))"
    assert rename_tables("drop table u", "db", only_t) == "drop table u"


def test_quotes_in_names() -> None:
    assert rename_tables("drop table t", "d", lambda t: TableId("d", "a`b")) == "drop table `a``b`"


def test_not_a_statement() -> None:
    with pytest.raises(BadStatement):
        rename_tables("drop table 'x", "db", new_name)
    with pytest.raises(BadStatement, match="unfinished quotes or comment"):
        rename_tables("drop table t /*!50100 , u", "db", new_name)
    with pytest.raises(BadStatement, match="unfinished quotes or comment"):
        rename_tables("drop table t /*/", "db", new_name)
    with pytest.raises(BadStatement, match="expected the name of a table"):
        rename_tables("rename table a to 5", "db", new_name)
