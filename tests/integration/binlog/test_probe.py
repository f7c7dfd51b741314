"""Preflight against real servers: each check fails once, and what it says cures it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rowferry.change.table import TableId
from rowferry.errors import LoginRefused, ReplicaIdTaken, RowferryError, SourceUnsupported
from rowferry.flow.capture.binlog.client.privileges import check_select
from rowferry.flow.capture.binlog.client.probe import (
    Preflight,
    cascade_notices,
    check_logged,
    check_server_id,
    preflight,
)
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.mysql.session import Flavour, Login, connected, facts
from rowferry.testing.servers import MariaDb, MariaDb11, MySql, Server
from rowferry.testing.servers.replication import replicate, wait_for

KINDS: dict[str, type[Server]] = {"mysql": MySql, "mariadb": MariaDb}


def prepared(kind: type[Server], folder: Path) -> Iterator[Server]:
    """A server whose settings the tests change, and set back."""
    with kind.start(folder, 7) as started:
        started.script("CREATE DATABASE shop", "CREATE TABLE shop.t (a INT PRIMARY KEY)")
        yield started


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from prepared(MySql, tmp_path_factory.mktemp("mysql"))


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from prepared(MariaDb, tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(params=sorted(KINDS))
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def ask(login: Login, snapshot: bool = True, **options: Any) -> Preflight:
    raw = {key.replace("_", "-"): value for key, value in options.items()}
    with connected(login) as connection:
        return preflight(connection, login, BinlogOptions.read(raw), snapshot)


def refusal(login: Login, kind: type[RowferryError] = SourceUnsupported, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        ask(login, **options)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "\n" not in text
    assert login.password not in text
    return text


@contextmanager
def setting(server: Server, variable: str, value: str) -> Iterator[None]:
    """Another value of a global variable, for a while."""
    ((before,),) = server.execute(f"SELECT @@GLOBAL.{variable}")
    server.execute(f"SET GLOBAL {variable} = {value}")
    try:
        yield
    finally:
        value = str(before) if str(before).isdecimal() else f"'{before}'"
        server.execute(f"SET GLOBAL {variable} = {value}")


def is_mysql(server: Server) -> bool:
    return server.flavour is Flavour.MYSQL


# --- settings ------------------------------------------------------------------------------------


def test_a_good_server_passes(server: Server) -> None:
    found = ask(server.login)
    assert found.facts.flavour is server.flavour
    assert found.facts.server_id == 7
    assert (found.checksum, found.gtid) == (True, True)
    assert found.notices == ()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_image", "NOBLOB"),
        ("binlog_row_metadata", "MINIMAL"),
    ],
)
def test_a_setting_is_named_and_its_cure_works(server: Server, variable: str, value: str) -> None:
    with setting(server, variable, value):
        text = refusal(server.login)
        assert f"{variable} is {value}; run: SET GLOBAL" in text
        (cure,) = re.findall(r"run: (SET GLOBAL \w+ = \w+)", text)
        server.execute(cure)
        ask(server.login)


def test_mariadb_without_any_metadata(mariadb: Server) -> None:
    with setting(mariadb, "binlog_row_metadata", "NO_LOG"):
        assert "binlog_row_metadata is NO_LOG" in refusal(mariadb.login)


def test_all_failures_are_told_at_once(server: Server) -> None:
    with (
        setting(server, "binlog_format", "STATEMENT"),
        setting(server, "binlog_row_metadata", "MINIMAL"),
        user(server) as login,
    ):
        text = refusal(login, server_id="7")
    for words in ("binlog_format is", "binlog_row_metadata is", "GRANT", "server-id 7"):
        assert words in text


def test_partial_images_may_be_allowed(server: Server) -> None:
    with setting(server, "binlog_row_image", "MINIMAL"):
        assert ask(server.login, partial_row_image="allow").notices == ()


def test_checksums_may_be_off(server: Server) -> None:
    with setting(server, "binlog_checksum", "NONE"):
        assert not ask(server.login).checksum


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_server_without_a_log(kind: str, tmp_path: Path) -> None:
    with KINDS[kind].start(tmp_path, 8, ["--skip-log-bin"]) as server:
        assert "log_bin is OFF; write log_bin = " in refusal(server.login)
        with user(server) as login:
            text = refusal(login)
        assert "GRANT SELECT, REPLICATION SLAVE ON" in text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_databases_that_are_not_logged(kind: str, tmp_path: Path) -> None:
    options = ["--binlog-do-db=shop", "--binlog-ignore-db=scrap"]
    names = {name: TableId(name, "t") for name in ("shop", "scrap", "other")}

    def refused(login: Login) -> list[str]:
        """Return the databases of which no table can be captured."""
        found = []
        with connected(login) as connection:
            for name, table in names.items():
                try:
                    check_logged(connection, login, facts(connection, login), [table])
                except SourceUnsupported as err:
                    assert f"changes of {table} are not in the log" in str(err)
                    found.append(name)
        return found

    with KINDS[kind].start(tmp_path, 8, options) as server:
        some, others = ask(server.login).notices
        assert refused(server.login) == ["scrap", "other"]
        server.options = tuple(options[1:])
        server.restart()
        assert refused(server.login) == ["scrap"]
        server.options = ()
        server.restart()
        assert refused(server.login) == []
    assert "binlog_do_db is shop" in some
    assert "binlog_ignore_db is scrap" in others


# --- GTIDs ---------------------------------------------------------------------------------------


def test_strictness_of_mariadb(mariadb: Server) -> None:
    with setting(mariadb, "gtid_strict_mode", "OFF"):
        (notice,) = ask(mariadb.login).notices
    assert "run: SET GLOBAL gtid_strict_mode = ON" in notice


def test_mysql_without_gtids(mysql: Server) -> None:
    for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"):
        mysql.execute(f"SET GLOBAL gtid_mode = {mode}")
    mysql.execute("SET GLOBAL enforce_gtid_consistency = OFF")
    found = ask(mysql.login, snapshot=False)
    assert not found.gtid
    assert "failover" in found.notices[0]
    text = refusal(mysql.login)
    assert "gtid_mode is OFF" in text and "snapshot=never" in text
    for cure in re.findall(r"SET GLOBAL \w+ = \w+", text):
        mysql.execute(cure)
    assert ask(mysql.login).gtid


def test_documents_in_pieces(mysql: Server) -> None:
    with setting(mysql, "binlog_row_value_options", "PARTIAL_JSON"):
        (notice,) = ask(mysql.login).notices
    assert "PARTIAL_JSON" in notice


def test_a_server_without_a_number(mysql: Server) -> None:
    with setting(mysql, "server_id", "0"):
        text = refusal(mysql.login)
        (cure,) = re.findall(r"run: (SET GLOBAL \w+ = \w+)", text)
        mysql.execute(cure)
        ask(mysql.login)


def test_several_domains(tmp_path: Path) -> None:
    with MariaDb.start(tmp_path, 8) as server:
        server.script("CREATE DATABASE a", "SET gtid_domain_id = 5", "CREATE DATABASE b")
        (notice,) = ask(server.login).notices
    assert "2 GTID domains" in notice


# --- privileges ----------------------------------------------------------------------------------


@contextmanager
def user(server: Server, *grants: str, name: str = "reader") -> Iterator[Login]:
    """A user with these privileges, for a while."""
    account = "'" + name.replace("\\", "\\\\").replace("'", "''") + "'@'%'"
    server.execute(f"CREATE USER {account} IDENTIFIED BY 'open-sesame'")
    try:
        for grant in grants:
            server.execute(f"GRANT {grant} TO {account}")
        yield replace(server.login, user=name, password="open-sesame")
    finally:
        server.execute(f"DROP USER {account}")


def needed(server: Server) -> list[str]:
    return [
        "SELECT",
        "REPLICATION SLAVE",
        "REPLICATION CLIENT" if is_mysql(server) else "BINLOG MONITOR",
    ]


@pytest.mark.parametrize("name", ["reader", "o'brien \\ 100%"])
def test_a_user_without_privileges_is_told_the_grant(server: Server, name: str) -> None:
    with user(server, name=name) as login:
        text = refusal(login, LoginRefused)
        (cure,) = re.findall(r"run: (GRANT .*)", text)
        assert cure.startswith(f"GRANT {', '.join(needed(server))} ON *.* TO '")
        server.execute(cure)
        assert ask(login).notices == ()


@pytest.mark.parametrize("missing", range(3))
def test_each_privilege_is_missed(server: Server, missing: int) -> None:
    given = needed(server)
    lacking = given.pop(missing)
    with user(server, f"{', '.join(given)} ON *.*") as login:
        text = refusal(login, LoginRefused)
        assert f"run: GRANT {lacking} ON *.* TO 'reader'@'%'" in text
        server.execute(f"GRANT {lacking} ON *.* TO 'reader'@'%'")
        ask(login)


def test_the_lock_is_a_privilege(mysql: Server) -> None:
    with user(mysql, f"{', '.join(needed(mysql))} ON *.*") as login:
        text = refusal(login, LoginRefused, snapshot_lock="table")
        mysql.execute(re.findall(r"run: (GRANT LOCK TABLES .*)", text)[0])
        ask(login, snapshot_lock="table")


def test_mariadb_needs_no_lock(mariadb: Server) -> None:
    with user(mariadb, f"{', '.join(needed(mariadb))} ON *.*") as login:
        ask(login, snapshot_lock="table")


def test_privileges_through_a_role(server: Server) -> None:
    server.execute("CREATE ROLE capture")
    server.execute(f"GRANT {', '.join(needed(server))} ON *.* TO capture")
    word = "TO" if is_mysql(server) else "FOR"
    try:
        with user(server, "capture") as login:
            refusal(login, LoginRefused)  # given, but not active
            server.execute(f"SET DEFAULT ROLE capture {word} 'reader'@'%'")
            assert ask(login).notices == ()
    finally:
        server.execute("DROP ROLE capture")


def test_a_user_that_sees_few_tables(server: Server) -> None:
    log = f"{', '.join(needed(server)[1:])} ON *.*"
    with user(server, log, "SELECT ON shop.*") as login:
        (notice,) = ask(login).notices
    assert "`shop`.* only" in notice


def test_a_revoked_part(mysql: Server) -> None:
    with setting(mysql, "partial_revokes", "ON"):
        with user(mysql, f"{', '.join(needed(mysql))} ON *.*") as login:
            mysql.execute("REVOKE SELECT ON shop.* FROM 'reader'@'%'")
            (notice,) = ask(login).notices
    assert "`shop`.* is revoked" in notice


def test_tables_that_may_not_be_read(server: Server) -> None:
    tables = [TableId("shop", "t"), TableId("shop", "100% `odd`")]
    server.execute("CREATE TABLE shop.`100% ``odd``` (a INT PRIMARY KEY)")
    with user(server, "INSERT ON shop.*") as login, connected(login) as connection:
        with pytest.raises(LoginRefused) as caught:
            check_select(connection, login, tables)
        for cure in str(caught.value).split("run: ")[1].split(", then "):
            server.execute(cure)
        check_select(connection, login, tables)


def test_mariadb_11(tmp_path: Path) -> None:
    with MariaDb11.start(tmp_path, 8) as server:
        assert ask(server.login).notices == ()
        with user(server) as login:
            text = refusal(login, LoginRefused)
            server.execute(text.split("run: ")[1])
            assert ask(login).notices == ()


# --- the replica's number ------------------------------------------------------------------------


def test_the_servers_own_number(server: Server) -> None:
    assert "own" in refusal(server.login, ReplicaIdTaken, server_id="7")
    with connected(server.login) as connection, pytest.raises(ReplicaIdTaken, match="own"):
        check_server_id(connection, server.login, 7)


def test_a_number_in_use(server: Server) -> None:
    ((file, *_), *_) = server.execute("SHOW BINARY LOGS")
    start = StartAt(file=str(file))
    with closing(LogStream(server.login, server.flavour, start, server_id=4242)) as stream:
        stream.fill()
        with connected(server.login) as connection:
            with pytest.raises(ReplicaIdTaken, match="server-id 4242"):
                check_server_id(connection, server.login, 4242)
            assert check_server_id(connection, server.login, 4243) == 4243
        refusal(server.login, ReplicaIdTaken, server_id="4242")


def test_a_random_number(server: Server) -> None:
    with connected(server.login) as connection:
        found = {check_server_id(connection, server.login, 0) for _ in range(3)}
    assert len(found) == 3
    assert all(2**31 <= number < 2**32 for number in found)


def test_a_number_that_cannot_be_checked(server: Server) -> None:
    """Not the number of the test above: a server under load takes a while to let it go."""
    with user(server, f"{', '.join(needed(server))} ON *.*") as login:
        notices = ask(login, server_id="4250").notices
    assert len(notices) == (0 if is_mysql(server) else 1)
    assert all("server-id 4250" in notice for notice in notices)


# --- replicas ------------------------------------------------------------------------------------


def test_a_replica_that_does_not_log(server: Server, tmp_path: Path) -> None:
    with type(server).start(tmp_path, 9, ["--log-slave-updates=OFF"]) as replica:
        assert ask(replica.login).notices == ()  # it is no replica yet
        replicate(server, replica)
        assert "log_replica_updates is OFF" in refusal(replica.login)
        replica.restart("--log-slave-updates=ON")
        ask(replica.login)


def test_a_replica_that_may_not_be_asked(mariadb: Server, tmp_path: Path) -> None:
    with MariaDb.start(tmp_path, 9, ["--log-slave-updates=OFF"]) as replica:
        replicate(mariadb, replica)
        mariadb.execute("INSERT INTO shop.t VALUES (1)")
        wait_for(replica, mariadb)
        replica.execute("SET GLOBAL read_only = OFF")
        with user(replica, f"{', '.join(needed(replica))} ON *.*") as login:
            (notice,) = ask(login).notices
    assert "log_slave_updates is OFF" in notice


def test_a_replica_that_commits_in_another_order(mysql: Server, tmp_path: Path) -> None:
    with MySql.start(tmp_path, 9, ["--replica-preserve-commit-order=OFF"]) as replica:
        ask(replica.login)
        # Only the setting is asked about: what other tests wrote need not be applied out of order.
        ((applied,),) = mysql.execute("SELECT @@GLOBAL.gtid_executed")
        replica.execute("SET GLOBAL gtid_purged = %s", f"+{applied}")
        replicate(mysql, replica)
        text = refusal(replica.login)
        assert "replica_preserve_commit_order is OFF" in text
        for cure in text.split("run: ")[1].split(", then "):
            replica.execute(cure)
        assert ask(replica.login).notices == ()


def test_cascades_that_the_log_does_not_tell(server: Server) -> None:
    """MySQL 9.6 and later write them; whoever captures such a table of MariaDB is told."""
    server.script(
        "CREATE DATABASE IF NOT EXISTS keyed",
        "CREATE TABLE keyed.parent (a INT PRIMARY KEY)",
        "CREATE TABLE keyed.child (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES "
        "keyed.parent (a) ON DELETE CASCADE)",
        "CREATE TABLE keyed.plain (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES "
        "keyed.parent (a))",
    )
    captured = {TableId("keyed", name) for name in ("parent", "child", "plain")}
    with connected(server.login) as connection:
        known = facts(connection, server.login)
        said = list(cascade_notices(connection, server.login, known, captured))
        without = list(cascade_notices(connection, server.login, known, {TableId("keyed", "t")}))
    server.script("DROP DATABASE keyed")
    assert without == []
    if known.flavour is Flavour.MYSQL:
        assert said == []
    else:
        (words,) = said
        assert words.startswith("keyed.child: a foreign key changes their rows")


def test_cascades_of_a_server_that_keeps_them_out_of_its_log(tmp_path: Path) -> None:
    """MySQL writes them from 9.6 on, unless it was started with a setting."""
    with MySql.start(tmp_path / "m", options=["--innodb-native-foreign-keys=ON"]) as server:
        server.script(
            "CREATE DATABASE keyed",
            "CREATE TABLE keyed.parent (a INT PRIMARY KEY)",
            "CREATE TABLE keyed.child (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES "
            "keyed.parent (a) ON DELETE CASCADE)",
        )
        with connected(server.login) as connection:
            known = facts(connection, server.login)
            captured = {TableId("keyed", "child")}
            (words,) = cascade_notices(connection, server.login, known, captured)
        assert words.startswith("keyed.child: a foreign key changes their rows")
