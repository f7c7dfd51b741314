"""The web page in a real browser, on a real server whose meta database this test fills.

With ROWFERRY_SCREENSHOTS=FOLDER pictures of what each role sees are kept there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from web_kit import PATIENCE_MS, SECRET, SERVERS, Fleet, filled, park_rows, started_browser

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan, Stretch
from rowferry.change.sampled_change import SampledChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.actor import Role
from rowferry.control.operator.operations import Operations
from rowferry.control.store.contract import FeedNews, LogLine, Sample, TableCount
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.face.about import About
from rowferry.face.credentials import KnownLogins, Token, token_digest
from rowferry.face.gate import Gate
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import Serving, serve
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.mysql.session import Flavour
from rowferry.refstore.cluster import LocalCluster

PICTURES = os.environ.get("ROWFERRY_SCREENSHOTS", "")
AHEAD_S = 0 if PICTURES else 600  # so that no sample is old when the machine is slow
ROUTES = (
    *("", "changefeed/orders-search", "changefeed/audit-hooks", "servers", "sql", "new"),
    "changefeed/payments-replica/change",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled meta database, to be copied."""
    path = tmp_path_factory.mktemp("web") / "meta.db"
    store = open_store(f"sqlite:///{path}")
    filled(store, time.time() + AHEAD_S)
    store.close()
    return path


class Desk:
    """A server, its meta database, and browsers that look at it."""

    def __init__(self, browser: Browser, operations: Operations, held: ExitStack) -> None:
        self._browser, self.operations, self._held = browser, operations, held
        self.changes: dict[str, tuple[SampledChange, ...]] = {}  # the last ones of each changefeed
        self.trouble: list[str] = []  # what browsers complained of, and requests to elsewhere
        self.serving = self.served()

    def served(self, gate: Gate | None = None) -> Serving:
        about = About(SERVERS[0], "0.1.0", time.time() - 93_000, "instance-1")
        app = create_app(self.operations, about, gate)
        return self._held.enter_context(serve(app, "127.0.0.1:0"))

    def open(self, route: str = "", url: str = "", width: int = 1280, **context: Any) -> Page:
        at = url or self.serving.url
        browser = self._browser.new_context(viewport={"width": width, "height": 800}, **context)
        self._held.callback(browser.close)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("console", self._heard)
        page.on("request", lambda r: r.url.startswith(at) or self.trouble.append(r.url))
        page.goto(f"{at}/#/{route}")
        return page

    def _heard(self, message: Any) -> None:
        # A request that was refused or not answered is told by the page itself.
        if message.type in ("error", "warning") and "Failed to load" not in message.text:
            self.trouble.append(message.text)

    def state(self, name: str) -> FeedState | None:
        feed = self.operations.store.feed(name)
        return feed.state if feed else None

    def is_soon(self, name: str, state: FeedState | None) -> None:
        end = time.monotonic() + PATIENCE_MS / 1000
        while self.state(name) is not state:
            assert time.monotonic() < end, f"{name} is {self.state(name)}"
            time.sleep(0.02)


@pytest.fixture
def desk(browser: Browser, template: Path, tmp_path: Path) -> Iterator[Desk]:
    shutil.copy(template, tmp_path / "meta.db")
    with ExitStack() as held:
        store = open_store(f"sqlite:///{tmp_path}/meta.db")
        held.callback(store.close)
        fleet = Fleet(store, time.time() + 3600)  # its servers stay alive
        assert fleet.store is store
        changes: dict[str, tuple[SampledChange, ...]] = {}
        desk = Desk(browser, Operations(store, here=changes.get), held)
        desk.changes = changes
        yield desk
        assert desk.trouble == []


def row(page: Page, name: str) -> Locator:
    return page.locator(f'tr[data-id="{name}"]')


def names(page: Page) -> list[str]:
    return page.locator("a.open").all_inner_texts()


