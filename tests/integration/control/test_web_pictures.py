"""Every page and question at both widths and in both themes: nothing is cut, and pictures of it.

`python docs/screenshots.py` keeps the pictures in docs/images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from test_web_page import Desk
from web_kit import Fleet, filled, park_rows, started_browser

from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.face.gate import Gate
from rowferry.testing.servers import MySql

FOLDER = os.environ.get("ROWFERRY_SCREENSHOTS", "")
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
TABLES = ("customers", "order_items", "orders", "payments")
# What sticks out of the page to the right, or is cut where nobody can scroll to it.
CUT = """() => [...document.querySelectorAll("main *, dialog[open] *, .bar *")].filter((one) => {
    const box = one.getBoundingClientRect();
    const scrolls = ".hidden, .scroll, .plot, svg, option, input, textarea, select";
    if (!box.width || !box.height || one.closest(scrolls)) return false;
    const style = getComputedStyle(one);
    const cut = ["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis";
    return box.right > innerWidth + 1 || (cut && one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def desk(browser: Browser, tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as held:
        store = open_store(f"sqlite:///{tmp_path}/meta.db")
        held.callback(store.close)
        filled(store, time.time() + (60 if FOLDER else 600))  # no sample grows old meanwhile
        assert Fleet(store, time.time() + 3600).store is store  # its servers stay alive
        yield Desk(browser, Operations(store), held)


@pytest.fixture(scope="module")
def source(mysql_server: MySql) -> str:
    rows = ", ".join(f"({n})" for n in range(1, 2000))
    mysql_server.script("CREATE DATABASE bakery", "CREATE DATABASE bakery_archive")
    for name in TABLES:
        mysql_server.script(
            f"CREATE TABLE bakery.{name} (id int PRIMARY KEY)",
            f"INSERT INTO bakery.{name} VALUES {rows}",
            f"ANALYZE TABLE bakery.{name}",
        )
    return mysql_server.uri


# --- what is done on a page before its picture is taken ------------------------------------------


def _written(page: Page, source: str) -> None:
    parts = urlsplit(source)
    page.select_option("#new-source-scheme", "mysql")
    page.fill("#new-source-address", f"{parts.hostname}:{parts.port}")
    page.fill("#new-source-user", parts.username or "")
    page.fill("#new-source-password", parts.password or "")
    page.fill("#new-rules", "bakery.*\n!bakery.payments")
    page.select_option("#new-sink-scheme", "file")
    page.fill("#new-sink-path", "/exports/bakery")
    page.select_option("#new-protocol", "csv")
    page.fill("#new-name", "bakery-files")
    expect(page.locator(".fine")).to_contain_text("3 tables")


def _picked(page: Page, source: str) -> None:
    _written(page, source)
    page.get_by_role("button", name="Test source").click()
    expect(page.locator(".tested .ok")).not_to_have_count(0)
    page.get_by_role("button", name="Choose from the source…").click()
    page.get_by_text("bakery", exact=True).click()
    expect(page.locator(".picker .table")).to_have_count(len(TABLES))
    page.evaluate("document.activeElement.blur()")


def _options(page: Page, source: str) -> None:
    page.fill("#new-sink", "kafka+ssl://broker-1:9093/orders?protocol=canal-json&compression=lz4")
    page.fill("#new-option-search", "sasl")
    page.locator(".options").evaluate("one => one.scrollIntoView()")
    page.mouse.wheel(0, -120)


def _changing(page: Page, source: str) -> None:
    page.fill("#change-rules", "bakery.orders\nbakery.customers")
    expect(page.locator(".fine")).to_contain_text("2 tables")


def _reset(page: Page, source: str) -> None:
    page.get_by_role("button", name="Reset…").click()
    page.get_by_label("behind a commit-ts").check()
    page.get_by_role("textbox", name="Commit-ts").fill(str(int(time.time() * 1000) << 18))
    expect(page.get_by_role("dialog")).to_contain_text("That is 20")


def _tables(page: Page, source: str) -> None:
    page.get_by_role("button", name="Tables…").click()


def _remove(page: Page, source: str) -> None:
    page.get_by_role("button", name="Remove…").click()


def _pointed(page: Page, source: str) -> None:
    page.locator(".plot").nth(0).hover()


def _typed(page: Page, source: str) -> None:
    expect(page.locator(".statement").first).to_be_visible()
    page.fill("#statement", "SHOW CHANGEFEEDS")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer tbody tr")).not_to_have_count(0)
    page.locator("#statement").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("ALTER CHANGEFEED orders-search ")
    expect(page.get_by_role("option")).not_to_have_count(0)


def _parked(page: Page, source: str) -> None:
    card = page.get_by_role("region", name="Quarantine", exact=True)
    expect(card.locator("tbody tr")).to_have_count(2)
    card.evaluate("one => { one.scrollIntoView(); scrollBy(0, -120); }")
    drop = card.get_by_role("button", name="Drop row").first
    end = "(one) => one.getBoundingClientRect().right"
    room = drop.evaluate("(one) => one.closest('.scroll').getBoundingClientRect().right")
    assert drop.evaluate(end) <= room, "nobody sees how a row is dropped"


def _keys(page: Page, source: str) -> None:
    page.keyboard.press("?")


Prepare = Callable[[Page, str], None] | None
# Name, address, what is done there, whether the whole page is shown.
SHOTS: tuple[tuple[str, str, Prepare, bool], ...] = (
    ("list", "", None, False),
    ("changefeed", "changefeed/customers-lake", _pointed, True),
    ("error", "changefeed/audit-hooks", None, False),
    ("servers", "servers", None, False),
    ("new", "new", _written, True),
    ("pick", "new", _picked, False),
    ("options", "new", _options, False),
    ("change", "changefeed/bakery-lake/change", _changing, False),
    ("reset", "changefeed/orders-search", _reset, False),
    ("tables", "changefeed/orders-search", _tables, False),
    ("remove", "changefeed/orders-search", _remove, False),
    ("quarantine", "changefeed/audit-hooks", _parked, False),
    ("sql", "sql", _typed, False),
    ("keys", "", _keys, False),
)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits(
    desk: Desk, source: str, browser: Browser, tmp_path: Path, width: int
) -> None:
    settings = {"filter": {"rules": ["bakery.orders"]}, "sink": {"csv": {"quote": "'"}}}
    sink = "file:///exports/lake?protocol=csv"  # nothing is written there
    desk.operations.create(Wanted(source, sink, "bakery-lake", settings))
    desk.operations.pause("bakery-lake")
    park_rows(desk.operations.store, "audit-hooks")
    for theme in THEMES if FOLDER else THEMES[WIDTHS.index(width) :][:1]:
        for name, route, prepare, whole in SHOTS:
            page = desk.open(route, width=width, color_scheme=theme)
            expect(page.locator('.page:not([data-key="waiting"])')).to_be_visible()
            if prepare:
                prepare(page, source)
            _taken(page, f"{name}-{width}-{theme}", tmp_path, whole and width > 390)
        token = desk.served(Gate.of("a-token-of-some-length", {"ann": "long-enough-1"}))
        page = desk.open(url=token.url, width=width, color_scheme=theme)
        expect(page.get_by_role("dialog")).to_be_visible()
        _taken(page, f"login-{width}-{theme}", tmp_path, whole=False)
    assert desk.trouble == []


def _taken(page: Page, name: str, tmp_path: Path, whole: bool) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], (
        name
    )  # type: ignore[index]
    assert page.evaluate(CUT) == [], name
    if name.split("-")[0] not in ("options", "pick", "quarantine"):
        page.evaluate("scrollTo(0, 0)")
    path = Path(FOLDER or tmp_path) / f"web-{name}.png"
    page.screenshot(path=path, full_page=whole, animations="disabled")
    assert path.read_bytes().startswith(b"\x89PNG")
    page.context.close()
