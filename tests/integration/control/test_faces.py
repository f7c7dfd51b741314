"""Every use case through every face leaves the same in the meta database as without a face."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from faces_kit import FACES, Direct, Face, Shell, Sql, rules, stored

from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.errors import (
    BadStatement,
    RequestTooLarge,
    RowferryError,
    ServerUnavailable,
    SinkUnavailable,
)
from rowferry.face import rpc
from rowferry.face.about import About
from rowferry.face.gate import Gate, Tls
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.testing.servers import MySql
from rowferry.testing.servers.certificates import Certificates
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire import subscribe_pb2_grpc as stubs

ABOUT = About("127.0.0.1:8300", "0.1.0", 1_700_000_000.0, "here")
DATABASE = "faces"


@dataclass
class World:
    """A source with tables, a folder for sinks, and a new meta database whenever one is wanted."""

    source: str
    password: str
    position: str
    folder: Path
    open: Callable[[], Operations]

    @property
    def sink(self) -> str:
        return f"file://{self.folder}/out?protocol=csv"


@pytest.fixture
def world(mysql_server: MySql, tmp_path: Path) -> Iterator[World]:
    mysql_server.script(
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        *(f"CREATE TABLE {DATABASE}.{name} (id INT PRIMARY KEY)" for name in "abc"),
    )
    file = str(mysql_server.execute("SHOW BINARY LOGS")[0][0])
    empty = tmp_path / "empty.db"
    open_store(f"sqlite:///{empty}").close()  # making one takes longer than copying it
    with ExitStack() as held:
        made: list[Operations] = []

        def opened() -> Operations:
            path = tmp_path / f"meta{len(made)}.db"
            shutil.copy(empty, path)
            store = open_store(f"sqlite:///{path}")
            held.callback(store.close)
            made.append(Operations(store))
            return made[-1]

        uri = mysql_server.uri
        yield World(uri, uri.split(":")[2].split("@")[0], f"{file}:4", tmp_path, opened)


def story(face: Face, world: World, operations: Operations) -> list[tuple[str, str, Any]]:
    """Go through the use cases; returns for each its name, its error's code, and what is stored."""
    lines: list[tuple[str, str, Any]] = []

    def step(name: str, work: Callable[[], object]) -> None:
        code = ""
        try:
            work()
        except RowferryError as err:
            code = err.code
        lines.append((name, code, stored(operations)))

    source, sink = world.source, world.sink
    config = {
        "filter": rules(f"{DATABASE}.a", f"{DATABASE}.b"),
        "sink": {"csv": {"include-commit-ts": True}},
        "case-sensitive": True,
    }
    more = {"changefeed-error-stuck-duration": "40m", "sink": {"csv": {"null": "\\N"}}}

    def create(name: str, where: str = sink, settings: Any = config, dry: bool = False) -> None:
        face.create(name, source, where, settings, dry)

    def update() -> None:
        now = operations.see("feed").feed.spec.config
        csv = {**now["sink"]["csv"], **more["sink"]["csv"]}
        face.update("feed", {**now, **more, "sink": {"csv": csv}}, more)

    found: list[str] = []
    step("dry run", lambda: found.extend(face.create("feed", source, sink, config, dry_run=True)))
    assert found == [f"{DATABASE}.a", f"{DATABASE}.b"]
    step("create", lambda: create("feed"))
    step("the same name", lambda: create("feed"))
    step("the same name, dry", lambda: create("feed", dry=True))
    step("a bad name", lambda: create("a_b"))
    step("a wrong scheme", lambda: create("other", where="gopher://h/"))
    step("a wrong scheme, dry", lambda: create("other", where="gopher://h/", dry=True))
    step("an unknown key", lambda: create("other", settings={**config, "case-sensitif": True}))
    absent = {**config, "filter": rules(f"{DATABASE}.nope")}
    step("a table that is not there", lambda: create("other", settings=absent))
    step("update while it runs", update)
    step("reset while it runs", lambda: face.reset("feed", None))
    step("add", lambda: face.add_table("feed", f"{DATABASE}.c"))
    step("drop", lambda: face.drop_table("feed", f"{DATABASE}.b"))
    step("add no table", lambda: face.add_table("feed", "nothing"))
    step("pause", lambda: face.pause("feed"))
    step("pause again", lambda: face.pause("feed"))
    assert face.listed() == [("feed", "stopped")]
    step("update", update)
    log = world.position.partition(".")[0]
    step("reset to no place", lambda: face.reset("feed", "nowhere"))
    step("reset to no GTIDs", lambda: face.reset("feed", "0-1-1"))  # of MariaDB
    step("reset behind the log", lambda: face.reset("feed", f"{log}.999999:4"))
    step("reset to what is gone", lambda: face.reset("feed", f"{log}.000000"))
    step("reset to a position", lambda: face.reset("feed", world.position))
    step("reset to a snapshot", lambda: face.reset("feed", None))
    step("resume", lambda: face.resume("feed"))
    step("resume again", lambda: face.resume("feed"))
    operations.store.move("feed", Verb.FAULT, SinkUnavailable("the disk is full"))
    assert face.listed() == [("feed", "warning")]
    step("resume behind an error", lambda: face.resume("feed"))
    assert face.listed() == [("feed", "normal")]
    step("pause a stranger", lambda: face.pause("stranger"))
    step("remove", lambda: face.remove("feed"))
    step("remove again", lambda: face.remove("feed"))
    return lines


@pytest.fixture
def expected(world: World) -> list[tuple[str, str, Any]]:
    operations = world.open()
    return story(Direct(operations), world, operations)


