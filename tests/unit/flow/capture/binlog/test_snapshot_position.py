"""Places of the log on MySQL while transactions are on their way from the log to the readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rowferry.errors import SourceUnsupported
from rowferry.mysql import session
from rowferry.mysql import snapshot_position as positions
from rowferry.mysql.session import Flavour, Login

LOGIN = Login("h", 1, "u", "")
NOBODY: Any = None
A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class FakeMySql:
    """Answers with what is in the log, committed and being committed; each look may move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owned: list[str], version: str) -> None:
        self.owned: Iterator[str] = iter(owned)
        self.last = ""
        self.asked: list[str] = []
        self.log = [("binlog.000007", "5000", "", "", "")]
        self.gtid = f"{A}:1-5,\n{B}:1"
        monkeypatch.setattr(session, "rows", self.rows)
        numbers = session.version_numbers(version)
        monkeypatch.setattr(session, "greeted_version", lambda _connection: numbers)
        monkeypatch.setattr(positions.time, "sleep", lambda _s: None)

    def rows(self, _connection: Any, _login: Any, sql: str, _values: Any = ()) -> list[Any]:
        self.asked.append(sql)
        if sql.startswith("SHOW"):
            return self.log
        if "gtid_owned" in sql:
            self.last = next(self.owned, self.last)
            return [(self.last,)]
        assert sql == "SELECT @@global.gtid_executed"
        return [(self.gtid,)]


def test_a_quiet_server_has_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeMySql(monkeypatch, [], "9.7.0")
    place = {"file": "binlog.000007", "offset": 5000, "gtid": f"{A}:1-5,{B}:1"}
    assert positions.low_position(NOBODY, LOGIN, Flavour.MYSQL) == place
    assert positions.high_position(NOBODY, LOGIN, Flavour.MYSQL) == place
    assert "SHOW BINARY LOG STATUS" in server.asked


def test_older_servers_know_the_older_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeMySql(monkeypatch, [], "8.0.40")
    positions.log_end(NOBODY, LOGIN, Flavour.MYSQL)
    assert "SHOW MASTER STATUS" in server.asked


def test_low_waits_for_what_is_in_the_log_already(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = [f"{A}:6#12:7#13,\n{B}:2#9", f"{A}:7#13:8#12", f"{A}:8#12:9#13"]
    server = FakeMySql(monkeypatch, owned, "9.7.0")
    place = positions.low_position(NOBODY, LOGIN, Flavour.MYSQL)
    assert place["offset"] == 5000
    assert sum("gtid_owned" in sql for sql in server.asked) == 3
    assert server.asked[-1] == "SELECT @@global.gtid_executed"  # read last, so it holds them


def test_low_goes_back_to_the_file_for_a_transaction_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeMySql(monkeypatch, [f"{A}:6#12"], "9.7.0")
    place = positions.low_position(NOBODY, LOGIN, Flavour.MYSQL)
    assert (place["file"], place["offset"]) == ("binlog.000007", 4)


def test_high_holds_what_is_seen_but_not_yet_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMySql(monkeypatch, [f"{A}:6#12:7#13:tag:1#4,{B}:2#9"], "9.7.0")
    place = positions.high_position(NOBODY, LOGIN, Flavour.MYSQL)
    assert place["gtid"].split(",") == [
        f"{A}:1-5", f"{B}:1", f"{A}:6", f"{A}:7", f"{A}:tag:1", f"{B}:2",
    ]  # fmt: skip


def test_a_moment_is_quiet_only_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeMySql(monkeypatch, [], "9.7.0")
    moment = positions.QuietMoment(NOBODY, LOGIN)
    assert moment.place(NOBODY, LOGIN) == {
        "file": "binlog.000007", "offset": 5000, "gtid": f"{A}:1-5,{B}:1",
    }  # fmt: skip
    server.log = [("binlog.000007", "5001", "", "", "")]
    assert moment.place(NOBODY, LOGIN) is None


def test_a_moment_amid_a_commit_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMySql(monkeypatch, [f"{A}:6#12"], "9.7.0")
    assert positions.QuietMoment(NOBODY, LOGIN).place(NOBODY, LOGIN) is None


def test_a_server_without_a_log_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeMySql(monkeypatch, [], "9.7.0")
    server.log = []
    with pytest.raises(SourceUnsupported, match="log_bin"):
        positions.low_position(NOBODY, LOGIN, Flavour.MYSQL)
