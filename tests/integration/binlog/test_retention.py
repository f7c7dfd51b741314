"""Whether the log is still there, and for how long; GTID sets as servers print and take them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rowferry.errors import LogLost, RowferryError, SourceMismatch
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.client.retention import (
    binary_logs,
    check_reachable,
    log_begun,
    retention_notice,
)
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.mysql.session import Flavour, connected, facts
from rowferry.testing.servers import MariaDb, MariaDb11, MySql, Server

KINDS: dict[str, type[Server]] = {"mysql": MySql, "mariadb": MariaDb}
HOURS_6 = timedelta(hours=6)


@pytest.fixture(scope="module", params=sorted(KINDS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with four log files: binlog.000001 to 000004, a table in each of three."""
    with KINDS[request.param].start(tmp_path_factory.mktemp(request.param), 7) as started:
        fill(started)
        yield started


@pytest.fixture(params=sorted(KINDS))
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The same, for one test."""
    with KINDS[request.param].start(tmp_path, 7) as started:
        fill(started)
        yield started


def fill(server: Server) -> None:
    server.execute("CREATE DATABASE shop")
    for name in ("a", "b", "c"):
        server.execute(f"CREATE TABLE shop.{name} (a INT PRIMARY KEY)")
        server.execute("FLUSH BINARY LOGS")
    assert [name for name, _ in files(server)] == [f"binlog.00000{n}" for n in (1, 2, 3, 4)]


def files(server: Server) -> list[tuple[str, int]]:
    with connected(server.login) as connection:
        return binary_logs(connection, server.login)


def check(server: Server, file: str = "", offset: int = 4, gtids: str = "") -> None:
    login = server.login
    with connected(login) as connection:
        check_reachable(connection, login, facts(connection, login), file, offset, gtids)


def refusal(kind: type[RowferryError], *args: object) -> str:
    with pytest.raises(kind) as caught:
        check(*args)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def gtids(server: Server) -> str:
    mysql = server.flavour is Flavour.MYSQL
    ((text,),) = server.execute(
        f"SELECT @@GLOBAL.{'gtid_executed' if mysql else 'gtid_binlog_pos'}"
    )
    return str(text)


def purge(server: Server, to: str) -> None:
    """Remove the log before a file; MariaDB may hold files back for a moment after a rotation."""
    while files(server)[0][0] != to:
        server.execute(f"PURGE BINARY LOGS TO '{to}'")


# --- positions in files --------------------------------------------------------------------------


def test_a_file_tells_when_it_was_begun(server: Server) -> None:
    begun = [log_begun(server.login, server.flavour, name) for name, _ in files(server)]
    assert begun == sorted(begun)
    assert abs(datetime.now(UTC) - begun[-1]) < timedelta(minutes=5)
    with pytest.raises(LogLost):
        log_begun(server.login, server.flavour, "binlog.000099")


def test_places_that_are_there(server: Server) -> None:
    for name, size in files(server):
        check(server, name, 4)
        check(server, name, size)


@pytest.mark.parametrize("file", ["binlog.000005", "other.000001", "nonsense"])
def test_a_file_that_never_was(server: Server, file: str) -> None:
    text = refusal(SourceMismatch, server, file)
    assert f"has no {file}" in text and "binlog.000001 to binlog.000004" in text


def test_an_offset_past_the_end(server: Server) -> None:
    name, size = files(server)[-1]
    assert f"{name}:{size + 1} is past the end" in refusal(SourceMismatch, server, name, size + 1)


def test_a_file_that_was_purged(own: Server) -> None:
    purge(own, "binlog.000003")
    check(own, "binlog.000003")
    text = refusal(LogLost, own, "binlog.000002")
    assert "removed binlog.000002" in text
    assert "oldest file left is binlog.000003, begun " in text
    assert f"begun {datetime.now(UTC):%Y-}" in text and "snapshot" in text


# --- GTIDs ---------------------------------------------------------------------------------------


def test_transactions_that_were_purged(own: Server) -> None:
    early = gtids(own)
    check(own)  # from the very first transaction on
    own.execute("CREATE TABLE shop.d (a INT PRIMARY KEY)")
    own.execute("FLUSH BINARY LOGS")
    late = gtids(own)
    purge(own, "binlog.000005")
    check(own, gtids=late)
    check(own, "binlog.000005", 4, late)
    for text in (refusal(LogLost, own, "", 4, early), refusal(LogLost, own)):
        assert "oldest file left is binlog.000005, begun " in text
    number = re.findall(r"\d+$", late)[0]
    assert number in refusal(LogLost, own, "", 4, early)


def test_transactions_that_never_were(server: Server) -> None:
    if server.flavour is Flavour.MYSQL:
        ahead = str(GtidSet.parse(gtids(server)).add("3e11fa47-71ca-11e1-9e33-c80aa9429562", 9))
        lack = "3e11fa47-71ca-11e1-9e33-c80aa9429562:9"
    else:
        ahead = str(GtidPosition.parse(gtids(server)).add(0, 7, 999).add(8, 7, 1))
        lack = "0-7-999,8-7-1"
    text = refusal(SourceMismatch, server, "", 4, ahead)
    assert f"seen already: {lack};" in text


def test_a_log_that_was_reset(own: Server) -> None:
    before, (name, size) = gtids(own), files(own)[-1]
    mysql = own.flavour is Flavour.MYSQL
    own.execute("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
    refusal(SourceMismatch, own, name, size, before)
    refusal(SourceMismatch, own, "", 4, before)


def test_a_domain_that_is_quiet(tmp_path: Path) -> None:
    with MariaDb.start(tmp_path, 7) as server:
        server.script("SET gtid_domain_id = 5", "CREATE DATABASE quiet")
        fill(server)
        seen = GtidPosition.parse(gtids(server))
        purge(server, "binlog.000004")
        check(server, gtids=str(seen))
        one = str(seen).split(",")[0]
        assert one.startswith("0-")
        text = refusal(LogLost, server, "", 4, one)
        assert "removed the log up to 5-7-1" in text


def test_gtid_sets_are_printed_as_the_server_does(mysql_server: MySql) -> None:
    a, b = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fb58-82db-22f2-af44-d91bba530673"
    text = f"{b}:5:1-3:red:1-2:9:blue:7,{a}:x:1,{b}:4:8-{2**63 - 2}"
    ((printed,),) = mysql_server.execute("SELECT GTID_SUBTRACT(%s, '')", text)
    assert str(GtidSet.parse(text)) == str(printed).replace("\n", "")


def test_a_server_understands_gtid_sets(tmp_path: Path) -> None:
    """It sends only what the set lacks, with tags and without."""
    with MySql.start(tmp_path, 7) as server:
        server.execute("CREATE DATABASE shop")
        for tag in ("", ":blue", ":red", ":blue", ""):
            ((count,),) = server.execute(
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'shop'"
            )
            server.script(
                f"SET gtid_next = 'AUTOMATIC{tag}'", f"CREATE TABLE shop.t{count} (a INT)"
            )
        uuid = gtids(server).split(":")[0]
        assert gtids(server) == f"{uuid}:1-3:blue:1-2:red:1"
        assert sent(server, f"{uuid}:1-3:blue:1-2:red:1") == []
        assert sent(server, f"{uuid}:1-3:blue:1:red:1") == ["t3"]
        assert sent(server, f"{uuid}:1:3:blue:2") == ["t0", "t1", "t2"]
        assert sent(server, f"{uuid}:1-2") == ["t1", "t2", "t3", "t4"]


def sent(server: Server, seen: str) -> list[str]:
    """The tables whose making the server sends to one who has seen these transactions."""
    with closing(LogStream(server.login, server.flavour, StartAt(gtids=seen))) as stream:
        end = b"\x05\x00\x00"  # the packet that ends a dump is five bytes long
        while not re.search(re.escape(end) + rb".\xfe....$", _got(stream), re.DOTALL):
            stream.fill()
        return [t.decode() for t in re.findall(rb"CREATE TABLE shop\.(t\d)", _got(stream))]


def _got(stream: LogStream) -> bytes:
    return stream.data[stream.start : stream.filled].tobytes()


# --- for how long --------------------------------------------------------------------------------


def notice(server: Server, file: str, behind: timedelta, warning: timedelta = HOURS_6) -> str:
    login = server.login
    with connected(login) as connection:
        then = (datetime.now(UTC) - behind).timestamp() * 1000
        known = facts(connection, login)
        found = retention_notice(connection, login, known, file, warning, int(then))
    assert "\n" not in found
    return found


@contextmanager
def kept_for(server: Server, seconds: int) -> Iterator[None]:
    """Let a server keep its log for so long while the block runs, unless that changes it."""
    ((before,),) = server.execute("SELECT @@GLOBAL.binlog_expire_logs_seconds")
    server.execute(f"SET GLOBAL binlog_expire_logs_seconds = {seconds}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL binlog_expire_logs_seconds = {int(str(before))}")


def test_a_log_that_is_kept_for_ever(server: Server) -> None:
    with kept_for(server, 0):
        assert notice(server, "binlog.000001", timedelta(days=1000)) == ""


def cure_in(text: str) -> str:
    """Return the statement that a finding says helps; the line for the server's file follows it."""
    statement, lasting = text.split("run: ")[1].split(" (to keep it after a restart: ")
    assert lasting.endswith(" below [mysqld] in the server's file)")
    return statement


