"""TiCDC's paths about changefeeds: its shapes, its codes, and no secrets."""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.operations import Created, Operations, Wanted
from rowferry.control.operator.ticdc_codes import ticdc_code
from rowferry.errors import SinkUnavailable
from rowferry.face.sources import Sources
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.uri import Uri

FEEDS = "/api/v2/changefeeds"
SINK = "blackhole:///?protocol=canal-json"
RULES = {"filter": {"rules": ["shop.*"]}}


def create(client: TestClient, source: str, **more: Any) -> dict[str, Any]:
    body = {"changefeed_id": "one", "source_uri": source, "sink_uri": SINK, "replica_config": RULES}
    answer = client.post(FEEDS, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: Any, status: int, code: str, *words: str) -> None:
    """Check an error's shape, and that its one line of ours holds these words."""
    assert answer.status_code == status, answer.text
    form = answer.json()
    assert set(form) == {"error_msg", "error_code"}
    assert form["error_code"] == f"CDC:{code}"
    assert form["error_msg"].startswith("[RF-") and "\n" not in form["error_msg"]
    for word in words:
        assert word in form["error_msg"]


def test_a_changefeed_has_ticdcs_shape(client: TestClient, source: str) -> None:
    made = create(
        client,
        source,
        start_ts=0,
        target_ts=(time.time_ns() // 1_000_000 + 3_600_000) << 18,
        pd_addrs=["http://127.0.0.1:2379"],
        ca_path="",
        keyspace="default",
        replica_config={
            **RULES,
            "case_sensitive": True,
            "changefeed_error_stuck_duration": 2_400_000_000_000,
            "sink": {"dispatchers": [{"matcher": ["shop.*"], "target-schema": "copy"}]},
        },
    )
    assert set(made) == {
        *("upstream_id", "id", "keyspace", "source_uri", "sink_uri", "create_time", "start_ts"),
        *("target_ts", "admin_job_type", "config", "state", "error", "creator_version"),
        *("resolved_ts", "checkpoint_ts", "checkpoint_time", "task_status", "gid"),
        "maintainer_addr",
    }
    assert made["id"] == "one" and made["state"] == "normal" and made["keyspace"] == "default"
    assert made["source_uri"] == source and made["error"] is None
    assert made["config"] == {
        "filter": {"rules": ["shop.*"]},
        "case_sensitive": True,
        "changefeed_error_stuck_duration": 2_400_000_000_000,
        "sink": {"dispatchers": [{"matcher": ["shop.*"], "target-schema": "copy"}]},
    }
    listed = client.get(FEEDS).json()
    assert listed["total"] == 1
    assert listed["items"] == [
        {
            "upstream_id": 0,
            "id": "one",
            "keyspace": "default",
            "state": "normal",
            "checkpoint_tso": 0,
            "checkpoint_time": made["checkpoint_time"],
            "error": None,
        }
    ]
    assert client.get(f"{FEEDS}/one?keyspace=default").json() == made
    synced = client.get(f"{FEEDS}/one/synced").json()
    assert set(synced) == {
        *("synced", "sink_checkpoint_ts", "puller_resolved_ts", "last_synced_ts", "now_ts"),
        "info",
    }
    assert synced["synced"] is False and synced["now_ts"][:2] == "20"
    assert client.get(f"{FEEDS}/one/tables").json() == {"total": 0, "items": []}


def test_the_verbs_and_their_states(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    assert client.post(f"{FEEDS}/one/pause").json() == {}
    assert client.post(f"{FEEDS}/one/pause").json() == {}  # once is enough
    assert operations.store.feed("one").state is FeedState.STOPPED  # type: ignore[union-attr]
    changed = client.put(
        f"{FEEDS}/one", json={"replica_config": {"filter": {"rules": ["shop.orders"]}}}
    )
    assert changed.json()["config"] == {"filter": {"rules": ["shop.orders"]}}
    assert changed.json()["sink_uri"] == SINK
    assert client.post(f"{FEEDS}/one/resume").json() == {}
    refused(client.put(f"{FEEDS}/one", json={"sink_uri": SINK}), 400, "ErrChangefeedUpdateRefused")
    client.post(f"{FEEDS}/one/pause")
    refused(client.put(f"{FEEDS}/one", json={"start_ts": 5}), 400, "ErrAPIInvalidParam", "start")
    assert client.delete(f"{FEEDS}/one").json() == {}
    assert operations.store.feeds() == ()
    gone = client.delete(f"{FEEDS}/one")
    assert (gone.status_code, gone.json()) == (200, None)


def test_an_error_is_shown_with_both_codes(
    client: TestClient, source: str, operations: Operations
) -> None:
    create(client, source)
    word = secrets.token_hex(8)
    why = SinkUnavailable(f"http://me:{word}@far:1/ did not answer, sasl-password={word}")
    operations.store.move("one", Verb.FAULT, why)
    holder = Holder.here()
    operations.store.claim("one", holder, time.time(), 600.0)
    operations.store.announce(holder, "10.0.0.1:8300", time.time() + 600)
    (item,) = client.get(f"{FEEDS}?state=warning").json()["items"]
    assert item["error"]["code"] == ticdc_code(why)[1]
    assert item["error"]["message"] == (
        "[RF-4001] http://me:***@far:1/ did not answer, sasl-password=***"
    )
    found = client.get(f"{FEEDS}/one").json()
    assert found["maintainer_addr"] == found["error"]["addr"] == "10.0.0.1:8300"
    assert found["task_status"] == [
        {"capture_id": holder.instance, "table_ids": [], "table_operations": None}
    ]
    status = client.get(f"{FEEDS}/one/status").json()
    assert status["last_warning"] == found["error"] and status["last_error"] is None
    operations.store.move("one", Verb.GIVE_UP, why)
    status = client.get(f"{FEEDS}/one/status").json()
    assert (
        status["last_warning"] is None
        and status["last_error"]["message"] == item["error"]["message"]
    )
    assert client.get(f"{FEEDS}?state=normal,stopped").json() == {"total": 0, "items": []}
    assert client.get(f"{FEEDS}?state=all").json()["total"] == 1
    (capture,) = client.get("/api/v2/captures").json()["items"]
    assert capture == {
        "id": holder.instance,
        "is_owner": True,
        "address": "10.0.0.1:8300",
        "cluster_id": "default",
    }
    (running,) = client.get("/api/v2/processors").json()["items"]
    assert running == {
        "keyspace": "default",
        "changefeed_id": "one",
        "capture_id": holder.instance,
    }
    assert client.get(f"/api/v2/processors/one/{holder.instance}").json() == {"table_ids": []}
    assert client.get("/api/v2/status").json()["is_owner"] is False


def test_secrets_are_never_returned(client: TestClient, operations: Operations) -> None:
    word = secrets.token_hex(8)
    source = f"mysql://me:{word}@127.0.0.1:1/?session-token={word}"
    sink = f"http://me:{word}@127.0.0.1:1/changes?api-token={word}"
    headers = {"sink": {"http-config": {"headers": [f"X-Key: {word}"]}}}
    spec, _ = build_spec(
        "range://127.0.0.1:1", sink, headers, "hidden", option_tables, sinks=sink_traits
    )
    operations.store.create_changefeed(replace(spec, source=Uri.parse(source, "source")))
    operations.store.note("hidden", "tried", {"sink": sink, "many": [sink]})
    texts = [
        client.get(path).text
        for path in (
            *(FEEDS, f"{FEEDS}/hidden", f"{FEEDS}/hidden/status", "/api/rowferry/overview"),
            "/api/rowferry/changefeeds/hidden",
        )
    ]
    wrong = {"changefeed_id": "x", "source_uri": source, "sink_uri": sink}
    texts.append(client.post(FEEDS, json=wrong).text)
    texts.append(client.post("/api/rowferry/changefeeds/check", json=wrong).text)
    statement = f"CREATE CHANGEFEED y FOR TABLE a.b FROM '{source}' INTO '{sink}'"
    for text in (statement, "SHOW CHANGEFEEDS", "SHOW CHANGEFEED hidden", statement + " nonsense"):
        texts.append(client.post("/api/rowferry/sql", json={"statement": text}).text)
    assert all(texts)
    assert [text for text in texts if word in text] == []
    shown = client.get(f"{FEEDS}/hidden").json()
    assert shown["sink_uri"] == "http://me:***@127.0.0.1:1/changes?api-token=***"
    assert shown["config"]["sink"]["http_config"]["headers"] == "***"


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ({"changefeed_id": "a_b"}, "ErrInvalidChangefeedID", "a_b"),
        ({"changefeed_id": "x" * 129}, "ErrInvalidChangefeedID", "128"),
        ({"sink_uri": "carrier-pigeon://x"}, "ErrSinkURIInvalid", "carrier-pigeon"),
        ({"sink_uri": ""}, "ErrSinkURIInvalid", "sink_uri"),
        ({"source_uri": ""}, "ErrInvalidReplicaConfig", "source_uri"),
        ({"keyspace": "other"}, "ErrAPIInvalidParam", "other"),
        ({"sink_ury": "x"}, "ErrAPIInvalidParam", "did you mean 'sink_uri'"),
        ({"start_ts": "7"}, "ErrAPIInvalidParam", "start_ts"),
        ({"target_ts": -1}, "ErrAPIInvalidParam", "target_ts"),
        ({"target_ts": True}, "ErrAPIInvalidParam", "target_ts"),
        (
            {"source_uri": "mysql://127.0.0.1:1/", "start_ts": 1 << 60, "target_ts": 1 << 59},
            "ErrTargetTsBeforeStartTs",
            "target",
        ),
        ({"replica_config": []}, "ErrAPIInvalidParam", "replica_config"),
        ({"replica_config": {"sink": {"cvs": {}}}}, "ErrInvalidReplicaConfig", "sink.cvs"),
        ({"replica_config": {"case_sensitive": 3}}, "ErrInvalidReplicaConfig", "case-sensitive"),
        ({"replica_config": {"filter": {"rules": ["a"]}}}, "ErrFilterRuleInvalid", "'a'"),
        (
            {
                "replica_config": {
                    "filter": {"event_filters": [{"matcher": ["a.*"], "ignore_event": ["x"]}]}
                }
            },
            "ErrInvalidIgnoreEventType",
            "'x'",
        ),
        ({"replica_config": {"filter": {"rules": ["@/etc/hosts"]}}}, "ErrFilterRuleInvalid", "@"),
    ],
)
def test_bad_bodies_change_nothing(
    client: TestClient,
    source: str,
    operations: Operations,
    more: dict[str, Any],
    code: str,
    word: str,
) -> None:
    body = {"changefeed_id": "one", "source_uri": source, "sink_uri": SINK}
    refused(client.post(FEEDS, json=body | more), 400, code, word)
    assert operations.store.feeds() == ()


