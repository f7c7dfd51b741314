"""Options and fixtures of the whole suite."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rowferry.testing.servers import Kafka, MariaDb, MySql, Registry, Server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay a chaos test")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The number that decides all that is random in a chaos test; printed for a replay."""
    chosen = request.config.getoption("--seed")
    number = int(chosen) if chosen is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {number}; replay with --seed {number}")
    return number


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    """A MySQL server for all tests: make a database of your own in it, and change no settings."""
    with MySql.start(tmp_path_factory.mktemp("mysql"), server_id=101) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """A MariaDB server for all tests, as `mysql_server`."""
    with MariaDb.start(tmp_path_factory.mktemp("mariadb"), server_id=102) as server:
        yield server


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def source_server(request: pytest.FixtureRequest) -> Server:
    """One of the two servers above: a test that asks for it runs on both."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka broker for all tests: use topics of your own, and do not stop it."""
    with Kafka.start(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A schema registry for all tests: use subjects of your own, and do not stop it."""
    with Registry.start(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
