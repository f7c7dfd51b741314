"""The web page in a real browser, on a real server whose meta database this test fills.

With ROWFERRY_SCREENSHOTS=docs/images the pictures of docs/web.md are made anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from web_kit import PATIENCE_MS, SECRET, SERVERS, Fleet, filled, started_browser

from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.actor import Role
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.face.about import About
from rowferry.face.credentials import KnownLogins, Token, token_digest
from rowferry.face.gate import Gate
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import Serving, serve
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
        desk = Desk(browser, Operations(store), held)
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
    expect(page.locator(".title .badge")).to_have_text("normal")

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


def test_one_changefeed_in_detail(desk: Desk) -> None:
    page = desk.open("changefeed/customers-lake")
    expect(page.locator(".chart")).to_have_count(4)
    bars = page.locator(".bars li")
    assert bars.count() == 5
    assert bars.nth(0).inner_text().split("\n")[0] == "crm.customers"
    assert bars.nth(0).get_by_role("progressbar").get_attribute("aria-valuenow") == "35"
    ranges = page.get_by_role("region", name="Table, Range, Stage, Position, Owner")
    assert ranges.locator("tbody tr").count() == 10
    assert ranges.locator("tbody tr").nth(0).locator("td").all_inner_texts() == [
        *("crm.customers", "31", "snapshot", "7480000301", SERVERS[1]),
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
    expect(page.locator("#new-source")).to_be_focused()
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
    page.get_by_text("More settings").click()
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
    expect(page.locator("#new-source")).to_be_focused()
    page.keyboard.type("mysql://")
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
        "Tables…": Role.ADMIN,
        "Remove…": Role.ADMIN,
    }
    for name, needed in buttons.items():
        count = 1 if role >= needed else 0
        expect(page.get_by_role("button", name=name)).to_have_count(count)
    for name in ("Change settings", "New changefeed"):
        expect(page.get_by_role("link", name=name)).to_have_count(int(role is Role.ADMIN))
    if role is Role.VIEWER:
        page.screenshot(path=Path(PICTURES or tmp_path) / "web-viewer.png", animations="disabled")
    else:
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
    expect(page.locator("#new-source")).to_be_focused()


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


def _written(desk: Desk, page: Page, source: str) -> None:
    page.fill("#new-source", source)
    page.fill("#new-sink", "file:///exports/shop?protocol=csv")
    page.fill("#new-rules", "shop.*\n!shop.payments")
    page.fill("#new-name", "shop-files")
    expect(page.locator(".fine")).to_contain_text("3 tables")


def _pointed(desk: Desk, page: Page, source: str) -> None:
    page.locator(".plot").nth(0).hover()


def _changed(desk: Desk, page: Page, source: str) -> None:
    rules = {"filter": {"rules": ["shop.orders"]}, "sink": {"csv": {"include-commit-ts": True}}}
    sink = "file:///exports/lake?protocol=csv"
    desk.operations.create(Wanted(source, sink, "shop-lake", rules))
    desk.operations.pause("shop-lake")
    page.goto(f"{desk.serving.url}/#/changefeed/shop-lake/change")
    page.fill("#change-rules", "shop.orders\nshop.items")
    expect(page.locator(".fine")).to_contain_text("2 tables")


def _asked(desk: Desk, page: Page, source: str) -> None:
    page.get_by_role("button", name="Reset…").click()
    page.get_by_label("behind a commit-ts").check()
    ago = desk.operations.see("sessions-cache").feed.watermark
    page.get_by_role("textbox", name="Commit-ts").fill(str(ago))
    expect(page.get_by_role("dialog")).to_contain_text("That is 20")


def test_pictures_of_the_page(desk: Desk, source: str, tmp_path: Path) -> None:
    for name, route, width, scheme, prepare in (
        ("web-list", "", 1280, "light", None),
        ("web-phone", "", 390, "dark", None),
        ("web-changefeed", "changefeed/customers-lake", 1280, "dark", _pointed),
        ("web-error", "changefeed/audit-hooks", 1280, "light", None),
        ("web-new", "new", 1280, "light", _written),
        ("web-change", "", 1280, "dark", _changed),
        ("web-reset", "changefeed/sessions-cache", 1280, "light", _asked),
    ):
        page = desk.open(route, width=width, color_scheme=scheme)
        expect(page.locator('.page:not([data-key="waiting"])')).to_be_visible()
        if prepare:
            prepare(desk, page, source)
        path = Path(PICTURES or tmp_path) / f"{name}.png"
        whole = name in ("web-list", "web-changefeed", "web-new", "web-change")
        page.screenshot(path=path, full_page=whole, animations="disabled")
        assert path.read_bytes().startswith(b"\x89PNG")
