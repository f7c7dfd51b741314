"""Scenes of feeds into OpenSearch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from search_kit import SearchScene

from rowferry.testing.servers import MySql, OpenSearch, Server


@pytest.fixture
def scene(
    source_server: Server, opensearch_server: OpenSearch, tmp_path: Path
) -> Iterator[SearchScene]:
    """From MySQL and from MariaDB."""
    found = SearchScene(source_server, opensearch_server, tmp_path)
    yield found
    found.close()


@pytest.fixture
def from_mysql(
    mysql_server: MySql, opensearch_server: OpenSearch, tmp_path: Path
) -> Iterator[SearchScene]:
    found = SearchScene(mysql_server, opensearch_server, tmp_path)
    yield found
    found.close()
