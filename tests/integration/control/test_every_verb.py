"""Each verb of operators that look after rows, through each face, on one changefeed that runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from faces_kit import Shell
from playwright.sync_api import Page, expect
from web_kit import PATIENCE_MS, started_browser

from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.face import rpc
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql
from rowferry.wire import declare_pb2, quarantine_pb2, resnapshot_pb2, trace_pb2
from rowferry.wire.declare_pb2_grpc import DeclarationsStub
from rowferry.wire.quarantine_pb2_grpc import QuarantineStub
from rowferry.wire.resnapshot_pb2_grpc import ResnapshotsStub
from rowferry.wire.trace_pb2_grpc import TracesStub

WITHIN_S = 600.0
FEED, TABLE = "walk", "walk.t"


@dataclass
class Walk:
    """A changefeed into a MySQL target that refuses some rows, and a server's faces."""

    source: MySql
    operations: Operations
    url: str
    channel: grpc.Channel
    shell: Shell
    page: Page
    folder: Path
    _asked: set[str] = field(default_factory=set)

    def cli(self, *words: str) -> Any:
        return self.shell.run(*words)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        path = f"{self.url}/api/rowferry/sql"
        answer = httpx.post(path, json={"statement": statement}, timeout=120)
        assert answer.is_success, answer.text
        form = answer.json()
        return [dict(zip(form["columns"], row, strict=True)) for row in form["rows"]]

    def rest(self, method: str, path: str, **more: Any) -> Any:
        answer = httpx.request(method, f"{self.url}/api/{path}", timeout=120, **more)
        assert answer.is_success, answer.text
        return answer.json()

    def stub(self, kind: Callable[[grpc.Channel], Any]) -> Any:
        return kind(self.channel)

    def parked(self) -> list[str]:
        return [row.key for row in self.operations.quarantined(FEED)]

    def copied(self) -> set[str]:
        return {str(row[0]) for row in self.source.execute("SELECT id FROM walk_copy.t")}

    def bad(self, key: int) -> None:
        """Write a row that the target refuses, and wait until it is parked."""
        self.source.script(f"INSERT INTO walk.t VALUES ({key}, 'bad')")
        wait_for(lambda: self.parked() == [str(key)], f"row {key} parked", WITHIN_S)

    def resnapshots(self) -> set[str]:
        """Return those that nobody of this test has seen yet, when all have ended."""

        def ended() -> bool:
            return all(one.state == "done" for one in self.operations.resnapshots(FEED))

        wait_for(ended, "resnapshots", WITHIN_S)
        known = {one.asked.id for one in self.operations.resnapshots(FEED)}
        new, self._asked = known - self._asked, known
        return new


@pytest.fixture
def walk(own_mysql: MySql, tmp_path: Path) -> Iterator[Walk]:
    own_mysql.script(
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("walk", "walk_copy", "walk_meta")),
        *(f"CREATE DATABASE {name}" for name in ("walk", "walk_copy")),
        "CREATE TABLE walk.t (id int PRIMARY KEY, v varchar(9))",
        "CREATE TABLE walk_copy.t (id int PRIMARY KEY, v varchar(9), CHECK (v <> 'bad'))",
    )
    config = {
        "on-bad-row": "quarantine",
        "sample-changes": "true",
        "filter": {"rules": ["walk.*"]},
        "sink": {
            "dispatchers": [{"matcher": ["*.*"], "target-schema": "walk_copy"}],
            "mysql-config": {"meta-database": "walk_meta"},
        },
    }
    about, stop = About("127.0.0.1:8300", "0.1.0", 0.0, "here"), threading.Event()
    with ExitStack() as held:
        store = held.enter_context(closing(open_store(f"sqlite:///{tmp_path / 'meta.db'}")))
        pace = FleetPace(every_s=0.05, sample_every_s=0.1)
        member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
        operations = Operations(store, here=member.last_changes)
        operations.create(Wanted(own_mysql.uri, own_mysql.uri, FEED, config))
        serving = held.enter_context(serve(create_app(operations, about), "127.0.0.1:0"))
        calls = held.enter_context(rpc.serve(operations, "127.0.0.1:0"))
        channel = held.enter_context(grpc.insecure_channel(calls.address))
        browser = held.enter_context(started_browser())
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()
        held.callback(thread.join, WITHIN_S)
        held.callback(stop.set)
        shell = Shell(serving.url, tmp_path)
        found = Walk(own_mysql, operations, serving.url, channel, shell, page, tmp_path)

        def runs() -> bool:
            return operations.see(FEED).feed.watermark > 0

        wait_for(runs, "a first checkpoint", WITHIN_S)
        own_mysql.script("INSERT INTO walk.t VALUES (1, 'one')", "UPDATE walk.t SET v = 'two'")
        wait_for(lambda: found.copied() == {"1"}, "the first row", WITHIN_S)
        page.goto(f"{serving.url}/#/changefeed/{FEED}")
        yield found


