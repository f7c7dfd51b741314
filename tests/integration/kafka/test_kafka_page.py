"""The examples of docs/kafka.md, carried out: what was applied equals the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from page_examples import Block, all_blocks, carried_out, commands
from rowferry.testing.servers import Kafka, MariaDb, MySql, SchemaRegistryServer

TABLES = ("orders", "notes")


def blocks(language: str) -> list[Block]:
    return [b for b in all_blocks(language) if b.page == "kafka.md"]


def content(server: MySql | MariaDb) -> dict[str, list[tuple[str | bytes | None, ...]]]:
    return {t: server.execute(f"SELECT * FROM shop.{t} ORDER BY 1") for t in TABLES}


@pytest.mark.parametrize(
    "place",
    range(5),
    ids=["canal-json", "open-protocol", "avro", "debezium-avro", "exactly-once"],
)
def test_what_a_reader_applies_equals_the_source(
    place: int,
    own_mysql: MySql,
    own_mariadb: MariaDb,
    kafka_broker: Kafka,
    schema_registry: SchemaRegistryServer,
    tmp_path: Path,
) -> None:
    tables = (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20) NOT NULL, price "
        "DECIMAL(10,2), at DATETIME(3))",
        "CREATE TABLE shop.notes (a INT, b VARCHAR(10), t TEXT, PRIMARY KEY (a, b))",
    )
    own_mariadb.script(*tables)
    own_mysql.script(
        *tables,
        *(
            f"INSERT INTO shop.orders VALUES ({i}, 'item {i}', {i}.25, '2026-01-01 10:00:{i % 60}')"
            for i in range(40)
        ),
        "INSERT INTO shop.notes VALUES (1, 'x', 'naïve 🚢'), (2, 'y', NULL), (3, 'z', '')",
    )
    for name, block in zip(
        ("feed.toml", "avro.toml", "debezium.toml"), blocks("toml"), strict=True
    ):
        (tmp_path / name).write_text(block.text)
    told = {
        "mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/": own_mysql.uri,
        "mysql://copy:$COPY_PASSWORD@127.0.0.1:3307/": own_mariadb.uri,
        "127.0.0.1:9092": kafka_broker.bootstrap,
        "http://127.0.0.1:8081": schema_registry.url,
    }
    run, consume = commands(blocks("sh")[place])

    def follow(words: list[str]) -> str:
        for written, real in told.items():
            words = [w.replace(written, real) for w in words]
        return carried_out(words, tmp_path)

    assert re.search(r"^done: 43 rows", follow(run), re.MULTILINE)
    own_mysql.script(
        "UPDATE shop.orders SET price = price + 1, item = 'dearer' WHERE id < 20",
        "DELETE FROM shop.orders WHERE id BETWEEN 5 AND 9",
        "UPDATE shop.notes SET b = 'moved' WHERE a = 3",
        *(["ALTER TABLE shop.notes ADD COLUMN more INT DEFAULT 7"] if place < 2 else []),
        "INSERT INTO shop.notes (a, b) VALUES (4, 'new')",
    )
    follow(run)
    said = follow(consume)
    assert re.search(r" 0 violations", said)
    assert content(own_mariadb) == content(own_mysql)
