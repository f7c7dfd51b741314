"""The examples of the pages, carried out: shell commands and Python, on a real store with Spark.

All pages share one store and one folder, as a reader has who follows them one after the other. The
store and a server's REST interface are started by the fixture, so the commands that start servers
are not run again; neither are a command that was run already, a whole run with other Spark
settings, nor `make`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from page_examples import ROOT, Block, all_blocks, carried_out, commands, table_rows
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.face.cli.main import app
from rowferry.face.rest.app import About, create_app
from rowferry.face.rest.serving import serve
from rowferry.refstore.cluster import LocalCluster

COMMANDS = CliRunner()
MASTER = "127.0.0.1:4400"
ORDER = (
    "README.md",
    "running.md",
    "reference-store.md",
    "guarantees.md",
    "adding-a-codec.md",
    "adding-a-sink.md",
    "adding-a-source.md",
    "spark.md",
    "performance.md",
)


@dataclass
class Reader:
    """Someone who tries what the pages say: a folder, a store, one Python session for each page."""

    folder: Path
    master: str

    def run(self, words: list[str]) -> str:
        """Carry out one command in the folder; returns what it printed."""
        command = [w.replace(MASTER, self.master).replace("$PWD", str(self.folder)) for w in words]
        if command[1] != "run":  # in this process: a new one would import everything again
            result = COMMANDS.invoke(app, command[1:])
            assert result.exit_code == 0, f"{words}: {result.output}"
            return result.output
        return carried_out(command, self.folder)

    def execute(self, block: Block, session: dict[str, Any]) -> None:
        """Carry out Python in the session of its page."""
        exec(compile(block.text.replace(MASTER, self.master), str(block), "exec"), session)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    store = tmp_path_factory.mktemp("store")
    meta = open_store(f"sqlite:///{store}/meta.db")
    page = create_app(Operations(meta), About("here", "0", 0.0, "one"))
    with (
        LocalCluster(store, data_servers=2) as cluster,
        closing(meta),
        serve(page, "127.0.0.1:0") as served,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("ROWFERRY_SERVER", served.url)
        yield Reader(tmp_path_factory.mktemp("reader"), cluster.master_address)


def is_left_out(words: list[str]) -> bool:
    """Return whether a command is not carried out; `tests/arch` checks the words of all of them."""
    serves = words[1:3] in (["refstore", "master"], ["refstore", "data"]) or words[1] == "server"
    return words[0] != "rowferry" or serves or "--spark-master" in words


def test_a_reader_can_follow_the_pages(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader.folder)
    (config,) = (b for b in all_blocks("toml") if b.page == "running.md")
    (reader.folder / "feed.toml").write_text(config.text)
    sessions: dict[str, dict[str, Any]] = {}
    said: dict[str, str] = {}
    # Some pages have a test of their own, with their servers.
    own = {p.stem[5:-5] + ".md" for p in (ROOT / "tests").rglob("test_*_page.py")} - set(ORDER)
    mine = [b for b in all_blocks("sh", "python") if b.page not in own]
    for block in sorted(mine, key=lambda b: (ORDER.index(b.page), b.line)):
        if block.language == "python":
            reader.execute(block, sessions.setdefault(block.page, {"__name__": "page"}))
            continue
        for words in commands(block):
            line = " ".join(words)
            if not is_left_out(words) and line not in said:
                said[line] = reader.run(words)
    (progress,) = (text for line, text in said.items() if line.startswith("rowferry sql"))
    assert "range" in progress or "bank" in progress
    runs = [text for line, text in said.items() if line.startswith("rowferry run")]
    assert len(runs) == 3
    for text in runs:
        assert re.search(r"^changefeed .* to file:///", text, re.MULTILINE)
        assert re.search(r"^done: [1-9][\d,]* rows", text, re.MULTILINE)
    _check_files(reader.folder)


def _check_files(home: Path) -> None:
    """Check that what the page lists has appeared, and nothing else."""
    rows = table_rows((ROOT / "docs" / "running.md").read_text(), "file|content")
    listed = {name.strip("`").replace("<id>", "bank-files") for name, _ in rows}
    of_spark = {name for name in listed if "spark" in name or "log4j" in name}
    assert len(of_spark) == 3  # there or not, as Spark was started or not
    listed -= of_spark
    assert all((home / name).is_file() for name in listed)
    there = {p.relative_to(home).as_posix() for p in home.glob(".rowferry/**/*") if p.is_file()}
    beside = ("-wal", "-shm")  # SQLite's, where somebody looked into the database
    others = ("to-file", "bank-one")  # the first changefeed, and the one that was removed
    mine = {n for n in there if not n.endswith(beside) and not any(o in n for o in others)}
    assert mine - of_spark == listed and mine & of_spark in (set(), of_spark)
    made = {"feed.toml", "sample.toml", "files", "one", "out"}
    assert {p.name for p in home.iterdir()} == {".rowferry", *made}
    assert {p.name for p in (home / "out").iterdir() if p.name.startswith("rowferry.")} <= {
        "rowferry.owner",
        "rowferry.lock",
        "rowferry.tmp",
    }
    assert list((home / "files").glob("bank/accounts/*/*/CDC*.csv"))
