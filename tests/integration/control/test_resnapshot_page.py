"""The examples of docs/resnapshot.md, on a server that runs the changefeed, by every face."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from faces_kit import Shell

from page_examples import all_blocks, commands
from rowferry.change.chunk import Rows
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.operator.statements.execute import execute
from rowferry.control.operator.statements.tokens import split
from rowferry.control.store.sql_store import open_store
from rowferry.face import rpc
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.flow.assemble import assemble
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql
from rowferry.testing.storage import storage_changes

PAGE = "resnapshot.md"
WITHIN_S = 600.0
ROWS = 300


def test_a_reader_can_follow_the_page(
    own_mysql: MySql, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ", ".join(f"({i}, '{'open' if i % 2 else 'done'}', {i})" for i in range(ROWS))
    own_mysql.script(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, state varchar(9), total int)",
        f"INSERT INTO shop.orders VALUES {rows}",
    )
    out, stop = tmp_path / "out", threading.Event()
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    operations = Operations(store)
    about = About("127.0.0.1:8300", "0.1.0", 0.0, "here")
    sink = f"file://{out}?protocol=canal-json&enable-tidb-extension=true&flush-interval=50ms"
    rules = {"filter": {"rules": ["shop.*"]}}
    made = operations.create(Wanted(own_mysql.uri, sink, "shop", rules))
    pace = FleetPace(every_s=0.05, sample_every_s=0.1)
    member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
    thread = threading.Thread(target=member.run, args=(stop,))
    codec = assemble(made.feed.spec).encode

    def ids() -> list[int]:
        if not (out / "metadata").exists():
            return []
        found = [c for c in storage_changes(out, codec) if isinstance(c, Rows)]
        return [i for rows in found for i in rows.after.field("id").to_pylist()]

    with closing(store), serve(create_app(operations, about), "127.0.0.1:0") as serving:
        thread.start()
        try:
            wait_for(lambda: len(ids()) == ROWS, "the snapshot", WITHIN_S)
            shell, wanted = Shell(serving.url, tmp_path), ROWS
            counts = (ROWS, 101, sum(i % 2 and i > 10 for i in range(ROWS)))
            words = [w for b in all_blocks("sh") if b.page == PAGE for w in commands(b)]
            for line, count in zip(words, (*counts, 0), strict=True):
                answer = json.loads(shell.run(*line[1:]))
                wanted += count
                assert {one["state"] for one in answer} == {"done"}
                assert len(ids()) == wanted
            assert len(answer) == 3
            (block,) = (b for b in all_blocks("sql") if b.page == PAGE)
            for statement in split(block.text)[0]:
                table = execute(operations, statement)
            assert table.columns[:2] == ("id", "table")
            assert len(table.rows) == 4
            wait_for(lambda: len(ids()) == wanted + 50, "the rows of the statement", WITHIN_S)
            (code,) = (b for b in all_blocks("python") if b.page == PAGE)
            with rpc.serve(operations, "127.0.0.1:0") as calls:
                text = code.text.replace("127.0.0.1:8301", calls.address)
                exec(compile(text, PAGE, "exec"), {})
            assert capsys.readouterr().out.endswith("done 101\n")
            assert len(ids()) == wanted + 50 + 101
            path = f"{serving.url}/api/rowferry/changefeeds/shop/resnapshots"
            operations.pause("shop")
            asked = httpx.post(path, json={"table": "shop.orders", "keys": "1..2"}).json()
            assert (asked["state"], asked["first_key"]) == ("waiting", ["1"])
            ended = httpx.delete(f"{path}/{asked['id']}").json()
            assert [one["state"] for one in ended] == ["done"] * 5 + ["cancelled"]
            assert httpx.get(path).json() == ended
            refused = httpx.delete(f"{path}/nobody")
            assert (refused.status_code, "RF-1038" in refused.text) == (400, True)
        finally:
            stop.set()
            thread.join(WITHIN_S)