def test_the_list_shows_every_state_and_follows_changes(desk: Desk) -> None:
    page = desk.open()
    expect(page.locator("tr.feed")).to_have_count(7)
    for name, word in (
        ("orders-search", "normal"),
        ("payments-replica", "warning"),
        ("audit-hooks", "failed"),
        ("sessions-cache", "stopped"),
        ("year-end-copy", "finished"),
    ):
        mark = row(page, name).locator(".badge")
        assert mark.inner_text() == word
        assert mark.locator("svg > *").count()  # a shape, too
    drawn = "svgs => new Set(svgs.map(svg => svg.innerHTML)).size"
    assert page.locator(".badge svg").evaluate_all(drawn) == 5
    assert names(page)[:2] == ["audit-hooks", "payments-replica"]  # the worst first
    search = row(page, "orders-search")
    assert re.fullmatch(r"\d+ ms", search.locator(".lag .number").inner_text())
    assert "rows/s" in search.locator(".rate").inner_text()
    assert search.locator("svg.spark path.line").count() == 2
    assert SERVERS[0] in search.inner_text()
    expect(row(page, "customers-lake").get_by_role("progressbar")).to_have_attribute(
        "aria-valuenow", "50"
    )
    assert "RF-4001" in row(page, "payments-replica").inner_text()
    assert page.title() == "(1 failed) Rowferry"

    page.get_by_role("button", name="Lag", exact=True).click()
    assert names(page)[0] == "sessions-cache"  # two hours
    by_lag = names(page)
    page.get_by_role("button", name="Lag", exact=True).click()
    assert names(page)[-1] == "sessions-cache" and sorted(names(page)) == sorted(by_lag)
    expect(page.locator("th.lag")).to_have_attribute("aria-sort", "ascending")
    page.locator(".tile.normal").click()
    assert sorted(names(page)) == ["customers-lake", "inventory-topic", "orders-search"]
    page.locator(".tile.normal").click()
    page.fill("#search", "broker-1 normal")
    assert sorted(names(page)) == ["inventory-topic", "orders-search"]
    page.fill("#search", "no such thing")
    page.get_by_role("button", name="Show all").click()
    assert len(names(page)) == 7

    page.get_by_role("button", name="State", exact=True).click()
    row(page, "inventory-topic").locator("a.open").focus()
    desk.operations.store.move("inventory-topic", Verb.FAULT, SinkUnavailable("it is away"))
    expect(row(page, "inventory-topic").locator(".badge")).to_have_text("warning")
    assert "it is away" in row(page, "inventory-topic").inner_text()
    assert names(page)[1] == "inventory-topic"  # its row has moved, and has the focus still
    assert page.evaluate("document.activeElement.textContent") == "inventory-topic"


def test_buttons_change_what_is_stored(desk: Desk) -> None:
    page = desk.open()
    row(page, "orders-search").get_by_role("button", name="Pause orders-search").click()
    desk.is_soon("orders-search", FeedState.STOPPED)
    expect(row(page, "orders-search").locator(".badge")).to_have_text("stopped")
    page.goto(f"{desk.serving.url}/#/changefeed/audit-hooks")
    page.get_by_role("button", name="Resume audit-hooks").click()
    desk.is_soon("audit-hooks", FeedState.NORMAL)
    expect(page.locator(".title .badge")).to_contain_text("normal")

    page.goto(f"{desk.serving.url}/#/changefeed/year-end-copy")
    page.get_by_role("button", name="Remove…").click()
    dialog = page.get_by_role("dialog")
    assert "Remove year-end-copy?" in dialog.inner_text()
    page.keyboard.press("Enter")  # the button that does nothing has the focus
    expect(dialog).to_be_hidden()
    assert desk.state("year-end-copy") is FeedState.FINISHED
    page.get_by_role("button", name="Remove…").click()
    dialog.get_by_role("button", name="Remove").click()
    desk.is_soon("year-end-copy", None)
    expect(row(page, "year-end-copy")).to_have_count(0)
    expect(page.locator("tr.feed")).to_have_count(6)


def test_parked_rows_are_marked_listed_and_dropped(desk: Desk) -> None:
    store, name = desk.operations.store, "audit-hooks"  # it is paused: nobody has it
    number = park_rows(store, name)
    page = desk.open()
    expect(row(page, name)).to_contain_text("2 rows in quarantine")
    page.goto(f"{desk.serving.url}/#/changefeed/{name}")
    card = page.get_by_role("region", name="Quarantine", exact=True)
    expect(card.locator("tbody tr")).to_have_count(2)
    expect(card.get_by_role("button", name="Send all again")).to_be_enabled()
    card.get_by_role("button", name=f"Drop row {number}-0").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(card.locator("tbody tr")).to_have_count(1)
    assert [one.key for one in store.parked(name)] == ["8"]


