"""The example of docs/pulsar.md, carried out: what a reader finds in the topics is the source."""

from __future__ import annotations

import json
import re
from pathlib import Path

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import MySql, Pulsar


def test_what_a_reader_finds_is_the_source(
    own_mysql: MySql, pulsar_broker: Pulsar, tmp_path: Path
) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20))",
        "CREATE TABLE shop.notes (id INT PRIMARY KEY, t TEXT)",
        *(f"INSERT INTO shop.orders VALUES ({i}, 'item {i}')" for i in range(40)),
        "INSERT INTO shop.notes VALUES (1, 'naïve 🚢'), (2, NULL)",
    )
    (feed,) = [b for b in all_blocks("toml") if b.page == "pulsar.md"]
    (block,) = [b for b in all_blocks("sh") if b.page == "pulsar.md"]
    (tmp_path / "feed.toml").write_text(feed.text)
    namespace = pulsar_broker.make_namespace("page")
    (run,) = commands(block)
    for written, real in {
        "mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/": own_mysql.uri,
        "127.0.0.1:6650": pulsar_broker.address,
        "http://127.0.0.1:8080": pulsar_broker.web_url,
        "public/default": namespace,
    }.items():
        run = [word.replace(written, real) for word in run]
    (tmp_path / "feed.toml").write_text(feed.text.replace("public/default", namespace))
    printed = carried_out(run, tmp_path)
    assert re.search(r"^done: 42 rows", printed, re.MULTILINE)
    assert pulsar_broker.topics(namespace) == {"shop": 3, "shop_orders": 3}
    found: dict[str, dict[str, str]] = {"orders": {}, "notes": {}}
    for topic in ("shop", "shop_orders"):
        for message in pulsar_broker.read_all(topic, namespace):
            told = json.loads(message.value or b"{}")
            if told["type"] == "INSERT":
                assert told["table"] == ("orders" if topic == "shop_orders" else "notes")
                found[told["table"]] |= {row["id"]: row for row in told["data"]}
    assert len(found["orders"]) == 40
    assert found["notes"]["1"]["t"] == "naïve 🚢"
