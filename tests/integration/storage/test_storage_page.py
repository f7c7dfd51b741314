"""The example of docs/storage.md, carried out on a real S3 server."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import Minio, MySql

WRITTEN = "mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/"


def test_a_reader_can_follow_the_page(
    mysql_server: MySql, s3_server: Minio, tmp_path: Path
) -> None:
    mysql_server.script(
        "DROP DATABASE IF EXISTS lake_page",
        "CREATE DATABASE lake_page",
        "CREATE TABLE lake_page.t (id INT PRIMARY KEY, v VARCHAR(10))",
        "INSERT INTO lake_page.t VALUES (1, 'one'), (2, 'two')",
    )
    config = tmp_path / "feed.toml"
    config.write_text("[filter]\nrules = ['lake_page.*']\n")
    ((words,),) = (commands(b) for b in all_blocks("sh") if b.page == "storage.md")
    place = words.index("--sink-uri") + 1
    asked = parse_qs(urlsplit(words[place]).query)
    assert words[place].startswith("s3://lake/shop?")
    told = {k: v[0] for k, v in asked.items() if k != "region"}
    uri = s3_server.uri("page", **told)
    words = [w.replace(WRITTEN, mysql_server.uri) for w in words]
    words[place] = uri

    def follow(*line: str) -> str:
        printed = carried_out(line, tmp_path)
        assert s3_server.password not in printed
        return printed

    said = follow(*words, "--config", str(config), "--until", "caught-up")
    assert re.search(r"^done: 2 rows", said, re.MULTILINE)
    checked = follow("rowferry", "check-storage", uri, "--config", str(config))
    assert "lake_page" not in checked  # no violation names a path
