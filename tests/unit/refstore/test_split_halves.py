"""The halves of a split, until the master has made them real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from range_kit import META, Timer, open_range, request

from rowferry.errors import StoreDamaged
from rowferry.refstore.data_server import DataServer
from rowferry.refstore.range import Range
from rowferry.refstore.split import require_whole, split

CHILD = replace(META, parent_range_id=3, version=2)  # it came from a split itself


@pytest.fixture
def whole(tmp_path: Path) -> Range:
    held = open_range(tmp_path / CHILD.folder, Timer(), meta=CHILD)
    held.write(request(1, {b"b": b"1", b"k": b"2"}))
    return held


def a_server(whole: Range | None, *others: Range) -> tuple[Any, list[Range]]:
    """Return what a data server knows after a split of `whole` at its 5th heartbeat."""
    assert whole is not None
    halves = split(whole, b"", 12, heartbeat=5)
    born = {(h.meta.range_id, h.meta.version): h for h in halves}
    known = {r.meta.range_id: r for r in (whole, *others)}
    return SimpleNamespace(_born=born, _ranges=known), list(halves)


def test_halves_wait_while_the_split_is_under_way(whole: Range, tmp_path: Path) -> None:
    other = open_range(tmp_path / "other", Timer(), meta=replace(META, range_id=3))
    server, halves = a_server(whole, other)
    DataServer._drop_unborn(server, 6)  # an answer in which the range is still frozen
    assert len(server._born) == 2
    assert all((h.folder / "checkpoint").exists() for h in halves)


def test_halves_of_a_split_that_failed_are_thrown_away(whole: Range) -> None:
    server, halves = a_server(whole)
    whole.assign(CHILD, 0, False, 6)
    DataServer._drop_unborn(server, 6)
    assert not server._born
    assert not any(h.folder.exists() for h in halves)


def test_files_of_a_range_that_is_led_elsewhere_stay(whole: Range) -> None:
    server, halves = a_server(whole)
    del server._ranges[CHILD.range_id]
    DataServer._drop_unborn(server, 6)
    assert not server._born
    assert all(h.closed and (h.folder / "checkpoint").exists() for h in halves)


def test_a_half_without_files_is_no_empty_range(whole: Range, tmp_path: Path) -> None:
    _, halves = a_server(whole)
    left = halves[0]
    require_whole(left.folder, left.meta)
    with pytest.raises(StoreDamaged, match="was made by a split, but its files"):
        require_whole(tmp_path / "gone", left.meta)
    require_whole(tmp_path / "new", META)
