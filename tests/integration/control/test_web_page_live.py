"""The web page in a real browser, on a real server process that carries changes to a receiver.

With ROWFERRY_LIVE_SCREENSHOTS=FOLDER pictures are taken on the way.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from web_kit import PATIENCE_MS, started_browser

from rowferry.change.table import TableId
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, wait_for
from rowferry.testing.receiver import HttpReceiver, ReceivedRequest, Refusal
from rowferry.testing.servers.child import free_ports

WITHIN_S = PATIENCE_MS / 1000
PICTURES = os.environ.get("ROWFERRY_LIVE_SCREENSHOTS", "")
RANGES = 150  # a micro-batch takes 64 at most, so that a snapshot has several
TABLES = ("customers", "items", "orders")


class Gate(HttpReceiver):
    """A receiver that takes micro-batches one by one, or refuses everything."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Condition()
        self._let: float = 0  # the highest micro-batch that is taken
        self.held = 0  # the micro-batch that waits
        self.refusing = False

    def note(self, request: ReceivedRequest) -> Any:
        number = int(request.headers["Rowferry-Micro-Batch"])
        with self._turn:
            self.held = max(self.held, number)
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: number <= self._let, WITHIN_S)
            if self.refusing:
                return Refusal(422, words=b"this receiver takes no orders today")
        return super().note(request)

    def next(self) -> None:
        """Take the micro-batch that waits, if one does; return when the next one waits."""
        with self._turn:
            self._let = self.held
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self.held > self._let, WITHIN_S)

    def all(self) -> None:
        """Take everything from now on."""
        with self._turn:
            self._let = float("inf")
            self._turn.notify_all()

    def rows(self, table: str) -> list[int]:
        """Return the ids that came of a table, repeats among them."""
        sent = [change for request in self.once() for change in json.loads(request.body)]
        return sorted(c["key"]["id"] for c in sent if c.get("table") == table and "op" in c)


