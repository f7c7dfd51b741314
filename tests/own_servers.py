"""The MySQL and MariaDB of a process's own, for folders whose tests need all of a server.

These change global settings, purge the log or read it byte by byte, or end sessions that they did
not open: with servers that other processes use they would disturb others, and be disturbed. A
folder's `conftest.py` imports the fixtures from here; they stand for those of the same names.
"""

from __future__ import annotations

import pytest

from rowferry.testing.servers import MariaDb, MySql, Server


@pytest.fixture(scope="session")
def mysql_server(own_mysql: MySql) -> MySql:
    """A MySQL server that no other process uses."""
    return own_mysql


@pytest.fixture(scope="session")
def mariadb_server(own_mariadb: MariaDb) -> MariaDb:
    """A MariaDB server that no other process uses."""
    return own_mariadb


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def source_server(request: pytest.FixtureRequest) -> Server:
    """One of the two servers above: a test that asks for it runs on both."""
    server: Server = request.getfixturevalue(f"own_{request.param}")
    return server