def test_other_bad_requests(client: TestClient, source: str) -> None:
    create(client, source)
    before = client.get(f"{FEEDS}/one").json()
    body = {"changefeed_id": "one", "source_uri": source, "sink_uri": SINK}
    refused(client.post(FEEDS, json=body), 400, "ErrChangeFeedAlreadyExists", "one")
    refused(client.get(f"{FEEDS}/two"), 400, "ErrChangeFeedNotExists", "two")
    refused(client.post(f"{FEEDS}/two/pause"), 400, "ErrChangeFeedNotExists")
    refused(client.get(f"{FEEDS}/a_b"), 400, "ErrInvalidChangefeedID")
    refused(client.get(f"{FEEDS}?state=asleep"), 400, "ErrAPIInvalidParam", "asleep")
    refused(client.get(f"{FEEDS}?keyspace=x"), 400, "ErrAPIInvalidParam", "keyspace")
    for content in (
        b"{",
        b'{"a": 1',
        b"[" * 200_000,
        b"\xff",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[]",
    ):
        refused(client.post(FEEDS, content=content), 400, "ErrAPIInvalidParam")
    refused(client.post(FEEDS), 400, "ErrAPIInvalidParam", "body")
    lone = b'{"sink_uri": "blackhole:///", "replica_config": {"filter": {"rules": ["\\ud800"]}}}'
    refused(client.post(FEEDS, content=lone), 400, "ErrInvalidReplicaConfig")
    refused(client.patch(f"{FEEDS}/one"), 405, "ErrAPIInvalidParam", "the method")
    for path in ("move_table", "move_split_table", "split_table_by_region_count", "merge_table"):
        refused(client.post(f"{FEEDS}/one/{path}"), 400, "ErrAPIInvalidParam", "not supported")
    for verb, path in (
        ("GET", f"{FEEDS}/one/get_dispatcher_count"),
        ("POST", "/api/v2/owner/resign"),
        ("GET", "/api/v2/unsafe/metadata"),
        ("POST", "/api/v2/unsafe/resolve_lock"),
        ("DELETE", "/api/v2/unsafe/service_gc_safepoint"),
    ):
        refused(client.request(verb, path), 400, "ErrAPIInvalidParam", "not supported")
    assert client.get(f"{FEEDS}/one").json() == before


