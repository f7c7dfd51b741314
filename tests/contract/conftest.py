"""HARNESSES: how to build each registered source, codec and sink; a name without one fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from codec_harness import CODEC_HARNESSES, CodecHarness
from harness_names import harness_named
from iceberg_harness import ICEBERG_HARNESSES, ICEBERG_SERVERS, GlueHarness
from lake_harness import LAKE_HARNESSES, LAKE_SERVERS
from lane_harness import (
    LANE_HARNESSES,
    KafkaHarness,
    LaneHarness,
    MySqlHarness,
    PostgresqlHarness,
    PulsarHarness,
)
from queue_harness import QUEUE_HARNESSES, QueueHarness
from search_harness import SEARCH_HARNESSES, SearchHarness
from sink_harness import OBJECT_SERVERS, SINK_HARNESSES, ObjectHarness, SinkHarness
from source_harness import SOURCE_HARNESSES, SourceHarness

from rowferry.flow.sink.blackhole import Blackhole
from rowferry.registry import CODECS, SINKS, SOURCES
from rowferry.testing.servers import Relay

_HARNESSES = SINK_HARNESSES | LAKE_HARNESSES | ICEBERG_HARNESSES
_LANE_HARNESSES = LANE_HARNESSES | QUEUE_HARNESSES | SEARCH_HARNESSES
_SERVERS = OBJECT_SERVERS | LAKE_SERVERS | ICEBERG_SERVERS


def _variants(registered: list[str], known: list[str]) -> list[str]:
    """Return the registered names, and the degraded variants (`name+how`) of each."""
    more = [k for k in known if k not in registered and k.rpartition("+")[0] in registered]
    return sorted([*registered, *more])


def _sink(request: pytest.FixtureRequest, place: Path) -> Iterator[SinkHarness]:
    found = harness_named(request.param, _HARNESSES, "sink")
    harness = found(place, request.getfixturevalue("monkeypatch"))
    if isinstance(harness, GlueHarness):
        harness.server = request.getfixturevalue("amazon_server")
    if not isinstance(harness, ObjectHarness):
        yield harness
        return
    harness.server = request.getfixturevalue(_SERVERS[harness.scheme])
    with Relay(harness.server.client_port) as harness.relay:
        yield harness


_ALL_LANES = [name for name in SINKS.names() if SINKS.load(name).TRAITS.needs_shuffle]
# Schemes of one class differ in TLS only: the first of each kind stands for the others.
_LANES = sorted(
    {(SINKS.load(n), n.endswith(("+ssl", "https"))): n for n in reversed(_ALL_LANES)}.values()
)
# Schemes of one class differ in nothing but their name: the first stands for the others. Keeping
# nothing is what one sink is for, which `test_blackhole_contract.py` looks at.
_BY_CLASS = {SINKS.load(name): name for name in reversed(SINKS.names()) if name not in _ALL_LANES}
_SEGMENTS = sorted(name for kind, name in _BY_CLASS.items() if kind is not Blackhole)


@pytest.fixture(params=_variants(_SEGMENTS, list(_HARNESSES)))
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkHarness]:
    yield from _sink(request, tmp_path / "target")


@pytest.fixture(params=_SEGMENTS)
def healthy_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkHarness]:
    """For tests in which child processes build sinks of their own, which nothing degrades."""
    yield from _sink(request, tmp_path / "target")


@pytest.fixture(params=[name for name in _SEGMENTS if hasattr(SINKS.load(name), "write")])
def bytes_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkHarness]:
    """Sinks that take what a codec has written."""
    yield from _sink(request, tmp_path / "target")


def _lanes(request: pytest.FixtureRequest, folder: Path) -> LaneHarness:
    harness = harness_named(request.param, _LANE_HARNESSES, "sink with a lane")(folder)
    if isinstance(harness, KafkaHarness):
        harness.broker = request.getfixturevalue("guarded_broker")
    if isinstance(harness, PulsarHarness):
        harness.broker = request.getfixturevalue("pulsar_broker")
    if isinstance(harness, QueueHarness):
        harness.server = request.getfixturevalue(harness.fixture)
    if isinstance(harness, MySqlHarness):
        kind = "mysql" if harness.scheme.endswith("+ssl") else "mariadb"
        harness.server = request.getfixturevalue(f"{kind}_server")
    if isinstance(harness, PostgresqlHarness):
        harness.server = request.getfixturevalue("postgres_server")
    if isinstance(harness, SearchHarness):
        harness.server = request.getfixturevalue("opensearch_server")
    return harness


@pytest.fixture(params=_variants(_LANES, list(_LANE_HARNESSES)))
def lane_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LaneHarness]:
    with _lanes(request, tmp_path) as started:
        yield started


@pytest.fixture(params=_LANES)
def healthy_lanes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LaneHarness]:
    """For tests that break the target themselves."""
    with _lanes(request, tmp_path) as started:
        yield started


@pytest.fixture(params=_variants(CODECS.names(), list(CODEC_HARNESSES)))
def codec(request: pytest.FixtureRequest) -> CodecHarness:
    return harness_named(request.param, CODEC_HARNESSES, "codec")


@pytest.fixture(params=_variants(SOURCES.names(), list(SOURCE_HARNESSES)), scope="module")
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SourceHarness]:
    found = harness_named(request.param, SOURCE_HARNESSES, "source")
    with found(tmp_path_factory.mktemp("source")) as started:
        yield started
