"""Every way to ask a server: each has a declared role, and a viewer changes nothing by any.

The ways are found by walking the server itself, so that a new one without a role fails here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import grpc
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from front_kit import Front
from starlette.routing import BaseRoute, Mount
from test_front_roles import ALLOWED, FROM_INTO, GATE, asked, stored

from rowferry.change.chunk import Op
from rowferry.change.quarantine import ParkedRow, RowPlace
from rowferry.change.table import TableId
from rowferry.control.operator.actor import Role, role_of
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.statements.parsed import ParkedRows, Statement
from rowferry.control.operator.statements.syntax import parse
from rowferry.face import rpc
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.pages import OPEN_PATHS
from rowferry.wire import (
    declare_pb2,
    quarantine_pb2,
    resnapshot_pb2,
    subscribe_pb2,
    trace_pb2,
)

# --- REST -----------------------------------------------------------------------------------------

# Methods that change something elsewhere, and nothing here: whoever may look may use them.
HARMLESS = {("POST", "/api/v2/tso"), ("POST", "/api/v2/log/redact")}
# Each statement is judged for itself, below.
BY_STATEMENT = {("POST", "/api/rowferry/sql")}
SAME_AS = {"/status": "/api/v2/status"}  # another name of the same
FILLED = {"changefeed_id": "one", "resnapshot": "x", "row": "x", "capture_id": "x"}


def routes(app: FastAPI) -> Iterator[tuple[str, str, APIRoute]]:
    """Yield every method and path that is answered by a function of ours."""
    for route in walked(app.routes):
        assert isinstance(route, APIRoute), route
        for method in sorted((route.methods or set()) - {"HEAD", "OPTIONS"}):
            yield method, route.path, route


def walked(found: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in found:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from walked(inner.routes)
        elif isinstance(route, Mount):
            assert f"{route.path}/" in OPEN_PATHS, route  # files, the same for everybody
        elif getattr(route, "path", "") not in OPEN_PATHS:
            yield route


def role_of_path(method: str, path: str) -> Role | None:
    """Return the lowest role that the lists give a path; None: they do not know it."""
    filled = SAME_AS.get(path, path.format(**FILLED))
    found = {
        role
        for role, rows in ALLOWED.items()
        for known, where, _ in rows
        if known == method and where.partition("?")[0].replace("/nothing", "/one") == filled
    }
    return min(found, default=None)


def test_every_route_has_a_declared_role(operations: Operations) -> None:
    app = create_app(operations, About("h:1", "0", 1.0, "here"))
    seen = set()
    for method, path, route in routes(app):
        seen.add((method, path))
        if route.summary == "Not supported" or "{capture_id}" in path:
            continue
        role = role_of_path(method, path)
        assert role is not None, f"{method} {path} has no role in test_front_roles.py"
        if method != "GET" and (method, path) not in HARMLESS | BY_STATEMENT:
            assert role > Role.VIEWER, f"a viewer may {method} {path}"
    assert len(seen) > 45 and HARMLESS | BY_STATEMENT <= seen


def test_what_is_not_supported_changes_nothing(opened: Callable[..., Front]) -> None:
    front = opened(gate=GATE)
    told = front.ask("GET", "/openapi.json").form["paths"]
    refused = [
        (method.upper(), path.format(**FILLED))
        for path, methods in told.items()
        for method, about in methods.items()
        if about["summary"] == "Not supported"
    ]
    assert refused
    for method, path in refused:
        assert asked(front, Role.ADMIN, (method, path, {})).status in (400, 404, 405, 501), path


# --- SQL ------------------------------------------------------------------------------------------

STATEMENTS: Mapping[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        "SHOW CHANGEFEEDS",
        "SHOW CHANGEFEED one",
        "SHOW CHANGEFEED one PROGRESS",
        "SHOW CHANGEFEED one TABLES",
        "SHOW CHANGEFEED one SCHEMA CHANGES",
        "SHOW CHANGEFEED one SAMPLE",
        "SHOW CHANGEFEED one RESNAPSHOTS",
        "SHOW CHANGEFEED one QUARANTINE",
        "TRACE CHANGEFEED one TABLE a.b KEY (id = 1)",
        "EXPORT CHANGEFEEDS AS 'o'",
    ),
    Role.OPERATOR: (
        "SHOW CHANGEFEED one LOG",
        "TRACE CHANGEFEED one TABLE a.b KEY (id = 1) WITH VALUES",
        "PAUSE CHANGEFEED one",
        "RESUME CHANGEFEED one",
        "ALTER CHANGEFEED one RESET TO TS 7",
        "ALTER CHANGEFEED one RESNAPSHOT TABLE a.b",
        "ALTER CHANGEFEED one CANCEL RESNAPSHOT 'x'",
        "ALTER CHANGEFEED one RETRY QUARANTINE",
        "ALTER CHANGEFEED one DROP QUARANTINE",
    ),
    Role.ADMIN: (
        f"CREATE CHANGEFEED x {FROM_INTO}",
        f"EXPLAIN CREATE CHANGEFEED x {FROM_INTO}",
        "ALTER CHANGEFEED one SET (target_ts = 7)",
        "ALTER CHANGEFEED one ADD TABLE a.b",
        "ALTER CHANGEFEED one DROP TABLE a.b",
        "DROP CHANGEFEED nothing",
        "APPLY 'owner: o\nchangefeeds: {}'",
        "EXPLAIN APPLY 'owner: o\nchangefeeds: {}'",
    ),
}


def test_every_statement_has_a_declared_role() -> None:
    parsed = [parse(text) for texts in STATEMENTS.values() for text in texts]
    assert {type(one) for one in parsed} == set(get_args(Statement))
    assert {one.verb for one in parsed if isinstance(one, ParkedRows)} == {"", "retry", "drop"}


@pytest.mark.parametrize("needed", Role)
def test_a_statement_needs_its_role(
    opened: Callable[..., Front], operations: Operations, needed: Role
) -> None:
    if operations.store.feed("one") is None:
        stored(operations, "one")
    front = opened(gate=GATE)
    before = operations.store.feed("one")
    for text in STATEMENTS[needed]:
        for role in Role:
            if role >= needed > Role.VIEWER:
                continue  # test_front_roles.py has who may
            said = asked(front, role, ("POST", "/api/rowferry/sql", {"statement": text}))
            refused = said.status == 403 and said.words.startswith("[RF-1033] ")
            assert refused == (role < needed), (role, text, said)
    assert operations.store.feed("one") == before
    assert [one.id for one in operations.store.feeds()] == ["one"]


# --- gRPC -----------------------------------------------------------------------------------------

CALLS: Mapping[str, tuple[Role, Any]] = {
    "rowferry.wire.Subscriptions/SubscribeCDC": (
        Role.ADMIN,
        subscribe_pb2.SubscribeCDCRequest(
            subscriber_name="s",
            db_name="a",
            table_name="b",
            sink=subscribe_pb2.CDCSink(
                type="storage",
                config={"uri": "blackhole:///", "source_uri": "range://127.0.0.1:1"},
            ),
        ),
    ),
    "rowferry.wire.Subscriptions/UnsubscribeCDC": (
        Role.ADMIN,
        subscribe_pb2.UnsubscribeCDCRequest(subscriber_name="one"),
    ),
    "rowferry.wire.Resnapshots/Resnapshot": (
        Role.OPERATOR,
        resnapshot_pb2.ResnapshotRequest(changefeed_id="one", db_name="a", table_name="b"),
    ),
    "rowferry.wire.Resnapshots/CancelResnapshot": (
        Role.OPERATOR,
        resnapshot_pb2.CancelResnapshotRequest(changefeed_id="one", id="x"),
    ),
    "rowferry.wire.Resnapshots/ListResnapshots": (
        Role.VIEWER,
        resnapshot_pb2.ListResnapshotsRequest(changefeed_id="one"),
    ),
    "rowferry.wire.Traces/Trace": (
        Role.OPERATOR,  # with values; places are for viewers
        trace_pb2.TraceRequest(
            changefeed_id="one", db_name="a", table_name="b", key={"id": "1"}, values=True
        ),
    ),
    "rowferry.wire.Traces/LastChanges": (
        Role.VIEWER,
        trace_pb2.LastChangesRequest(changefeed_id="one"),
    ),
    "rowferry.wire.Quarantine/ListQuarantined": (
        Role.VIEWER,
        quarantine_pb2.ListQuarantinedRequest(changefeed_id="one"),
    ),
    "rowferry.wire.Quarantine/ShowQuarantined": (
        Role.OPERATOR,
        quarantine_pb2.QuarantinedRowRequest(changefeed_id="one", row="1-1"),
    ),
    "rowferry.wire.Quarantine/RetryQuarantined": (
        Role.OPERATOR,
        quarantine_pb2.QuarantineChoice(changefeed_id="one", all=True),
    ),
    "rowferry.wire.Quarantine/DropQuarantined": (
        Role.OPERATOR,
        quarantine_pb2.QuarantineChoice(changefeed_id="one", all=True),
    ),
    "rowferry.wire.Declarations/Apply": (
        Role.ADMIN,
        declare_pb2.ApplyRequest(declarations=["owner: o\nchangefeeds: {}"], dry_run=True),
    ),
    "rowferry.wire.Declarations/Export": (Role.VIEWER, declare_pb2.ExportRequest()),
}


@contextmanager
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Note each method that a gRPC server is given."""
    methods: set[str] = set()
    made = grpc.server

    def noting(*args: Any, **more: Any) -> grpc.Server:
        server = made(*args, **more)

        def add(service: str, handlers: Mapping[str, Any]) -> None:
            methods.update(f"{service}/{name}" for name in handlers)
            given(service, handlers)

        given = server.add_registered_method_handlers  # type: ignore[attr-defined]
        server.add_registered_method_handlers = add  # type: ignore[attr-defined]
        return server

    monkeypatch.setattr(grpc, "server", noting)
    yield methods


