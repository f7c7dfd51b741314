"""A database of each test's own, with feeds to each of the services that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "kafka"))  # its kit is used here

from queue_feed_kit import SERVERS, Queue, QueueScene

from rowferry.testing.servers import MySql


@pytest.fixture(params=SERVERS)
def queue(request: pytest.FixtureRequest) -> Queue:
    return Queue(request.param, request.getfixturevalue(SERVERS[request.param]))


@pytest.fixture
def scene(
    mysql_server: MySql, queue: Queue, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[QueueScene]:
    found = QueueScene(mysql_server, queue, tmp_path, request.node.name)
    try:
        yield found
    finally:
        found.close()
