"""Scenes of the MySQL sink: from MySQL to MariaDB and the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mysql_sink_kit import Scene, scene_of

from rowferry.testing.servers import MariaDb, MySql, Server


@pytest.fixture
def scene(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """From MySQL to MariaDB."""
    with scene_of(mysql_server, mariadb_server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture
def same_kind(
    source_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """From each kind of server to itself, another database."""
    with scene_of(source_server, source_server, tmp_path, request.node.name) as found:
        yield found
