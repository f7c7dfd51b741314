"""Chunks of a segment are the same ones each time, however ranges and pages were cut meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from fake_ranges import FakeRanges, simple_table

from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Segment, TableSlice
from rowferry.flow.capture.range_log import page
from rowferry.flow.capture.range_log.read import read_segment


@pytest.fixture
def store() -> FakeRanges:
    """A table with small and large rows, whose log has deletes far apart in one transaction."""
    made = FakeRanges()
    made.ddl(DdlKind.CREATE_TABLE, simple_table())
    made.write(10, [{"id": i, "v": f"first {i}"} for i in range(60)])
    for i in range(20):
        made.write(
            10, [{"id": i + 7 * k, "v": "x" * (k * i % 60)} for k in range(6)], delete=[40 + i]
        )
    made.write(10, [{"id": i, "v": "y" * 60} for i in range(0, 90, 2)], delete=[1, 31, 87])
    return made


def chunks(store: FakeRanges, read: dict[str, Any]) -> list[list[dict[str, Any]]]:
    table = store.tables[10]
    one = TableSlice(table.id, 10, table.version)
    found = read_segment(store, Segment(0, read, (one,), 1, 1), table)  # type: ignore[arg-type]
    return [rows.batch.to_pylist() for rows in found]


@pytest.mark.parametrize("cut", [1, 500, 3000, 1 << 20])
@pytest.mark.parametrize("kind", ["log", "snapshot"])
def test_they_are_the_same_after_splits_and_with_other_pages(
    store: FakeRanges, monkeypatch: pytest.MonkeyPatch, kind: str, cut: int
) -> None:
    """A queue that counts messages, and a receiver that knows requests, tell repeats by it."""
    monkeypatch.setattr(page, "_CUT_BYTES", cut)
    home = store.ranges[2]
    start, end = home.start.hex(), home.end.hex()
    span = {"range_id": 2, "start": start, "end": end, "from": 0, "until": home.last_index}
    read: dict[str, Any] = {"kind": "log", "after_ts": 0, "until_ts": store.now, "spans": [span]}
    if kind == "snapshot":
        home.snapshots[5] = dict(home.data)
        part = {"range_id": 2, "version": 5, "last": "", "start": start, "end": end}
        read = {"kind": "snapshot", "commit_ts": 9, "parts": [part]}
    first = chunks(store, read)
    sizes = [len(one) for one in first]
    assert set(sizes) == {1} if cut == 1 else max(sizes) > 1
    assert len(first) == 1 if cut == 1 << 20 else len(first) > 1
    store.split(2, store.key(10, 4))
    store.split(3, store.key(10, 40))
    store.page_rows = 7
    assert chunks(store, read) == first
