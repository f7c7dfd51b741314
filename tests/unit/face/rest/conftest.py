"""A source, a meta database and the operations on it, shared by the tests of the faces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.gate import Gate
from rowferry.face.names import ServerNames
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.face.sources import Sources
from rowferry.refstore.cluster import LocalCluster

ABOUT = About("127.0.0.1:8300", "0.1.0", 1_700_000_000.0, "here")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with the tables shop.orders and shop.items."""
    with LocalCluster(tmp_path_factory.mktemp("face-store"), 1) as cluster:
        with cluster.store() as store:
            store.ddl("CREATE DATABASE shop")
            store.ddl("CREATE TABLE shop.orders (id bigint PRIMARY KEY, note varchar(20))")
            store.ddl("CREATE TABLE shop.items (id bigint PRIMARY KEY, note varchar(20))")
        yield f"range://{cluster.master_address}"


@pytest.fixture(scope="session")
def empty_meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new meta database, to be copied: making one takes longer than most tests here."""
    path = tmp_path_factory.mktemp("meta") / "meta.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def operations(tmp_path: Path, empty_meta: Path) -> Iterator[Operations]:
    shutil.copy(empty_meta, tmp_path / "meta.db")
    store = open_store(f"sqlite:///{tmp_path}/meta.db")
    yield Operations(store)
    store.close()


@pytest.fixture
def asking(operations: Operations) -> Callable[..., TestClient]:
    """Return a client of a server with this gate and these sources."""

    def made(gate: Gate | None = None, sources: Sources | None = None) -> TestClient:
        names = ServerNames.read(["testserver:80"])
        return TestClient(create_app(operations, ABOUT, gate, sources, names))

    return made


@pytest.fixture
def client(asking: Callable[..., TestClient]) -> TestClient:
    return asking()


@pytest.fixture
def server(operations: Operations) -> Iterator[str]:
    """The URL of a server that really listens."""
    with serve(create_app(operations, ABOUT), "127.0.0.1:0") as serving:
        yield serving.url
