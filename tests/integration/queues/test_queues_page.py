"""The examples of docs/queues.md, carried out: what readers find in each service is the source."""

from __future__ import annotations

import json
import re
from pathlib import Path

from queue_feed_kit import Queue

from page_examples import all_blocks, carried_out, commands
from rowferry.testing.servers import MySql
from rowferry.testing.servers.queues.amazon import REGION
from rowferry.testing.servers.queues.nats_server import PASSWORD

PAGE = "queues.md"


def test_what_a_reader_finds_is_the_source(own_mysql: MySql, queue: Queue, tmp_path: Path) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(20))",
        "CREATE TABLE shop.notes (id INT PRIMARY KEY, t TEXT)",
        *(f"INSERT INTO shop.orders VALUES ({i}, 'item {i}')" for i in range(40)),
        "INSERT INTO shop.notes VALUES (1, 'naïve 🚢'), (2, NULL)",
    )
    (feed,) = [b for b in all_blocks("toml") if b.page == PAGE]
    topic = f"page{queue.kind}"  # SQS and Kinesis share a server
    (tmp_path / "feed.toml").write_text(feed.text.replace("{schema}_", f"{topic}_"))
    told = [commands(b)[0] for b in all_blocks("sh") if b.page == PAGE]
    (run,) = [words for words in told if any(f"{queue.kind}://" in word for word in words)]
    amazon = f"{REGION}/{topic}?endpoint={getattr(queue.server, 'endpoint', '')}&"
    real = {
        "mysql://cdc:$CDC_PASSWORD@127.0.0.1:3306/": own_mysql.uri,
        "eu-central-1/shop?": amazon,
        "$NATS_PASSWORD": PASSWORD,
        "$RABBITMQ_PASSWORD": PASSWORD,
        "/shop?": f"/{topic}?",
    }
    for port in ("6379", "4222", "5672"):
        real[f"127.0.0.1:{port}"] = queue.server.address
    for written, used in real.items():
        run = [word.replace(written, used) for word in run]
    keys = {"AWS_ACCESS_KEY_ID": "of", "AWS_SECRET_ACCESS_KEY": "tests"}
    printed = carried_out(run, tmp_path, **keys)
    assert re.search(r"^done: 42 rows", printed, re.MULTILINE)
    found: dict[str, dict[str, dict[str, str]]] = {"orders": {}, "notes": {}}
    for name in (topic, f"{topic}_orders"):
        for message in queue.read_all(name):
            told_of = json.loads(message.value or b"{}")
            if told_of["type"] == "INSERT":
                assert told_of["table"] == ("orders" if name.endswith("_orders") else "notes")
                found[told_of["table"]] |= {row["id"]: row for row in told_of["data"]}
    assert len(found["orders"]) == 40
    assert found["notes"]["1"]["t"] == "naïve 🚢"
