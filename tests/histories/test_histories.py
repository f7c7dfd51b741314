"""A few fixed histories, each through several sinks at once; `make chaos` runs many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rowferry.testing.histories.feeds import Services
from rowferry.testing.histories.history import run_history


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Servers of this file's own: a history writes to all databases of its server."""
    with Services(tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.mark.parametrize("number", [11, 12])
@pytest.mark.parametrize("server", ["mysql", "mariadb", "mariadb11"])
def test_feeds_tell_the_whole_history(
    services: Services, tmp_path: Path, server: str, number: int
) -> None:
    sinks = ("file/canal-json", "file/csv", "http/json")
    found = run_history(services, tmp_path / "history", number, server, sinks, acts=20)
    assert found.failures == [], found.repeat
    assert sorted(found.compared) == sorted(sinks)
    assert min(found.compared.values()) > 0


@pytest.mark.parametrize(
    ("server", "sinks"),
    [
        ("mysql", ("delta/upsert", "iceberg/changelog")),
        ("mariadb", ("iceberg/upsert", "delta/changelog")),
    ],
)
def test_lake_tables_tell_the_whole_history(
    services: Services, tmp_path: Path, server: str, sinks: tuple[str, ...]
) -> None:
    """At every watermark they are what the source was, and each change is in one commit."""
    found = run_history(services, tmp_path / "history", 12, server, sinks, acts=14)
    assert found.failures == [], found.repeat
    assert sorted(found.compared) == sorted(sinks)
    assert min(found.compared.values()) > 0
