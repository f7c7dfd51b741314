"""The examples of the pages, carried out: shell commands and Python, on a real store with Spark.

All pages share one store and one folder, as a reader has who follows them one after the other. The
store is started by the fixture, so the commands that start servers are not run again; neither are
commands that repeat a whole run with other Spark settings, nor `make`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from page_examples import ROOT, Block, all_blocks, commands, table_rows

from rowferry.refstore.cluster import LocalCluster

MASTER = "127.0.0.1:4400"
ORDER = ("README.md", "running.md", "reference-store.md", "guarantees.md", "adding-a-codec.md")


@dataclass
class Reader:
    """Someone who tries what the pages say: a folder, a store, one Python session for each page."""

    folder: Path
    master: str

    def shell(self, block: Block) -> str:
        """Run a block's commands as a script that ends at the first failure; returns its output."""
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-e", "-c", self.here(block)],
            cwd=self.folder / "home",
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}: {done.stdout[-2000:]}"
        return done.stdout

    def here(self, block: Block) -> str:
        """Return a block's text for this store."""
        return block.text.replace(MASTER, self.master)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "home").mkdir()
    (folder / "bin").mkdir()
    command = folder / "bin" / "rowferry"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rowferry "$@"\n')
    command.chmod(0o755)
    with LocalCluster(folder / "store", data_servers=2) as cluster:
        yield Reader(folder, cluster.master_address)


def is_run(block: Block) -> bool:
    """Return whether a block is carried out; `tests/arch` checks all of them against the command."""
    if block.language == "python":
        return True
    text = " ".join(" ".join(words) for words in commands(block))
    left_out = ("make ", "refstore master", "refstore data", "--spark-master")
    return not any(words in text for words in left_out)


def steps() -> list[Block]:
    """Return all blocks that are carried out, in the order in which a reader meets them."""
    found = [b for b in all_blocks("sh", "python") if is_run(b)]
    return sorted(found, key=lambda b: (ORDER.index(b.page), b.line))


@pytest.mark.timeout(600)
def test_a_reader_can_follow_the_pages(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    home = reader.folder / "home"
    monkeypatch.chdir(home)
    (config,) = (b for b in all_blocks("toml") if b.page == "running.md")
    (home / "feed.toml").write_text(config.text)
    sessions: dict[str, dict[str, Any]] = {}
    said: list[str] = []
    for block in steps():
        if block.language == "python":
            session = sessions.setdefault(block.page, {"__name__": "page"})
            exec(compile(reader.here(block), str(block), "exec"), session)
        else:
            said.append(reader.shell(block))
    runs = [text for text in said if "checkpoint-ts" in text]
    assert len(runs) == 3
    for text in runs:
        assert re.search(r"^changefeed .* to file:///", text, re.MULTILINE)
        assert re.search(r"^done: [1-9][\d,]* rows", text, re.MULTILINE)
    _check_files(home)


def _check_files(home: Path) -> None:
    """Check that what the page lists has appeared, and nothing else."""
    rows = table_rows((ROOT / "docs" / "running.md").read_text(), "file|content")
    listed = {name.strip("`").replace("<id>", "bank-files") for name, _ in rows}
    assert all((home / name).is_file() for name in listed)
    there = {p.relative_to(home).as_posix() for p in home.glob(".rowferry/**/*") if p.is_file()}
    assert {name for name in there if "to-file" not in name} == listed
    assert {p.name for p in home.iterdir()} == {".rowferry", "feed.toml", "files", "out"}
    assert {p.name for p in (home / "out").iterdir() if p.name.startswith("rowferry.")} <= {
        "rowferry.owner",
        "rowferry.lock",
        "rowferry.tmp",
    }
    assert list((home / "files").glob("bank/accounts/*/*/CDC*.csv"))
