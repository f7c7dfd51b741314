"""HARNESSES: how to build each registered source, codec and sink; a name without one fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from codec_harness import CODEC_HARNESSES, CodecHarness
from lane_harness import LANE_HARNESSES, KafkaHarness, LaneHarness, MySqlHarness
from sink_harness import OBJECT_SERVERS, SINK_HARNESSES, ObjectHarness, SinkHarness
from source_harness import SOURCE_HARNESSES, SourceHarness

from rowferry.registry import CODECS, SINKS, SOURCES
from rowferry.testing.servers import Relay


def _variants(registered: list[str], known: list[str]) -> list[str]:
    """Return the registered names, and the degraded variants (`name+how`) of each."""
    more = [k for k in known if k not in registered and k.partition("+")[0] in registered]
    return sorted([*registered, *more])


def _sink(request: pytest.FixtureRequest, place: Path) -> Iterator[SinkHarness]:
    name = request.param
    found = SINK_HARNESSES.get(name)
    if found is None:
        pytest.fail(f"no harness for sink {name!r}: add it to sink_harness.py")
    harness = found(place, request.getfixturevalue("monkeypatch"))
    if not isinstance(harness, ObjectHarness):
        yield harness
        return
    harness.server = request.getfixturevalue(OBJECT_SERVERS[harness.scheme])
    with Relay(harness.server.client_port) as harness.relay:
        yield harness


_ALL_LANES = [name for name in SINKS.names() if SINKS.load(name).TRAITS.needs_shuffle]
# Schemes of one class differ in TLS only: the first of each kind stands for the others.
_LANES = sorted(
    {(SINKS.load(n), n.endswith(("+ssl", "https"))): n for n in reversed(_ALL_LANES)}.values()
)
# Schemes of one class differ in nothing but their name: the first stands for the others.
_BY_CLASS = {SINKS.load(name): name for name in reversed(SINKS.names()) if name not in _ALL_LANES}
_SEGMENTS = sorted(_BY_CLASS.values())


@pytest.fixture(params=_variants(_SEGMENTS, list(SINK_HARNESSES)))
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkHarness]:
    yield from _sink(request, tmp_path / "target")


@pytest.fixture(params=_SEGMENTS)
def healthy_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkHarness]:
    """For tests in which child processes build sinks of their own, which nothing degrades."""
    yield from _sink(request, tmp_path / "target")


def _lanes(request: pytest.FixtureRequest, folder: Path) -> LaneHarness:
    found = LANE_HARNESSES.get(request.param)
    if found is None:
        pytest.fail(f"no harness for sink {request.param!r}: add it to lane_harness.py")
    harness = found(folder)
    if isinstance(harness, KafkaHarness):
        harness.broker = request.getfixturevalue("guarded_broker")
    if isinstance(harness, MySqlHarness):
        kind = "mysql" if harness.scheme.endswith("+ssl") else "mariadb"
        harness.server = request.getfixturevalue(f"{kind}_server")
    return harness


@pytest.fixture(params=_variants(_LANES, list(LANE_HARNESSES)))
def lane_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LaneHarness]:
    with _lanes(request, tmp_path) as started:
        yield started


@pytest.fixture(params=_LANES)
def healthy_lanes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LaneHarness]:
    """For tests that break the target themselves."""
    with _lanes(request, tmp_path) as started:
        yield started


@pytest.fixture(params=CODECS.names())
def codec(request: pytest.FixtureRequest) -> CodecHarness:
    found = CODEC_HARNESSES.get(request.param)
    if found is None:
        pytest.fail(f"no harness for codec {request.param!r}: add it to codec_harness.py")
    return found


@pytest.fixture(params=_variants(SOURCES.names(), list(SOURCE_HARNESSES)), scope="module")
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SourceHarness]:
    found = SOURCE_HARNESSES.get(request.param)
    if found is None:
        pytest.fail(f"no harness for source {request.param!r}: add it to source_harness.py")
    with found(tmp_path_factory.mktemp("source")) as started:
        yield started
