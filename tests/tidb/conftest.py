"""A TiDB for the tests of this folder, which `make test-tidb` runs: building it takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowferry.testing.servers import MySql, Server, TiDb

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "mysql_sink"))

from mysql_sink_kit import Scene, scene_of  # noqa: E402


@pytest.fixture(scope="session")
def tidb_server(server_folder: Path) -> Iterator[TiDb]:
    """A TiDB for all tests; one that kills it starts it again."""
    with TiDb.start(server_folder / "tidb") as server:
        yield server


@pytest.fixture
def scene(
    mysql_server: MySql, tidb_server: TiDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """From MySQL to TiDB."""
    with scene_of(mysql_server, tidb_server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture
def each_source(
    source_server: Server, tidb_server: TiDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """From MySQL and from MariaDB to TiDB."""
    with scene_of(source_server, tidb_server, tmp_path, request.node.name) as found:
        yield found
