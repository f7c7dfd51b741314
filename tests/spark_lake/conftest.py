"""One Spark with the libraries of Delta and Iceberg for all tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "contract"))  # its kit is used here

from rowferry.testing.servers.spark.lake_engine import LakeSpark


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSpark]:
    with LakeSpark(tmp_path_factory.mktemp("spark")) as running:
        yield running