def test_one_changefeed_in_detail(desk: Desk) -> None:
    page = desk.open("changefeed/customers-lake")
    expect(page.locator(".chart")).to_have_count(4)
    bars = page.locator(".bars li")
    assert bars.count() == 5
    assert bars.nth(0).inner_text().split("\n")[0] == "crm.customers"
    whole = page.get_by_role("region", name="Snapshot")
    assert "1 of 5 tables done" in whole.inner_text()
    assert "50%: 204 of 404 parts" in whole.inner_text()
    assert page.locator("main .badge").nth(0).inner_text().split() == ["normal", "snapshot"]
    assert bars.nth(0).get_by_role("progressbar").get_attribute("aria-valuenow") == "35"
    ranges = page.get_by_role("region", name="Table, Range, Stage, Position", exact=True)
    assert ranges.locator("tbody tr").count() == 10
    assert ranges.locator("tbody tr").nth(0).locator("td").all_inner_texts() == [
        *("crm.customers", "31", "snapshot", "7480000301"),
    ]
    assert "sink.csv.include-commit-ts" in page.locator(".settings").inner_text()
    assert "created" in page.locator(".history").inner_text()

    plot = page.locator(".plot").nth(0)
    assert re.match(r"Lag: now .* s, highest ", plot.get_attribute("aria-label") or "")
    plot.hover()
    tips = page.locator(".pointed .tip")
    expect(tips).to_have_count(4)  # the same moment everywhere
    assert re.fullmatch(r"\d.* s · \d\d:\d\d:\d\d", tips.nth(0).inner_text())
    page.mouse.move(5, 5)
    expect(tips).to_have_count(0)
    plot.focus()
    page.keyboard.press("ArrowLeft")
    before = tips.nth(0).inner_text()
    page.keyboard.press("ArrowLeft")
    assert tips.nth(0).inner_text() != before

    page.goto(f"{desk.serving.url}/#/changefeed/audit-hooks")
    trouble = page.get_by_role("region", name="Error")
    expect(trouble).to_contain_text("RF-3001")
    assert "What to do: Bring the source back" in trouble.inner_text()
    page.goto(f"{desk.serving.url}/#/changefeed/no-such")
    expect(page.locator("main")).to_contain_text("there is no changefeed 'no-such'")
    page.goto(f"{desk.serving.url}/#/sql")
    page.fill("#statement", "SHOW CHANGEFEEDS")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer tbody tr")).to_have_count(6)
    watermark = desk.operations.see("orders-search").feed.watermark
    assert str(watermark) in page.locator(".answer").inner_text()  # every digit of it
    page.fill("#statement", "SHOW ME")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".answer .wrong")).to_contain_text("RF-1006")


def test_where_a_changefeed_is_its_tables_its_day_and_its_log(desk: Desk) -> None:
    name, store, now = "orders-search", desk.operations.store, time.time()
    feed = store.feed(name)
    assert feed is not None and feed.lease is not None
    claim = store.claim(name, replace(feed.lease.holder, address=SERVERS[0]), now, 3600.0)
    place = LogPosition(Flavour.MYSQL, "uuid-1", "binlog.000012", 4711, "uuid-1:1-77")
    change = SchemaChange(
        feed.watermark + 1, DdlKind.ADD_COLUMN, "ALTER TABLE o ADD c int", TableId("shop", "o")
    )
    position = {"log": place.to_json()}
    stretch = Stretch((), (change,), position, (), (), feed.watermark + 2)
    plan = Plan(feed.micro_batch + 1, feed.spec_version, 0, stretch)
    store.record(claim, plan, ())
    store.publish(claim, plan)
    (table, *_) = desk.operations.see(name).tables
    counts = (TableCount(table, 1234, 5678, feed.watermark),)
    store.write_news({claim: FeedNews(counts, kept_until=now + 7200)})
    store.add_log_lines({name: [LogLine(now, "warning", SERVERS[0], "the sink is slow")]})
    for hours in range(1, 24):
        store.write_samples({name: Sample(now - 3600 * hours, 900, 0, 10, 20, 1, 0.1)})
    page = desk.open(f"changefeed/{name}")
    where = page.get_by_role("region", name="Position in the source's log")
    expect(where).to_contain_text("binlog.000012")
    for words in ("4711", "uuid-1:1-77", "kept for 1 h 5"):
        expect(where).to_contain_text(words)
    tables = page.get_by_role("region", name="Table, Stage, Rows, Bytes, Lag, Last change")
    expect(tables.locator("tbody tr").nth(0)).to_contain_text("1.23 k")
    assert page.locator(".chips").count() == 0  # names are not repeated
    expect(page.get_by_role("region", name="Schema changes")).to_contain_text("ADD c int")
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("the sink is slow")
    day = page.get_by_role("region", name="Last 24 hours")
    expect(day.locator(".chart")).to_have_count(2)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if PICTURES:
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=f"{PICTURES}/detail-{width}-{scheme}.png", full_page=True)


