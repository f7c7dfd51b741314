"""What a shell completes: the verbs, in a real bash, and the changefeeds that a server knows.

Not every machine has zsh. What is generated for it is held against the rules of quoting that all
shells of this kind share, and evaluated by a real one where there is one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_kit import FakeServer, Run

from rowferry.face.cli import main as cli

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
# Installed once; then a new session, which has read its start-up file, is asked.
INSTALL = """
rowferry --install-completion
bash --rcfile "$HOME/.bashrc" -i -c '
    COMP_WORDS=(rowferry --ver); COMP_CWORD=1
    _rowferry_completion rowferry
    printf "%s\\n" "${COMPREPLY[@]}"'
exit $?
"""
ZSH_REPLY = re.compile(r'\*: :\(\((?:"[^"]+"(?::"(?:[^"]|"")*")?\s?)+\)\)', re.DOTALL)


def in_bash(script: str, **settings: str) -> list[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()


def test_bash_completes_verbs() -> None:
    first, *replies = in_bash(PRESS_TAB)
    assert first == "complete -o default -F _rowferry_completion rowferry"
    assert replies == ["resume", "remove", "reset", "resnapshot"]


def test_installed_in_bash_it_is_there_in_the_next_session(tmp_path: Path) -> None:
    *told, reply = in_bash(INSTALL, HOME=str(tmp_path))
    assert "bash completion installed in" in " ".join(told)
    assert reply == "--version"
    assert "rowferry" in (tmp_path / ".bashrc").read_text()


def begun(command: Any, words: str) -> Iterator[str]:
    """Yield what may stand in front of a tab: the words of a group, or a command and a flag."""
    inner = getattr(command, "commands", None)
    yield f"{words} {'--' if inner is None else ''}"
    for name in inner or ():
        if name != "cli":  # the same ones once more
            yield from begun(inner[name], f"{words} {name}")


def of_zsh(run: Run, monkeypatch: pytest.MonkeyPatch, words: str) -> str:
    monkeypatch.setenv("_ROWFERRY_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    return run().out


def test_what_zsh_is_told_is_quoted_by_its_rules(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = []
    for words in begun(typer.main.get_command(cli.app), "rowferry"):
        replies.append(of_zsh(run, monkeypatch, words))
        name, reply = shlex.split(replies[-1])
        assert name == "_arguments" and ZSH_REPLY.fullmatch(reply), words
    assert len(replies) > 40
    zsh = shutil.which("zsh")
    if zsh is not None:
        script = "_arguments() { : }; _files() { : }; for one in $@; do eval $=one || exit; done"
        done = subprocess.run([zsh, "-f", "-c", script, "zsh", *replies], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_zsh_is_told_verbs_and_a_script_that_asks_for_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.findall(r'"(\w+)":"', of_zsh(run, monkeypatch, "rowferry changefeed re"))
    assert found == ["resume", "remove", "reset", "resnapshot"]
    monkeypatch.setenv("_ROWFERRY_COMPLETE", "source_zsh")
    script = run().out.strip().splitlines()
    assert script[0] == "#compdef rowferry"  # by this line compinit finds the function's file
    assert script[-1] == "compdef _rowferry_completion rowferry"
    assert "_ROWFERRY_COMPLETE=complete_zsh rowferry" in "\n".join(script)


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
