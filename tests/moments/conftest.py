"""A walk over servers that no other process uses: it ends sessions and purges logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "binlog"))  # its kit is used here

from moment_walk import Walk

from own_servers import mariadb_server, mysql_server, source_server
from rowferry.testing.servers import Kafka, MariaDb, MySql, Postgres

__all__ = ["mariadb_server", "mysql_server", "source_server", "walk"]


@pytest.fixture(scope="session")
def walk(
    mysql_server: MySql,
    mariadb_server: MariaDb,
    kafka_broker: Kafka,
    postgres_server: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Walk]:
    servers = {"mysql": mysql_server, "mariadb": mariadb_server}
    found = Walk(servers, tmp_path_factory.mktemp("moments"), kafka_broker, postgres_server)
    yield found
    found.close()