def test_the_last_changes_as_each_role_sees_them(desk: Desk) -> None:
    name, store = "orders-search", desk.operations.store
    feed = store.feed(name)
    assert feed is not None
    stamp, table = feed.watermark, TableId("shop", "orders")
    image = {"id": "7", "state": "open", "note": None, "text": "<b>x</b>"}
    desk.changes[name] = (
        SampledChange(table, "update", stamp, {"id": "7"}, image, {**image, "state": "paid"}),
        SampledChange(table, "snapshot", stamp - 5, {"id": "8"}, None, image),
    )
    spec = feed.spec
    store.update_spec(name, replace(spec, config={**spec.config, "sample-changes": True}))
    page = logged_in(desk, Role.OPERATOR, f"changefeed/{name}")
    last = page.get_by_role("region", name="Last changes")
    expect(last.locator("tbody tr")).to_have_count(2)
    newest = last.locator("tbody tr").nth(0)
    for words in ("shop.orders", "update", "id 7", "state open", "state paid", "<b>x</b>"):
        expect(newest).to_contain_text(words)
    expect(newest).to_contain_text("note NULL")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/sample-{width}.png", full_page=True)
    page = logged_in(desk, Role.VIEWER, f"changefeed/{name}")
    last = page.get_by_role("region", name="Last changes")
    expect(last.locator("tbody tr").nth(0)).to_contain_text("id ***")
    assert "paid" not in page.content()
    page = desk.open("changefeed/inventory-topic")
    last = page.get_by_role("region", name="Last changes")
    expect(last).to_contain_text(
        f"only the server that runs inventory-topic knows them: ask {SERVERS[1]}"
    )


