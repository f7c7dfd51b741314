"""The examples of docs/mysql.md, carried out on both servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from page_examples import Block, all_blocks, carried_out, commands
from rowferry.mysql.session import Flavour
from rowferry.testing.servers import Server

WRITTEN = "mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/"


def blocks(language: str) -> list[Block]:
    return [b for b in all_blocks(language) if b.page == "mysql.md"]


def test_a_reader_can_follow_the_page(source_server: Server, tmp_path: Path) -> None:
    database = f"page_{tmp_path.name[-20:].replace('-', '_')}"
    source_server.script(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10))",
        f"INSERT INTO {database}.t VALUES (1, 'one'), (2, 'two')",
        "DROP USER IF EXISTS cdc@'%'",
    )
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{database}.*']\n")
    for block in blocks("sql"):
        text = block.text
        if source_server.flavour is Flavour.MARIADB:  # as the page says below the statements
            text = text.replace("REPLICATION CLIENT", "BINLOG MONITOR")
        source_server.script(*(s.strip() for s in text.split(";") if s.strip()))
    uri = f"mysql://cdc:choose-one@127.0.0.1:{source_server.port}/"
    said = []
    for words in (w for b in blocks("sh") for w in commands(b)):
        words = [w.replace(WRITTEN, uri).replace("$PWD", str(tmp_path)) for w in words]
        assert words[:2] == ["rowferry", "run"]
        printed = carried_out([*words, "--config", str(config)], tmp_path, CDC_PASSWORD="")
        assert "choose-one" not in printed
        said.append(printed)
    assert re.search(r"^done: 2 rows", said[0], re.MULTILINE)
    assert re.search(r"^done: 0 rows", said[1], re.MULTILINE)
    assert list((tmp_path / "shop").glob(f"{database}/t/*/*/CDC*.json"))


def test_the_flags_that_the_page_lists_are_there() -> None:
    text = (Path(__file__).parents[3] / "docs" / "mysql.md").read_text()
    listed = set(re.findall(r"`(--[a-z-]+)", text))
    done = subprocess.run(
        [sys.executable, "-m", "rowferry", "run", "--help"],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed
    assert [flag for flag in sorted(listed) if flag not in done.stdout] == []