class Bench:
    """A source, a receiver, a server between them, and a browser that looks at it."""

    def __init__(self, browser: Browser, folder: Path, held: ExitStack) -> None:
        cluster = held.enter_context(LocalCluster(folder / "store", 1))
        self.source = f"range://{cluster.master_address}"
        self.store: Store = held.enter_context(cluster.store())
        self.receiver = held.enter_context(Gate())
        self.secret = secrets.token_hex(12)
        self.sink = self.receiver.uri.replace("//", f"//ann:{self.secret}@") + "?timeout=2m"
        rest, rpc = free_ports(2)
        self.url = f"http://127.0.0.1:{rest}"
        self.server = held.enter_context(
            ServerProcess(
                [
                    *("--addr", f"127.0.0.1:{rest}", "--grpc-addr", f"127.0.0.1:{rpc}"),
                    *("--spark-master", "local[2]"),
                ],
                folder / "server",
            )
        )
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        held.callback(context.close)
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.trouble: list[str] = []
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))

    def fill_source(self) -> None:
        self.store.ddl("CREATE DATABASE shop")
        for table in TABLES:
            many = RANGES if table == "orders" else 1
            sql = f"CREATE TABLE shop.{table} (id bigint PRIMARY KEY, note varchar(20))"
            self.store.ddl(sql, ranges=many, handles=(0, RANGES - 1))
        self.insert("orders", range(RANGES))

    def insert(self, table: str, ids: range) -> None:
        with self.store.transaction() as transaction:
            transaction.insert(TableId("shop", table), [{"id": i, "note": "new"} for i in ids])

    def picture(self, name: str, **how: Any) -> None:
        """Take pictures, dark and light, where they are wanted."""
        if not PICTURES:
            return
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            self.page.screenshot(path=f"{PICTURES}/{name}-{scheme}.png", full_page=True, **how)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def bench(browser: Browser, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as held:
        bench = Bench(browser, tmp_path, held)
        yield bench
        bench.receiver.all()  # nobody waits for a turn that never comes
        assert bench.trouble == []


def test_a_day_at_the_page(bench: Bench) -> None:
    bench.fill_source()
    page = bench.page
    ready = f"serving at {bench.url}"
    wait_for(
        lambda: ready in bench.server.printed() or not bench.server.alive, "a server", WITHIN_S
    )
    page.goto(bench.url)
    expect(page.locator("main")).to_contain_text("No changefeed yet")
    bench.picture("empty")
    page.get_by_role("link", name="Create the first one").click()
    _create(bench)
    _watch_the_snapshot(bench)
    _refused_and_cured(bench)
    _change(bench)
    _begin_anew(bench)
    _add_and_drop(bench)
    _remove(bench)


def _create(bench: Bench) -> None:
    page = bench.page
    create = page.get_by_role("button", name="Create", exact=True)
    page.fill("#new-source", bench.source)
    page.fill("#new-sink", "pigeon://loft")
    expect(page.locator("#new-sink-wrong")).to_contain_text("RF-1004")
    page.fill("#new-sink", bench.sink)
    page.fill("#new-rules", "shop.orders\nshop.nothing")
    expect(page.locator("#new-rules-wrong")).to_contain_text("RF-1009")
    bench.picture("new-wrong")
    assert create.is_disabled()
    page.fill("#new-rules", "shop.orders\nshop.items")
    page.fill("#new-name", "orders")
    expect(page.locator(".found")).to_contain_text("2 tables would be captured")
    create.click()
    expect(page.locator("h1")).to_have_text("orders")
    page.goto(f"{bench.url}/#/new")
    page.fill("#new-source", bench.source)
    page.fill("#new-sink", bench.sink)
    page.fill("#new-name", "orders")
    expect(page.locator("#new-name-wrong")).to_contain_text("exists already")
    page.goto(f"{bench.url}/#/")


def _watch_the_snapshot(bench: Bench) -> None:
    page, receiver = bench.page, bench.receiver
    seen: list[int] = []
    receiver.next()
    while len(seen) < 2:
        receiver.next()
        bar = page.locator("tr.feed").get_by_role("progressbar")
        higher = re.compile(f"^(?!({'|'.join(map(str, [0, *seen]))})$)")
        expect(bar).to_have_attribute("aria-valuenow", higher)
        seen.append(int(bar.get_attribute("aria-valuenow") or 0))
    assert 0 < seen[0] < seen[1] < 100
    bench.picture("list-snapshot")
    page.locator("a.open").click()
    expect(page.locator('.bars li[data-key="shop.orders"]')).to_have_count(1)
    bench.picture("detail-snapshot")
    receiver.all()
    expect(page.locator(".bars")).to_have_count(0)
    wait_for(lambda: set(receiver.rows("orders")) == set(range(RANGES)), "all rows", WITHIN_S)
    bench.insert("orders", range(1000, 1500))
    for title in ("Lag", "Rows per second", "Bytes per second", "Time of a micro-batch"):
        chart = page.locator(f'figure[data-key="{title}"]')
        expect(chart.locator("path.line")).to_have_attribute("d", re.compile("L"))
        expect(chart.locator("figcaption b")).not_to_have_text("–")
    address = bench.url.removeprefix("http://")
    ranges = page.get_by_role("region", name="Table, Range, Stage, Position")
    expect(ranges.locator("tbody tr")).to_have_count(RANGES + 1)
    stages = ranges.locator("tbody td:nth-child(3)").all_inner_texts()
    assert set(stages) == {"log"}
    positions = ranges.locator("tbody td:nth-child(4)").all_inner_texts()
    assert {p for p in positions if not p.isdigit()} <= {"–"}  # where nothing was written yet
    assert any(p.isdigit() for p in positions)
    settings = page.get_by_role("region", name="Settings")
    expect(settings).to_contain_text("ann:***@")
    assert bench.secret not in page.content()
    expect(page.locator(".facts")).to_contain_text(address)


def _refused_and_cured(bench: Bench) -> None:
    page, receiver = bench.page, bench.receiver
    receiver.refusing = True
    bench.insert("items", range(3))
    expect(page.locator(".title .badge")).to_have_text("failed")
    trouble = page.get_by_role("region", name="Error")
    expect(trouble).to_contain_text("this receiver takes no orders today")
    expect(trouble).to_contain_text("What to do: ")
    expect(page.locator("#news")).to_contain_text("orders is failed now")
    bench.picture("detail-failed")
    page.keyboard.press("Escape")
    expect(page.locator("tr.feed.failed")).to_contain_text("takes no orders")
    assert page.evaluate("document.activeElement.textContent") == "orders"  # where one came from
    bench.picture("list-failed")
    page.keyboard.press("Enter")
    receiver.refusing = False
    page.get_by_role("button", name="Resume orders").click()
    expect(page.locator(".title .badge")).to_contain_text("normal")
    expect(trouble).to_have_count(0)
    wait_for(lambda: set(receiver.rows("items")) == {0, 1, 2}, "what was refused", WITHIN_S)


def _change(bench: Bench) -> None:
    page = bench.page
    page.get_by_role("link", name="Change settings").click()
    expect(page.locator(".notice")).to_contain_text("while it is paused")
    page.fill("#change-rules", "shop.orders\nshop.items\nshop.nothing")
    expect(page.locator(".found .wrong")).to_contain_text("pause it first")
    bench.picture("change-running")
    page.get_by_role("button", name="Pause it").click()
    expect(page.locator(".notice")).to_have_count(0)
    expect(page.locator("#change-rules-wrong")).to_contain_text("RF-1009")
    assert "ann:***@" in page.locator("#change-sink").input_value()
    page.fill("#change-rules", "shop.orders\nshop.items\nshop.customers")
    stored = page.locator("#change-sink").input_value()
    page.fill("#change-sink", "file:///elsewhere?protocol=csv")
    expect(page.locator("#change-sink-wrong")).to_contain_text("RF-2004")
    page.fill("#change-sink", stored)
    page.get_by_text("As JSON").click()
    page.fill("#change-config", '{"sink": {"http-config": {"max-batch-rows": 50}}}')
    expect(page.locator(".found")).to_contain_text("3 tables would be captured")
    bench.picture("change")
    page.get_by_role("button", name="Change…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("not finished is discarded")
    bench.picture("change-asks")
    page.keyboard.press("Enter")  # the button that does nothing has the focus
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Change…").click()
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator("h1")).to_have_text("orders")
    settings = page.get_by_role("region", name="Settings")
    expect(settings).to_contain_text("max-batch-rows")
    expect(settings).to_contain_text("shop.customers")
    expect(page.locator(".title .badge")).to_have_text("stopped")


def _begin_anew(bench: Bench) -> None:
    page, receiver = bench.page, bench.receiver
    page.get_by_role("button", name="Reset…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("not finished is discarded")
    dialog.get_by_label("behind a commit-ts").check()
    bench.picture("reset-asks")
    dialog.get_by_role("textbox", name="Commit-ts").fill("yesterday")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("A commit-ts is a whole number.")
    dialog.get_by_label("at a position").check()
    dialog.get_by_role("textbox", name="Position").fill("log.1:4")
    page.keyboard.press("Enter")
    expect(dialog.locator(".wrong")).to_contain_text("RF-10")  # such a source has no positions
    dialog.get_by_label("with a new snapshot").check()
    dialog.get_by_role("button", name="Reset").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("region", name="History")).to_contain_text("a new snapshot")
    before = len(receiver.rows("items"))
    page.get_by_role("button", name="Resume orders").click()
    expect(page.locator(".title .badge")).to_contain_text("normal")
    wait_for(lambda: len(receiver.rows("items")) >= before + 3, "a second snapshot", WITHIN_S)
    page.get_by_role("button", name="Reset…").click()
    expect(dialog).to_contain_text("It runs: it is paused first")
    bench.picture("reset-running")
    before = len(receiver.rows("items"))
    dialog.get_by_role("button", name="Pause and reset").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".title .badge")).to_contain_text("normal")  # and it runs again
    wait_for(lambda: len(receiver.rows("items")) >= before + 3, "a third snapshot", WITHIN_S)