def test_every_call_has_a_declared_role(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    if operations.store.feed("one") is None:
        stored(operations, "one")
    before = operations.store.feed("one")
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    with (
        registered(monkeypatch) as methods,
        rpc.serve(operations, "127.0.0.1:0", gate=GATE) as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        assert methods == set(CALLS)
        for name, (needed, request) in CALLS.items():
            call = channel.unary_unary(f"/{name}")
            sent = request.SerializeToString()
            for role in (None, *(r for r in Role if r < needed)):
                word = [("authorization", f"Bearer {role}")] if role else []
                with pytest.raises(grpc.RpcError) as said:
                    call(sent, timeout=120, metadata=word)
                expected = denied if role else unknown
                assert said.value.code() is expected, (name, role)  # type: ignore[attr-defined]
    assert operations.store.feed("one") == before


# --- verbs ----------------------------------------------------------------------------------------

VIEWER_VERBS = {
    *(
        "columns",
        "day",
        "feeds",
        "form_facts",
        "held",
        "last_changes",
        "quarantined",
        "resnapshots",
        "see",
    ),
    *("servers", "synced", "target_tables", "trace"),
}


def test_what_a_viewer_may_call_is_known() -> None:
    """A verb that anybody may call is on this list, or it is a mistake."""
    found = inspect.getmembers(Operations, inspect.isfunction)
    verbs = {name: role_of(verb) for name, verb in found if name[0] != "_"}
    looking = {name for name, role in verbs.items() if role is Role.VIEWER}
    assert looking == VIEWER_VERBS


# --- values of rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_a_parked_row_shows_viewers_no_value(
    opened: Callable[..., Front],
    operations: Operations,
    role: Role,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the key nor the target's words, which repeat what it refused."""
    if operations.store.feed("one") is None:
        stored(operations, "one")
    words = "1062: Duplicate entry 'ann@example.com' for key 'mail'"
    row = ParkedRow(
        *(RowPlace(3, 0), TableId("a", "b"), 1, 1, None, "mail=ann@example.com", Op.INSERT),
        *(7, "", words, 9, 1.0),
    )
    monkeypatch.setattr(type(operations.store), "parked", lambda *_: (row,))
    front = opened(gate=GATE)
    statement = {"statement": "SHOW CHANGEFEED one QUARANTINE"}
    for request in (
        ("GET", "/api/rowferry/changefeeds/one/quarantine", None),
        ("POST", "/api/rowferry/sql", statement),
    ):
        said = asked(front, role, request)
        assert said.status == 200 and b"a.b" in said.body
        assert (b"ann@example.com" in said.body) == (role >= Role.OPERATOR)
    with (
        rpc.serve(operations, "127.0.0.1:0", gate=GATE) as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        call = channel.unary_unary("/rowferry.wire.Quarantine/ListQuarantined")
        wanted = quarantine_pb2.ListQuarantinedRequest(changefeed_id="one").SerializeToString()
        answer = call(wanted, timeout=120, metadata=[("authorization", f"Bearer {role}")])
        assert b"1062" in answer if role >= Role.OPERATOR else b"ann@example.com" not in answer
