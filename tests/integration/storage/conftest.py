"""Object stores, one after the other, and a reference store to feed them from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from object_store_kit import SERVERS

from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.servers import ObjectServer


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> ObjectServer:
    """Each of the object stores."""
    found: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own."""
    return f"it/{request.node.name}".replace("[", "-").replace("]", "")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("store"), 2) as running:
        yield running


@pytest.fixture
def store(cluster: LocalCluster) -> Iterator[Store]:
    with cluster.store() as found:
        yield found


@pytest.fixture
def source(cluster: LocalCluster) -> str:
    """The store's address as a source."""
    return f"range://{cluster.master_address}"
