"""Joining segments: which neighbours become one, and what must keep them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.frame import segment_join
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes
from rowferry.flow.capture.binlog.frame.segment_join import SliceBytes, join_segments
from rowferry.flow.capture.contract import Appetite

MB = 1 << 20
APPETITE = Appetite(
    segment_bytes=lambda table: 64 * MB,
    stretch_bytes=512 * MB,
    partition_label=lambda ts: str(ts // 1000),
    fewer_slices=True,
)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_join.os, "cpu_count", lambda: 2)


def one_slice(table: int, version: int = 1) -> TableSlice:
    return TableSlice(TableId("d", f"t{table}"), table, version)


def segment(number: int, tables: range | list[int], **read: Any) -> Segment:
    """The number-th stretch of 32 MB of a log, with these tables in it."""
    slices = tuple(one_slice(t) for t in tables)
    whole = {
        "kind": "log",
        "server": "s",
        "file": "log.1",
        "from": number * 32 * MB,
        "to": (number + 1) * 32 * MB,
        "last_ts": number,
        "txn_ts": 0,
        "clamp_ms": 9,
        "fixed_ts": 0,
        "maria": False,
        "tail": 4,
        "maps": [f"map of {number}"],
        "names": [["d", f"t{t}", 0, place] for place, t in enumerate(tables)],
    } | read
    near = (KeptBytes(whole["from"], whole["to"], data=b"x"),)
    return Segment(number, whole, slices, number * 10, number * 10 + 9, 32 * MB, near=near)


def even(segments: list[Segment]) -> list[SliceBytes | None]:
    return [{one: 32 * MB // len(s.slices) for one in s.slices} for s in segments]


def spans(segments: list[Segment]) -> list[tuple[int, int]]:
    return [(s.read["from"] // (32 * MB), s.read["to"] // (32 * MB)) for s in segments]


def test_tasks_share_one_stretch_of_many_tables_by_table() -> None:
    framed = [segment(n, range(1000)) for n in range(6)]
    found = join_segments(framed, even(framed), APPETITE)
    assert spans(found) == [(0, 6), (0, 6)]
    first = found[0]
    assert (first.first_commit_ts, first.last_commit_ts) == (0, 59)
    assert [(one.start, one.to) for one in first.near] == [
        (n * 32 * MB, (n + 1) * 32 * MB) for n in range(6)
    ]
    assert first.read["maps"] == ["map of 0"]
    assert first.read["last_ts"] == 0
    assert sum(s.log_bytes for s in found) == 6 * 32 * MB
    assert abs(first.log_bytes - 3 * 32 * MB) < MB
    assert {one for s in found for one in s.slices} == set(framed[0].slices)
    assert sum(len(s.slices) for s in found) == 1000
    for part in found:
        named = {tuple(name): part.slices[place] for *name, place in part.read["names"]}
        assert named == {("d", one.table.table, 0): one for one in part.slices}


def test_one_segment_of_many_tables_is_shared_out_too() -> None:
    carried = [segment(0, range(1000))]
    assert join_segments(carried, even(carried), APPETITE) == carried
    framed = [replace(carried[0], near=())]
    assert [len(s.slices) for s in join_segments(framed, even(framed), APPETITE)] == [500, 500]
    few = [replace(segment(0, range(63)), near=())]
    assert join_segments(few, even(few), APPETITE) == few
    short = [replace(framed[0], log_bytes=7 * MB)]
    assert join_segments(short, even(framed), APPETITE) == short
    assert join_segments([], [], APPETITE) == []


def test_a_long_table_has_a_part_of_its_own() -> None:
    framed = [segment(n, range(100)) for n in range(2)]
    sizes: list[SliceBytes | None] = [
        {one: (20 * MB if one.table_id == 5 else MB // 10) for one in s.slices} for s in framed
    ]
    wide = replace(APPETITE, stretch_bytes=64 * MB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_join, "BYTES_A_SLICE", MB)
        found = join_segments(framed, sizes, wide)
    assert [len(s.slices) for s in found] == [1, 99]
    assert found[0].slices == (one_slice(5),)


def test_partitions_of_a_table_stay_together() -> None:
    def parted(number: int) -> Segment:
        tables = range(500)
        slices = tuple(replace(one_slice(t), physical_id=p) for t in tables for p in (0, 1))
        names = [["d", f"t{t}", p + 1, 2 * t + p] for t in tables for p in (0, 1)]
        return replace(segment(number, [], names=names), slices=slices)

    framed = [parted(n) for n in range(4)]
    found = join_segments(framed, even(framed), APPETITE)
    assert len(found) == 2
    tables = [{one.table_id for one in s.slices} for s in found]
    assert not tables[0] & tables[1]
    assert [len(s.slices) for s in found] == [500, 500]


def test_many_processors_share_out_stretches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_join.os, "cpu_count", lambda: 8)
    framed = [segment(n, range(1000)) for n in range(8)]
    found = join_segments(framed, even(framed), APPETITE)
    assert spans(found) == [(0, 4)] * 4 + [(4, 8)] * 4


def test_segments_of_few_tables_stay_as_they_are() -> None:
    framed = [segment(n, range(100)) for n in range(8)]
    assert join_segments(framed, even(framed), APPETITE) == framed


def test_tables_of_both_keep_their_places() -> None:
    framed = [segment(0, range(600)), segment(1, range(300, 900)), *far(2, 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_join, "LEAST_PART", 1 << 40)  # so that nothing is divided
        found = join_segments(framed, even(framed), APPETITE)[0]
    assert found.slices == tuple(one_slice(t) for t in range(900))
    assert found.read["names"] == [["d", f"t{t}", 0, t] for t in range(900)]


def far(first: int, count: int) -> list[Segment]:
    """Segments that join with nothing before them; they only make the whole longer."""
    return [segment(n + 100, range(1000), file="log.2") for n in range(first, first + count)]


@pytest.mark.parametrize(
    "second",
    [
        segment(2, range(1000)),  # something lies between
        segment(1, range(1000), file="log.2"),
        segment(1, range(1000), clamp_ms=10),
        segment(1, range(1000), fixed_ts=5),
        replace(segment(1, range(1000)), last_commit_ts=1000),  # another date
        replace(segment(1, range(1)), slices=(one_slice(0, version=2),)),
    ],
)
def test_what_does_not_fit_stays_apart(second: Segment) -> None:
    framed = [segment(0, range(1000)), second, *far(4, 6)]
    sizes = even(framed)
    found = join_segments(framed, sizes, APPETITE)
    assert found[:2] == framed[:2]
    fits = [framed[0], segment(1, range(1000)), *framed[2:]]
    assert spans(join_segments(fits, sizes, APPETITE))[0] == (0, 2)


def test_a_segment_without_sizes_stays_alone() -> None:
    framed = [segment(n, range(1000)) for n in range(8)]
    sizes = even(framed)
    sizes[1] = None
    assert spans(join_segments(framed, sizes, APPETITE))[:3] == [(0, 1), (1, 2), (2, 8)]


def test_no_table_gets_more_than_a_file_holds() -> None:
    framed = [segment(n, range(1000)) for n in range(8)]
    hot = [{**size, one_slice(7): 30 * MB} for size in even(framed) if size is not None]
    assert spans(join_segments(framed, hot, APPETITE)) == [(0, 2), (2, 4), (4, 6), (6, 8)]