def test_a_log_that_ages(server: Server) -> None:
    with kept_for(server, 86400):
        assert notice(server, "binlog.000001", timedelta(hours=17)) == ""
        # The last one is being written.
        assert notice(server, "binlog.000004", timedelta(hours=23)) == ""
        assert notice(server, "binlog.000001", timedelta(hours=23), timedelta(minutes=30)) == ""
        text = notice(server, "binlog.000001", timedelta(hours=20, seconds=30))
        assert "binlog.000001" in text
        assert re.search(r"within 3h59m\d+s: the feed is 20h30s behind", text)
        assert "binlog_expire_logs_seconds is 86400" in text
        assert " now: " in notice(server, "binlog.000001", timedelta(hours=25))
        server.execute(cure_in(text))
        assert notice(server, "binlog.000001", timedelta(hours=20)) == ""


def test_purging_may_be_off(tmp_path: Path) -> None:
    with MySql.start(tmp_path, 7) as server:
        fill(server)
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 3600")
        assert notice(server, "binlog.000001", timedelta(minutes=50))
        server.execute("SET GLOBAL binlog_expire_logs_auto_purge = OFF")
        assert notice(server, "binlog.000001", timedelta(minutes=50)) == ""


def test_a_log_that_is_kept_for_days(tmp_path: Path) -> None:
    with MariaDb.start(tmp_path, 7) as server:
        fill(server)
        server.execute("SET GLOBAL expire_logs_days = 0.5")
        text = notice(server, "binlog.000001", timedelta(hours=7))
        assert "within " in text
        server.execute(cure_in(text))
        assert notice(server, "binlog.000001", timedelta(hours=7)) == ""


def test_a_log_that_may_not_grow(tmp_path: Path) -> None:
    with MariaDb11.start(tmp_path, 7) as server:
        fill(server)
        used = sum(size for _, size in files(server))
        server.execute(f"SET GLOBAL max_binlog_total_size = {used * 11}")
        ((most,),) = server.execute("SELECT @@GLOBAL.max_binlog_total_size")
        # Ten times what came in the last hour: ten hours.
        assert notice(server, "binlog.000001", timedelta(hours=1)) == ""
        text = notice(server, "binlog.000001", timedelta(minutes=30))
        assert "within " in text and f"max_binlog_total_size is {most}" in text
        server.execute(cure_in(text))
        assert notice(server, "binlog.000001", timedelta(minutes=30)) == ""