def test_each_verb_through_each_face(walk: Walk) -> None:
    for verb in (_resnapshot, _trace, _sample, _quarantine, _export, _apply):
        verb(walk)


def _resnapshot(walk: Walk) -> None:
    request = resnapshot_pb2.ResnapshotRequest(
        changefeed_id=FEED, db_name="walk", table_name="t", keys="1..1"
    )

    def by_page() -> None:
        walk.page.get_by_role("button", name=f"Read {TABLE} again").click()
        walk.page.get_by_role("dialog").get_by_role("button", name="Read again").click()
        expect(walk.page.get_by_role("dialog")).to_be_hidden()

    statement = f"ALTER CHANGEFEED {FEED} RESNAPSHOT TABLE {TABLE} KEYS '1..1'"
    path = f"rowferry/changefeeds/{FEED}/resnapshots"
    ways: dict[str, Callable[[], object]] = {
        "cli": lambda: walk.cli(
            *("changefeed", "resnapshot", "-c", FEED, "--table", TABLE, "--keys", "1..1")
        ),
        "sql": lambda: walk.sql(statement),
        "rest": lambda: walk.rest("POST", path, json={"table": TABLE, "keys": "1..1"}),
        "grpc": lambda: walk.stub(ResnapshotsStub).Resnapshot(request, timeout=120),
        "page": by_page,
    }
    for face, ask in ways.items():
        ask()
        assert len(walk.resnapshots()) == 1, face


def _trace(walk: Walk) -> None:
    ops = ["insert", "update"]
    command = walk.cli("trace", "-c", FEED, "--table", TABLE, "--key", "id=1", "--json")
    assert [one["op"] for one in json.loads(command)["changes"]] == ops
    rows = walk.sql(f"TRACE CHANGEFEED {FEED} TABLE {TABLE} KEY (id = 1) WITH VALUES")
    assert [row["op"] for row in rows] == ops
    asked = {"table": TABLE, "key": "id=1"}
    form = walk.rest("GET", f"v2/changefeeds/{FEED}/trace", params=asked)
    request = trace_pb2.TraceRequest(
        changefeed_id=FEED, db_name="walk", table_name="t", key={"id": "1"}, log=True
    )
    stub = walk.stub(TracesStub)
    bare = stub.Trace(request, timeout=120)
    request.values = True
    full = stub.Trace(request, timeout=120)
    for one, other in zip(bare.changes, form["changes"], strict=True):
        assert (one.op, one.commit_ts) == (other["op"], other["commit_ts"])
        assert one.first_micro_batch == other["micro_batch"]["first"] > 0
        assert one.place["table"] == "walk_copy.t" and one.log["gtid"]
        assert (one.before, one.after) == ("", "")
    assert [json.loads(one.after)["v"] for one in full.changes] == ["one", "two"]
    assert full.complete and "a mysql sink cannot be read back" in " ".join(full.notes)
    request.key["id"] = "one"
    refused: Any
    with pytest.raises(grpc.RpcError) as refused:
        stub.Trace(request, timeout=120)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith("[RF-1044]")
    panel = walk.page.get_by_role("region", name="Trace a row")
    panel.get_by_label("Table").fill(TABLE)
    panel.get_by_label("Key").fill("id=1")
    panel.get_by_role("button", name="Trace").click()
    expect(panel.locator("tbody tr")).to_have_count(2)

    _complete_columns(walk)


