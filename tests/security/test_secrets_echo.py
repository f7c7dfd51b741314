"""A receiver that repeats what it was sent: no face, log or table of a whole server tells it."""

from __future__ import annotations

import base64
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rowferry.change.table import TableId
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, wait_for
from rowferry.testing.receiver import HttpReceiver, Refusal

WITHIN_S = 240.0
WORD, TOKEN = "Pass/W0rd of Ann's", "t0ken+of/the=sink"
PATHS = (
    "/api/v2/changefeeds",
    "/api/v2/changefeeds/feed",
    "/api/rowferry/changefeeds/feed",
    "/api/rowferry/changefeeds/feed/log",
    "/metrics",
)
LOGIN = base64.b64encode(f"ann:{WORD}".encode()).decode()


def forms() -> list[str]:
    """Return every form in which a receiver may say what it got."""
    plain = [WORD, TOKEN]
    percent = [quote(one, safe="") for one in plain]
    packed = [base64.b64encode(one.encode()).decode() for one in plain]
    return [*plain, *percent, *packed, LOGIN]


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    talk = HTTPConnection(address, timeout=WITHIN_S)
    try:
        talk.request(method, path, None if body is None else json.dumps(body))
        answer = talk.getresponse()
        return answer.status, answer.read().decode()
    finally:
        talk.close()


def stored(meta: Path) -> Iterator[str]:
    """Yield what the meta database holds, but for the settings, where a login has its place."""
    with closing(sqlite3.connect(meta)) as connection:
        tables = [
            n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in tables:
            rows = connection.execute(f"SELECT * FROM '{name}'")
            columns = [column[0] for column in rows.description or ()]
            for row in rows:
                for column, value in zip(columns, row, strict=True):
                    if column != "spec":
                        yield f"{name}.{column}: {value}"


@pytest.mark.parametrize("log", [[], ["--log-json"]], ids=["text", "json"])
def test_a_receiver_that_repeats_what_it_got(log: list[str], tmp_path: Path) -> None:
    meta = tmp_path / "meta.db"
    arguments = ["--addr", "127.0.0.1:0", "--grpc-addr=", *log]
    arguments += ["--spark-master", "local[1]", "--meta", f"sqlite:///{meta}"]
    with (
        HttpReceiver() as receiver,
        LocalCluster(tmp_path / "store", 1) as cluster,
        cluster.store() as store,
        ServerProcess(arguments, tmp_path / "server") as server,
    ):
        store.ddl("CREATE DATABASE shop")
        store.ddl("CREATE TABLE shop.t (id bigint PRIMARY KEY)")
        echo = ", ".join(f"you sent {form}" for form in forms()).encode()
        receiver.faults += [Refusal(400, {}, echo) for _ in range(200)]
        wait_for(lambda: "serving at" in server.printed() or not server.alive, "a server", WITHIN_S)
        address = server.printed().partition("serving at http://")[2].split()[0].rstrip(",")
        sink = f"http://ann:{quote(WORD, safe='')}@127.0.0.1:{receiver.port}/"
        made = ask(
            address,
            "POST",
            "/api/v2/changefeeds",
            {
                "changefeed_id": "feed",
                "source_uri": f"range://{cluster.master_address}",
                "sink_uri": f"{sink}?protocol=canal-json&token={quote(TOKEN, safe='')}",
                "replica_config": {"filter": {"rules": ["shop.*"]}},
            },
        )
        assert made[0] == 200, made
        store.load(TableId("shop", "t"), [{"id": 1}])

        def asked() -> dict[str, Any]:
            seen: dict[str, Any] = json.loads(ask(address, "GET", "/api/v2/changefeeds/feed")[1])
            return seen

        wait_for(lambda: "you sent" in json.dumps(asked()), "the receiver's words", WITHIN_S)
        told = {path: ask(address, "GET", path)[1] for path in PATHS}
        for statement in ("SHOW CHANGEFEED feed", "SHOW CHANGEFEEDS", "SHOW CHANGEFEED feed LOG"):
            told[statement] = ask(address, "POST", "/api/rowferry/sql", {"statement": statement})[1]
        command = [sys.executable, "-m", "rowferry", "changefeed", "query", "-c", "feed"]
        run = subprocess.run([*command, "--server", f"http://{address}"], capture_output=True)
        told["the command line"] = (run.stdout + run.stderr).decode()
        told["the log"] = server.printed()
        told |= {f"stored {n}": text for n, text in enumerate(stored(meta))}
    assert sum("you sent ***" in text for text in told.values()) >= 6, told.keys()
    leaks = {where: form for where, text in told.items() for form in forms() if form in text}
    assert leaks == {}
