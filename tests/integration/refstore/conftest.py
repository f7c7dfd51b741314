"""One real cluster for all tests here; each test uses a database of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from rowferry.change.table import TableId
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("store")
    with LocalCluster(folder, 2) as running:
        yield running


@pytest.fixture
def store(cluster: LocalCluster) -> Iterator[Store]:
    with cluster.store() as found:
        yield found


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[RangeClient]:
    found = RangeClient(cluster.master_address, "test", timeout_s=30)
    yield found
    found.close()


@pytest.fixture
def table(store: Store, request: pytest.FixtureRequest) -> TableId:
    """A new table `t (id bigint, v bigint, note varchar)` of four ranges over ids 0 to 99."""
    database = re.sub(r"\W", "_", request.node.name)
    store.ddl(f"CREATE DATABASE {database}")
    store.ddl(
        f"CREATE TABLE {database}.t (id bigint PRIMARY KEY, v bigint, note varchar(100))",
        ranges=4,
        handles=(0, 99),
    )
    return TableId(database, "t")
