"""Subscriptions by gRPC: a running server, the reference store, tables of one subscriber."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import create_engine, text

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.control.feed.running import Conditions
from rowferry.control.feed.supervise import Patience
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.connection import Database
from rowferry.control.store.sql_store import SqlStore
from rowferry.face.rpc import serve
from rowferry.face.sources import Sources
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.storage import storage_changes
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire.range_cdc_pb2 import RequestHeader
from rowferry.wire.subscribe_pb2_grpc import SubscriptionsStub

WITHIN_S = 600.0
PACE = FleetPace(lease_s=60.0, renew_s=0.2, every_s=0.05, sample_every_s=0.0, others_come_s=0.1)
NAME = "my_app." + "x" * 248
EXISTS, MISSING = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND
WRONG = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("subscribed-store"), 1) as found:
        yield found


class Desk:
    """A meta database with a server at work, its gRPC port, and a database of the source."""

    def __init__(self, url: str, cluster: LocalCluster, source: Store, folder: Path) -> None:
        self.url, self.folder, self.database = url, folder, folder.name
        self.store = SqlStore(Database(url))
        self.operations = Operations(self.store)
        self.uri = f"range://{cluster.master_address}"
        self._source = source
        source.ddl(f"CREATE DATABASE {self.database}")
        for table in ("orders", "items"):
            source.ddl(f"CREATE TABLE {self.database}.{table} (id bigint PRIMARY KEY)")

    def insert(self, table: str, number: int) -> None:
        with self._source.transaction() as transaction:
            transaction.insert(TableId(self.database, table), [{"id": number}])

    def sql(self, statement: str) -> None:
        """Do as an administrator with an SQL client."""
        url = self.url.replace("mysql://", "mysql+pymysql://").partition("?")[0]
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()

    @contextmanager
    def talking(self) -> Iterator[Any]:
        with serve(self.operations, "127.0.0.1:0", sources=Sources(default=self.uri)) as serving:
            with grpc.insecure_channel(serving.address) as channel:
                yield SubscriptionsStub(channel)

    @contextmanager
    def working(self) -> Iterator[None]:
        stop = threading.Event()
        conditions = Conditions(lambda name: DriverRunner(), patience=Patience(0.01, 0.1, 60.0))
        member = Member(self.store, "here:1", conditions, PACE)
        thread = threading.Thread(target=member.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(WITHIN_S)
            assert not thread.is_alive()

    def request(self, table: str, name: str = NAME, **more: str) -> Any:
        uri = f"file://{self.folder}/{table}?protocol=canal-json&flush-interval=100ms&fsync=false"
        return wire.SubscribeCDCRequest(
            db_name=self.database,
            table_name=table,
            subscriber_name=name,
            sink=wire.CDCSink(type="storage", config={"uri": uri, **more}),
        )

    def end(self, table: str = "", name: str = NAME, cluster: int = 0) -> Any:
        return wire.UnsubscribeCDCRequest(
            header=RequestHeader(cluster_id=cluster),
            db_name=self.database if table else "",
            table_name=table,
            subscriber_name=name,
        )

    def until_delivered(self, table: str, *ids: int) -> None:
        def there() -> bool:
            root = self.folder / table
            if not (root / "metadata").exists():
                return False
            (row,) = (r for r in self.store.subscribed(NAME) if r.table_name == table)
            feed = self.store.feed(row.changefeed)
            assert feed is not None
            changes = storage_changes(root, assemble(feed.spec).encode)
            found = (c.after.field("id").to_pylist() for c in changes if isinstance(c, Rows))
            return [i for some in found for i in some] == list(ids)

        wait_for(there, f"rows of {table}", WITHIN_S, 0.05)

    def tables(self) -> list[str]:
        return [row.table_name for row in self.store.subscribed(NAME)]


@pytest.fixture(params=["sqlite", "mysql", "postgres"])
def meta(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/meta.db"
        return
    server = request.getfixturevalue(f"{request.param}_server")
    server.execute("CREATE DATABASE meta_subscribed")
    if request.param == "mysql":
        yield f"{server.uri}meta_subscribed?ssl-mode=disabled"
        server.execute("DROP DATABASE meta_subscribed")
    else:
        yield server.url("meta_subscribed")
        server.execute("DROP DATABASE meta_subscribed WITH (FORCE)")


@contextmanager
def desk_of(url: str, cluster: LocalCluster, folder: Path, name: str) -> Iterator[Desk]:
    (folder / name).mkdir()
    with cluster.store() as source:
        found = Desk(url, cluster, source, folder / name)
        yield found
        found.store.close()


def refused(call: Any, request: Any, code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.RpcError) as found:
        call(request, timeout=WITHIN_S)
    told = found.value.details()  # type: ignore[attr-defined]
    assert found.value.code() is code, told  # type: ignore[attr-defined]
    assert all(word in told for word in words), told


def test_tables_of_one_subscriber_come_and_go_by_themselves(
    meta: str, cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = f"shop_{request.node.callspec.params['meta']}"
    with desk_of(meta, cluster, tmp_path, name) as desk, desk.talking() as stub, desk.working():
        desk.insert("orders", 1)
        first = stub.SubscribeCDC(desk.request("orders"), timeout=WITHIN_S).subscriber
        assert (first.subscribe_name, first.table_name, first.cancel) == (NAME, "orders", 0)
        assert first.cluster_id > 0 and first.table_id > 0 and first.db_id == 0
        assert (first.db_name, first.master_addrs) == (name, desk.uri.removeprefix("range://"))
        second = stub.SubscribeCDC(desk.request("items"), timeout=WITHIN_S).subscriber
        assert second.table_id not in (0, first.table_id) and second.sink != first.sink
        assert desk.tables() == ["items", "orders"]
        refused(stub.SubscribeCDC, desk.request("orders"), EXISTS, f"{name}.orders already")
        desk.insert("items", 2)
        desk.until_delivered("orders", 1)
        desk.until_delivered("items", 2)
        assert all(row.owner for row in desk.store.subscribed(NAME))
        refused(stub.UnsubscribeCDC, desk.end(), WRONG, f"{name}.items", f"{name}.orders")
        refused(stub.UnsubscribeCDC, desk.end("others"), MISSING, f"{name}.others")
        refused(stub.UnsubscribeCDC, desk.end("items", cluster=4711), MISSING, f"{name}.items")
        assert desk.tables() == ["items", "orders"]
        # By hand: one row of the table that users may write to.
        desk.sql(
            f"UPDATE subscribe SET cancel = 1 WHERE db_name = '{name}' AND table_name = 'items'"
        )
        wait_for(lambda: desk.tables() == ["orders"], "the end of items", WITHIN_S, 0.05)
        wait_for(lambda: len(desk.store.feeds()) == 1, "one changefeed", WITHIN_S, 0.05)
        desk.insert("orders", 3)
        desk.until_delivered("orders", 1, 3)
        ended = stub.UnsubscribeCDC(
            desk.end("orders", cluster=first.cluster_id), timeout=WITHIN_S
        ).subscriber
        assert (ended.cancel, ended.table_id, ended.cluster_id) == (
            1,
            first.table_id,
            first.cluster_id,
        )
        wait_for(lambda: desk.store.feeds() == (), "no changefeed", WITHIN_S, 0.05)
        assert desk.tables() == []
        refused(stub.UnsubscribeCDC, desk.end("orders"), MISSING, NAME)


def test_a_row_is_there_before_the_feed_runs_and_after_it_fails(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with desk_of(url, cluster, tmp_path, "failing") as desk, desk.talking() as stub:
        row = stub.SubscribeCDC(desk.request("orders"), timeout=WITHIN_S).subscriber
        (stored,) = desk.store.subscribed(NAME)
        assert (row.owner, row.cluster_id, row.table_id) == ("", stored.cluster_id, stored.table_id)
        (desk.folder / "orders").write_text("in the way")
        with desk.working():

            def failed() -> bool:
                (feed,) = desk.store.feeds()
                return bool(feed.error)

            wait_for(failed, "an error", WITHIN_S, 0.05)
            assert [r.table_id for r in desk.store.subscribed(NAME)] == [row.table_id]
            refused(stub.SubscribeCDC, desk.request("orders"), EXISTS, "failing.orders already")
            ended = stub.UnsubscribeCDC(desk.end(), timeout=WITHIN_S).subscriber
            assert (ended.table_name, ended.cancel) == ("orders", 1)
            wait_for(lambda: desk.store.feeds() == (), "no changefeed", WITHIN_S, 0.05)


def test_a_changefeed_of_another_face_is_one_whole(cluster: LocalCluster, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with desk_of(url, cluster, tmp_path, "others") as desk, desk.talking() as stub:
        config = {"filter": {"rules": ["others.*"]}}
        sink = "blackhole:///?protocol=canal-json"
        desk.operations.create(Wanted(desk.uri, sink, "both", config))
        refused(stub.SubscribeCDC, desk.request("orders", "both"), EXISTS, "both")
        with desk.working():
            tables = ("others", "items"), ("others", "orders")
            wait_for(
                lambda: (
                    tuple((r.db_name, r.table_name) for r in desk.store.subscribed("both"))
                    == tables
                ),
                "both tables",
                WITHIN_S,
                0.05,
            )
            refused(stub.SubscribeCDC, desk.request("orders", "both"), EXISTS, "both")
            ended = stub.UnsubscribeCDC(desk.end("orders", "both"), timeout=WITHIN_S).subscriber
            assert (ended.table_name, ended.cancel) == ("orders", 1) and ended.table_id > 0
            wait_for(lambda: desk.store.feeds() == (), "no changefeed", WITHIN_S, 0.05)
