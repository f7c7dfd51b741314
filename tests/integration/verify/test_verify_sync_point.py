"""Two databases compared at one moment, while a changefeed runs between them and others write."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_kit import Result, call

from page_examples import all_blocks, commands
from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.downstream.verify import views
from rowferry.downstream.verify.views import open_views_at_a_place
from rowferry.errors import IllegalMove, SinkUnwritable
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.mysql import session
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MariaDb, Server

WITHIN_S = 600.0
PAGE_A = "mysql://root:$PASSWORD@127.0.0.1:3306/"
PAGE_B = "mariadb://root:$COPY_PASSWORD@127.0.0.1:3307/"
PAGE_SERVER = "http://127.0.0.1:8300"
QUIET = 400  # rows from this id on are left alone


@dataclass
class Writer:
    """Moves amounts between the rows of two tables, and never rests."""

    server: Server
    dice: random.Random
    written: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with closing(self.server.connect("sp")) as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                one, two = (self.dice.randrange(QUIET) for _ in range(2))
                amount = self.dice.randrange(100)
                cursor.execute("BEGIN")
                cursor.execute(f"UPDATE t SET v = v - {amount} WHERE id = {one}")
                cursor.execute(f"UPDATE u SET v = v + {amount} WHERE id = {two}")
                cursor.execute(f"INSERT INTO t VALUES ({1000 + self.written}, 0, '')")
                cursor.execute(f"DELETE FROM t WHERE id = {1000 + self.written - 50}")
                cursor.execute("COMMIT")
                self.written += 1
                if self.written % 200 == 0:
                    cursor.execute("FLUSH BINARY LOGS")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(WITHIN_S)


@contextmanager
def served(folder: Path) -> Iterator[tuple[Operations, str]]:
    """A server in this process."""
    stop = threading.Event()
    with closing(open_store(f"sqlite:///{folder / 'meta.db'}")) as store:
        operations = Operations(store)
        app = create_app(operations, About("127.0.0.1:8300", "0", 0.0, "here"))
        pace = FleetPace(every_s=0.05)
        member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()
        try:
            with serve(app, "127.0.0.1:0") as serving:
                yield operations, serving.url
        finally:
            stop.set()
            thread.join(WITHIN_S)


def make_source(server: Server) -> None:
    rows = ", ".join(f"({n}, {n}, 'n{n}')" for n in range(QUIET + 100))
    server.script(
        "DROP DATABASE IF EXISTS sp",
        "CREATE DATABASE sp",
        *(f"CREATE TABLE sp.{t} (id INT PRIMARY KEY, v INT, note VARCHAR(20))" for t in "tu"),
        *(f"INSERT INTO sp.{t} VALUES {rows}" for t in "tu"),
        "CREATE TABLE sp.bare (id INT NOT NULL UNIQUE)",
    )


def test_a_comparison_while_others_write(
    source_server: Server,
    mariadb_server: MariaDb,
    seed: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, copy = source_server, mariadb_server
    make_source(source)
    copy.script("DROP DATABASE IF EXISTS sp_copy", "CREATE DATABASE sp_copy")
    writer = Writer(source, random.Random(seed))
    with served(tmp_path) as (operations, url):
        config = {
            "filter": {"rules": ["sp.*"]},
            "sink": {"dispatchers": [{"matcher": ["*.*"], "target-schema": "sp_copy"}]},
        }
        sink = f"{copy.uri}?create-tables=true&meta-database=sp_meta"
        with pytest.raises(SinkUnwritable, match="MariaDB, not TiDB, which enable-sync-point"):
            operations.create(Wanted(source.uri, sink, "sp", {**config, "enable-sync-point": True}))
        operations.create(Wanted(source.uri, sink, "sp", config))

        real = {PAGE_A: source.uri, PAGE_B: copy.uri, PAGE_SERVER: url, "shop.*": "sp.*"}
        (page,) = (
            words[1:]
            for block in all_blocks("sh")
            if block.page == "verify.md"
            for words in commands(block)
            if "--sync-point" in words
        )
        words = [real.get(w, w) for w in page if w not in ("--changefeed", "shop")]

        def verify(*more: str) -> Result:
            routed = ["--route", "sp.* -> sp_copy.*", "--output", "json"]
            return call(tmp_path, capfd, monkeypatch, [*words, *routed, *more])

        def published() -> int:
            return operations.held("sp").micro_batch

        wait_for(lambda: operations.see("sp").feed.watermark > 0, "the snapshot", WITHIN_S)
        with writer.at_work():
            wait_for(lambda: writer.written > 20, "a writer at work", WITHIN_S)
            # The same rows, though neither side ever stands still for long.
            for connections in ("3", "1"):
                found = verify(
                    "--changefeed", "sp", "--connections", connections, "--chunk-rows", "50"
                )
                told = json.loads(found.out)
                assert (found.code, told["equal"], len(told["tables"])) == (0, True, 3), found
                assert "comparing both sides as of " in found.err
                assert operations.held("sp").hold is None
            # A row that somebody changed by hand, and nothing else.
            copy.execute(f"UPDATE sp_copy.t SET v = -1 WHERE id = {QUIET + 7}")
            found = verify("--changefeed", "sp", "--chunk-rows", "50")
            told = {t["table"]: t for t in json.loads(found.out)["tables"]}
            assert (found.code, told["sp.u"]["equal"], told["sp.t"]["changed"]) == (1, True, 1)
            (sample,) = told["sp.t"]["samples"]
            assert (sample["key"], sample["b"]) == ({"id": QUIET + 7}, {"v": -1})
            # It stands for one, and goes on by itself when that one dies.
            held = operations.hold("sp", seconds=600).hold
            wait_for(lambda: stands(operations) == "at", "the changefeed to stand", WITHIN_S)
            before, written = published(), writer.written
            with pytest.raises(IllegalMove, match="held by somebody else"):
                operations.hold("sp")
            wait_for(lambda: writer.written > written + 20, "the writer to go on", WITHIN_S)
            assert published() == before and held is not None
            operations.hold("sp", seconds=1, instead_of=held.id)
            wait_for(lambda: published() > before, "the changefeed to go on", WITHIN_S)
            assert stands(operations) is None
        refused(verify)

        def same() -> bool:
            rows = [s.execute(f"SELECT * FROM {d}.{t} WHERE id <> {QUIET + 7} ORDER BY id")
                    for t in "tu" for s, d in ((source, "sp"), (copy, "sp_copy"))]  # fmt: skip
            return rows[0] == rows[1] and rows[2] == rows[3]

        wait_for(same, "all rows", WITHIN_S)
        operations.pause("sp")
        assert "only one that runs can be held" in verify("--changefeed", "sp").refusal()[1]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lake_tables_while_others_write(
    mariadb_server: MariaDb,
    kind: str,
    seed: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, lake = mariadb_server, f"{kind}+file://{tmp_path}/lake?fsync=false"
    make_source(source)
    writer = Writer(source, random.Random(seed))
    with served(tmp_path) as (operations, url):
        operations.create(Wanted(source.uri, lake, "sp", {"filter": {"rules": ["sp.*"]}}))
        command = ["verify", source.uri, lake, "--tables", "sp.*", "--sync-point", "--server", url]
        command += ["--changefeed", "sp", "--chunk-rows", "200", "--output", "json"]
        wait_for(lambda: operations.see("sp").feed.watermark > 0, "the snapshot", WITHIN_S)
        with writer.at_work():
            wait_for(lambda: writer.written > 20, "a writer at work", WITHIN_S)
            found = call(tmp_path, capfd, monkeypatch, command)
            assert found.code == 0, found
            assert json.loads(found.out)["equal"]
            assert "comparing both sides as of " in found.err
            # A row that the log does not tell, and nothing else.
            source.script("SET sql_log_bin = 0", f"UPDATE sp.t SET v = -1 WHERE id = {QUIET + 7}")
            found = call(tmp_path, capfd, monkeypatch, command)
            told = {t["table"]: t for t in json.loads(found.out)["tables"]}
            assert (found.code, told["sp.u"]["equal"], told["sp.t"]["changed"]) == (1, True, 1)
    turned = [command[0], command[2], command[1], *command[3:]]
    found = call(tmp_path, capfd, monkeypatch, turned)
    assert (found.code, found.refusal()[0]) == (2, "RF-1008"), found


def stands(operations: Operations) -> str | None:
    hold = operations.held("sp").hold
    return None if hold is None else hold.reached


def refused(verify: Callable[..., Result]) -> None:
    for more, code, words in (
        ([], "RF-1008", "name the changefeed that runs from A to B"),
        (["--changefeed", "other"], "RF-2007", "no changefeed 'other'"),
        (["--changefeed", "sp", "--hold-seconds", "0"], "RF-1000", "allowed: 1 to 3600"),
        (["--changefeed", "sp", "--server", "http://127.0.0.1:1"], "RF-8001", "no server answers"),
        (["--changefeed", "sp", "--online"], "RF-1008", "neither --as-of nor --online"),
    ):
        found = verify(*more)
        assert (found.code, found.refusal()[0]) == (2, code), found
        assert words in found.refusal()[1]


def test_views_of_one_place(
    source_server: Server, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(source_server)
    writer, login = Writer(source_server, random.Random(seed)), source_server.login
    with session.connected(login) as connection:
        facts = session.facts(connection, login)

    def sums(count: int = 3) -> set[int]:
        opened, place = open_views_at_a_place(login, facts, 3)
        with closing(opened):
            assert opened.count == count
            assert place["server"] == facts.identity and place["offset"] > 4
            found = set()
            for _ in range(opened.count):
                with opened.lent(login, facts.flavour) as view:
                    rows = session.rows(
                        view, login, "SELECT SUM(v) + 0 * COUNT(*) FROM (SELECT v FROM sp.t "
                        "UNION ALL SELECT v FROM sp.u) AS both_of_them"
                    )  # fmt: skip
                    found.add(int(rows[0][0]))
            return found

    whole = 2 * sum(range(QUIET + 100))
    monkeypatch.setattr(views, "_LOCK_S", 60)
    with writer.at_work():
        wait_for(lambda: writer.written > 5, "a writer at work", WITHIN_S)
        assert sums() == {whole}
        # No moment is quiet enough: writers are held up, and then go on.
        monkeypatch.setattr(views, "_TRIES", 0)
        assert sums() == {whole}
        before = writer.written
        wait_for(lambda: writer.written > before, "the writer to go on", WITHIN_S)
        # Nor may we hold them up: one view is easier to have than three.
        monkeypatch.setattr(views, "_TRIES", 1000)
        monkeypatch.setattr(views, "_locked", lambda *_: None)
        real = views._unlocked
        monkeypatch.setattr(
            views, "_unlocked", lambda *args: None if len(args[1]) > 1 else real(*args)
        )
        assert sums(1) == {whole}
