"""Whether MySQL's log can be read from a position on, while transactions are being committed."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.errors import SourceMismatch
from rowferry.flow.capture.binlog.client.retention import check_reachable
from rowferry.mysql import session
from rowferry.mysql.session import Flavour, Login

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NOBODY: Any = None


class CommittingMySql:
    """Its log has transactions 1 to 7; the last of them are committed when it is asked for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owned: str, committed: int) -> None:
        self.owned, self.committed = owned, committed
        self.at_once = 0  # how many are committed behind each answer
        self.facts: Any = type("Facts", (), {"flavour": Flavour.MYSQL})()
        monkeypatch.setattr(session, "rows", self.rows)
        monkeypatch.setattr("rowferry.flow.capture.binlog.client.retention.rows", self.rows)

    def rows(self, _connection: Any, _login: Any, sql: str, _values: Any = ()) -> list[Any]:
        if sql == "SHOW BINARY LOGS":
            return [("binlog.000001", "5000")]
        if "gtid_owned" in sql:
            answer = [(self.owned,)]
        else:
            assert sql == "SELECT @@global.gtid_purged, @@global.gtid_executed"
            answer = [("", f"{A}:1-{self.committed}")]
        if self.at_once:
            self.owned, self.committed = "", self.committed + self.at_once
        return answer

    def check(self, seen: int) -> None:
        login = Login("h", 1, "u", "")
        check_reachable(NOBODY, login, self.facts, "binlog.000001", 4000, f"{A}:1-{seen}")


def test_what_the_log_has_shown_and_is_not_committed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has read it and opens the log anew is at the right server."""
    CommittingMySql(monkeypatch, f"{A}:6#12:7#13", 5).check(7)


def test_what_is_committed_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    server = CommittingMySql(monkeypatch, f"{A}:6#12:7#13", 5)
    server.at_once = 2
    server.check(7)


@pytest.mark.parametrize("owned", ["", f"{A}:6#12"])
def test_what_the_server_does_not_have(monkeypatch: pytest.MonkeyPatch, owned: str) -> None:
    with pytest.raises(SourceMismatch, match=f"transactions that were seen already: {A}:(6-)?7"):
        CommittingMySql(monkeypatch, owned, 5).check(7)
