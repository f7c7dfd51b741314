"""The examples of docs/consume.md, carried out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from consume_kit import Changefeed
from run_kit import call

from page_examples import ROOT, all_blocks, commands
from rowferry.testing.servers import Kafka, MariaDb, MySql

PAGE = "consume.md"
BROKER = "127.0.0.1:9092"
COPY = "mysql://copy:$COPY_PASSWORD@127.0.0.1:3306/"
DIGITS = re.compile(r"\d{10,}|\[\d\]@\d+")


def test_a_reader_can_follow_the_page(
    own_mysql: MySql,
    own_mariadb: MariaDb,
    kafka_broker: Kafka,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for server in (own_mysql, own_mariadb):
        server.execute("DROP DATABASE IF EXISTS shop")
    own_mysql.script(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20))",
        "INSERT INTO shop.orders VALUES (1, 'tea')",
    )
    config = tmp_path / "feed.toml"
    config.write_text('[filter]\nrules = ["shop.*"]\n')
    shell = [words for b in all_blocks("sh") if b.page == PAGE for words in commands(b)]
    real = {BROKER: kafka_broker.bootstrap, "$PWD": str(tmp_path), COPY: own_mariadb.uri}
    shell = [[_replaced(word, real) for word in words] for words in shell]
    feeds = [
        Changefeed(tmp_path, f"page-{n}", own_mysql.uri, words[2], config)
        for n, words in enumerate((shell[0], shell[2]))
    ]
    for feed in feeds:
        feed.catch_up()
    own_mysql.execute("UPDATE shop.orders SET item = 'milk' WHERE id = 1")
    for feed in feeds:
        feed.catch_up()
        feed.close()
    said = []
    for typed in shell:
        found = call(tmp_path, capfd, monkeypatch, typed[1:])
        assert found.code == 0, found.err
        said.append(found)
        if "--apply" in typed:
            rows = own_mariadb.execute("SELECT id, item FROM shop.orders")
            assert rows == [("1", "milk")]
            own_mariadb.execute("DROP DATABASE shop")

    text = (ROOT / "docs" / PAGE).read_text()
    (shown,) = (b.text for b in all_blocks("text") if b.page == PAGE)
    assert shape(said[0].out) == shape(shown)
    assert [json.loads(r)["after"]["item"] for r in said[0].out.splitlines()] == ["tea", "milk"]
    summaries = re.findall(r"^    (\d+ rows, .*)$", text, re.MULTILINE)
    assert [shape(s) for s in summaries] == [shape(s.err.strip()) for s in said[:2]]


def _replaced(word: str, real: dict[str, str]) -> str:
    for written, found in real.items():
        word = word.replace(written, found)
    return word


def shape(text: str) -> str:
    """Return a text without what differs from run to run."""
    return DIGITS.sub("…", text)
