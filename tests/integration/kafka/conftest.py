"""A database of each test's own, with feeds to the brokers that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_feed_kit import Scene, scene_of

from rowferry.testing.servers import Kafka, MySql


@pytest.fixture
def scene(
    mysql_server: MySql, kafka_broker: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(mysql_server, kafka_broker, tmp_path, request.node.name) as found:
        yield found
