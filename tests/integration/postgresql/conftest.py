"""Scenes of the PostgreSQL sink: from MySQL, and from both kinds of servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql_kit import Scene, scene_of

from rowferry.testing.servers import MySql, Postgres, Server


@pytest.fixture
def scene(
    mysql_server: MySql, postgres_server: Postgres, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """From MySQL."""
    with scene_of(mysql_server, postgres_server, tmp_path, request.node.name) as opened:
        yield opened


@pytest.fixture
def each_kind(
    source_server: Server,
    postgres_server: Postgres,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    """From each kind of server."""
    with scene_of(source_server, postgres_server, tmp_path, request.node.name) as opened:
        yield opened
