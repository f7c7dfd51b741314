"""The suites of sinks judge: sinks that keep nothing, or not all, do not pass them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import test_lane_sink_contract
import test_sink_contract
from harness_names import harness_named
from lane_harness import HttpHarness
from sink_harness import SINK_HARNESSES, Bare, FileHarness

from rowferry.change.plan import Output, Receipt, Segment
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.contract import LaneSink, Packet, Sink
from rowferry.flow.sink.http.sink import HttpSink
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.changefeed import ChangefeedSpec

Test = Callable[..., None]


def passing(
    suite: ModuleType, fixture: str, run: Callable[[Callable[..., None]], None]
) -> set[str]:
    """Return the tests of a suite that are content; those of one fixture alone."""
    found = set()
    for name, test in inspect.getmembers(suite, inspect.isfunction):
        if name.startswith("test_") and list(inspect.signature(test).parameters) == [fixture]:
            try:
                run(test)
            except Exception:
                continue
            except pytest.fail.Exception:
                continue
            found.add(name)
    return found


# --- files ---------------------------------------------------------------------------------------


class Forgetful(Blackhole):
    """It keeps nothing."""


class Careless(StorageSink):
    """It loses the last frame of a segment, and says that it wrote it."""

    def write(
        self, segment: Segment, outputs: Sequence[Output], frames: Iterator[tuple[int, Encoded]]
    ) -> Iterator[Receipt]:
        given = [*frames]
        kept = list(super().write(segment, outputs, iter(given[:-1])))
        told = Blackhole.write(cast(Blackhole, self), segment, outputs, iter(given))
        return iter(
            [replace(k, rows=t.rows, bytes=t.bytes) for k, t in zip(kept, told, strict=True)]
        )


def content(kind: type[Sink], folder: Path) -> set[str]:
    """Return the tests that are content with a sink of files."""

    class Planted(FileHarness):
        def build(self, changefeed: str = "feed") -> Sink:
            spec = ChangefeedSpec.from_json(self.spec(changefeed).to_json())
            return kind(spec, Bare())

    def run(test: Test) -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(Planted(folder / test.__name__ / "target", patch))

    return passing(test_sink_contract, "sink", run)


def test_a_sink_that_is_right_passes_all(tmp_path: Path) -> None:
    suite = inspect.getmembers(test_sink_contract, inspect.isfunction)
    every = {n for n, t in suite if list(inspect.signature(t).parameters) == ["sink"]}
    assert content(StorageSink, tmp_path) == every and len(every) > 20


# What has nothing to do with rows that stay.
ABOUT_NOTHING = {
    "test_probe_writes_nothing",
    "test_allocate_writes_nothing_and_can_be_called_again",
    "test_wishes_are_usable",
    "test_nothing_is_visible_before_publish",
    "test_a_plan_that_nobody_ran_can_be_discarded",
}


def test_a_sink_that_keeps_nothing_is_found(tmp_path: Path) -> None:
    assert content(Forgetful, tmp_path) == ABOUT_NOTHING


def test_a_sink_that_loses_something_is_found(tmp_path: Path) -> None:
    passed = content(Careless, tmp_path)
    assert "test_published_rows_are_visible_in_order" not in passed
    assert "test_micro_batch_after_micro_batch_through_restarts" not in passed


# --- lanes ---------------------------------------------------------------------------------------


class Deaf(HttpSink):
    """It takes all packets and sends none."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        for _ in packets:
            pass


class Lossy(HttpSink):
    """It loses the last packet."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        super().deliver(iter([*packets][:-1]))


def content_with_lanes(kind: type[LaneSink], folder: Path) -> set[str]:
    """Return the tests that are content with a sink of lanes."""

    class Planted(HttpHarness):
        def build(self, changefeed: str = "feed") -> LaneSink:
            right: Any = super().build(changefeed)
            right.__class__ = kind
            return right  # type: ignore[no-any-return]

    def run(test: Test) -> None:
        with Planted(folder) as harness:
            test(harness)

    return passing(test_lane_sink_contract, "lane_sink", run)


def test_lanes_that_are_right_pass_all(tmp_path: Path) -> None:
    suite = inspect.getmembers(test_lane_sink_contract, inspect.isfunction)
    every = {n for n, t in suite if list(inspect.signature(t).parameters) == ["lane_sink"]}
    assert content_with_lanes(HttpSink, tmp_path) == every and len(every) > 8


LANES_ABOUT_NOTHING = {
    "test_probe_and_allocate_show_nothing",
    "test_nothing_to_deliver",
    "test_wishes_are_usable",
    "test_a_discarded_plan_can_be_planned_again",
}


@pytest.mark.parametrize("kind", [Deaf, Lossy])
def test_lanes_that_keep_nothing_or_not_all_are_found(kind: type[HttpSink], tmp_path: Path) -> None:
    assert content_with_lanes(kind, tmp_path) == LANES_ABOUT_NOTHING


# --- without a harness ---------------------------------------------------------------------------


def test_a_registered_name_without_a_harness_fails() -> None:
    assert harness_named("file", SINK_HARNESSES, "sink") is FileHarness
    with pytest.raises(pytest.fail.Exception, match="no harness for sink 'newcomer': add it to"):
        harness_named("newcomer", SINK_HARNESSES, "sink")
