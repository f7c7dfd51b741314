"""The example of docs/search.md, carried out, killed in the middle and run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_examples import all_blocks, commands
from rowferry.errors import SourceUnavailable
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.receiver import ReceiverFault
from rowferry.testing.search_front import SearchFront
from rowferry.testing.servers import MySql, OpenSearch

PAGE = "search.md"
INDEX = "prod-shop-orders"
ROWS = 3000
PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    first, *_ = [b for b in all_blocks("toml") if b.page == PAGE]
    (tmp_path / "search.toml").write_text(first.text)
    (block,) = [b for b in all_blocks("sh") if b.page == PAGE]
    ((name, verb, *words),) = commands(block)
    assert (name, verb) == ("rowferry", "run")
    words[words.index("--config") + 1] = str(tmp_path / "search.toml")
    return [*words, "--meta", f"sqlite:///{tmp_path}/meta.db"]


def test_a_reader_gets_an_index_also_after_a_kill(
    own_mysql: MySql, opensearch_server: OpenSearch, arguments: list[str], tmp_path: Path
) -> None:
    opensearch_server.ask("DELETE", f"/{INDEX},rowferry-ownership?ignore_unavailable=true")
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, note varchar(40))",
        "SET SESSION cte_max_recursion_depth = 1000000",
        "INSERT INTO shop.orders WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
        f"WHERE i < {ROWS}) SELECT i, CONCAT('n', i) FROM n",
    )

    def some() -> bool:
        try:
            return len(opensearch_server.documents(INDEX)) == 600
        except SourceUnavailable:  # there is no index yet
            return False

    with SearchFront(opensearch_server.address) as front:
        for written, real in (
            ("mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/", own_mysql.uri),
            ("127.0.0.1:9200", front.address),
        ):
            arguments = [word.replace(written, real) for word in arguments]
        # Three requests are taken; the answers to all others never come.
        front.faults.extend([None] * 3 + [ReceiverFault.SILENCE] * 1000)
        with RunProcess(arguments, tmp_path / "first") as process:
            wait_for(some, "the first documents", PATIENCE_S)
            process.kill()
        front.faults.clear()
        own_mysql.script(
            "DELETE FROM shop.orders WHERE id % 3 = 0",
            "UPDATE shop.orders SET note = 'new' WHERE id % 3 = 1",
        )
        with RunProcess(arguments, tmp_path / "second") as process:
            assert process.wait(PATIENCE_S) == 0, process.printed()
    rows = own_mysql.execute("SELECT id, note FROM shop.orders")
    wanted = {str(key): str(note) for key, note in rows}
    found = {k: d["note"] for k, d in opensearch_server.documents(INDEX).items()}
    assert found == wanted and len(wanted) == ROWS - ROWS // 3
    opensearch_server.ask("DELETE", f"/{INDEX},rowferry-ownership")
