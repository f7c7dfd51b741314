"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from kept_servers import KeptServers, LentServers, Servers
from rowferry.testing.servers import (
    Azurite,
    FakeGcs,
    IcebergRest,
    Kafka,
    MariaDb,
    MariaDb11,
    Minio,
    MySql,
    OpenSearch,
    Postgres,
    Pulsar,
    SchemaRegistryServer,
    Server,
)
from rowferry.testing.servers.queues.amazon import Amazon
from rowferry.testing.servers.queues.nats_server import NatsServer
from rowferry.testing.servers.queues.rabbitmq import RabbitMq
from rowferry.testing.servers.queues.redis_server import RedisServer
from rowferry.testing.servers.spark.classes import SparkClasses

# What every run repeats, and what `make chaos` adds to it: other dice each time, and more throws.
# No test fails for the time that it takes: a machine may be under load.
_ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("ci", derandomize=True, **_ANY_TIME)
settings.register_profile("explore", derandomize=False, max_examples=500, **_ANY_TIME)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        "--dice",
        default="",
        help="of what is random: a number, or `random`; else each test's own",
    )
    parser.addoption(
        "--moment", default="", help="of tests/moments: one case, as a failure names it"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Children inherit it where a shell has started us in the background: they could not be
    # interrupted, which tests do.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in SparkClasses.environment().items():
        os.environ.setdefault(name, value)
    settings.load_profile("explore" if config.getoption("--seed") == "random" else "ci")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The number that decides all that is random in a chaos test; printed for a replay.

    A test has its own, so that a change of ours is judged by the same dice as the one before it;
    `--seed random` throws new ones.
    """
    chosen = str(request.config.getoption("--seed"))
    if chosen == "random":
        number = random.SystemRandom().randrange(1 << 32)
    else:
        number = int(chosen) if chosen else crc32(request.node.nodeid.encode())
    print(f"seed {number}; replay with --seed {number}")
    return number


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where servers keep their files, which are many: nothing stays when the tests end."""
    folder = tmp_path_factory.mktemp("servers")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def own_servers(server_folder: Path) -> Iterator[Servers]:
    """Servers of this process."""
    with KeptServers(server_folder) as kept:
        yield kept


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Servers:
    """The servers that all processes of the run of a lane share; without a run, this one's."""
    run = request.config.getoption("--claims", None)
    if run is not None:
        return LentServers(Path(run))
    own: Servers = request.getfixturevalue("own_servers")
    return own


def _named(servers: Servers, name: str) -> Any:
    return servers.get(name)


@pytest.fixture(scope="session")
def own_mysql(own_servers: Servers) -> MySql:
    """A MySQL server of this process, for what `own_servers.py` says, and for names of pages."""
    server: MySql = _named(own_servers, "mysql")
    return server


@pytest.fixture(scope="session")
def own_mariadb(own_servers: Servers) -> MariaDb:
    """A MariaDB server of this process, as `own_mysql`."""
    server: MariaDb = _named(own_servers, "mariadb")
    return server


@pytest.fixture(scope="session")
def mysql_server(servers: Servers) -> MySql:
    """A MySQL server for all tests: make a database of your own in it, and change no settings.

    Others write to its log at the same time.
    """
    server: MySql = _named(servers, "mysql")
    return server


@pytest.fixture(scope="session")
def mariadb_server(servers: Servers) -> MariaDb:
    """A MariaDB server for all tests, as `mysql_server`."""
    server: MariaDb = _named(servers, "mariadb")
    return server


@pytest.fixture(scope="session")
def mariadb11_server(servers: Servers) -> MariaDb11:
    """A newer MariaDB server for all tests, as `mysql_server`."""
    server: MariaDb11 = _named(servers, "mariadb11")
    return server


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def source_server(request: pytest.FixtureRequest) -> Server:
    """One of the two servers above: a test that asks for it runs on both."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(scope="session")
def postgres_server(servers: Servers) -> Postgres:
    """A PostgreSQL server for all tests, as `mysql_server`."""
    server: Postgres = _named(servers, "postgres")
    return server


@pytest.fixture(scope="session")
def kafka_broker(servers: Servers) -> Kafka:
    """A Kafka broker for all tests: use topics of your own, and do not stop it."""
    server: Kafka = _named(servers, "kafka")
    return server


@pytest.fixture(scope="session")
def pulsar_broker(servers: Servers) -> Pulsar:
    """A Pulsar broker for all tests: use topics of your own, and do not stop it."""
    server: Pulsar = _named(servers, "pulsar")
    return server


@pytest.fixture(scope="session")
def nats_server(servers: Servers) -> NatsServer:
    """A NATS server for all tests: use topics of your own, and do not stop it."""
    server: NatsServer = _named(servers, "nats")
    return server


@pytest.fixture(scope="session")
def rabbitmq_broker(servers: Servers) -> RabbitMq:
    """A RabbitMQ broker for all tests: use topics of your own, and do not stop it."""
    server: RabbitMq = _named(servers, "rabbitmq")
    return server


@pytest.fixture(scope="session")
def amazon_server(servers: Servers) -> Amazon:
    """SQS and Kinesis for all tests: use topics of your own, and do not stop it."""
    server: Amazon = _named(servers, "amazon")
    return server


@pytest.fixture(scope="session")
def redis_server(servers: Servers) -> RedisServer:
    """A Redis server for all tests: use topics of your own, and do not stop it."""
    server: RedisServer = _named(servers, "redis")
    return server


@pytest.fixture(scope="session")
def guarded_broker(servers: Servers) -> Kafka:
    """A broker with every kind of login that keeps rights: all is allowed where none was set."""
    server: Kafka = _named(servers, "guarded")
    return server


@pytest.fixture(scope="session")
def schema_registry(servers: Servers) -> SchemaRegistryServer:
    """A schema registry for all tests: use subjects of your own, and do not stop it."""
    server: SchemaRegistryServer = _named(servers, "registry")
    return server


@pytest.fixture(scope="session")
def opensearch_server(servers: Servers) -> OpenSearch:
    """An OpenSearch server for all tests: use indexes of your own, and do not stop it."""
    server: OpenSearch = _named(servers, "opensearch")
    return server


@pytest.fixture(scope="session")
def iceberg_rest(servers: Servers) -> IcebergRest:
    """An Iceberg REST catalog for all tests: use databases of your own, and do not stop it."""
    server: IcebergRest = _named(servers, "iceberg")
    return server


@pytest.fixture(scope="session")
def s3_server(servers: Servers) -> Minio:
    """An S3 server for all tests: use a prefix of your own, and do not stop it."""
    server: Minio = _named(servers, "s3")
    return server


@pytest.fixture(scope="session")
def gcs_server(servers: Servers) -> FakeGcs:
    """A Google Cloud Storage server for all tests, as `s3_server`."""
    server: FakeGcs = _named(servers, "gcs")
    return server


@pytest.fixture(scope="session")
def azure_server(servers: Servers) -> Azurite:
    """An Azure Blob server for all tests, as `s3_server`."""
    server: Azurite = _named(servers, "azure")
    return server