def _add_and_drop(bench: Bench) -> None:
    page, receiver = bench.page, bench.receiver
    bench.store.ddl("CREATE TABLE shop.payments (id bigint PRIMARY KEY, note varchar(20))")
    bench.insert("payments", range(2))
    page.get_by_role("button", name="Tables…").click()
    dialog = page.get_by_role("dialog")
    bench.picture("tables-asks")
    dialog.get_by_role("textbox", name="Tables to add").fill("shop.nothing")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.locator(".wrong")).to_contain_text("RF-1009")
    dialog.get_by_role("textbox", name="Tables to add").fill("shop.payments")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_be_hidden()
    tables = page.get_by_role("region", name="Tables", exact=True)
    expect(tables).to_contain_text("shop.payments")
    wait_for(lambda: set(receiver.rows("payments")) == {0, 1}, "the new table", WITHIN_S)
    page.get_by_role("button", name="Tables…").click()
    dialog.get_by_label("capture these no more").check()
    dialog.get_by_role("textbox", name="Tables to drop").fill("shop.customers")
    dialog.get_by_role("button", name="Drop", exact=True).click()
    expect(tables).not_to_contain_text("shop.customers")


def _remove(bench: Bench) -> None:
    page = bench.page
    page.goto(f"{bench.url}/#/servers")
    card = page.get_by_role("region", name=bench.url.removeprefix("http://"))
    expect(card.get_by_role("link", name="orders")).to_be_visible()
    bench.picture("servers")
    card.get_by_role("link", name="orders").click()
    _scrolled(page)
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator("main")).to_contain_text("No changefeed yet")


def _scrolled(page: Page) -> None:
    """See that what comes in leaves the operator's place alone."""
    expect(page.locator(".settings").last).to_be_visible()
    page.get_by_role("link", name="Change settings").focus()
    page.evaluate("window.scrollTo(0, 300)")
    checkpoint = page.locator(".facts div", has_text="Checkpoint").locator(".more")
    expect(checkpoint).not_to_have_text(checkpoint.inner_text())
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("document.activeElement.textContent") == "Change settings"
