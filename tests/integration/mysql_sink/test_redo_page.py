"""The examples of docs/redo.md, carried out."""

from __future__ import annotations

import json
from pathlib import Path

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import MariaDb, MySql

PAGE = "redo.md"


def test_a_reader_keeps_a_log_and_looks(
    own_mysql: MySql, own_mariadb: MariaDb, tmp_path: Path
) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS redone",
        "CREATE DATABASE redone",
        "CREATE TABLE redone.t (id INT PRIMARY KEY, w VARCHAR(20))",
        "INSERT INTO redone.t VALUES (1, 'one'), (2, 'two')",
    )
    own_mariadb.script("DROP DATABASE IF EXISTS redone", "DROP DATABASE IF EXISTS tidb_cdc")
    own_mariadb.execute("CREATE DATABASE redone")
    (block,) = [b for b in all_blocks("toml") if b.page == PAGE]
    place = f"file://{tmp_path}/redo"
    settings = block.text.replace("s3://backup/redo?region=eu-west-1", place)
    (tmp_path / "feed.toml").write_text(f"[filter]\nrules = ['redone.*']\n{settings}")
    sink = f"{own_mariadb.uri}?create-tables=true"
    arguments = ["--source", own_mysql.uri, "--sink-uri", sink, "--config", "feed.toml"]
    carried_out(["rowferry", "run", *arguments, "-c", "page", "--until", "caught-up"], tmp_path)
    (block,) = [b for b in all_blocks("sh") if b.page == PAGE]
    meta, apply = (
        [
            word.replace("file:///mnt/redo", place).replace(
                "mysql://copy:$COPY_PASSWORD@127.0.0.1:3307/", own_mariadb.uri
            )
            for word in words
        ]
        for words in commands(block)
    )
    told = json.loads(carried_out([*meta, "--json"], tmp_path))
    assert told["changefeed"] == "page"
    assert told["checkpoint_ts"] == told["resolved_ts"] > 0
    shown = carried_out(meta, tmp_path)
    assert f"checkpoint-ts  {told['checkpoint_ts']} (20" in shown
    assert f"resolved-ts    {told['resolved_ts']} (20" in shown
    written = carried_out(apply, tmp_path)
    assert f"has everything up to commit-ts {told['resolved_ts']} (20" in written
    assert len(own_mariadb.execute("SELECT * FROM redone.t")) == 2