def test_a_table_is_read_again(desk: Desk) -> None:
    """A row's button asks with range and expression; the bar follows, and Cancel ends it."""
    name, store = "orders-search", desk.operations.store
    feed = store.feed(name)
    assert feed is not None and feed.lease is not None
    claim = store.claim(name, replace(feed.lease.holder, address=SERVERS[0]), time.time(), 3600.0)
    columns = (Column(1, "id", SqlType("int"), nullable=False), Column(2, "state", SqlType("text")))
    key = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    number = {r.table: r.table_id for r in store.ranges(name)}["orders"]
    version = TableSchema(TableId("shop", "orders"), number, 1, columns, (key,))

    def reach(*rereads: dict[str, Any]) -> None:
        before = store.feed(name)
        assert before is not None
        stretch = Stretch((), (), {"rereads": list(rereads)}, (), (), before.watermark + 1)
        plan = Plan(before.micro_batch + 1, before.spec_version, 0, stretch)
        store.record(claim, plan, (version,))
        store.publish(claim, plan)

    reach()
    page = desk.open(f"changefeed/{name}")
    page.get_by_role("button", name="Read shop.orders again").click()
    asking = page.locator("#ask")
    asking.get_by_label("Keys").fill("200..100..50")
    asking.get_by_role("button", name="Read again").click()
    expect(asking.locator(".wrong")).to_contain_text("RF-1038")
    asking.get_by_label("Keys").fill("100..200")
    asking.get_by_label("Where").fill("state = 'open'")
    asking.get_by_role("button", name="Read again").click()
    again = page.get_by_role("region", name="Read again")
    expect(again).to_contain_text("keys 100..200 · where state = 'open'")
    (asked,) = desk.operations.resnapshots(name)
    assert (asked.asked.first, asked.asked.where) == (("100",), "state = 'open'")
    reach({"id": asked.asked.id, "table_id": number, "name": "x", "done": 40, "total": 160})
    expect(again.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "25")
    expect(again).to_contain_text("40 of about 160 rows")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/again-{width}.png", full_page=True)
    again.get_by_role("button", name="Cancel reading shop.orders again").click()
    asking.get_by_role("button", name="Cancel it").click()
    expect(again).to_contain_text("cancelled")
    expect(again.get_by_role("button")).to_have_count(0)
    assert [one.state for one in desk.operations.resnapshots(name)] == ["cancelled"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("web-store"), 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            for table in ("customers", "items", "orders", "payments"):
                store.ddl(f"CREATE TABLE shop.{table} (id bigint PRIMARY KEY, note varchar(20))")
        yield f"range://{cluster.master_address}"


def test_the_form_tells_what_would_happen_and_creates(
    desk: Desk, source: str, tmp_path: Path
) -> None:
    page = desk.open("new")
    create = page.get_by_role("button", name="Create", exact=True)
    expect(page.locator("#new-source-scheme")).to_be_focused()
    page.fill("#new-source", source)
    page.fill("#new-sink", "pigeon://loft")
    wrong = page.locator("#new-sink-wrong")
    expect(wrong).to_contain_text("RF-1004")
    assert page.locator("#new-sink").get_attribute("aria-invalid") == "true"
    assert create.is_disabled()
    page.fill("#new-sink", f"file://{tmp_path}/out?protocol=csv")
    found = page.locator(".found")
    expect(found).to_contain_text("4 tables would be captured")
    expect(wrong).to_be_empty()
    page.fill("#new-rules", "shop.*\n!shop.payments\n[")
    expect(page.locator("#new-rules-wrong")).to_contain_text("RF-1005")
    page.fill("#new-rules", "shop.*\n!shop.payments")
    page.fill("#new-name", "orders-search")
    expect(page.locator("#new-name-wrong")).to_contain_text("exists already")
    page.fill("#new-name", "shop-files")
    expect(found).to_contain_text("3 tables would be captured")
    assert (
        "shop.items" in found.inner_text()
        and "shop.payments" not in found.locator("li b").all_inner_texts()
    )
    page.get_by_text("As JSON").click()
    page.fill("#new-config", '{"sink": {')
    expect(page.locator("#new-config-wrong")).to_contain_text("not JSON")
    page.fill("#new-config", '{"sink": {"csv": {"include-comit-ts": true}}}')
    expect(page.locator("#new-config-wrong")).to_contain_text("RF-1001")
    page.fill("#new-config", '{"sink": {"csv": {"include-commit-ts": true}}}')
    page.fill("#new-target", "x1")
    expect(page.locator("#new-target-wrong")).to_contain_text("whole number")
    target = 9_007_199_254_740_993 << 8  # a number that JavaScript would round
    page.fill("#new-target", str(target))
    expect(create).to_be_enabled()
    assert desk.state("shop-files") is None  # nothing was stored by all that
    create.click()
    expect(page.locator("h1")).to_have_text("shop-files")
    created = desk.operations.see("shop-files").feed.spec
    assert created.target_ts == target
    assert created.config["sink"]["csv"]["include-commit-ts"] is True
    assert created.config["filter"]["rules"] == ["shop.*", "!shop.payments"]
    assert str(target) in page.locator(".facts").inner_text()


def test_keys(desk: Desk) -> None:
    page = desk.open()
    expect(page.locator("tr.feed")).to_have_count(7)
    focused = "document.activeElement.textContent"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate(focused) == names(page)[1]
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("payments-replica")
    page.keyboard.press("Escape")
    expect(page.locator("tr.feed")).to_have_count(7)
    assert page.evaluate(focused) == "payments-replica"  # where one came from
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("payments-replica")
    page.keyboard.press("/")  # from there, too
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("jk?n")  # letters, not commands
    assert page.locator("#search").input_value() == "jk?n"
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous changefeed")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("n")
    expect(page.locator("#new-source-scheme")).to_be_focused()
    page.fill("#new-source", "mysql://")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.locator("#new-source").input_value() == "mysql://"  # not thrown away by a key
    for route in ROUTES:
        page.goto(f"{desk.serving.url}/#/{route}")
        expect(page.locator('.page:not([data-key="waiting"])')).to_be_visible()
        nameless = page.evaluate(
            "[...document.querySelectorAll('input, textarea, button, a')].filter(e => "
            "!(e.labels?.length || e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML)"
        )
        assert nameless == []


def test_dark_and_light(desk: Desk) -> None:
    page = desk.open(color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.get_by_role("button", name="Dark or light").click()
    light = page.evaluate(back)
    assert dark == "rgb(14, 20, 26)" and light == "rgb(244, 246, 248)"
    page.reload()
    assert page.evaluate(back) == light  # the choice is remembered
    page.keyboard.press("t")
    assert page.evaluate(back) == dark


def test_a_login_is_asked_for_and_kept_for_the_tab(desk: Desk) -> None:
    token = SECRET[::-1]
    url = desk.served(Gate.of(token, {"ann": token[:8]})).url
    page = desk.open(url=url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("a user and the password")
    page.fill("#login-token", "wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    assert page.locator("tr.feed").count() == 0
    expect(dialog).to_contain_text("does not know that login")
    expect(page.locator("#login-token")).to_be_empty()
    page.fill("#login-token", token)
    page.keyboard.press("Enter")
    expect(page.locator("tr.feed")).to_have_count(7)
    page.reload()
    expect(page.locator("tr.feed")).to_have_count(7)
    kept = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    assert token not in kept[0] and token in kept[1]
    other = desk.open(url=url)
    expect(other.get_by_role("dialog")).to_be_visible()  # another tab knows nothing of it
    other.fill("#login-user", "ann")
    other.fill("#login-password", token[:8])
    other.keyboard.press("Enter")
    expect(other.locator("tr.feed")).to_have_count(7)
    assert token not in page.content() + other.content()


def logged_in(desk: Desk, role: Role, route: str = "", **how: Any) -> Page:
    """Open the page as somebody with a role."""
    token = f"{SECRET}-{role}"
    known = KnownLogins({}, (Token(f"{role}-ann", role, token_digest(token)),))
    page = desk.open(route, url=desk.served(Gate(known)).url, **how)
    page.fill("#login-token", token)
    page.keyboard.press("Enter")
    expect(page.locator("#you")).to_have_text(f"{role}-ann · {role}")
    return page


@pytest.mark.parametrize("role", Role)
def test_each_role_sees_what_it_may_do(desk: Desk, role: Role, tmp_path: Path) -> None:
    page = logged_in(desk, role, "changefeed/inventory-topic", color_scheme="light")
    expect(page.locator("h1")).to_contain_text("inventory-topic")
    buttons = {
        "Pause inventory-topic": Role.OPERATOR,
        "Reset…": Role.OPERATOR,
        "Read stock.orders again": Role.OPERATOR,
        "Tables…": Role.ADMIN,
        "Remove…": Role.ADMIN,
    }
    for name, needed in buttons.items():
        count = 1 if role >= needed else 0
        expect(page.get_by_role("button", name=name)).to_have_count(count)
    for name in ("Change settings", "New changefeed"):
        expect(page.get_by_role("link", name=name)).to_have_count(int(role is Role.ADMIN))
    picture = Path(PICTURES or tmp_path) / f"web-{role}.png"
    page.screenshot(path=picture, animations="disabled")
    if role is not Role.VIEWER:
        page.get_by_role("button", name="Pause inventory-topic").click()
        desk.is_soon("inventory-topic", FeedState.STOPPED)
        asked = page.locator(".history li", has_text="asked").first
        expect(asked).to_contain_text(f"{role}-ann")
        expect(asked).to_contain_text("127.0.0.1")
    page.keyboard.press("n")  # the key and the address lead no further than the buttons
    page.evaluate("location.hash = '#/new'")
    if role is Role.ADMIN:
        expect(page.locator("#new-source")).to_be_visible()
    else:
        expect(page.locator("main")).to_contain_text("Your role may not do that")
        page.evaluate("location.hash = '#/sql'")
        page.fill("#statement", "DROP CHANGEFEED `inventory-topic`")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("main")).to_contain_text("RF-1033")
        assert desk.state("inventory-topic") is not None


def test_a_server_that_does_not_answer(desk: Desk) -> None:
    page = desk.open()
    expect(page.locator("tr.feed")).to_have_count(7)
    assert page.locator("#banner").is_hidden()
    page.context.set_offline(True)
    expect(page.locator("#banner")).to_contain_text("has not answered since")
    assert page.title().startswith("(no answer)")
    assert page.locator("tr.feed").count() == 7  # what is known stays
    desk.operations.store.move("orders-search", Verb.PAUSE)
    page.context.set_offline(False)
    expect(page.locator("#banner")).to_be_hidden()
    expect(row(page, "orders-search").locator(".badge")).to_have_text("stopped")


def test_secrets_are_nowhere_and_every_width_fits(desk: Desk) -> None:
    for width in (380, 1440):
        page = desk.open(width=width)
        for route in ROUTES:
            page.goto(f"{desk.serving.url}/#/{route}")
            expect(page.locator('.page:not([data-key="waiting"])')).to_be_visible()
            if route.startswith("changefeed/"):
                expect(page.locator("h1")).to_contain_text(route.split("/")[1])
            assert SECRET not in page.content()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, route
    answers = [
        page.evaluate("path => fetch(path).then(r => r.text())", f"/api/rowferry/{path}")
        for path in ("overview", "changefeeds/payments-replica")
    ]
    assert all("***" in answer and SECRET not in answer for answer in answers)


def test_a_page_that_is_drawn_while_another_is_on_its_way(desk: Desk) -> None:
    page = desk.open("sql")
    expect(page.locator("#statement")).to_be_visible()
    page.evaluate(
        """() => {
            const button = document.createElement("button");
            button.dataset.do = "everything"; // draws the page at once
            document.body.append(button);
            location.hash = "#/new";
            button.click();
            button.remove();
        }"""
    )
    expect(page.locator("#new-source-scheme")).to_be_focused()


def test_words_and_numbers(desk: Desk) -> None:
    page = desk.open("sql")

    def call(file: str, name: str, *arguments: Any) -> Any:
        script = "async ([f, n, a]) => (await import(`/web/${f}.js`))[n](...a)"
        return page.evaluate(script, [file, name, list(arguments)])

    lags = {0: "0 ms", 999: "999 ms", 4200: "4.2 s", 59_960: "1 m 00 s", 192_000: "3 m 12 s"}
    lags |= {7_320_000: "2 h 02 m", 1_047_600_000: "12 d 3 h"}
    assert [call("words", "duration", ms) for ms in lags] == list(lags.values())
    assert call("words", "duration", None) == "–"
    assert [call("words", "count", n) for n in (0, 0.25, 7, 1234, 56_789)] == [
        *("0", "0.3", "7", "1.23 k", "56.8 k"),
    ]
    assert [call("words", "bytes", n) for n in (0, 512, 1536, 5 << 20)] == [
        *("0 B", "512 B", "1.5 KiB", "5 MiB"),
    ]
    assert call("words", "ago", 1000, 64_000) == "1 m ago" == call("words", "ago", 1000, 60_600)
    assert call("words", "place", "mysql://u:***@h:1/d?x=1") == "mysql://h:1/d"
    assert call("words", "flattened", {"a": {"b": [1, 2]}, "c": [{"d": "e"}]}) == [
        *(["a.b", "1, 2"], ["c[0].d", "e"]),
    ]
    quoted = '"n": 1152921504606846977'
    text = json.dumps({"n": (1 << 60) + 1, "s": quoted, "f": 1.5, "m": [7]})
    exact = {"n": "1152921504606846977", "s": quoted, "f": 1.5, "m": [7]}
    assert call("api", "parsed", text) == exact
    assert call("api", "written", {"a": "b"}, {"t": str(1 << 60), "u": ""}) == (
        '{"a":"b","t":1152921504606846976}'
    )