def _complete_columns(walk: Walk) -> None:
    """The SQL page offers the columns of a row's key, those of the key first."""
    page = walk.page
    page.goto(f"{walk.url}/#/sql")
    expect(page.locator(".statements .statement").first).to_be_visible()
    page.locator("#statement").click()
    page.keyboard.type(f"TRACE CHANGEFEED {FEED} TABLE {TABLE} KEY ( ")
    expect(page.get_by_role("option").nth(0)).to_have_text("idint, key")
    expect(page.get_by_role("option").nth(1)).to_have_text("vvarchar(9)")
    page.keyboard.press("Tab")
    assert page.locator("#statement").input_value().endswith("KEY ( id ")
    page.locator("#statement").fill("")
    page.goto(f"{walk.url}/#/changefeed/{FEED}")


def _sample(walk: Walk) -> None:
    words = walk.cli("changefeed", "query", "-c", FEED, "--sample")
    assert '"two"' in words
    assert any(TABLE == row["table"] for row in walk.sql(f"SHOW CHANGEFEED {FEED} SAMPLE"))
    form = walk.rest("GET", f"rowferry/changefeeds/{FEED}/sample")
    request = trace_pb2.LastChangesRequest(changefeed_id=FEED)
    found = walk.stub(TracesStub).LastChanges(request, timeout=120)
    assert found.here and found.message == form["message"]
    assert [one.commit_ts for one in found.changes] == [c["commit_ts"] for c in form["changes"]]
    assert json.loads(found.changes[0].after) == form["changes"][0]["after"]
    card = walk.page.get_by_role("region", name="Last changes")
    expect(card).to_contain_text(TABLE)


def _quarantine(walk: Walk) -> None:
    """A row for each face: shown by one, then dropped."""
    own = ("changefeed", "quarantine")
    walk.bad(10)
    (listed,) = json.loads(walk.cli(*own, "list", "-c", FEED))
    shown = json.loads(walk.cli(*own, "show", "-c", FEED, "--row", listed["row"]))
    assert shown["after"] == {"id": 10, "v": "bad"}
    walk.cli(*own, "drop", "-c", FEED, "--row", listed["row"])
    assert walk.parked() == []
    walk.bad(11)
    (row,) = walk.sql(f"SHOW CHANGEFEED {FEED} QUARANTINE")
    assert row["key"] == "11"
    walk.sql(f"ALTER CHANGEFEED {FEED} DROP QUARANTINE TABLE {TABLE} KEY '11'")
    assert walk.parked() == []
    walk.bad(12)
    path = f"rowferry/changefeeds/{FEED}/quarantine"
    (form,) = walk.rest("GET", path)
    walk.rest("POST", f"{path}/drop", json={"row": form["row"]})
    assert walk.parked() == []
    walk.bad(13)
    stub = walk.stub(QuarantineStub)
    listing = quarantine_pb2.ListQuarantinedRequest(changefeed_id=FEED)
    (parked,) = stub.ListQuarantined(listing, timeout=120).rows
    assert (parked.key, parked.op, parked.db_name, parked.table_name) == (
        *("13", "insert", "walk", "t"),
    )
    one = quarantine_pb2.QuarantinedRowRequest(changefeed_id=FEED, row=parked.row)
    assert json.loads(stub.ShowQuarantined(one, timeout=120).after) == {"id": 13, "v": "bad"}
    choice = quarantine_pb2.QuarantineChoice(changefeed_id=FEED, db_name="walk", table_name="t")
    assert stub.RetryQuarantined(choice, timeout=120).chosen == 1

    def refused_again() -> bool:
        (now,) = stub.ListQuarantined(listing, timeout=120).rows
        return bool(now.state == "parked")

    wait_for(refused_again, "the row refused again", WITHIN_S)
    dropped = stub.DropQuarantined(choice, timeout=120)
    assert (dropped.chosen, list(dropped.rows)) == (1, [])
    walk.bad(14)
    card = walk.page.get_by_role("region", name="Quarantine")
    expect(card).to_contain_text("14")
    card.get_by_role("button", name="Drop row").click()
    walk.page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    wait_for(lambda: walk.parked() == [], "nothing parked", WITHIN_S)


