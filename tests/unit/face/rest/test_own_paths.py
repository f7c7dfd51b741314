"""Our own paths: what the page, the shell and SQL read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.operations import Operations, Seen
from rowferry.control.store.contract import Hold, LogLine, Sample
from rowferry.errors import SinkUnavailable
from rowferry.face.about import About
from rowferry.face.rest.overview import Overview, changefeed_item, changefeed_page
from rowferry.flow.sink.contract import TableStatus

OWN = "/api/rowferry"
SINK = "blackhole:///?protocol=canal-json"


def body(source: str, name: str = "one", **more: Any) -> dict[str, Any]:
    rules = {"filter": {"rules": ["shop.*"]}}
    return {
        "changefeed_id": name,
        "source_uri": source,
        "sink_uri": SINK,
        "replica_config": rules,
    } | more


def create(client: TestClient, source: str, name: str = "one") -> None:
    answer = client.post("/api/v2/changefeeds", json=body(source, name))
    assert answer.status_code == 200, answer.text


def test_the_overview(client: TestClient, source: str, operations: Operations) -> None:
    create(client, source)
    create(client, source, "two")
    # A little in the future, so that nothing is old when the machine is slow.
    store, now, me = operations.store, time.time() + 300, Holder.here("10.0.0.1:8300")
    store.announce(me, "10.0.0.1:8300", now)
    store.claim("one", me, now, 60.0)
    store.move("two", Verb.FAULT, SinkUnavailable("it is away"))
    share = (("shop.orders", 1, 4), ("shop.items", 2, 2))
    before, sums = ((0, 2, 1, 6), (1, 2, 3, 6))
    store.write_samples(
        {"one": Sample(now - 5, 700, 0, 10, 1000, 1, 0.5, None, (), before, "parts")}
    )
    store.write_samples(
        {"one": Sample(now, 900, 0, 50, 2000, 4, 1.0, 60_000, share, sums, "parts")}
    )
    found = client.get(f"{OWN}/overview").json()
    assert found["server"] == {
        "address": "127.0.0.1:8300",
        "version": "0.1.0",
        "started_at": 1_700_000_000_000,
    }
    (server,) = found["servers"]
    assert server["address"] == "10.0.0.1:8300" and server["changefeeds"] == 1
    assert server["pid"] == me.pid and abs(server["seen_at"] - now * 1000) < 2
    one, two = found["changefeeds"]
    assert set(one) == {
        *(
            "id",
            "state",
            "phase",
            "source_uri",
            "sink_uri",
            "checkpoint_ts",
            "checkpoint_time",
            "lag_ms",
        ),
        *("rows_per_s", "bytes_per_s", "owner", "tables", "snapshot", "error"),
        *("lag_series", "rows_series", "quarantined"),
    }
    assert one["owner"] == "10.0.0.1:8300" and one["state"] == "normal"
    assert one["lag_ms"] == 900 and one["lag_series"] == [700, 900]
    assert one["rows_series"] == [one["rows_per_s"]]
    assert one["rows_per_s"] == pytest.approx(10, rel=0.01)
    assert one["bytes_per_s"] == pytest.approx(400, rel=0.01)
    assert one["snapshot"] | {"left_ms": 0} == {
        "done": 3,
        "all": 6,
        "unit": "parts",
        "tables_done": 1,
        "tables": 2,
        "left_ms": 0,
    }
    assert one["snapshot"]["left_ms"] == pytest.approx(7500, rel=0.01)
    assert (one["phase"], two["phase"]) == ("snapshot", "waiting")
    assert two["owner"] is None and two["lag_ms"] is None and two["snapshot"] is None
    assert two["error"]["code"] == "RF-4001" and two["error"]["message"] == "it is away"
    assert two["error"]["cure"] and 0 < two["error"]["at"] < now * 1000
    page = client.get(f"{OWN}/changefeeds/one").json()
    assert {k: page[k] for k in one if k != "lag_ms"} == {k: one[k] for k in one if k != "lag_ms"}
    assert set(page) - set(one) == {
        *("samples", "snapshots", "ranges", "captured", "config", "history", "created_at"),
        *("spec_version", "epoch", "target_ts", "retention_ms"),
        *("position", "kept_ms", "table_counts", "schema_changes", "rereads", "resnapshots"),
    }
    assert [s["micro_batch_ms"] for s in page["samples"]] == [500.0, 250.0]
    assert page["snapshots"][0] == {"table": "shop.orders", "done": 1, "all": 4}
    assert page["config"] == {"filter": {"rules": ["shop.*"]}}
    assert page["retention_ms"] == 60_000 and page["target_ts"] is None and page["epoch"] == 1
    assert page["history"][-1]["what"] == "created"


def test_what_lake_tables_are_made_of(
    client: TestClient, source: str, operations: Operations, tmp_path: Path
) -> None:
    create(client, source)
    other = client.get(f"{OWN}/changefeeds/one/target").json()
    assert not other["kept"] and "no tables that need upkeep" in other["message"]
    lake = {"sink_uri": f"delta+file://{tmp_path}/lake"}
    assert client.post("/api/v2/changefeeds", json=body(source, "two", **lake)).is_success
    found = client.get(f"{OWN}/changefeeds/two/target").json()
    assert (found["kept"], found["here"], found["tables"]) == (True, False, [])
    assert "nobody runs two" in found["message"]
    store, now, me = operations.store, time.time() + 300, Holder.here("10.0.0.1:8300")
    store.announce(me, "10.0.0.1:8300", now)
    store.claim("two", me, now, 60.0)
    found = client.get(f"{OWN}/changefeeds/two/target").json()
    assert "ask 10.0.0.1:8300" in found["message"] and found["owner"] == "10.0.0.1:8300"
    at = 1_700_000_000_000
    status = TableStatus(
        *("shop/orders", "shop.orders", "two", "upsert", 9, 2, 70, 30, 5000, at << 18)
    )
    operations._tables_here = lambda name: (status,) if name == "two" else None
    found = client.get(f"{OWN}/changefeeds/two/target").json()
    assert found["here"] and found["tables"] == [
        {
            "table": "shop.orders",
            "version": 9,
            "files": 2,
            "rows": 70,
            "deleted": 30,
            "bytes": 5000,
            "commit_ts": at << 18,
            "at": at,
        }
    ]
    assert client.get(f"{OWN}/changefeeds/none/target").status_code == 400


def test_tables_day_and_log_of_a_changefeed(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    store, now = operations.store, time.time()
    for minutes in range(30):
        sample = Sample(now - 60 * minutes, 100 * minutes, 0, 6, 10, 1, 0.5)
        store.write_samples({"one": sample})
    samples = client.get(f"{OWN}/changefeeds/one/day").json()["samples"]
    assert 6 <= len(samples) <= 7 and samples[0]["lag_ms"] == 2900
    lines = [
        LogLine(now + i, "warning", "a:8300", f"http://h/?a=1&password=pw{i}") for i in range(3)
    ]
    store.add_log_lines({"one": lines})
    (newest, *_) = client.get(f"{OWN}/changefeeds/one/log").json()["lines"]
    assert newest == {
        "at": round((now + 2) * 1000),
        "level": "warning",
        "server": "a:8300",
        "message": "http://h/?a=1&password=***",
    }
    assert len(client.get(f"{OWN}/changefeeds/one/log?limit=2").json()["lines"]) == 2
    assert client.get(f"{OWN}/changefeeds/one/log?limit=501").status_code == 400
    for what in ("day", "log"):
        assert client.get(f"{OWN}/changefeeds/nobody/{what}").status_code == 400
    page = client.get(f"{OWN}/changefeeds/one").json()
    assert page["position"] == {} and page["kept_ms"] is None and page["schema_changes"] == []


def test_the_overview_is_read_once_a_second(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(operations, "feeds", lambda states: asked.append(states) or ())
    clock = iter([10.0, 10.9, 11.1])
    overview = Overview(operations, About("a:1", "1", 0.0, "x"), lambda: next(clock))
    found = [overview.look() for _ in range(3)]
    assert found[0] is found[1] and found[1] is not found[2]
    assert asked == [tuple(FeedState)] * 2


def test_old_samples_say_nothing_about_now(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    feed = operations.store.feed("one")
    assert feed is not None
    now = time.time()
    parts = (
        RangeProgress("shop", "orders", 3, 3, 1, "", "", Stage.SNAPSHOT, last_snapshot_key="ab"),
        RangeProgress("shop", "orders", 3, 3, 2, "", "", Stage.LOG, last_log_index=7),
        RangeProgress("shop", "items", 4, 4, 3, "", "", Stage.REGISTERED),
    )
    old = Sample(now - 600, 5, 0, 10, 10, 0, 0.0, 9, (("shop.orders", 1, 2),))
    tables = (TableId("shop", "items"), TableId("shop", "orders"))
    seen = Seen(feed, parts, tables, (old,), (), None, "")
    item = changefeed_item(seen, now)
    assert item["lag_ms"] is None and item["rows_per_s"] == 0 and item["snapshot"] is None
    page = changefeed_page(seen, now)
    assert page["retention_ms"] is None and page["snapshots"] == []
    assert page["samples"][0]["micro_batch_ms"] is None
    assert [(r["range_id"], r["stage"], r["position"]) for r in page["ranges"]] == [
        (1, "snapshot", "ab"),
        (2, "log", "7"),
        (3, "registered", ""),
    ]
    assert page["captured"] == ["shop.items", "shop.orders"]


def test_a_dry_run_stores_nothing(client: TestClient, source: str, operations: Operations) -> None:
    found = client.post(f"{OWN}/changefeeds/check", json=body(source)).json()
    assert set(found) == {"ok", "error", "tables", "ineligible", "outputs", "rules", "notices"}
    assert found["ok"] is True and found["error"] is None
    assert found["tables"] == ["shop.items", "shop.orders"] == sorted(found["outputs"])
    assert found["rules"]
    wrong = client.post(f"{OWN}/changefeeds/check", json=body(source, sink_uri="pigeon://x"))
    assert wrong.status_code == 200
    assert wrong.json()["ok"] is False and wrong.json()["error"]["code"] == "RF-1004"
    assert set(wrong.json()) == set(found)
    empty = client.post(f"{OWN}/changefeeds/check", json=body(source, sink_uri="")).json()
    assert "sink_uri" in empty["error"]["message"]
    assert operations.store.feeds() == ()


def test_a_change_is_foreseen_and_not_made(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    path = f"{OWN}/changefeeds/one/check"
    less = {"replica_config": {"filter": {"rules": ["shop.items"]}}}
    runs = client.post(path, json=less).json()
    assert runs["ok"] is False and "pause it first" in runs["error"]["message"]
    client.post("/api/v2/changefeeds/one/pause")
    found = client.post(path, json=less).json()
    assert found["ok"] is True and found["tables"] == ["shop.items"]
    none = {"replica_config": {"filter": {"rules": ["shop.*", "nowhere.t"]}}}
    assert client.post(path, json=none).json()["error"]["code"] == "RF-1009"
    moved = client.post(path, json={"sink_uri": "file:///elsewhere?protocol=csv"}).json()
    assert moved["error"]["code"] == "RF-2004" and set(moved) == set(found)
    assert client.post(path, json={"start_ts": 5}).json()["ok"] is False
    assert client.post(path, json={"sink": "x"}).status_code == 400
    assert client.post(f"{OWN}/changefeeds/none/check", json=less).json()["ok"] is False
    feed = operations.store.feed("one")
    assert feed is not None and feed.spec_version == 1
    assert feed.spec.config["filter"]["rules"] == ["shop.*"]


def test_tables_come_and_go(client: TestClient, source: str, operations: Operations) -> None:
    create(client, source)
    path = f"{OWN}/changefeeds/one/tables"
    answer = client.post(path, json={"drop": ["shop.items"]})
    assert answer.json()["config"]["filter"]["rules"] == ["shop.*", "!shop.items"]
    answer = client.post(path, json={"add": ["shop.items"]})
    assert answer.json()["spec_version"] == 3
    for wrong in ({}, {"add": ["a.b"], "drop": ["c.d"]}, {"add": "a.b"}, {"add": ["@/etc/hosts"]}):
        answer = client.post(path, json=wrong)
        assert answer.status_code == 400, answer.text
    assert operations.store.feed("one").spec_version == 3  # type: ignore[union-attr]


def test_one_stands_still_for_a_while(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    path = f"{OWN}/changefeeds/one/hold"
    nothing = {"hold": None, "pending": False, "micro_batch": 0, "lag_ms": None}
    assert client.get(path).json() == nothing
    refused = client.post(path, json={})
    assert refused.status_code == 400 and "cannot stand still" in refused.json()["error_msg"]
    place = {"server": "s", "file": "log.1", "offset": 4, "gtid": ""}
    for wrong in ({"seconds": 0}, {"position": "log.1:4"}, {"position": {**place, "offset": 3}}):
        assert client.post(path, json=wrong).status_code == 400, wrong
    now = round(time.time())
    operations.store.hold("one", Hold("a", now + 60.0, place, "at", 3))
    held = {"id": "a", "until": (now + 60) * 1000, "position": place, "stands": "at"}
    found = {**nothing, "hold": {**held, "micro_batch": 3}}
    assert client.get(path).json() == found
    assert client.delete(path, params={"hold": "b"}).json() == found
    assert client.delete(path, params={"hold": "a"}).json() == nothing
    assert client.delete(path).status_code == 400
    assert client.get(f"{OWN}/changefeeds/none/hold").status_code in (400, 404)


def test_a_stopped_one_begins_anew(client: TestClient, source: str) -> None:
    create(client, source)
    path = f"{OWN}/changefeeds/one/reset"
    assert client.post(path, json={"snapshot": True}).status_code == 400  # it runs
    client.post("/api/v2/changefeeds/one/pause")
    answer = client.post(path, json={"snapshot": True})
    assert answer.status_code == 200 and answer.json()["state"] == "stopped"
    assert [note["what"] for note in answer.json()["history"][:2]] == ["asked", "reset"]
    for wrong in ({}, {"snapshot": True, "commit_ts": 5}, {"snapshot": "yes"}, {"when": 5}):
        assert client.post(path, json=wrong).status_code == 400, wrong


def test_statements(client: TestClient, source: str, operations: Operations) -> None:
    text = f"CREATE CHANGEFEED one FOR TABLE shop.* FROM '{source}' INTO '{SINK}'"
    made = client.post(f"{OWN}/sql", json={"statement": text})
    assert made.status_code == 200 and set(made.json()) == {"columns", "rows", "message"}
    assert operations.store.feed("one") is not None
    shown = client.post(f"{OWN}/sql", json={"statement": "SHOW CHANGEFEEDS"}).json()
    assert shown["rows"][0][shown["columns"].index("id")] == "one"
    for wrong in ("BREW COFFEE", "", "PAUSE CHANGEFEED none"):
        answer = client.post(f"{OWN}/sql", json={"statement": wrong})
        assert answer.status_code in (400, 404) and "RF-" in answer.json()["error_msg"]
