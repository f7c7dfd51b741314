"""The example of docs/postgresql.md, carried out, killed in the middle, run again and verified."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from page_examples import all_blocks, commands
from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import MySql, Postgres

PAGE = "postgresql.md"
ROWS = 12_000
PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (first,) = [b for b in all_blocks("toml") if b.page == PAGE]
    (tmp_path / "postgresql.toml").write_text(first.text)
    (block,) = [b for b in all_blocks("sh") if b.page == PAGE]
    ((name, verb, *words),) = commands(block)
    assert (name, verb) == ("rowferry", "run")
    words[words.index("--config") + 1] = str(tmp_path / "postgresql.toml")
    return [*words, "--meta", f"sqlite:///{tmp_path}/meta.db"]


def test_a_reader_gets_the_same_tables_also_after_a_kill(
    own_mysql: MySql, postgres_server: Postgres, arguments: list[str], tmp_path: Path
) -> None:
    postgres_server.execute("DROP DATABASE IF EXISTS copy WITH (FORCE)")
    postgres_server.execute("CREATE DATABASE copy")
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, note varchar(40), at datetime(3), "
        "spent time, amount decimal(9,2), raw varbinary(9), flags bit(5), kind enum('a','b'), "
        "doc json, big bigint unsigned, f float)",
        "SET SESSION cte_max_recursion_depth = 1000000",
        "INSERT INTO shop.orders WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
        f"WHERE i < {ROWS}) SELECT i, IF(i % 7, CONCAT('n\\t\\n\"', i), NULL), '2024-02-29 "
        "01:02:03.5', SEC_TO_TIME(i - 6000), i / 100, CHAR(i % 256, 0), i % 32, 1 + i % 2, "
        "JSON_OBJECT('i', i), 18446744073709551615 - i, i / 3 FROM n",
    )
    real = postgres_server.url("copy")
    for written, there in (
        ("mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/", own_mysql.uri),
        ("postgresql://rowferry:$PG_PASSWORD@127.0.0.1:5432/copy", f"{real}?max-txn-row=500"),
    ):
        assert any(written in word for word in arguments)
        arguments = [word.replace(written, there) for word in arguments]

    def some() -> bool:
        there = "SELECT count(*) FROM pg_tables WHERE schemaname = 'shop'"
        if postgres_server.execute(there, "copy") == [(0,)]:
            return False
        return postgres_server.execute("SELECT count(*) > 2000 FROM shop.orders", "copy") == [
            (True,)
        ]

    with RunProcess(arguments, tmp_path / "first") as process:
        wait_for(some, "the first rows", PATIENCE_S)
        process.kill()
    own_mysql.script(
        "DELETE FROM shop.orders WHERE id % 3 = 0",
        "UPDATE shop.orders SET note = 'new' WHERE id % 3 = 1",
    )
    with RunProcess(arguments, tmp_path / "second") as process:
        assert process.wait(PATIENCE_S) == 0, process.printed()
    sides = open_side(own_mysql.uri, 10_000), open_side(real, 10_000)
    request = VerifyRequest(Names.of(["shop.*"], ()))
    (result,) = verify(*sides, request, ThreadRunner(2))
    assert result.is_equal and result.rows == (ROWS - ROWS // 3,) * 2, result
    postgres_server.execute("UPDATE shop.orders SET doc = '{}' WHERE id = 4", "copy")
    (result,) = verify(*sides, request, ThreadRunner(2))
    assert (result.changed, result.columns, result.only) == (1, {"doc": 1}, [0, 0])
    assert urlsplit(real).password not in str(sides[1])
