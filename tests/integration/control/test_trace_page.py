"""The examples of docs/trace.md, on a server that runs the changefeed, by every face."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from faces_kit import Shell
from playwright.sync_api import Locator, Page, expect
from web_kit import started_browser

from page_examples import all_blocks, commands
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.actor import Actor, Role, current_actor
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.statements.execute import execute
from rowferry.control.operator.statements.tokens import split
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RoleTooLow
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql

PAGE = "trace.md"
WITHIN_S = 600.0
OPS = ["snapshot", "update", "delete"]
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@dataclass
class Desk:
    """A changefeed that has delivered the changes of the page's rows, and the server's address."""

    operations: Operations
    url: str

    def get(self, **asked: Any) -> httpx.Response:
        return httpx.get(f"{self.url}/api/v2/changefeeds/shop/trace", params=asked, timeout=120)


@pytest.fixture(scope="module")
def desk(own_mysql: MySql, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("trace")
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, note varchar(20))",
        "CREATE TABLE shop.lines (order_id int, line int, n int, PRIMARY KEY (order_id, line))",
        "INSERT INTO shop.orders VALUES (4, 'other'), (5, 'first')",
        "INSERT INTO shop.lines VALUES (5, 1, 10), (5, 2, 20)",
    )
    stop = threading.Event()
    store = open_store(f"sqlite:///{folder / 'meta.db'}")
    operations = Operations(store)
    about = About("127.0.0.1:8300", "0.1.0", 0.0, "here")
    query = "protocol=canal-json&enable-tidb-extension=true&flush-interval=50ms"
    rules = {"filter": {"rules": ["shop.*"]}}
    operations.create(Wanted(own_mysql.uri, f"file://{folder}/out?{query}", "shop", rules))
    pace = FleetPace(every_s=0.05, sample_every_s=0.1)
    member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
    thread = threading.Thread(target=member.run, args=(stop,))
    with closing(store), serve(create_app(operations, about), "127.0.0.1:0") as serving:
        found, traced = Desk(operations, serving.url), {"table": "shop.orders", "key": "id=5"}

        def come(changes: int) -> None:
            def there() -> bool:
                answer = found.get(**traced)
                return answer.is_success and len(answer.json()["changes"]) == changes

            wait_for(there, f"{changes} changes", WITHIN_S)

        thread.start()
        try:
            come(1)
            own_mysql.script("UPDATE shop.orders SET note = 'second' WHERE id = 5")
            come(2)
            own_mysql.script("DELETE FROM shop.orders WHERE id = 5")
            come(3)
            yield found
        finally:
            stop.set()
            thread.join(WITHIN_S)


def test_a_reader_can_follow_the_page(desk: Desk, tmp_path: Path) -> None:
    shell = Shell(desk.url, tmp_path)
    plain, log, lines, rows = (
        shell.run(*words[1:])
        for block in all_blocks("sh")
        if block.page == PAGE
        for words in commands(block)
    )
    cells = [line.split("\t") for line in plain.splitlines()]
    assert cells[0] == ["time", "op", "commit-ts", "micro-batch", "log", "place"]
    assert [row[1] for row in cells[1:]] == OPS
    assert all(".json row " in row[5] for row in cells[1:])
    table = [line.split("\t") for line in log.splitlines()]
    assert table[0][-1] == "gtid"
    assert [len(row[-1].split(":")) for row in table[2:]] == [2, 2]
    assert [line.split("\t")[1] for line in lines.splitlines()[1:]] == ["snapshot"]
    changes = json.loads(rows)["changes"]
    assert [one["op"] for one in changes] == OPS
    assert [one["after"] and one["after"]["note"] for one in changes] == ["first", "second", None]

    (block,) = (b for b in all_blocks("sql") if b.page == PAGE)
    first, second = (execute(desk.operations, one) for one in split(block.text)[0])
    assert first.columns[2] == "op" and [row[2] for row in first.rows] == OPS
    assert "before" not in first.columns
    assert second.columns[-2:] == ("before", "after")
    assert json.loads(second.rows[0][-1]) == {"order_id": 5, "line": 1, "n": 10}


def test_over_http_places_are_for_all_and_rows_for_operators(desk: Desk) -> None:
    asked = {"table": "shop.orders", "key": "id=5"}
    answer = desk.get(**asked, log="true").json()
    assert [one["op"] for one in answer["changes"]] == OPS
    assert not any({"before", "after"} & one.keys() for one in answer["changes"])
    with_rows = desk.get(**asked, values="true").json()["changes"]
    assert with_rows[1]["after"] == {"id": 5, "note": "second"}
    for wrong, code in (
        ({"table": "shop.nobody", "key": "id=5"}, "RF-1009"),
        ({"table": "shop.orders", "key": "note=5"}, "RF-1044"),
        ({"table": "shop.orders", "key": "id"}, "RF-1044"),
        ({"table": "shop.orders", "key": "id=five"}, "RF-1044"),
        ({"table": "shop.orders", "key": "id=5", "limit": "0"}, "RF-1044"),
    ):
        refused = desk.get(**wrong)
        assert (refused.status_code, code in refused.text) == (400, True), wrong
    unknown = httpx.get(f"{desk.url}/api/v2/changefeeds/nobody/trace", params=asked)
    assert unknown.status_code == 400
    statement = "TRACE CHANGEFEED shop TABLE shop.orders KEY (id = 5)"
    token = current_actor.set(Actor("watcher", Role.VIEWER, "10.0.0.1", "rest"))
    try:
        assert len(execute(desk.operations, statement).rows) == 3
        with pytest.raises(RoleTooLow):
            execute(desk.operations, f"{statement} WITH VALUES")
    finally:
        current_actor.reset(token)


def test_the_page_has_a_panel(desk: Desk) -> None:
    with started_browser() as browser:
        page = browser.new_page()
        page.goto(f"{desk.url}/#/changefeed/shop")
        panel = page.get_by_role("region", name="Trace a row")
        panel.get_by_label("Table").fill("shop.orders")
        panel.get_by_label("Key").fill("id=5")
        panel.get_by_label("look transactions up").check()
        panel.get_by_label("show the rows").check()
        panel.get_by_role("button", name="Trace").click()
        lines = panel.locator("tbody tr")
        expect(lines).to_have_count(3)
        cells = lines.nth(1).locator("td").all_inner_texts()
        assert cells[1] == "update"
        assert "row 1" in cells[5] and json.loads(cells[7])["note"] == "second"
        ts = desk.get(table="shop.orders", key="id=5").json()["changes"][1]["commit_ts"]
        assert cells[2] == str(ts)  # every digit of it
        _take_pictures(page, panel)
        panel.get_by_label("Key").fill("note=x")
        panel.get_by_role("button", name="Trace").click()
        expect(panel.locator(".wrong")).to_contain_text("RF-1044")
        page.set_viewport_size({"width": 390, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def _take_pictures(page: Page, panel: Locator) -> None:
    """Keep pictures of the panel for the docs, where they are wanted (docs/screenshots.py)."""
    folder = os.environ.get("ROWFERRY_SCREENSHOTS", "")
    for place in panel.locator("tbody td:nth-child(6)").all():  # readers have other directories
        place.evaluate(
            "one => { one.textContent = one.textContent.replace(/^.*[/]out[/]/, '/srv/out/'); }"
        )
    for width in (1280, 390) if folder else ():
        page.set_viewport_size({"width": width, "height": 1600})  # the panel is high
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            panel.screenshot(path=f"{folder}/web-trace-{width}-{theme}.png", animations="disabled")
