"""The examples of docs/cli.md, carried out on a server in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from faces_kit import Shell, stored

from page_examples import ROOT, all_blocks, commands, table_rows
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.cli import main as cli
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.refstore.cluster import LocalCluster

PAGE = "cli.md"


def test_a_reader_can_follow_the_page(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = (b for b in all_blocks("toml") if b.page == PAGE)
    (tmp_path / "feed.toml").write_text(config.text)
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    operations = Operations(store)
    about = About("127.0.0.1:8300", "0.1.0", 0.0, "here")
    said: dict[str, str] = {}
    with (
        LocalCluster(tmp_path / "store", 1) as cluster,
        serve(create_app(operations, about), "127.0.0.1:0") as serving,
    ):
        with cluster.store() as source:
            for name in ("bank", "audit"):
                source.ddl(f"CREATE DATABASE {name}")
                source.ddl(f"CREATE TABLE {name}.t (id bigint PRIMARY KEY)")
        shell = Shell(serving.url, tmp_path)
        for words in (w for b in all_blocks("sh") if b.page == PAGE for w in commands(b)):
            changed = [
                word.replace("127.0.0.1:4400", cluster.master_address)
                .replace("http://127.0.0.1:8300", serving.url)
                .replace("$PWD", str(tmp_path))
                for word in words
            ]
            assert changed[0] == "rowferry"
            said[" ".join(words[1:])] = shell.run(*changed[1:])
            verb = words[2]
            if verb == "create" and "--dry-run" not in words:
                (created,) = stored(operations)
                assert created["spec"]["config"]["filter"] == {"rules": ["bank.*"]}
            if verb == "update":
                assert stored(operations)[0]["spec"]["sink"].endswith("flush-interval=2s")
    store.close()
    assert '"audit.*"' in said["changefeed tables -c bank --add audit.*"]
    assert '"audit.*"' not in said["changefeed tables -c bank"]
    assert said["changefeed remove -c bank"].startswith("Changefeed remove successfully.\nID: bank")
    assert int(said["tso query"]) > 0
    assert stored(operations) == []


def test_every_command_is_on_the_page() -> None:
    rows = table_rows((ROOT / "docs" / PAGE).read_text(), "command|what it does")
    named = {name.strip("`").removeprefix("rowferry ") for name, _ in rows}
    root: Any = typer.main.get_command(cli.app)
    groups = ("changefeed", "capture", "processor", "tso")
    found = _verbs(root, groups)
    assert named == found | {"sql", "trace", "apply", "export"}
    inner = root.commands["cli"]
    assert set(inner.commands) == {*groups, "sql", "trace"}
    assert _verbs(inner, groups) == found


def _verbs(command: Any, names: Iterable[str]) -> set[str]:
    """Return the commands below those of these names, each with all of its words."""
    verbs = set()
    for name in names:
        below = getattr(command.commands[name], "commands", {})
        verbs |= {f"{name} {verb}" for verb in _verbs(command.commands[name], below)}
        verbs |= set() if below else {name}
    return verbs
