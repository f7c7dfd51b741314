"""The commands of docs/server.md: one is started for real, with TLS and a token; all are parsed."""

from __future__ import annotations

import json
import secrets
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import typer

from page_examples import ROOT, all_blocks, commands, table_rows
from rowferry.face.cli import main as cli
from rowferry.testing.harness import ServerProcess, wait_for
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import free_ports

PAGE = "server.md"
WITHIN_S = 600.0


def _commands() -> list[list[str]]:
    return [words for b in all_blocks("sh") if b.page == PAGE for words in commands(b)]


def _parse(words: list[str]) -> dict[str, Any]:
    assert words[:2] == ["rowferry", "server"]
    group: Any = typer.main.get_command(cli.app)
    command = group.commands["server"]
    parsed: dict[str, Any] = command.make_context("server", words[2:]).params
    return parsed


def test_every_command_is_understood() -> None:
    found = [_parse(words) for words in _commands()]
    assert [f["spark_master"] for f in found] == ["local[*]", "local[*]", "spark://spark-1:7077"]
    assert found[0]["addr"] == "127.0.0.1:8300"  # the default, spelled out
    assert found[0]["addr"] == _parse(["rowferry", "server"])["addr"]


def test_every_flag_is_on_the_page() -> None:
    group: Any = typer.main.get_command(cli.app)
    flags = {o for p in group.commands["server"].params for o in p.opts if o != "--help"}
    rows = table_rows((ROOT / "docs" / PAGE).read_text(), "flag|meaning")
    assert {cells[0].strip("`") for cells in rows} == flags


def test_a_server_with_tls_and_a_token(tmp_path: Path) -> None:
    made, token = Certificates.make(tmp_path / "pem"), secrets.token_hex(8)
    (tmp_path / "token.txt").write_text(token)
    ports = free_ports(2)
    real = {
        "0.0.0.0:8300": f"127.0.0.1:{ports[0]}",
        "ferry.pem": str(made.server),
        "ferry.key": str(made.server),
        "token.txt": str(tmp_path / "token.txt"),
    }
    arguments = [real.get(word, word) for word in _commands()[1][2:]]
    arguments += ["--grpc-addr", f"127.0.0.1:{ports[1]}", "--spark-master", "local[1]"]
    trusted = ssl.create_default_context(cafile=str(made.ca))
    with ServerProcess(arguments, tmp_path / "work") as server:
        ready = f"serving at https://127.0.0.1:{ports[0]}"
        wait_for(lambda: ready in server.printed() or not server.alive, "a server", WITHIN_S)

        def ask(path: str, **headers: str) -> tuple[int, Any]:
            connection = HTTPSConnection("127.0.0.1", ports[0], timeout=60, context=trusted)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = json.loads(answer.read() or b"null")
            connection.close()
            return answer.status, body

        assert ask("/api/v2/captures")[0] == 401
        login = {"Authorization": f"Bearer {token}"}

        def announced() -> bool:
            status, body = ask("/api/v2/captures", **login)
            assert status == 200
            return [one["address"] for one in body["items"]] == ["ferry-1.example.com:8300"]

        wait_for(announced, "its own row", WITHIN_S)
        server.terminate()
        assert server.wait(WITHIN_S) == 0, server.printed()[-2000:]
        lines = [json.loads(line) for line in server.printed().splitlines() if line[:1] == "{"]
    assert "draining 0 changefeeds" in [line["message"] for line in lines]
    assert token not in server.printed()
