"""A downstream that cannot take the rows: one line with table, key and cure; nothing is written."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from mysql_sink_kit import Scene

from rowferry.errors import (
    BadUri,
    RowferryError,
    RowRejected,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
    TargetUnfit,
    Verdict,
)
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MySql
from rowferry.testing.servers.certificates import Certificates

SOURCE = (
    "CREATE TABLE t (id int PRIMARY KEY, a varchar(20) COLLATE utf8mb4_bin UNIQUE, b datetime(3), "
    "c decimal(10,2), d bigint unsigned)"
)
SHAPE = (
    "id int PRIMARY KEY, a varchar(20) COLLATE utf8mb4_bin UNIQUE, b datetime(3), c decimal(10,2), "
    "d bigint unsigned"
)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("", "has no table .*t; create it there.*create-tables = true"),
        (SHAPE.replace(", d bigint unsigned", ""), r"no column 'd' \(bigint unsigned\); add it"),
        (SHAPE.replace("datetime(3)", "datetime"), r"'b' as datetime, .*datetime\(3\)"),
        (SHAPE.replace("datetime(3)", "timestamp(3)"), r"'b' as timestamp\(3\), .*change its type"),
        (SHAPE.replace("decimal(10,2)", "decimal(12,1)"), r"'c' as decimal\(12,1\)"),
        (
            SHAPE.replace("varchar(20) COLLATE utf8mb4_bin", "varbinary(20)"),
            r"'a' as varbinary\(20\)",
        ),
        (SHAPE.replace("int PRIMARY KEY", "int", 1), r"no primary or unique key \(id\)"),
        (SHAPE + ", UNIQUE KEY extra (d)", r"the unique key 'extra' \(d\), which the source lacks"),
        (
            SHAPE.replace("utf8mb4_bin", "utf8mb4_general_ci"),
            r"key column 'a' by utf8mb4_general_ci.*change its collation there",
        ),
        (SHAPE + ", e int NOT NULL", "needs a value for column 'e'.*give it a default"),
    ],
)
def test_a_table_that_rows_do_not_fit_into_is_refused(scene: Scene, shape: str, words: str) -> None:
    scene.sql(SOURCE)
    if shape:
        scene.at_target(f"CREATE TABLE t ({shape})")
    with pytest.raises(TargetUnfit, match=words) as said:
        scene.feed().prepare()
    assert f"{scene.copy}.t" in str(said.value)
    assert scene.target.execute(f"SHOW DATABASES LIKE '{scene.meta}'") == []


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ("varchar(9)", "char(9)", r"'v' as char\(9\)"),  # spaces at the end
        ("varbinary(4)", "binary(4)", r"'v' as binary\(4\)"),  # zeros at the end
        ("binary(4)", "binary(6)", r"'v' as binary\(6\)"),
        ("double", "double(10,2)", r"'v' as double\(10,2\)"),
        ("float", "double(10,2)", r"'v' as double\(10,2\)"),
        (
            "timestamp NULL",
            "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP",
            "'v' as NOT NULL, .*let it be NULL",
        ),
        ("int AS (id + 1) STORED", "int", "'v' as an ordinary one, .*make it a generated column"),
        # `a` and `a ` are two rows here, and `ß` and `s`.
        ("varchar(9) UNIQUE", "varchar(9) UNIQUE", "'v' by utf8mb4_general_ci.*0900_ai_ci"),
        (
            "varchar(9) COLLATE utf8mb4_bin UNIQUE",
            "varchar(9) COLLATE utf8mb4_bin, UNIQUE KEY begins (v(3))",
            r"unique key 'begins' \(v\(3\)\), which the source lacks",
        ),
        (
            "varchar(9) COLLATE utf8mb4_0900_bin UNIQUE",
            "varchar(9) COLLATE utf8mb4_bin UNIQUE",
            "'v' by utf8mb4_bin",
        ),
    ],
)
def test_a_column_that_would_not_keep_values_is_refused(
    scene: Scene, here: str, there: str, words: str
) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY, v {here})")
    scene.at_target(f"CREATE TABLE t (id int PRIMARY KEY, v {there})")
    with pytest.raises(TargetUnfit, match=words):
        scene.feed().prepare()


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("char(9)", "char(10)"),
        ("binary(4)", "varbinary(4)"),
        ("double(10,2)", "double(11,3)"),
        ("enum('a','b') UNIQUE", "enum('a','b') UNIQUE"),
        ("varchar(9) COLLATE utf8mb4_general_ci UNIQUE", "varchar(9) COLLATE utf8mb4_bin UNIQUE"),
        ("varchar(9) UNIQUE", "varchar(9) COLLATE utf8mb4_nopad_bin UNIQUE"),
        ("int AS (id + 1) STORED", "int AS (id + 1) VIRTUAL"),
    ],
)
def test_a_column_that_keeps_values_is_taken(scene: Scene, here: str, there: str) -> None:
    scene.sql(f"CREATE TABLE t (id int PRIMARY KEY, v {here})")
    scene.at_target(f"CREATE TABLE t (id int PRIMARY KEY, v {there})")
    scene.feed().prepare()


def test_wider_tables_are_taken(scene: Scene) -> None:
    scene.sql(SOURCE, "INSERT INTO t VALUES (1, 'x', NOW(3), 1.25, 3)")
    scene.at_target(
        "CREATE TABLE t (more int DEFAULT 7, id bigint PRIMARY KEY, "
        "a varchar(30) COLLATE utf8mb4_bin UNIQUE, "
        "b datetime(6), c decimal(20,4), d bigint unsigned)"
    )
    feed = scene.feed()
    feed.catch_up()
    scene.sql("UPDATE t SET d = 4")
    feed.catch_up()
    found = scene.target.execute(f"SELECT more, id, a, c, d FROM {scene.copy}.t")
    assert found == [("7", "1", "x", "1.2500", "4")]


def test_a_row_that_is_refused_is_named_and_its_transaction_leaves_nothing(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'abc'), (22, 'abcdef'), (3, 'x')")
    with pytest.raises(RowRejected, match=r"table .*_copy\.t, row id = 22: .*'a'") as said:
        feed.catch_up()
    assert said.value.verdict is Verdict.STOP
    assert "then resume" in str(said.value)
    assert scene.target.execute(f"SELECT * FROM {scene.copy}.t") == []
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'x'), MODIFY a varchar(20)")
    with pytest.raises(RowRejected, match=r"row id = 3: .*short"):
        feed.catch_up()
    scene.at_target("DROP TABLE t")
    with pytest.raises(TargetLost, match=r"table .*_copy\.t: .*it was there before"):
        feed.catch_up()
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    feed.catch_up()
    assert scene.assert_same("t") == 3


def test_logins_and_privileges(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    user, word = f"u{scene.number}", secrets.token_hex(8)
    scene.target.script(
        f"DROP USER IF EXISTS {user}",
        f"CREATE USER {user} IDENTIFIED BY '{word}'",
        f"GRANT SELECT, INSERT, UPDATE ON {scene.copy}.* TO {user}",
    )
    feed = scene.feed()

    def refused(kind: type[RowferryError], words: str) -> None:
        with pytest.raises(kind, match=words) as said:
            feed.catch_up()
        assert word not in str(said.value)

    feed.login = f"{user}:{word[::-1]}x"
    refused(SinkUnwritable, "Access denied.*check user, password")
    feed.login = f"{user}:{word}"
    refused(SinkUnwritable, r"_copy\.t: DELETE command denied.*grant the privilege")
    scene.target.script(f"GRANT DELETE ON {scene.copy}.* TO {user}")
    refused(SinkUnwritable, f"own tables in {scene.meta}: .*denied")
    scene.target.script(f"GRANT ALL ON {scene.meta}.* TO {user}")
    scene.sql("INSERT INTO t VALUES (1)")
    feed.catch_up()
    assert scene.assert_same("t") == 1
    scene.target.script(f"REVOKE INSERT ON {scene.copy}.* FROM {user}")
    feed.run()
    scene.sql("INSERT INTO t VALUES (2)")
    refused(SinkUnwritable, "INSERT command denied")
    scene.target.script(f"DROP USER {user}")


def test_settings_that_the_downstream_does_not_know(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(SinkUnwritable, match=r"time zone 'Mars/Base'.*offset such as \+08:00"):
        scene.feed("time-zone=Mars/Base").prepare()
    scene.feed("time-zone=%2B08:00").prepare()
    with pytest.raises(SinkUnwritable, match="SSL.*check ssl-mode"):
        scene.feed("ssl-mode=required").prepare()


def test_nobody_answers(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY)")
    feed = scene.feed()
    port = scene.target.port
    try:
        scene.target.port = 1
        with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1"):
            feed.prepare()
    finally:
        scene.target.port = port


def test_certificates(mysql_server: MySql, tmp_path: Path) -> None:
    """MySQL makes an authority of its own when it starts."""
    own = mysql_server.datadir / "ca.pem"
    foreign = Certificates.make(tmp_path).ca
    login = mysql_server.uri.replace("mysql://", "mysql+ssl://")

    def probe(query: str) -> None:
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("feed", source, Uri.parse(f"{login}?{query}", "sink"))
        assemble(spec).sink.probe(Owner("feed", 1))

    probe("")
    probe(f"ssl-ca={own}")
    for query in (f"ssl-ca={foreign}", f"ssl-ca={own}&ssl-mode=verify-identity"):
        with pytest.raises(SinkUnwritable, match="certificate.*check ssl-mode, ssl-ca"):
            probe(query)
    with pytest.raises(BadUri, match="TLS files of the sink cannot be used"):
        probe(f"ssl-ca={tmp_path}/none.pem")
