"""A database of each test's own, with feeds to the broker that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "kafka"))  # its kit is used here

from pulsar_feed_kit import PulsarScene

from rowferry.testing.servers import MySql, Pulsar


@pytest.fixture
def scene(
    mysql_server: MySql, pulsar_broker: Pulsar, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[PulsarScene]:
    found = PulsarScene(mysql_server, pulsar_broker, tmp_path, request.node.name)
    try:
        yield found
    finally:
        found.close()
