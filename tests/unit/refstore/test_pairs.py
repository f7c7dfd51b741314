"""Runs and entries against plain dicts and protobuf's own reading."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rowferry.errors import StoreDamaged
from rowferry.refstore.storage.kernels import LOG_TAG, SNAPSHOT_TAG
from rowferry.refstore.storage.pairs import EMPTY_RUN, Pairs, Run, as_bytes, read_entries
from rowferry.refstore.storage.state import StoreState
from rowferry.wire import range_cdc_pb2 as cdc

WRITE, DELETE = cdc.CdcChangeData.WRITE, cdc.CdcChangeData.DELETE


def run_of(rows: dict[bytes, tuple[bytes | None, int]]) -> Run:
    keys = sorted(rows)
    ts = np.array([rows[k][1] for k in keys], np.uint64)
    return Run(Pairs.of([(k, rows[k][0]) for k in keys]), ts)


def content(run: Run) -> dict[bytes, tuple[bytes | None, int]]:
    return {run.pairs.key(i): (run.pairs.value(i), int(run.commit_ts[i])) for i in range(len(run))}


def test_entries_are_what_protobuf_reads() -> None:
    pairs = Pairs.of([(b"k" * 200, b"v" * 300), (b"q", None), (b"r", b"")])
    ts = np.array([1 << 63, 5, 300], np.uint64)
    old_len = np.array([-1, 3, 0])
    raw, ends = pairs.entries(LOG_TAG, ts, (as_bytes(b"old"), np.array([0, 0, 3]), old_len))
    found = cdc.CdcPullLogResponse.FromString(raw).log_data
    assert [(e.type, e.key, e.value, e.commit_ts) for e in found] == [
        (WRITE, b"k" * 200, b"v" * 300, 1 << 63),
        (DELETE, b"q", b"", 5),
        (WRITE, b"r", b"", 300),
    ]
    assert [e.HasField("old_value") for e in found] == [False, True, True]
    assert [e.old_value for e in found] == [b"", b"old", b""]
    assert int(ends[-1]) == len(raw)


def test_entries_can_be_read_back() -> None:
    items = [(b"a", b"1"), (b"b", None), (b"c", b"x" * 1000)]
    raw, _ = Pairs.of(items).entries(SNAPSHOT_TAG, np.array([1, 2, 3], np.uint64))
    found = read_entries(as_bytes(raw), "test", SNAPSHOT_TAG)
    assert list(found.pairs.items()) == items
    assert found.commit_ts.tolist() == [1, 2, 3]
    assert int(found.at[-1] + found.length[-1]) == len(raw)


@pytest.mark.parametrize("cut", range(1, 30))
def test_cut_entries_are_refused_with_a_position(cut: int) -> None:
    raw, ends = Pairs.of([(b"key-1", b"value-1"), (b"key-2", b"value-2")]).entries(
        LOG_TAG, np.array([1 << 40, 1 << 41], np.uint64)
    )
    if len(raw) - cut in ends.tolist():
        return
    with pytest.raises(StoreDamaged, match="at byte"):
        read_entries(as_bytes(raw[:-cut]), "test")


def test_random_bytes_never_crash() -> None:
    dice = random.Random(5)
    for _ in range(3000):
        raw = bytes(
            dice.choice((0x12, 0x08, 0xFF, 1, 3, 0x80, 0)) for _ in range(dice.randrange(40))
        )
        try:
            read_entries(as_bytes(raw), "test")
        except StoreDamaged:
            pass


def test_sorting_keeps_the_last_of_equal_keys() -> None:
    pairs = Pairs.of([(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", None)])
    run = Run.sorted_from(pairs, np.array([1, 2, 3, 4], np.uint64))
    assert content(run) == {b"a": (None, 4), b"b": (b"3", 3)}


def test_merging_equals_dict_update() -> None:
    dice = random.Random(1)
    for _ in range(100):
        old = {b"%03d" % dice.randrange(60): (b"o" * dice.randrange(5), 1) for _ in range(30)}
        new = {b"%03d" % dice.randrange(60): (dice.choice([b"n", None]), 2) for _ in range(20)}
        assert content(run_of(old).merged(run_of(new))) == {**old, **new}
    assert content(EMPTY_RUN.merged(run_of({b"a": (b"1", 1)}))) == {b"a": (b"1", 1)}


def test_between_and_cuts() -> None:
    run = run_of({b"%02d" % i: (b"x" * 8, i) for i in range(100)})
    assert list(content(run.between(b"10", b"13"))) == [b"10", b"11", b"12"]
    assert len(run.between(b"", b"")) == 100
    cuts = run.cuts(100)
    bounds = [b"", *cuts, b"~"]
    sizes = [len(run.between(a, b)) for a, b in zip(bounds, bounds[1:], strict=False)]
    assert sum(sizes) == 100
    assert max(sizes) <= 11
    assert EMPTY_RUN.cuts(10) == []


@pytest.mark.parametrize("batch", [3, 200])
def test_state_equals_a_dict(batch: int) -> None:
    dice, state = random.Random(2), StoreState()
    model: dict[bytes, tuple[bytes | None, int]] = {}
    for ts in range(1, 60):
        keys = sorted({b"%04d" % dice.randrange(2000) for _ in range(batch)})
        items = [(k, None if dice.random() < 0.2 else b"%d" % ts) for k in keys]
        pairs = Pairs.of(items)
        before_ts, (blob, at, length) = state.before(pairs)
        for i, (key, _) in enumerate(items):
            value, written = model.get(key, (None, 0))
            assert int(before_ts[i]) == written
            found = None if length[i] < 0 else blob[at[i] : at[i] + length[i]].tobytes()
            assert found == value
        state.apply(pairs, ts)
        model.update({k: (v, ts) for k, v in items})
    assert content(state.whole()) == model


def test_a_snapshot_is_not_touched_by_later_writes() -> None:
    state = StoreState()
    state.apply(Pairs.of([(b"a", b"1")]), 1)
    pinned = state.whole()
    state.apply(Pairs.of([(b"a", b"2"), (b"b", b"3")]), 2)
    state.whole()
    assert content(pinned) == {b"a": (b"1", 1)}


def test_old_deletes_are_forgotten_but_remembered_as_forgotten() -> None:
    state, minute = StoreState(), 61_000 << 18
    state.apply(Pairs.of([(b"a", None), (b"b", b"1")]), minute)
    state.apply(Pairs.of([(b"c", b"1")]), 3 * minute)
    assert list(content(state.whole())) == [b"b", b"c"]
    assert minute <= state.forgotten_ts < 3 * minute