def test_a_body_needs_no_content_type(client: TestClient, source: str) -> None:
    text = f'{{"sink_uri": "{SINK}", "source_uri": "{source}", "changefeed_id": "bare"}}'
    found = client.post(
        FEEDS, content=text, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert found.json()["id"] == "bare"


def test_tables_can_be_asked_for(client: TestClient, source: str) -> None:
    body = {"source_uri": source, "replica_config": RULES, "sink_uri": "", "start_ts": 0}
    for path in ("verify_table", "get_all_tables"):
        found = client.post(f"/api/v2/{path}", json=body).json()
        assert [t["table_name"] for t in found["eligible_tables"]] == ["items", "orders"]
        assert found["ineligible_tables"] == [] and len(found["all_tables"]) == 2
    assert client.get(FEEDS).json()["total"] == 0


def test_tables_without_a_key_are_listed_before_they_are_refused(
    client: TestClient, source: str, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Wanted] = []
    create_it = operations.create

    def noted(wanted: Wanted, dry_run: bool = False) -> Created:
        asked.append(wanted)
        keyless = TableId("shop", "keyless")
        return replace(create_it(wanted, dry_run), ineligible=(keyless,))

    monkeypatch.setattr(operations, "create", noted)
    config = RULES | {"ignore_ineligible_table": False, "enable_sync_point": True}
    body = {"source_uri": source, "replica_config": config, "sink_uri": SINK}
    found = client.post("/api/v2/get_all_tables", json=body).json()
    assert [t["table_name"] for t in found["ineligible_tables"]] == ["keyless"]
    assert set(asked[0].config) == {"filter", "ignore-ineligible-table"}
    del config["enable_sync_point"]
    assert client.post("/api/v2/verify_table", json=body).status_code == 200
    assert all(one.config["ignore-ineligible-table"] is True for one in asked)


def test_the_version_is_one_that_clients_accept(client: TestClient) -> None:
    version = client.get("/api/v2/status").json()["version"]
    assert re.fullmatch(r"v8\.5\.0\+rowferry\.[0-9A-Za-z.-]+", version)


def test_a_server_may_know_a_source(asking: Any, source: str) -> None:
    client = asking(sources=Sources(default=source))
    answer = client.post(FEEDS, json={"changefeed_id": "bare", "sink_uri": "blackhole://"})
    assert answer.json()["source_uri"] == source


def test_time_and_logs(client: TestClient) -> None:
    before = time.time_ns() // 1_000_000
    found = client.post("/api/v2/tso", json={"pd_addrs": [], "ca_path": ""}).json()
    assert set(found) == {"timestamp", "logic_time"} and found["timestamp"] >= before
    assert client.post("/api/v2/tso").status_code == 200
    mode = client.post("/api/v2/log/redact", json={"redact_info_log": "ON"}).json()
    assert mode == {"previous_mode": "on", "current_mode": "on"}
    refused(
        client.post("/api/v2/log/redact", json={"redact_info_log": "off"}),
        400,
        "ErrInvalidReplicaConfig",
        "always hidden",
    )
    refused(
        client.post("/api/v2/log", json={"log_level": "loud"}),
        400,
        "ErrInvalidReplicaConfig",
        "loud",
    )


def test_the_log_level_is_changed(client: TestClient) -> None:
    root = logging.getLogger()
    was = root.level
    try:
        assert client.post("/api/v2/log", json={"log_level": "error"}).json() == {}
        assert root.level == logging.ERROR
    finally:
        root.setLevel(was)


def test_where_to_go_on_is_passed_along(
    client: TestClient, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(operations, "resume", lambda *given: asked.append(given))
    for body in ({"overwrite_checkpoint_ts": 7}, {"overwrite_checkpoint_ts": 0}, {}, None):
        assert client.post(f"{FEEDS}/one/resume", json=body).status_code == 200
    assert asked == [("one", 7), ("one", None), ("one", None), ("one", None)]
