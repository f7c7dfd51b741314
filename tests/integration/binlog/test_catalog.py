"""Definitions as information_schema gives them, on both servers."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from catalog_kit import comparable, desk

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Index, TableId
from rowferry.errors import SourceUnsupported
from rowferry.mysql import catalog
from rowferry.mysql.session import Flavour, rows
from rowferry.testing.servers import MariaDb, MySql, Server


def test_one_table_in_full(source_server: Server) -> None:
    with desk(source_server) as here:
        here.run(
            "CREATE TABLE t (id bigint unsigned AUTO_INCREMENT PRIMARY KEY COMMENT 'it''s',"
            " name varchar(20) CHARACTER SET latin1 NOT NULL DEFAULT 'a''b\\\\c',"
            " price decimal(8,2) DEFAULT 1.5, flags enum('x','y,z','it''s'), raw varbinary(4),"
            " made datetime(3) DEFAULT CURRENT_TIMESTAMP(3), twice int AS (price * 2) STORED,"
            " thrice int AS (price * 3) VIRTUAL, hidden int INVISIBLE DEFAULT 3,"
            " UNIQUE k (name), UNIQUE p (raw, name(5)), KEY a (price, id))"
            " DEFAULT CHARSET latin1 COMMENT 'a; table'"
        )
        found = here.table("t")
        assert found is not None
        assert (found.id, found.table_id, found.version) == (TableId(here.database, "t"), 7, 0)
        assert (found.charset, found.comment, found.partitioning) == ("latin1", "a; table", None)
        assert [c.id for c in found.columns] == list(range(1, 10))
        by_name = {c.name: c for c in found.columns}
        assert list(by_name) == "id name price flags raw made twice thrice hidden".split()
        assert by_name["id"].auto_increment and not by_name["id"].nullable
        assert by_name["id"].comment == "it's" and by_name["id"].type.unsigned
        assert by_name["name"].type == SqlType("varchar", length=20, charset="latin1")
        assert (by_name["name"].default, by_name["name"].nullable) == ("a'b\\c", False)
        assert by_name["price"].default == "1.50"
        assert by_name["flags"].type.elements == ("x", "y,z", "it's")
        assert by_name["raw"].type == SqlType("varbinary", length=4)
        assert by_name["made"].default == "CURRENT_TIMESTAMP(3)"
        assert [by_name[n].generated for n in ("twice", "thrice", "id")] == [
            "stored",
            "virtual",
            "",
        ]
        assert "`price` * 3" in by_name["thrice"].expression
        assert by_name["hidden"].invisible and by_name["hidden"].default == 3
        assert found.indexes == (
            Index(1, "PRIMARY", ("id",), unique=True, primary=True),
            Index(2, "k", ("name",), unique=True),
            Index(3, "a", ("price", "id")),
            Index(4, "p", ("raw", "name")),  # over a prefix: it names no rows
        )


def test_only_tables_that_are_kept(source_server: Server) -> None:
    with desk(source_server) as here:
        here.run("CREATE TABLE b (id int)")
        here.run("CREATE TABLE a (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3")
        here.run("CREATE TABLE `odd ``name` (`a``b` int)")
        here.run("CREATE VIEW v AS SELECT * FROM a")
        here.run("CREATE TEMPORARY TABLE tmp (id int)")
        if here.facts.flavour is Flavour.MARIADB:
            here.run("CREATE SEQUENCE s")
        assert list(here.tables()) == ["a", "b", "odd `name"]
        assert [t.table_id for t in here.tables().values()] == [4, 5, 6]
        assert here.table("v") is None
        assert here.table("nothing") is None
        names: list[TableId] = []
        found = catalog.read_tables(
            here.connection, here.login, here.facts, lambda n: bool(names.append(n)), lambda: 1
        )
        assert found == ()
        assert {n.table for n in names if n.database == here.database} == {"a", "b", "odd `name"}
        systems = {"mysql", "sys", "performance_schema", "information_schema"}
        assert not systems & {n.database for n in names}
        user = TableId("mysql", "user" if here.facts.flavour is Flavour.MYSQL else "db")
        assert catalog.read_table(here.connection, here.login, here.facts, user, 1) is None


def test_all_tables_and_one_table_agree(source_server: Server) -> None:
    with desk(source_server) as here:
        for number in range(12):
            here.run(
                f"CREATE TABLE t{number} (id int PRIMARY KEY, a varchar({number + 1}), KEY (a))"
            )
        everything = here.tables()
        assert len(everything) == 12
        for name, table in everything.items():
            alone = here.table(name)
            assert alone is not None
            assert comparable(alone) == comparable(table)


def test_few_statements_for_many_tables(
    source_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(source_server) as here:
        for number in range(30):
            here.run(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        asked: list[str] = []

        def counted(connection: Any, login: Any, sql: str, values: Any = ()) -> Any:
            asked.append(sql)
            return rows(connection, login, sql, values)

        monkeypatch.setattr(catalog, "rows", counted)
        assert len(here.tables()) == 30
        assert len(asked) == 3


def test_settings(source_server: Server) -> None:
    with desk(source_server, "latin1") as here:
        found = here.settings()
        assert found.lower_case == 0
        assert found.explicit_timestamps
        assert found.collation_of(here.database).startswith("latin1_")
        assert found.collation_of("nothing") == "?"
        here.run(f"ALTER DATABASE {here.database} CHARACTER SET utf8")
        assert here.settings().collation_of(here.database).startswith("utf8mb3_")


def test_a_table_dropped_meanwhile_is_left_out(
    source_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(source_server) as here, closing(source_server.connect()) as other:
        here.run("CREATE TABLE a (id int)")
        here.run("CREATE TABLE b (id int)")

        def dropping(connection: Any, login: Any, sql: str, values: Any = ()) -> Any:
            found = rows(connection, login, sql, values)
            if "information_schema.TABLES" in sql:
                other.cursor().execute(f"DROP TABLE {here.database}.a")
            return found

        monkeypatch.setattr(catalog, "rows", dropping)
        assert list(here.tables()) == ["b"]


def test_functional_keys(mysql_server: MySql) -> None:
    with desk(mysql_server) as here:
        here.run(
            "CREATE TABLE t (a int, b int, KEY f ((a + 1)), UNIQUE g ((a + 1), b), UNIQUE (b))"
        )
        found = here.table("t")
        assert found is not None
        assert [(i.name, i.columns, i.unique) for i in found.indexes] == [
            ("b", ("b",), True),
            ("f", (), False),
            ("g", ("b",), False),
        ]


@pytest.mark.parametrize(
    "columns",
    [
        "a int PRIMARY KEY",
        "a int PRIMARY KEY, s timestamp(6) GENERATED ALWAYS AS ROW START,"
        " e timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)",
    ],
)
def test_versioned_tables_are_refused(mariadb_server: MariaDb, columns: str) -> None:
    """Their log has the rows of the past as inserts, which no snapshot has."""
    with desk(mariadb_server) as here:
        here.run(f"CREATE TABLE t ({columns}) WITH SYSTEM VERSIONING")
        with pytest.raises(SourceUnsupported, match=r"\.t is system-versioned.*filter\.rules"):
            here.table("t")
        with pytest.raises(SourceUnsupported, match=r"\.t is system-versioned"):
            here.tables()
        here.run("SET system_versioning_alter_history = KEEP")
        more = ", DROP COLUMN s, DROP COLUMN e" if " s " in columns else ""
        here.run(f"ALTER TABLE t DROP SYSTEM VERSIONING{more}")
        assert here.table("t") is not None


def test_expressions_in_any_script(source_server: Server) -> None:
    with desk(source_server) as here:
        here.run(
            "CREATE TABLE t (a int, b varchar(80) AS (concat('it''s é日€\u0081', a)) STORED,"
            " c varchar(9) DEFAULT (concat('ü', 'ß')))"
        )
        table = here.table("t")
        assert table is not None
        assert "é日€\u0081" in table.column("b").expression
        assert "ü" in table.column("c").expression and "ß" in table.column("c").expression
