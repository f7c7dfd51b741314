"""Options and fixtures of the whole suite."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from rowferry.testing.servers import (
    Azurite,
    FakeGcs,
    Kafka,
    KafkaListener,
    MariaDb,
    MariaDb11,
    Minio,
    MySql,
    Postgres,
    SchemaRegistryServer,
    Server,
)

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
def mysql_server(server_folder: Path) -> Iterator[MySql]:
    """A MySQL server for all tests: make a database of your own in it, and change no settings."""
    with MySql.start(server_folder / "mysql", server_id=101) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(server_folder: Path) -> Iterator[MariaDb]:
    """A MariaDB server for all tests, as `mysql_server`."""
    with MariaDb.start(server_folder / "mariadb", server_id=102) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb11_server(server_folder: Path) -> Iterator[MariaDb11]:
    """A newer MariaDB server for all tests, as `mysql_server`."""
    with MariaDb11.start(server_folder / "mariadb11", server_id=103) as server:
        yield server


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def source_server(request: pytest.FixtureRequest) -> Server:
    """One of the two servers above: a test that asks for it runs on both."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path) -> Iterator[Postgres]:
    """A PostgreSQL server for all tests, as `mysql_server`."""
    with Postgres.start(server_folder / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker(server_folder: Path) -> Iterator[Kafka]:
    """A Kafka broker for all tests: use topics of your own, and do not stop it."""
    with Kafka.start(server_folder / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def guarded_broker(server_folder: Path) -> Iterator[Kafka]:
    """A broker with every kind of login that keeps rights: all is allowed where none was set."""
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Kafka.start(server_folder / "guarded", rights, tuple(KafkaListener)) as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry(server_folder: Path) -> Iterator[SchemaRegistryServer]:
    """A schema registry for all tests: use subjects of your own, and do not stop it."""
    with SchemaRegistryServer.start(server_folder / "registry") as registry:
        yield registry


@pytest.fixture(scope="session")
def s3_server(server_folder: Path) -> Iterator[Minio]:
    """An S3 server for all tests: use a prefix of your own, and do not stop it."""
    with Minio.start(server_folder / "s3") as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(server_folder: Path) -> Iterator[FakeGcs]:
    """A Google Cloud Storage server for all tests, as `s3_server`."""
    with FakeGcs.start(server_folder / "gcs") as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(server_folder: Path) -> Iterator[Azurite]:
    """An Azure Blob server for all tests, as `s3_server`."""
    with Azurite.start(server_folder / "azure") as server:
        yield server
