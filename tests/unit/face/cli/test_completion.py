"""What a shell completes: the verbs, in a real bash, and the changefeeds that a server knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import FakeServer, Run

IDS = {"items": [{"id": name} for name in ("orders", "people", "oranges")]}
# What bash does with a tab: it sets the words, calls the function, and reads the replies.
PRESS_TAB = """
eval "$(_ROWFERRY_COMPLETE=source_bash rowferry)"
complete -p rowferry
COMP_WORDS=(rowferry changefeed re)
COMP_CWORD=2
_rowferry_completion rowferry
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_verbs() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *replies = ended.stdout.splitlines()
    assert first == "complete -o default -F _rowferry_completion rowferry"
    assert replies == ["resume", "remove", "reset"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("rowferry changefeed query -c ", ["oranges", "orders", "people"]),
        ("rowferry changefeed pause --changefeed-id or", ["oranges", "orders"]),
        ("rowferry changefeed pause -c x", []),
        ("rowferry cli --server {url} changefeed remove -c p", ["people"]),
        ("rowferry changefeed remove --server {url} -c p", ["people"]),
        ("rowferry changefeed remove --pd http://pd -c p", []),
    ],
)
def test_names_come_from_the_server(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, words: str, found: list[str]
) -> None:
    server.answers = {"GET /api/v2/changefeeds?state=all": IDS}
    if "{url}" in words:
        monkeypatch.setenv("ROWFERRY_SERVER", "http://127.0.0.1:1")
        words = words.format(url=server.url)
    monkeypatch.setenv("_ROWFERRY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    ended = run()
    assert (ended.out.split(), ended.err) == (found, "")


def test_without_a_server_nothing_is_completed_and_nothing_said(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ROWFERRY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rowferry changefeed query -c ")
    monkeypatch.setenv("COMP_CWORD", "4")
    server.answers = {"GET /api/v2/changefeeds?state=all": (500, {"error_msg": "[RF-2001] away"})}
    for address in (server.url, "http://127.0.0.1:1", "nonsense://"):
        monkeypatch.setenv("ROWFERRY_SERVER", address)
        ended = run()
        assert (ended.out.strip(), ended.err) == ("", "")
