"""The form of a changefeed in a real browser: fields, secrets, tables, options, tests, and SQL."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from playwright.sync_api import Browser, Page, expect
from test_web_page import Desk
from web_kit import SECRET, Fleet, filled, started_browser

from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.contract import SinkTraits
from rowferry.refstore.cluster import LocalCluster
from rowferry.registry import SINKS
from rowferry.spec.option import OptionTable, Section, one_of, option, text
from rowferry.spec.reach import Reach
from rowferry.spec.uri_form import UriForm, UriPart

PASSWORD = "s3cret/with#signs?"
ODD = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("form") / "meta.db"
    store = open_store(f"sqlite:///{path}")
    filled(store, time.time() + 600)
    store.close()
    return path


@pytest.fixture
def desk(browser: Browser, template: Path, tmp_path: Path) -> Iterator[Desk]:
    shutil.copy(template, tmp_path / "meta.db")
    with ExitStack() as held:
        store = open_store(f"sqlite:///{tmp_path}/meta.db")
        held.callback(store.close)
        assert Fleet(store, time.time() + 3600).store is store  # its servers stay alive
        reach = Reach(roots=(str(tmp_path),), hosts=("*",), env=("SHOP_PASSWORD",))
        desk = Desk(browser, Operations(store, reach=reach), held)
        yield desk
        assert desk.trouble == []


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("form-store"), 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            store.ddl("CREATE DATABASE crm")
            for table in ("shop.items", "shop.orders", f"crm.`{ODD}`"):
                store.ddl(f"CREATE TABLE {table} (id bigint PRIMARY KEY, note varchar(20))")
        yield f"range://{cluster.master_address}"


class ToyOptions(Section, section="sink.toy"):
    colour = option(one_of("red", "blue"), "red", "What it is painted with.", uri=True)
    pin = option(text(), "", "What opens it.", secret=True)


class ToySink(Blackhole):
    TRAITS: ClassVar[SinkTraits] = replace(
        Blackhole.TRAITS,
        form=UriForm("Toy box", address=UriPart("Shelf", "a1"), path=None, login=False),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (ToyOptions.TABLE,)


def value(page: Page, name: str) -> str:
    return page.locator(f"#new-{name}").input_value()


def sent(page: Page, path: str) -> list[dict[str, Any]]:
    """Return a list that gets the bodies of all requests to a path from now on."""
    bodies: list[dict[str, Any]] = []

    def hear(request: Any) -> None:
        if request.url.endswith(path) and request.method == "POST":
            bodies.append(json.loads(request.post_data))

    page.on("request", hear)
    return bodies


def test_fields_and_uri_are_in_step(desk: Desk) -> None:
    page = desk.open("new")
    checks = sent(page, "/changefeeds/check")
    page.select_option("#new-source-scheme", "mysql")
    page.fill("#new-source-address", "db.example:3306")
    page.fill("#new-source-user", "c@dc")
    page.fill("#new-source-password", PASSWORD)
    assert value(page, "source") == "mysql://c%40dc:***@db.example:3306"
    assert page.locator("#new-source-password").get_attribute("type") == "password"
    page.fill("#new-sink", "kafka+ssl://b1:9093,b2:9093/or%2Fders?protocol=csv&compression=lz4")
    assert page.locator("#new-sink-scheme").input_value() == "kafka+ssl"
    assert value(page, "sink-address") == "b1:9093,b2:9093"
    assert value(page, "sink-path") == "or/ders" and value(page, "protocol") == "csv"
    assert page.locator("#new-sink-user").count() == 0  # such a sink has no login there
    assert page.locator("#new-opt-sink-kafka-config-compression").input_value() == "lz4"
    page.fill("#new-sink-path", "orders")
    page.select_option("#new-protocol", "canal-json")
    wanted = "kafka+ssl://b1:9093,b2:9093/orders?protocol=canal-json&compression=lz4"
    assert value(page, "sink") == wanted
    expect(page.locator("#new-source-wrong")).to_contain_text("RF-3001")
    last = checks[-1]
    assert last["source_uri"] == "mysql://c%40dc:s3cret%2Fwith%23signs%3F@db.example:3306"
    assert last["sink_uri"] == wanted
    assert PASSWORD not in page.content() and "s3cret" not in value(page, "source")

    # What is pasted as a whole goes into the fields, and is not shown again.
    page.fill("#new-source", f"mysql://root:{SECRET}@other:3307/?ssl-mode=required")
    page.locator("#new-name").focus()
    assert value(page, "source") == "mysql://root:***@other:3307/?ssl-mode=required"
    assert value(page, "source-password") == SECRET
    page.fill("#new-source", "mysql://root:***@third:3307/")  # the one that is known
    assert value(page, "source-password") == SECRET

    # A reference stands where the secret would.
    page.select_option("#new-source-password-kind", "env")
    assert page.locator("#new-source-password").get_attribute("type") == "text"
    page.fill("#new-source-password", "SHOP_PASSWORD")
    expect(page.locator(".found")).to_contain_text("RF-2011")  # it is not set here
    assert checks[-1]["source_uri"] == "mysql://root:env%3ASHOP_PASSWORD@third:3307/"
    options = page.locator("#new-source-password-kind option")
    assert options.nth(2).is_disabled() and "not allowed" in options.nth(2).inner_text()
    page.select_option("#new-source-password-kind", "here")
    page.fill("#new-source-password", "env:SHOP_PASSWORD")  # a password that looks like one
    expect(page.locator("#new-source-wrong")).to_contain_text("RF-3001")
    assert checks[-1]["source_uri"] == "mysql://root:literal%3Aenv%3ASHOP_PASSWORD@third:3307/"


def test_a_new_sink_has_its_form(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_sinks")
    module.__dict__["ToySink"] = ToySink
    monkeypatch.setitem(sys.modules, "toy_sinks", module)
    monkeypatch.setattr(SINKS, "_places", {**SINKS._places, "toy": "toy_sinks:ToySink"})
    page = desk.open("new")
    page.select_option("#new-sink-scheme", "toy")
    page.get_by_label("Shelf").fill("b2")
    colour = page.locator("#new-opt-sink-toy-colour")
    page.fill("#new-option-search", "painted")
    assert page.locator(".option:visible").count() == 1
    colour.select_option("blue")
    assert value(page, "sink") == "toy://b2?colour=blue"
    page.fill("#new-option-search", "toy.pin")
    page.locator("#new-opt-sink-toy-pin").fill(SECRET)
    page.get_by_text("As JSON", exact=True).click()
    assert json.loads(value(page, "config")) == {"sink": {"toy": {"pin": "***"}}}
    checks = sent(page, "/sink/check")
    page.get_by_role("button", name="Test sink").click()
    expect(page.locator(".tested .ok")).to_have_count(3)
    assert checks[0]["replica_config"] == {"sink": {"toy": {"pin": SECRET}}}
    assert SECRET not in page.content()
    page.select_option("#new-sink-scheme", "blackhole")
    expect(page.locator(".others")).to_contain_text("sink.toy.pin")  # belongs to nobody now
    expect(page.locator(".tested")).to_have_text(["", ""])  # was about something else
    page.get_by_role("button", name="remove sink.toy.pin").click()
    assert value(page, "config") == ""


def test_tables_are_picked_from_the_source(desk: Desk, source: str, tmp_path: Path) -> None:
    page = desk.open("new", width=390)
    page.get_by_role("button", name="Choose from the source…").click()
    expect(page.locator(".picker .wrong")).to_contain_text("RF-")  # which source?
    page.fill("#new-source", source)
    page.fill("#new-sink", f"file://{tmp_path}/out?protocol=csv")
    page.get_by_role("button", name="Choose from the source…").click()
    page.get_by_text("shop", exact=True).click()
    page.get_by_role("checkbox", name="orders").check()
    assert value(page, "rules") == "shop.orders"
    expect(page.locator(".found")).to_contain_text("1 table would be captured")
    page.get_by_role("checkbox", name="All tables of shop").check()
    assert value(page, "rules") == "shop.*"
    assert page.get_by_role("checkbox", name="items").is_checked()
    page.get_by_role("checkbox", name="items").uncheck()
    assert value(page, "rules") == "shop.*\n!shop.items"
    page.fill("#new-rules", "shop.*")
    assert page.get_by_role("checkbox", name="items").is_checked()  # both ways
    page.get_by_text("crm", exact=True).click()
    page.get_by_role("checkbox", name=ODD).check()  # a name is never HTML
    assert value(page, "rules") == f"shop.*\ncrm.`{ODD}`"
    expect(page.locator(".found")).to_contain_text("3 tables would be captured")
    page.fill("#new-table-search", "ord")
    assert page.locator(".picker .table:visible").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Test source").click()
    expect(page.locator(".tested").first).to_contain_text("3 are captured")
    page.fill("#new-source", "range://127.0.0.1:1")
    page.get_by_role("button", name="Test source").click()
    failed = page.locator(".tested .failed")
    expect(failed).to_contain_text("What to do:")
    page.get_by_role("button", name="Create", exact=True).click(force=True)  # it may not
    assert page.locator("h1").inner_text() == "New changefeed"


def test_an_option_that_is_wrong_is_marked_and_a_fixed_one_is_not_offered(
    desk: Desk, source: str, tmp_path: Path
) -> None:
    sink = f"file://{tmp_path}/lake?protocol=csv"
    desk.operations.create(Wanted(source, sink, "lake", {"filter": {"rules": ["shop.orders"]}}))
    desk.operations.pause("lake")
    page = desk.open("changefeed/lake/change")
    page.fill("#change-option-search", "delimiter")
    page.fill("#change-opt-sink-csv-delimiter", "too long a delimiter")
    wrong = page.locator("#change-opt-sink-csv-delimiter-wrong")
    expect(wrong).to_contain_text("RF-1002")
    page.get_by_role("button", name="sink.csv.delimiter: back to the default").click()
    expect(wrong).to_be_empty()
    page.fill("#change-option-search", "feed-level")
    fixed = page.locator("#change-opt-source-feed-level")
    assert fixed.is_disabled()
    page.fill("#change-option-search", "force-replicate")
    page.select_option("#change-opt-force-replicate", "true")
    page.fill("#change-rules", "shop.*")
    page.get_by_role("button", name="Change…").click()
    page.get_by_role("dialog").get_by_role("button", name="Change", exact=True).click()
    expect(page.locator("h1")).to_have_text("lake")
    config = desk.operations.see("lake").feed.spec.config
    assert config == {"filter": {"rules": ["shop.*"]}, "force-replicate": True}


def test_statements_are_completed_and_remembered(desk: Desk) -> None:
    page = desk.open("sql")
    box = page.locator("#statement")
    expect(page.locator(".statements .statement").first).to_be_visible()
    box.click()
    page.keyboard.type("paus")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("inv")
    page.keyboard.press("Tab")
    assert box.input_value() == "PAUSE CHANGEFEED inventory-topic "
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer")).to_contain_text("paused")

    box.fill("")
    page.keyboard.type("ALTER CHANGEFEED inventory-topic SET (sink.kafka-config.compr")
    expect(page.get_by_role("option")).to_have_text(["sink.kafka-config.compression" + _DOC])
    page.keyboard.press("Tab")
    page.keyboard.type("= ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert box.input_value().endswith("compression = gzip ")
    box.fill("")
    page.keyboard.type("ALTER CHANGEFEED inventory-topic DROP TABLE stock.o")
    expect(page.get_by_role("option")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    assert page.locator("h1").inner_text() == "SQL"  # the key closed the list, not the page

    box.fill(
        f"EXPLAIN CREATE CHANGEFEED x FROM 'mysql://u:{SECRET}@127.0.0.1:1' INTO 'blackhole://'"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer .wrong")).to_contain_text("RF-3001")
    page.reload()
    past = page.locator("details", has_text="History").locator(".statement")
    expect(past).to_have_count(2)
    assert "u:***@127.0.0.1:1" in past.nth(0).inner_text()
    assert SECRET not in page.evaluate("JSON.stringify(localStorage)") + page.content()
    past.nth(1).click()
    assert page.locator("#statement").input_value() == "PAUSE CHANGEFEED inventory-topic"
    page.get_by_role("button", name="Forget all").click()
    expect(past).to_have_count(0)
    examples = page.locator("details", has_text="Examples").locator(".statement")
    examples.filter(has_text="Remove one, if it is there").click()
    assert page.locator("#statement").input_value() == "DROP CHANGEFEED IF EXISTS shop"


_DOC = "How the client compresses what it sends."


def test_parts_of_uris_and_secrets_in_statements(desk: Desk) -> None:
    page = desk.open("sql")

    def call(file: str, name: str, *arguments: Any) -> Any:
        script = "async ([f, n, a]) => (await import(`/web/${f}.js`))[n](...a)"
        return page.evaluate(script, [file, name, list(arguments)])

    for uri in (
        "mysql://u%40x:p%2Fw@h:3306/",
        "file:///a/b%20c?protocol=csv",
        "s3://bucket/prefix?endpoint=http://127.0.0.1:9000&access-key=%2B",
        "kafka://a:1,b:2/t",
        "blackhole://",
        "range://[::1]:7001",
    ):
        assert call("uri_parts", "writeUri", call("uri_parts", "parseUri", uri)) == uri
    assert call("uri_parts", "parseUri", "mysql") is None
    assert call("table_picker", "changedRules", ["*.*"], "a", "t", False) == ["*.*", "!a.t"]
    assert call("table_picker", "changedRules", ["*.*", "!a.t"], "a", "t", True) == ["*.*"]
    assert call("table_picker", "keeps", ["a*.t?", "!a1.*"], "a2", "tx") is True
    assert call("table_picker", "keeps", ["a*.t?", "!a1.*"], "a1", "tx") is False
    hidden = {
        "x WITH (sink.http-config.token = 'a''b', y = 1)": "token = '***', y = 1)",
        "x INTO 's3://b/p?secret-access-key=abc&region=r'": "secret-access-key=***&region=r'",
        "x INTO 'mysql://u:p@ss@h/'": "'mysql://u:***@h/'",
        "(headers = ['Authorization: Bearer abc'])": "['Authorization: ***'])",
    }
    for statement, end in hidden.items():
        assert call("sql_history", "withoutSecrets", statement).endswith(end)