def _exported(walk: Walk) -> dict[str, Any]:
    form = walk.rest("GET", "rowferry/export", params={"as": "team"})
    return dict(form["declaration"])


def _export(walk: Walk) -> None:
    wanted = _exported(walk)
    assert set(wanted["changefeeds"]) == {FEED}
    assert yaml.safe_load(walk.cli("export", "--as", "team").split("\nwalk:")[0]) == wanted
    (row,) = walk.sql(f"EXPORT CHANGEFEED {FEED} AS 'team'")
    assert yaml.safe_load(row["declaration"]) == wanted
    asked = declare_pb2.ExportRequest(**{"as": "team", "type": "json"})
    answer = walk.stub(DeclarationsStub).Export(asked, timeout=120)
    assert json.loads(answer.declaration) == wanted
    assert len(answer.hidden) == 2  # the passwords of source and sink
    shown = _by_sql_page(walk, "EXPORT CHANGEFEEDS AS 'team'")
    assert "owner: team" in shown


def _apply(walk: Walk) -> None:
    """Each face is told a declaration that pauses a new changefeed; the difference is the same."""
    source = walk.source.uri
    declared = {
        "owner": "team",
        "changefeeds": {
            "other": {
                "source": source,
                "sink": "blackhole:///?protocol=csv",
                "paused": True,
                "config": {"filter": {"rules": ["walk.t"]}},
            }
        },
    }
    text = yaml.safe_dump(declared)
    file = walk.folder / "feeds.yaml"
    file.write_text(text)
    assert "other" in walk.cli("apply", "-f", str(file), "--dry-run")
    body = {"declarations": [declared], "dry_run": True}
    (step,) = walk.rest("POST", "rowferry/apply", json=body)["steps"]
    quoted = text.replace("'", "''")
    rows = walk.sql(f"EXPLAIN APPLY '{quoted}'")
    assert {(row["changefeed"], row["action"]) for row in rows} == {("other", "create")}
    stub = walk.stub(DeclarationsStub)
    request = declare_pb2.ApplyRequest(declarations=[text], dry_run=True)
    (planned,) = stub.Apply(request, timeout=120).steps
    assert (planned.action, planned.outcome) == (step["action"], step["outcome"])
    assert [one.key for one in planned.differences] == [d["key"] for d in step["differences"]]
    shown = _by_sql_page(walk, f"EXPLAIN APPLY '{quoted}'")
    assert "create" in shown
    assert {feed.id for feed in walk.operations.feeds()} == {FEED}
    request.dry_run = False
    (done,) = stub.Apply(request, timeout=120).steps
    assert (done.outcome, done.error) == ("done", "")
    password = source.split(":")[2].split("@")[0]
    assert password not in str(done) and password not in str(rows)
    assert {feed.id for feed in walk.operations.feeds()} == {FEED, "other"}
    walk.sql("APPLY 'owner: team\nchangefeeds: {}' WITH PRUNE")
    assert {feed.id for feed in walk.operations.feeds()} == {FEED}
    request.declarations[:] = ["owner: team\nchangefeeds: {other: {source: 1}}"]
    with pytest.raises(grpc.RpcError, match="declaration 1: changefeeds.other"):
        stub.Apply(request, timeout=120)


def _by_sql_page(walk: Walk, statement: str) -> str:
    """Carry out a statement on the page; returns what it shows."""
    page = walk.page
    page.goto(f"{walk.url}/#/sql")
    page.locator("textarea").fill(statement)
    page.keyboard.press("Control+Enter")
    table = page.locator("main table").last
    expect(table).to_be_visible()
    return table.inner_text()
