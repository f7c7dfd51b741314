"""One reference store for all tests here; each test uses a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster


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