def test_use_cases_end_the_same_through_every_face(
    world: World, expected: list[tuple[str, str, Any]]
) -> None:
    codes = {name: code for name, code, _ in expected if code}
    assert codes == {
        "the same name": "RF-2008",
        "the same name, dry": "RF-2008",
        "a bad name": "RF-1010",
        "a wrong scheme": codes["a wrong scheme, dry"],
        "a wrong scheme, dry": codes["a wrong scheme, dry"],
        "an unknown key": "RF-1001",
        "a table that is not there": "RF-1009",
        "update while it runs": "RF-2006",
        "reset while it runs": "RF-2006",
        "add no table": "RF-1005",
        "reset to no place": "RF-1002",
        "reset to no GTIDs": "RF-1002",
        "reset behind the log": "RF-3005",
        "reset to what is gone": "RF-3003",
        "pause a stranger": "RF-2007",
    }
    for before, after in zip(expected, expected[1:], strict=False):
        if after[1]:
            assert after[2] == before[2], f"{after[0]}: something was changed"
    assert expected[0][2] == expected[-1][2] == []
    for name, kind in FACES.items():
        operations = world.open()
        with serve(create_app(operations, ABOUT), "127.0.0.1:0") as serving:
            face = kind(serving.url, world.folder)
            for wanted, found in zip(expected, story(face, world, operations), strict=True):
                assert found == wanted, f"{name}: {wanted[0]}"
        assert world.password not in "".join(face.said), name
    assert not (world.folder / "out").exists()


def test_a_subscription_is_the_changefeed_that_a_statement_makes(world: World) -> None:
    by_statement, by_call = world.open(), world.open()
    with serve(create_app(by_statement, ABOUT), "127.0.0.1:0") as serving:
        config = {"filter": rules(f"{DATABASE}.a"), "case-sensitive": True}
        sql = Sql(serving.url, world.folder)
        sql.create("feed", world.source, world.sink, config)
        with pytest.raises(BadStatement, match="found 'STOP'"):
            sql.run("STOP CHANGEFEED feed")
        with pytest.raises(RequestTooLarge):
            sql.run("PAUSE CHANGEFEED feed" + " " * (1 << 20))
    said: list[str] = []
    with (
        rpc.serve(by_call, "127.0.0.1:0") as serving,
        grpc.insecure_channel(serving.address) as channel,
    ):
        stub = stubs.SubscriptionsStub(channel)

        def refusal(call: Callable[[Any], Any], request: Any) -> tuple[Any, str]:
            with pytest.raises(grpc.RpcError) as told:
                call(request)
            said.append(told.value.details())
            return told.value.code(), told.value.details().split("]")[0].strip("[")

        def request(**given: Any) -> Any:
            uri = given.pop("uri", world.sink)
            sink = wire.CDCSink(type="storage", config={"uri": uri, "source_uri": world.source})
            words = {"db_name": DATABASE, "table_name": "a", "subscriber_name": "feed"}
            return wire.SubscribeCDCRequest(sink=sink, **(words | given))

        said.append(str(stub.SubscribeCDC(request())))
        assert stored(by_call) == stored(by_statement)
        status = grpc.StatusCode
        assert refusal(stub.SubscribeCDC, request()) == (status.ALREADY_EXISTS, "RF-2008")
        nowhere = {"uri": "gopher://h/", "subscriber_name": "other"}
        for wrong in (nowhere, {"subscriber_name": "a b"}, {"table_name": ""}):
            assert refusal(stub.SubscribeCDC, request(**wrong))[0] is status.INVALID_ARGUMENT
        assert stored(by_call) == stored(by_statement)
        leave = wire.UnsubscribeCDCRequest(subscriber_name="feed")
        said.append(str(stub.UnsubscribeCDC(leave)))
        assert by_call.feeds(tuple(FeedState)) == ()
        assert refusal(stub.UnsubscribeCDC, leave) == (status.NOT_FOUND, "RF-2007")
    assert world.password not in "".join(said)


def test_the_shell_gets_through_tls_and_a_gate_and_no_further(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "tls")
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    token, word = "".join(["to", "ken"]), "".join(["wo", "rd"])
    app = create_app(Operations(store), ABOUT, Gate.of(token, {"me": word}))
    tls = Tls(certificates.server, certificates.server, certificates.ca)
    with serve(app, "127.0.0.1:0", tls) as serving:
        shell = Shell(serving.url, tmp_path)
        ours = ("--cert", str(certificates.client), "--key", str(certificates.client_key))
        known = ("--ca", str(certificates.ca), *ours)

        def code(*words: str) -> str:
            try:
                shell.run("sql", *words)
            except RowferryError as err:
                return err.code
            return ""

        show = "SHOW CHANGEFEEDS"
        assert code(show, *known, "--token", token) == ""
        assert code(show, *known, "--user", "me", "--password", word) == ""
        assert json.loads(shell.said[-1])["message"] == "0 changefeeds"
        for login in ((), ("--token", word), ("--user", "me"), ("--user", "you")):
            assert code(show, *known, *login) == "RF-1023"
        assert code(show, *ours, "--token", token) == "RF-8001"  # its certificate is not trusted
        assert code(show, "--ca", str(certificates.ca), "--token", token) == "RF-8001"
        plain = Shell(serving.url.replace("https", "http"), tmp_path)
        with pytest.raises(ServerUnavailable, match="did not answer"):
            plain.run("capture", "list", "--token", token)
        assert code("STOP CHANGEFEED x", *known, "--token", token) == "RF-1006"
    store.close()
