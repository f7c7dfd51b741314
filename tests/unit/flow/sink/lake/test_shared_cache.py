"""What tables keep in memory between commits: bounded, and given back with what it was for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from lake_kit import PLAIN, Lake, Model, ordered
from rowferry.change.chunk import Op
from rowferry.flow.sink.lake.delta import target
from rowferry.flow.sink.lake.shared_cache import SharedCache


def test_the_least_recently_used_makes_room_in_whichever_part_it_is() -> None:
    cache = SharedCache[str](30)
    one, two = cache.part(), cache.part()
    one.put("a", "1a", 10)
    two.put("a", "2a", 10)
    one.put("b", "1b", 10)
    assert (one.get("a"), two.get("a"), one.get("b")) == ("1a", "2a", "1b")
    one.get("a")
    two.put("b", "2b", 10)
    assert (one.get("a"), two.get("a"), one.get("b"), two.get("b")) == ("1a", None, "1b", "2b")
    one.put("a", "more", 25)
    assert (cache.bytes, one.get("a"), two.get("b")) == (25, "more", None)
    one.put("a", "too much", 31)
    assert (cache.bytes, one.get("a")) == (0, None)


def test_a_part_gives_its_values_back() -> None:
    cache = SharedCache[str](100)
    one, two = cache.part(), cache.part()
    for name in "abc":
        one.put(name, name, 10)
        two.put(name, name, 1)
    one.forget(["a", "x"])
    two.keep({"a", "x"})
    assert [one.get(n) for n in "abc"] == [None, "b", "c"]
    assert ([two.get(n) for n in "abc"], cache.bytes) == (["a", None, None], 21)
    del one
    gc.collect()
    assert (cache.bytes, two.get("a")) == (1, "a")


def test_vectors_of_files_that_are_gone_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SharedCache[target._Vector](1 << 20)
    monkeypatch.setattr(target, "_VECTORS", kept)
    lake, model = Lake(tmp_path), Model(PLAIN, 3)
    lake.uri = lake.uri.replace("optimize-after=0", "optimize-after=3")
    lake.open()
    for _ in range(12):
        lake.step(PLAIN, model.changes(20))
    gc.collect()  # what tasks of upkeep held
    table = lake.sink._target("shop/orders")
    live = set(table.refreshed().files)
    assert {name for _, name in kept._entries} <= live
    assert ordered(lake.rows(), ["id"]) == model.expected()
    lake.step(PLAIN, [(Op.DELETE, row, None) for row in model.rows.values()])
    table.refreshed()
    assert kept.bytes == 0


def test_vectors_that_do_not_fit_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SharedCache[target._Vector](3000)
    monkeypatch.setattr(target, "_VECTORS", kept)
    lake, model = Lake(tmp_path), Model(PLAIN, 5)
    lake.open()
    for _ in range(8):
        lake.step(PLAIN, model.changes(25))
        assert 0 <= kept.bytes <= 3000
    assert ordered(lake.rows(), ["id"]) == model.expected()
    assert kept.bytes
