"""Timestamps never go back, also over restarts and with a clock that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowferry.errors import BadInput, StoreDamaged
from rowferry.refstore.master.timestamps import Clock, TimestampOracle
from rowferry.refstore.master.topology import Topology


def test_timestamps_grow_with_the_clock_and_without_it(tmp_path: Path) -> None:
    now = [1000]
    oracle = TimestampOracle(tmp_path / "ts", fsync=False, wall_ms=lambda: now[0])
    first = oracle.next()
    assert first == 1000 << 18
    assert oracle.next() == first + 1
    assert oracle.next(10) == first + 11
    now[0] = 900
    assert oracle.next() == first + 12
    now[0] = 2000
    assert oracle.next() == 2000 << 18


def test_a_restart_begins_above_everything_given_out(tmp_path: Path) -> None:
    oracle = TimestampOracle(tmp_path / "ts", fsync=False, wall_ms=lambda: 1000)
    last = max(oracle.next(300_000) for _ in range(5))
    assert TimestampOracle(tmp_path / "ts", fsync=False, wall_ms=lambda: 1).next() > last


def test_a_damaged_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ts").write_text("{")
    with pytest.raises(StoreDamaged, match="ts"):
        TimestampOracle(tmp_path / "ts", fsync=False)


def test_a_reading_is_renewed_when_old() -> None:
    asked, seconds = iter(range(10, 20)), [0.0]
    clock = Clock(lambda: next(asked), lambda: seconds[0])
    assert clock.reading() == 10
    assert clock.reading() == 10
    seconds[0] = 0.06
    assert clock.reading() == 11
    clock.saw(500)
    assert clock.reading() == 500
    clock.saw(3)
    assert clock.last == 500


def test_a_folder_belongs_to_one_cluster(tmp_path: Path) -> None:
    Topology(tmp_path / "t", cluster_id=4, fsync=False)
    assert Topology(tmp_path / "t", cluster_id=None, fsync=False).cluster_id == 4
    with pytest.raises(BadInput, match="cluster 4"):
        Topology(tmp_path / "t", cluster_id=5, fsync=False)


def test_ranges_of_a_dead_server_are_given_to_others(tmp_path: Path) -> None:
    seconds = [0.0]
    topology = Topology(tmp_path / "t", None, fsync=False, monotonic=lambda: seconds[0])
    topology.beat("a:1", leaving=False, failures={})
    topology.give_out(patience=True)
    first = topology.range(1)
    assert first.leader == "a:1"
    topology.beat("b:1", leaving=False, failures={})
    seconds[0] = 1.9
    topology.beat("b:1", leaving=False, failures={})
    topology.give_out(patience=False)
    assert topology.range(1) == first
    seconds[0] = 2.1
    topology.give_out(patience=False)
    assert topology.range(1).leader == "b:1"
    assert topology.range(1).conf_ver == first.conf_ver + 1
    again = Topology(tmp_path / "t", None, fsync=False, monotonic=lambda: seconds[0])
    assert again.range(1).leader == "b:1"


def test_a_master_that_restarted_waits_for_former_leaders(tmp_path: Path) -> None:
    topology = Topology(tmp_path / "t", None, fsync=False, monotonic=lambda: 0.0)
    topology.beat("a:1", leaving=False, failures={})
    topology.give_out(patience=True)
    again = Topology(tmp_path / "t", None, fsync=False, monotonic=lambda: 0.0)
    again.beat("b:1", leaving=False, failures={})
    again.give_out(patience=True)
    assert again.range(1).leader == "a:1"
    again.give_out(patience=False)
    assert again.range(1).leader == "b:1"
