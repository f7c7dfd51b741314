"""The examples of docs/quarantine.md, on a server that runs the changefeed, by every face."""

from __future__ import annotations

import json
import threading
import tomllib
from contextlib import closing
from pathlib import Path

import httpx
from faces_kit import Shell

from page_examples import all_blocks, commands
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.statements.execute import execute
from rowferry.control.operator.statements.tokens import split
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql

PAGE = "quarantine.md"
WITHIN_S = 600.0


def test_a_reader_can_follow_the_page(own_mysql: MySql, tmp_path: Path) -> None:
    shape = "(id int PRIMARY KEY, state varchar(9))"
    own_mysql.script(
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "shop_copy", "shop_meta")),
        *(f"CREATE DATABASE {name}" for name in ("shop", "shop_copy")),
        f"CREATE TABLE shop.orders {shape}",
        f"CREATE TABLE shop_copy.orders {shape}",
        "ALTER TABLE shop_copy.orders ADD CONSTRAINT known CHECK (state NOT IN ('seven', 'odd'))",
        "INSERT INTO shop.orders VALUES (1, 'open'), (7, 'seven'), (8, 'odd')",
    )
    (block,) = (b for b in all_blocks("toml") if b.page == PAGE)
    config = tomllib.loads(block.text) | {
        "filter": {"rules": ["shop.*"]},
        "sink": {"dispatchers": [{"matcher": ["*.*"], "target-schema": "shop_copy"}]},
    }
    config["sink"]["mysql-config"] = {"meta-database": "shop_meta"}
    store, stop = open_store(f"sqlite:///{tmp_path / 'meta.db'}"), threading.Event()
    operations = Operations(store)
    about = About("127.0.0.1:8300", "0.1.0", 0.0, "here")
    operations.create(Wanted(own_mysql.uri, own_mysql.uri, "shop", config))
    pace = FleetPace(every_s=0.05, sample_every_s=0.1)
    member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
    thread = threading.Thread(target=member.run, args=(stop,))

    def parked() -> list[str]:
        return [row.key for row in operations.quarantined("shop")]

    def copied() -> list[tuple[object, ...]]:
        return own_mysql.execute("SELECT id, state FROM shop_copy.orders ORDER BY id")

    with closing(store), serve(create_app(operations, about), "127.0.0.1:0") as serving:
        thread.start()
        try:
            wait_for(lambda: parked() == ["7", "8"], "the rows that are refused", WITHIN_S)
            assert copied() == [("1", "open")]
            shell = Shell(serving.url, tmp_path)
            words = [w for b in all_blocks("sh") if b.page == PAGE for w in commands(b)]
            listing, one_key, every = (line[1:] for line in words)
            listed = json.loads(shell.run(*listing))
            assert [(r["key"], r["op"]) for r in listed] == [("7", "insert"), ("8", "insert")]
            path = f"{serving.url}/api/rowferry/changefeeds/shop/quarantine"
            shown = httpx.get(f"{path}/{listed[0]['row']}").json()
            assert (shown["before"], shown["after"]) == (None, {"id": 7, "state": "seven"})
            own_mysql.script(
                "ALTER TABLE shop_copy.orders DROP CONSTRAINT known",
                "ALTER TABLE shop_copy.orders ADD CONSTRAINT known CHECK (state <> 'odd')",
            )
            assert [r["key"] for r in json.loads(shell.run(*one_key))] == ["8"]
            assert copied() == [("1", "open"), ("7", "seven")]
            own_mysql.script("ALTER TABLE shop_copy.orders DROP CONSTRAINT known")
            assert json.loads(shell.run(*every)) == []
            assert copied() == [("1", "open"), ("7", "seven"), ("8", "odd")]
            own_mysql.script(
                "ALTER TABLE shop_copy.orders ADD CONSTRAINT known CHECK (state <> 'bad')",
                "INSERT INTO shop.orders VALUES (9, 'bad'), (10, 'bad'), (11, 'good')",
            )
            wait_for(lambda: len(parked()) == 2, "two more", WITHIN_S)
            overview = httpx.get(f"{serving.url}/api/rowferry/overview").json()
            assert overview["changefeeds"][0]["state"] == "normal"
            (block,) = (b for b in all_blocks("sql") if b.page == PAGE)
            answers = [execute(operations, statement) for statement in split(block.text)[0]]
            assert [len(a.rows) for a in answers] == [2, 2, 0]
            own_mysql.script("UPDATE shop.orders SET state = 'fine' WHERE id = 9")
            wait_for(lambda: ("9", "fine") in copied(), "a later change of a dropped key", WITHIN_S)
            assert ("10", "bad") not in copied() and ("11", "good") in copied()
            refused = httpx.post(f"{path}/retry", json={"all": True})
            assert (refused.status_code, "RF-1060" in refused.text) == (400, True)
        finally:
            stop.set()
            thread.join(WITHIN_S)
