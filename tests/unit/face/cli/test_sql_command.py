"""`rowferry sql`: statements from the command line, a pipe and a prompt."""

from __future__ import annotations

import io
import json

import pytest
from cli_kit import FakeServer, Run

PATH = "POST /api/rowferry/sql"
LISTED = {"columns": ["id", "state"], "rows": [["x", "normal"], ["y", None]], "message": "2"}
DONE = {"columns": [], "rows": [], "message": "changefeed x [paused]"}
BROKEN = (400, {"error_msg": "[RF-1006] line 1, column 1: expected CREATE", "error_code": "C"})


def statements(server: FakeServer) -> list[str]:
    return [body["statement"] for _, body in server.asked]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_statements_are_carried_out_in_order_up_to_the_first_error(
    run: Run, server: FakeServer
) -> None:
    server.answers = {PATH: [LISTED, BROKEN, DONE]}
    ended = run("sql", "SHOW CHANGEFEEDS; PAUZE 'a;b';; PAUSE CHANGEFEED x", "--output", "table")
    assert statements(server) == ["SHOW CHANGEFEEDS", "PAUZE 'a;b'"]
    assert ended.out == "id\tstate\nx\tnormal\ny\t\n2\n"
    assert (ended.code, ended.err) == (2, "[RF-1006] line 1, column 1: expected CREATE\n")


def test_a_pipe_gives_json(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = {PATH: [LISTED, DONE]}
    monkeypatch.setattr("sys.stdin", io.StringIO("SHOW CHANGEFEEDS;\nPAUSE CHANGEFEED\n  x"))
    ended = run("cli", "sql")
    assert statements(server) == ["SHOW CHANGEFEEDS", "PAUSE CHANGEFEED\n  x"]
    assert ended.code == 0
    assert ended.out == "".join(json.dumps(a, indent=2) + "\n" for a in (LISTED, DONE))


def test_the_prompt_goes_on_after_an_error(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {PATH: [BROKEN, DONE]}
    lines = iter(["PAUZE;", "PAUSE", "CHANGEFEED 'x", "y'; SHOW", "", " exit", ";", "exit", "no;"])
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt.strip())
        return next(lines)

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    ended = run("sql", "--output", "table")
    assert statements(server) == ["PAUZE", "PAUSE\nCHANGEFEED 'x\ny'", "SHOW\n\n exit"]
    assert asked == ["rowferry>", "rowferry>", "->", "->", "->", "->", "->", "rowferry>"]
    assert ended.code == 0
    assert ended.err == "[RF-1006] line 1, column 1: expected CREATE\n"
    assert ended.out.count("changefeed x [paused]\n") == 2


def test_the_prompt_ends_with_the_input(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([KeyboardInterrupt, EOFError])

    def typed(prompt: str) -> str:
        raise next(ends)

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    assert run("sql").code == 0
    assert server.asked == []
