"""Roles on every face: what each may reach, what it may not, and what is kept of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from front_kit import Front

from rowferry.change.quarantine import RefusedKey, RefusedRows
from rowferry.control.operator.actor import ASKED, Actor, Role, current_actor, role_of
from rowferry.control.operator.operations import Operations
from rowferry.control.store.quarantine import DROPPED
from rowferry.errors import QuarantineFull, RoleTooLow
from rowferry.face import rpc
from rowferry.face.credentials import KnownLogins, Token, token_digest
from rowferry.face.gate import Gate
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.secrets import HIDDEN
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.resnapshot_pb2 import (
    CancelResnapshotRequest,
    ListResnapshotsRequest,
    ResnapshotRequest,
)
from rowferry.wire.resnapshot_pb2_grpc import ResnapshotsStub
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

FEEDS, OWN = "/api/v2/changefeeds", "/api/rowferry/changefeeds"
NOWHERE = {"source_uri": "range://127.0.0.1:1", "sink_uri": "blackhole:///?protocol=json"}
FROM_INTO = "FROM 'range://127.0.0.1:1' INTO 'blackhole:///'"
GATE = Gate(KnownLogins({}, tuple(Token(f"the-{r}", r, token_digest(str(r))) for r in Role)))

LOOKS: list[tuple[str, str, Any]] = [
    ("GET", FEEDS, None),
    ("GET", f"{FEEDS}/one", None),
    ("GET", f"{FEEDS}/one/status", None),
    ("GET", f"{FEEDS}/one/synced", None),
    ("GET", f"{FEEDS}/one/tables", None),
    ("GET", f"{OWN}/one", None),
    ("GET", f"{OWN}/one/hold", None),
    ("GET", f"{OWN}/one/day", None),
    ("GET", f"{OWN}/one/resnapshots", None),
    ("GET", f"{FEEDS}/one/trace?table=a.b&key=id%3D1", None),
    ("GET", f"{OWN}/one/sample", None),
    ("GET", f"{OWN}/one/target", None),
    ("GET", f"{OWN}/one/columns?table=a.b", None),
    ("GET", f"{OWN}/one/quarantine", None),
    ("GET", "/api/rowferry/overview", None),
    ("GET", "/api/rowferry/export?as=me", None),
    ("GET", "/api/rowferry/form", None),
    ("GET", "/api/v2/captures", None),
    ("GET", "/api/v2/processors", None),
    ("GET", "/api/v2/status", None),
    ("GET", "/metrics", None),
    ("POST", "/api/v2/tso", {}),
    ("POST", "/api/v2/log/redact", {"redact_info_log": "on"}),
    ("POST", "/api/rowferry/sql", {"statement": "SHOW CHANGEFEEDS"}),
    ("POST", "/api/rowferry/sql", {"statement": "SHOW CHANGEFEED one PROGRESS"}),
]
OPERATES: list[tuple[str, str, Any]] = [
    ("POST", f"{FEEDS}/one/pause", None),
    ("POST", f"{FEEDS}/one/resume", {"overwrite_checkpoint_ts": 7}),
    ("POST", f"{OWN}/one/reset", {"commit_ts": 7}),
    ("GET", f"{OWN}/one/log", None),
    ("GET", f"{FEEDS}/one/trace?table=a.b&key=id%3D1&values=true", None),
    ("POST", f"{OWN}/one/resnapshots", {"table": "a.b"}),
    ("DELETE", f"{OWN}/one/resnapshots/x", None),
    ("GET", f"{OWN}/one/quarantine/x", None),
    ("POST", f"{OWN}/one/quarantine/retry", {"all": True}),
    ("POST", f"{OWN}/one/quarantine/drop", {"all": True}),
    ("POST", f"{OWN}/one/hold", {}),
    ("DELETE", f"{OWN}/one/hold?hold=x", None),
    ("POST", "/api/rowferry/sql", {"statement": "PAUSE CHANGEFEED one"}),
    ("POST", "/api/rowferry/sql", {"statement": "ALTER CHANGEFEED one RESET TO TS 7"}),
]
DECIDES: list[tuple[str, str, Any]] = [
    ("POST", FEEDS, {"changefeed_id": "two", **NOWHERE}),
    ("PUT", f"{FEEDS}/one", {"sink_uri": "blackhole:///"}),
    ("DELETE", f"{FEEDS}/nothing", None),
    ("POST", f"{OWN}/check", NOWHERE),
    ("POST", "/api/rowferry/apply", {"declarations": []}),
    ("POST", "/api/rowferry/apply", {"declarations": [], "dry_run": True}),
    ("POST", f"{OWN}/one/check", {"sink_uri": "blackhole:///"}),
    ("POST", f"{OWN}/one/tables", {"add": ["a.b"]}),
    ("POST", f"{OWN}/one/tables", {"drop": ["a.b"]}),
    ("POST", "/api/rowferry/source/check", {"source_uri": "range://127.0.0.1:1"}),
    ("POST", "/api/rowferry/source/tables", {"source_uri": "range://127.0.0.1:1"}),
    ("POST", "/api/rowferry/sink/check", {"sink_uri": "blackhole://"}),
    ("POST", "/api/v2/verify_table", NOWHERE),
    ("POST", "/api/v2/get_all_tables", NOWHERE),
    ("POST", "/api/v2/log", {"log_level": "info"}),
    ("POST", "/api/rowferry/sql", {"statement": "DROP CHANGEFEED nothing"}),
    ("POST", "/api/rowferry/sql", {"statement": "ALTER CHANGEFEED one SET (target_ts = 7)"}),
    ("POST", "/api/rowferry/sql", {"statement": "ALTER CHANGEFEED one ADD TABLE a.b"}),
    *(
        (
            "POST",
            "/api/rowferry/sql",
            {
                "statement": f"{lead}CREATE CHANGEFEED x FROM 'range://127.0.0.1:1' INTO 'blackhole:///'"
            },
        )
        for lead in ("", "EXPLAIN ")
    ),
]
ALLOWED = {Role.VIEWER: LOOKS, Role.OPERATOR: OPERATES, Role.ADMIN: DECIDES}


def stored(operations: Operations, name: str) -> None:
    """Store a changefeed whose source is not there."""
    source, sink = NOWHERE["source_uri"], NOWHERE["sink_uri"]
    made = build_spec(source, sink, {}, name, tables=option_tables, sinks=sink_traits)
    operations.store.create_changefeed(made[0])


@pytest.fixture(scope="module")
def guarded(opened: Callable[..., Front], operations: Operations) -> Front:
    stored(operations, "one")
    return opened(gate=GATE)


def asked(front: Front, role: Role, request: tuple[str, str, Any]) -> Any:
    method, path, body = request
    return front.ask(method, path, body, {"authorization": f"Bearer {role}"})


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", Role)
def test_each_role_reaches_what_it_may(guarded: Front, role: Role, needed: Role) -> None:
    for request in ALLOWED[needed]:
        said = asked(guarded, role, request)
        if role < needed:
            assert said.status == 403, (request, said)
            assert said.words.startswith("[RF-1033] ") and f"the-{role}" in said.words
        else:  # refused, if at all, for another reason: there is no such source
            assert said.status in (200, 400, 500), (request, said)
            assert b"RF-1033" not in said.body and b"RF-0000" not in said.body, (request, said)


def test_every_path_is_in_one_of_the_lists(guarded: Front) -> None:
    known = {(m, p.partition("?")[0]) for rows in ALLOWED.values() for m, p, _ in rows}
    told = asked(guarded, Role.VIEWER, ("GET", "/openapi.json", None)).form["paths"]
    for path, methods in told.items():
        for method, about in methods.items():
            if about["summary"] == "Not supported" or path in ("/api/v2/health",):
                continue
            filled = path.replace("{changefeed_id}", "one").replace("{resnapshot}", "x")
            filled = filled.replace("{row}", "x")
            spare = {filled, filled.replace("/one", "/nothing")}
            if "{capture_id}" in path:
                continue  # as the one without it
            assert any((method.upper(), one) in known for one in spare), (method, path)


def test_every_verb_names_its_role() -> None:
    verbs = [m for n, m in inspect.getmembers(Operations, inspect.isfunction) if n[0] != "_"]
    assert len(verbs) >= 16 and all(isinstance(role_of(verb), Role) for verb in verbs)


def test_a_role_also_counts_within_the_process(operations: Operations) -> None:
    kept = current_actor.set(Actor("x", Role.VIEWER, "", "rest"))
    try:
        for verb in (operations.pause, operations.remove):
            with pytest.raises(RoleTooLow):
                verb("one")
        assert isinstance(operations.feeds(), tuple)
    finally:
        current_actor.reset(kept)


def test_calls_need_their_role(operations: Operations) -> None:
    with (
        rpc.serve(operations, "127.0.0.1:0", gate=GATE) as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        stub = SubscriptionsStub(channel)  # type: ignore[no-untyped-call]
        sink = wire.CDCSink(
            type="storage", config={"uri": NOWHERE["sink_uri"], "source_uri": NOWHERE["source_uri"]}
        )
        subscribe = wire.SubscribeCDCRequest(
            subscriber_name="s", db_name="a", table_name="b", sink=sink
        )
        leave = wire.UnsubscribeCDCRequest(subscriber_name="one")

        def code(call: Any, request: Any, word: str) -> Any:
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=120, metadata=[("authorization", word)] if word else [])
            return refused.value.code()  # type: ignore[attr-defined]

        for call, request in ((stub.SubscribeCDC, subscribe), (stub.UnsubscribeCDC, leave)):
            assert code(call, request, "") is grpc.StatusCode.UNAUTHENTICATED
            assert code(call, request, "Bearer x") is grpc.StatusCode.UNAUTHENTICATED
            for role in (Role.VIEWER, Role.OPERATOR):
                assert code(call, request, f"Bearer {role}") is grpc.StatusCode.PERMISSION_DENIED
        assert code(stub.SubscribeCDC, subscribe, "Bearer admin") is grpc.StatusCode.UNAVAILABLE
        again = ResnapshotsStub(channel)  # type: ignore[no-untyped-call]
        wanted = ResnapshotRequest(changefeed_id="one", db_name="a", table_name="b")
        cancel = CancelResnapshotRequest(changefeed_id="one", id="x")
        for call, request in ((again.Resnapshot, wanted), (again.CancelResnapshot, cancel)):
            assert code(call, request, "") is grpc.StatusCode.UNAUTHENTICATED
            assert code(call, request, "Bearer viewer") is grpc.StatusCode.PERMISSION_DENIED
            assert code(call, request, "Bearer operator") is grpc.StatusCode.INVALID_ARGUMENT
        look = ListResnapshotsRequest(changefeed_id="one")
        assert code(again.ListResnapshots, look, "") is grpc.StatusCode.UNAUTHENTICATED
        seen = again.ListResnapshots(look, metadata=[("authorization", "Bearer viewer")])
        assert list(seen.resnapshots) == []
    assert operations.store.feed("one") is not None


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "audit"):
        yield caplog


def test_who_asked_is_kept(
    guarded: Front, operations: Operations, lines: pytest.LogCaptureFixture
) -> None:
    pause, resume = ("POST", f"{FEEDS}/one/pause", None), ("POST", f"{FEEDS}/one/resume", None)
    assert asked(guarded, Role.VIEWER, pause).status == 403
    for request in (resume, pause, ("DELETE", f"{OWN}/one/hold?hold=x", None)):
        assert asked(guarded, Role.OPERATOR, request).status == 200
    assert asked(guarded, Role.OPERATOR, ("POST", f"{OWN}/one/hold", {})).status == 400
    assert asked(guarded, Role.OPERATOR, ("POST", f"{FEEDS}/never-was/pause", None)).status == 400
    who = {"by": "the-operator", "role": "operator", "from": "127.0.0.1"}
    kept = [n.details for n in operations.store.history("one") if n.what == ASKED][:4]
    assert [one.pop("verb") for one in kept] == ["hold", "end hold", "pause", "resume"]
    assert kept == [{**who, "result": "[RF-2006]"}, *[{**who, "result": "done"}] * 3]
    assert operations.store.history("never-was") == ()
    assert "pause: refused to the-viewer (viewer) from 127.0.0.1 by rest" in lines.text
    assert "pause one, asked by the-operator (operator) from 127.0.0.1 by rest: done" in lines.text
    assert "pause never-was, asked by the-operator" in lines.text
    page = asked(guarded, Role.VIEWER, ("GET", f"{OWN}/one", None)).form["history"]
    assert [n["details"]["by"] for n in page if n["what"] == ASKED][:1] == ["the-operator"]


def test_viewers_see_no_keys_of_parked_rows(guarded: Front, operations: Operations) -> None:
    row = {"row": "1-0", "table": "a.b", "key": "4711-secret", "op": "insert", "commit_ts": 7}
    operations.store.note("one", DROPPED, {"rows": [row]})
    looks = [request for request in LOOKS if "one" in request[1] or "overview" in request[1]]
    looks.append(("POST", "/api/rowferry/sql", {"statement": "SHOW CHANGEFEED one"}))
    for request in looks:
        assert b"4711-secret" not in asked(guarded, Role.VIEWER, request).body, request
    kept = {
        role: next(
            n["details"]["rows"][0]
            for n in asked(guarded, role, ("GET", f"{OWN}/one", None)).form["history"]
            if n["what"] == DROPPED
        )
        for role in Role
    }
    assert kept[Role.OPERATOR] == kept[Role.ADMIN] == row
    assert kept[Role.VIEWER] == {**row, "key": HIDDEN}


def test_an_error_of_the_quarantine_does_not_repeat_the_target(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Everybody sees the error; only operators see the log."""
    refused = RefusedRows()
    refused.begin(1)
    refused.add(RefusedKey(7, "1", "4710-secret"))
    with pytest.raises(QuarantineFull) as error:
        refused.add(RefusedKey(7, "2", "4711-secret"))
    assert "secret" not in str(error.value) and "4711-secret" in caplog.text


def test_a_removal_and_its_author_outlive_the_changefeed(
    opened: Callable[..., Front], operations: Operations, lines: pytest.LogCaptureFixture
) -> None:
    spec, _ = build_spec(
        NOWHERE["source_uri"],
        NOWHERE["sink_uri"],
        {},
        "gone",
        tables=option_tables,
        sinks=sink_traits,
    )
    operations.store.create_changefeed(spec)
    front = opened(gate=GATE)
    assert asked(front, Role.ADMIN, ("DELETE", f"{FEEDS}/gone", None)).status == 200
    last = operations.store.history("gone", 1)[0]
    assert last.what == ASKED and last.details["by"] == "the-admin"
    assert last.details["verb"] == "remove" and last.details["result"] == "done"


def test_names_cannot_forge_a_line(lines: pytest.LogCaptureFixture, operations: Operations) -> None:
    kept = current_actor.set(Actor("ann\n2026 pause x: done", Role.ADMIN, "1\r\n2", "rest"))
    try:
        operations.remove("no\nthing")
    finally:
        current_actor.reset(kept)
    (record,) = lines.records
    assert "\n" not in record.getMessage() and "\r" not in record.getMessage()
    assert record.getMessage().startswith("remove no?thing, asked by ann?2026")
