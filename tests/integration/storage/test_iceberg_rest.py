"""Iceberg tables in a REST catalog: the one of Iceberg's own tests, also over a bad network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote
from uuid import uuid4

import pytest
import urllib3
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError

from iceberg_kit import IcebergLake
from lake_kit import FEED, PLAIN, Changes, Model, ordered
from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Plan
from rowferry.change.table import Column, TableId
from rowferry.errors import Fenced, RowferryError, SinkUnavailable, Verdict
from rowferry.flow.sink.contract import Owner
from rowferry.moment import watched
from rowferry.testing.servers import IcebergRest, Relay


class RestLake(IcebergLake):
    """Tables in a directory that a REST catalog knows, reached through a relay.

    The catalog is everybody's, so the database is the lake's own.
    """

    def __init__(self, root: Path, server: IcebergRest, port: int) -> None:
        self._server = server
        self.database = f"d{uuid4().hex}"
        self.schema = replace(PLAIN, id=TableId(self.database, "orders"))
        self.model = Model(self.schema, 5)
        super().__init__(root, f"&catalog={quote(f'http://127.0.0.1:{port}', safe='')}")

    def catalog(self) -> RestCatalog:  # type: ignore[override]
        """The catalog, reached by the shortest way."""
        return RestCatalog("rowferry", uri=self._server.url)

    def forget(self) -> None:
        """Leave nothing in the catalog, since the files go with the test."""
        with suppress(NoSuchNamespaceError):
            for name in self.catalog().list_tables(self.database):
                self.catalog().drop_table(name)

    def equals_model(self, table: str = "orders") -> bool:
        return ordered(self.rows(name=f"{self.database}/{table}"), ["id"]) == self.model.expected()

    def micro_batches(self) -> list[int]:
        """The micro-batch of each snapshot, in their order."""
        return [int(s["rowferry.micro-batch"]) for s in self.summaries(f"{self.database}/orders")]

    def until_published(self, plan: Plan, content: list[Changes], heal: Callable[[], None]) -> int:
        """Publish as a supervisor does, which tries again; return how often it failed."""
        receipts = self.write(plan, self.schema, content)
        for failures in range(20):
            try:
                self.publish(plan, self.schema, receipts)
            except RowferryError as err:
                assert err.verdict is Verdict.RETRY, err
                heal()
                continue
            return failures
        raise AssertionError("it never comes to an end")


@pytest.fixture
def relay(iceberg_rest: IcebergRest) -> Iterator[Relay]:
    with Relay(iceberg_rest.port) as running:
        yield running


@pytest.fixture
def lake(iceberg_rest: IcebergRest, relay: Relay, tmp_path: Path) -> Iterator[RestLake]:
    made = RestLake(tmp_path, iceberg_rest, relay.port)
    yield made
    made.sink.close()
    made.forget()


def test_tables_are_made_changed_renamed_and_dropped(lake: RestLake) -> None:
    lake.sink.probe(Owner(FEED, 1))  # before anything is there
    lake.open()
    for _ in range(3):
        lake.step(lake.schema, lake.model.changes(30))
        assert lake.equals_model()
    lake.sink.close()
    lake.open()
    wider = replace(
        lake.schema,
        columns=(*lake.schema.columns, Column(3, "more", PLAIN.columns[0].type)),
        version=101,
    )
    lake.step(lake.schema, lake.model.changes(9), changes=[lake.change(DdlKind.ADD_COLUMN, wider)])
    assert lake.iceberg(f"{lake.database}/orders").schema().column_names == ["id", "note", "more"]
    new = replace(wider, id=TableId(lake.database, "sales"), version=102)
    moved = lake.change(DdlKind.RENAME_TABLE, new, previous=wider.id)
    lake.step(wider, changes=[moved])
    assert not lake.has(f"{lake.database}/orders") and lake.has(f"{lake.database}/sales")
    lake.step(new, changes=[lake.change(DdlKind.DROP_TABLE, new)])
    assert lake.has(f"{lake.database}/sales"), "it is kept, without asking"


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_the_answer_of_a_commit_is_lost(lake: RestLake, relay: Relay, known: bool) -> None:
    """The catalog has it, nobody heard of it: it is found done, not done twice."""
    lake.open()
    for _ in range(known):
        lake.step(lake.schema, lake.model.changes(30))
    plan, content = lake.plan(lake.schema), [lake.model.changes(30)]

    def lose(name: str) -> None:
        if name == "commit iceberg snapshot" and not lost:
            lost.append(name)
            relay.lose_answers(3 if not known else 1)

    lost: list[str] = []
    with watched(lose):
        failures = lake.until_published(plan, content, lambda: None)
    assert lost and failures
    assert lake.equals_model()
    lake.step(lake.schema, lake.model.changes(30))
    assert lake.equals_model()
    batches = lake.micro_batches()
    assert batches == sorted(set(batches)) == list(range(1, lake.micro_batch + 1))


def test_the_answer_of_a_rename_is_lost(lake: RestLake, relay: Relay) -> None:
    """The next try finds no table under the old name, and one under the new."""
    lake.open()
    lake.step(lake.schema, lake.model.changes(30))
    new = replace(lake.schema, id=TableId(lake.database, "sales"), version=102)
    moved = lake.change(DdlKind.RENAME_TABLE, new, previous=lake.schema.id)
    plan = lake.plan(lake.schema, 0, [moved])

    def lose(name: str) -> None:
        if name == "rename iceberg table" and not lost:
            lost.append(name)
            relay.lose_answers(2)  # of the database, which is there, and of the rename

    lost: list[str] = []
    with watched(lose):
        for _ in range(2):
            with pytest.raises(SinkUnavailable):
                lake.publish(plan, lake.schema, [])
        lake.publish(plan, lake.schema, [])
    assert relay.broken and not lake.has(f"{lake.database}/orders")
    assert lake.equals_model("sales")


@pytest.mark.parametrize("step", ["ask iceberg catalog", "commit iceberg snapshot"])
def test_the_catalog_is_away_for_a_while(lake: RestLake, relay: Relay, step: str) -> None:
    lake.open()
    lake.step(lake.schema, lake.model.changes(30))

    def cut(name: str) -> None:
        if name == step:
            relay.cut()

    plan, content = lake.plan(lake.schema), [lake.model.changes(30)]
    receipts = lake.write(plan, lake.schema, content)
    with pytest.raises(SinkUnavailable, match=r"the Iceberg catalog http://127"), watched(cut):
        lake.publish(plan, lake.schema, receipts)
    with pytest.raises(SinkUnavailable):
        lake.built().probe(Owner(FEED, lake.epoch))
    relay.heal()
    lake.publish(plan, lake.schema, receipts)
    assert lake.equals_model() and lake.micro_batches() == [1, 2]


@contextmanager
def front(server: IcebergRest, answers: dict[str, tuple[int, bytes]]) -> Iterator[int]:
    """A proxy before the catalog, with its own answers to requests whose path has these words."""
    http = urllib3.PoolManager(retries=False)

    class Front(BaseHTTPRequestHandler):
        def _hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            for words, (status, answer) in answers.items():
                if words in self.path:
                    self._answer(status, answer)
                    return
            kind = {"content-type": "application/json"}
            got = http.request(self.command, server.url + self.path, body=body, headers=kind)
            self._answer(got.status, got.data)

        do_GET = do_POST = do_HEAD = do_DELETE = _hand_on

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


FORBIDDEN = b'{"error": {"message": "no", "type": "ForbiddenException", "code": 403}}'


def test_what_the_login_may_not_see_is_left_alone(
    lake: RestLake, iceberg_rest: IcebergRest, tmp_path: Path
) -> None:
    """Others have databases and tables in the same catalog."""
    lake.open()
    lake.step(lake.schema, lake.model.changes(9))
    lake.catalog().create_namespace(f"x{lake.database}")
    closed = {
        f"/{lake.database}/tables/orders": (403, FORBIDDEN),
        f"/x{lake.database}/tables": (403, FORBIDDEN),
    }
    with front(iceberg_rest, closed) as port:
        mine = RestLake(tmp_path / "mine", iceberg_rest, port)
        mine.open()
        mine.step(mine.schema, mine.model.changes(9))
        assert mine.equals_model()
        mine.sink.close()
        mine.forget()


@pytest.mark.parametrize("status", [200, 501, 502])
def test_an_answer_that_is_no_catalogs(
    lake: RestLake, iceberg_rest: IcebergRest, tmp_path: Path, status: int
) -> None:
    """A proxy that says something of its own is a fault that passes."""
    answers: dict[str, tuple[int, bytes]] = {}
    with front(iceberg_rest, answers) as port:
        mine = RestLake(tmp_path / "mine", iceberg_rest, port)
        mine.open()
        plan, content = mine.plan(mine.schema), [mine.model.changes(9)]
        receipts = mine.write(plan, mine.schema, content)
        answers["/tables"] = (status, b"<html>back soon</html>")
        with pytest.raises(SinkUnavailable, match="the Iceberg catalog http://127"):
            mine.publish(plan, mine.schema, receipts)
        answers.clear()
        mine.publish(plan, mine.schema, receipts)
        assert mine.equals_model() and mine.micro_batches() == [1]
        mine.sink.close()
        mine.forget()


def test_two_owners_and_one_catalog(lake: RestLake) -> None:
    """Who was replaced while it wrote its snapshot commits nothing."""
    lake.open()
    lake.step(lake.schema, lake.model.changes(30))
    plan, content = lake.plan(lake.schema), [lake.model.changes(30)]
    receipts = lake.write(plan, lake.schema, content)
    old = lake.sink
    lake.open()
    with pytest.raises(Fenced):
        old.publish(plan, receipts, dict.fromkeys(plan.stretch.segments[0].slices, lake.schema))
    lake.publish(plan, lake.schema, receipts)
    assert lake.equals_model() and lake.micro_batches() == [1, 2]


def test_what_it_knows_survives_a_restart(tmp_path: Path) -> None:
    with IcebergRest.start(tmp_path / "server") as server:
        lake = RestLake(tmp_path / "lake", server, server.port)
        lake.open()
        lake.step(lake.schema, lake.model.changes(30))
        server.kill()
        with pytest.raises(SinkUnavailable):
            lake.built().probe(Owner(FEED, lake.epoch))
        server.restart()
        lake.step(lake.schema, lake.model.changes(30))
        assert lake.equals_model() and lake.micro_batches() == [1, 2]
        lake.sink.close()
