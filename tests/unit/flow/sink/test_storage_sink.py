"""What a plan becomes in the directory: names, numbers, visibility, repeats and discards."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from storage_kit import (
    EMPLOYEE,
    NEXT_DAY,
    NOON,
    OWNER,
    Feed,
    files_in,
    frame,
    name,
    numbers,
    opened,
    segment,
    slice_of,
    storage,
    table,
)

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Receipt
from rowferry.change.table import TableId
from rowferry.errors import FileConflict, PlanDiscarded, SinkDamaged, SinkError, Verdict
from rowferry.flow.encode.contract import CodecTraits, Encoded
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.contract import Sink
from rowferry.flow.sink.storage.local_files import LocalStaged
from rowferry.flow.sink.storage.schema_file import of_change, of_table
from rowferry.flow.sink.storage.sink import StorageSink

SINKS: tuple[type[Sink], ...] = (StorageSink, Blackhole)
DAY = "hr/employee/100/2023-05-09"
INDEX = f"{DAY}/meta/CDC.index"
SLICE = slice_of(EMPLOYEE)
SCHEMA = of_table(EMPLOYEE).path


def test_a_published_plan(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.run(segment(0, SLICE), segment(1, SLICE), watermark=NOON + 5)
    assert files_in(tmp_path) == {
        f"{DAY}/{name(1)}": b"row\n",
        f"{DAY}/{name(2)}": b"row\n",
        INDEX: f"{name(2)}\n".encode(),
        SCHEMA: of_table(EMPLOYEE).content(),
        "metadata": f'{{"checkpoint-ts":{NOON + 5}}}'.encode(),
    }


def test_the_suffix_may_come_with_or_without_its_dot(tmp_path: Path) -> None:
    codec = CodecTraits("json", "nowhere", False, False)
    plan = opened(tmp_path, codec=codec).run(segment(0, SLICE))
    assert plan.outputs[0].target["path"].endswith("1.json")


def test_numbers_go_on_from_plan_to_plan_and_over_a_restart(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    assert numbers(feed.run(segment(0, SLICE), segment(1, SLICE))) == [1, 2]
    assert numbers(feed.run(segment(0, SLICE))) == [3]
    for state in (feed.state, None):
        again = storage(tmp_path)
        again.open(OWNER, state)
        assert numbers(Feed(again).plan(segment(0, SLICE))) == [4]


def test_each_directory_counts_for_itself(tmp_path: Path) -> None:
    other, newer = table("other"), table(version=200)
    feed = opened(tmp_path, EMPLOYEE, other, newer)
    feed.run(segment(0, SLICE))
    plan = feed.plan(
        segment(0, SLICE, slice_of(other), slice_of(newer)),
        segment(1, SLICE, at=NEXT_DAY),
        segment(2, SLICE, at=NEXT_DAY),
    )
    assert [o.target["path"] for o in plan.outputs] == [
        f"hr/employee/100/2023-05-09/{name(2)}",
        f"hr/other/100/2023-05-09/{name(1)}",
        f"hr/employee/200/2023-05-09/{name(1)}",
        f"hr/employee/100/2023-05-10/{name(1)}",
        f"hr/employee/100/2023-05-10/{name(2)}",
    ]


@pytest.mark.parametrize(
    ("query", "directory"),
    [
        ("", "hr/employee/100/13/2023-05-09"),
        ("date-separator=none", "hr/employee/100/13"),
        ("enable-partition-separator=false", "hr/employee/100/2023-05-09"),
        ("enable-partition-separator=false&date-separator=none", "hr/employee/100"),
    ],
)
def test_partition_and_date_directories(tmp_path: Path, query: str, directory: str) -> None:
    feed = opened(tmp_path, query=query)
    plan = feed.run(segment(0, slice_of(EMPLOYEE, 13), slice_of(EMPLOYEE, 14)))
    paths = [o.target["path"] for o in plan.outputs]
    assert paths[0] == f"{directory}/{name(1)}"
    assert len(set(paths)) == 2
    assert set(paths) <= set(files_in(tmp_path))


def test_width_of_numbers(tmp_path: Path) -> None:
    feed = opened(tmp_path, query="file-index-digit=6")
    feed.run(segment(0, SLICE))
    assert (tmp_path / INDEX).read_bytes() == b"CDC000001.csv\n"
    (tmp_path / DAY / "CDC999999.csv").touch()
    (tmp_path / INDEX).write_text("CDC999999.csv\n")
    again = opened(tmp_path, query="file-index-digit=6")
    plan = again.run(segment(0, SLICE))
    assert plan.outputs[0].target["path"] == f"{DAY}/CDC1000000.csv"
    assert numbers(opened(tmp_path, query="file-index-digit=6").plan(segment(0, SLICE))) == [
        1000001
    ]


def test_a_segment_over_midnight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="2023-05-09 and of 2023-05-10"):
        opened(tmp_path).plan(segment(0, SLICE, at=NEXT_DAY - 1, until=NEXT_DAY))


@pytest.mark.parametrize("database", ["订单", "a/b", "meta", "metadata", "rowferry.owner", "é e"])
def test_odd_names(tmp_path: Path, database: str) -> None:
    odd = table("..", database)
    feed = opened(tmp_path, odd)
    plan = feed.run(segment(0, slice_of(odd)), content=b"x")
    assert files_in(tmp_path)[plan.outputs[0].target["path"]] == b"x"
    assert "/%2E%2E/" in plan.outputs[0].target["path"]
    assert json.loads(files_in(tmp_path)[of_table(odd).path])["Schema"] == database


def test_planning_writes_nothing(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    before = files_in(tmp_path)
    feed.plan(segment(0, SLICE))
    assert files_in(tmp_path) == before == {}


def test_the_state_stays_small(tmp_path: Path) -> None:
    tables = [table(f"t{n}") for n in range(300)]
    feed = opened(tmp_path, *tables)
    plan = feed.run(segment(0, *(slice_of(t) for t in tables)))
    assert plan.sink_state is not None
    assert len(plan.sink_state["delivered"]) == 256
    again = storage(tmp_path)
    again.open(OWNER, plan.sink_state)
    assert set(numbers(Feed(again, *tables).plan(segment(0, *map(slice_of, tables))))) == {2}


# --- the index rule where no plan is pending ------------------------------------------------------


def test_a_number_that_the_index_names_is_not_used_again(tmp_path: Path) -> None:
    """Also not where its file was taken away, nor where the state has forgotten the directory."""
    feed = opened(tmp_path)
    feed.run(segment(0, SLICE), segment(1, SLICE))
    assert numbers(opened(tmp_path).plan(segment(0, SLICE))) == [3]
    (tmp_path / DAY / name(2)).unlink()
    assert numbers(opened(tmp_path).plan(segment(0, SLICE))) == [3]
    again = storage(tmp_path)
    again.open(OWNER, feed.state)
    assert numbers(Feed(again).plan(segment(0, SLICE))) == [3]


# --- writing --------------------------------------------------------------------------------------


def test_frames_are_joined_per_output_and_counted(tmp_path: Path) -> None:
    other = table("other")
    feed = opened(tmp_path, EMPLOYEE, other)
    plan = feed.plan(segment(0, SLICE, slice_of(other), log_bytes=900))
    frames = [
        (0, frame(b"head\n", rows=0)),
        (1, frame(b"", b"x\n")),
        (0, frame(b"a\n", b"bb\n")),
        (0, frame()),
        (1, frame(b"yy\n")),
        (0, Encoded(pa.array([b"skipped", b"ccc\n", b"skipped"], pa.large_binary()).slice(1, 1))),
    ]
    receipts = list(feed.sink.write(plan.stretch.segments[0], plan.outputs, iter(frames)))
    files = files_in(tmp_path)
    paths = [o.target["path"] for o in plan.outputs]
    assert [files[p] for p in paths] == [b"head\na\nbb\nccc\n", b"x\nyy\n"]
    assert receipts == [
        Receipt(0, 0, 3, 14, 900 * 14 // 19, {"path": paths[0], "already": False}),
        Receipt(0, 1, 3, 5, 900 * 5 // 19, {"path": paths[1], "already": False}),
    ]


def test_an_output_without_frames_is_an_empty_file(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    receipts = feed.write(plan, content=b"")
    assert (receipts[0].rows, receipts[0].bytes) == (0, 0)
    feed.publish(plan, receipts)
    assert files_in(tmp_path)[f"{DAY}/{name(1)}"] == b""
    assert files_in(tmp_path)[INDEX] == f"{name(1)}\n".encode()


def test_writing_again_leaves_the_same(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE), segment(1, SLICE))
    first = feed.write(plan)
    before = files_in(tmp_path)
    task = Feed(storage(tmp_path))  # as a task builds it: from the spec alone, never opened
    assert [r.note["already"] for r in first if r.note] == [False, False]
    assert [r.note["already"] for r in task.write(plan) if r.note] == [True, True]
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("there", [b"rov\n", b"row", b"row\nrow\n", b""])
def test_other_bytes_under_our_number_stop_the_feed(tmp_path: Path, there: bytes) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    place = tmp_path / DAY / name(1)
    place.parent.mkdir(parents=True)
    place.write_bytes(there)
    with pytest.raises(FileConflict, match=name(1)) as stopped:
        feed.write(plan)
    assert stopped.value.verdict is Verdict.STOP
    assert files_in(tmp_path) == {f"{DAY}/{name(1)}": there}


def test_a_failing_task_leaves_nothing_behind(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))

    def frames() -> Iterator[tuple[int, Encoded]]:
        yield 0, frame(b"half")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        feed.sink.write(plan.stretch.segments[0], plan.outputs, frames())
    assert files_in(tmp_path) == {}


def test_leftovers_of_killed_tasks_are_swept_by_the_next_owner(tmp_path: Path) -> None:
    opened(tmp_path)
    left = tmp_path / "rowferry.tmp" / "left.part"
    left.write_bytes(b"half")
    opened(tmp_path)
    assert not left.exists()


def test_the_sink_survives_pickle(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    task = Feed(pickle.loads(pickle.dumps(feed.sink)))
    feed.publish(plan, task.write(plan))
    assert INDEX in files_in(tmp_path)


# --- publishing -----------------------------------------------------------------------------------


def test_nothing_is_visible_before_publish(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.write(feed.plan(segment(0, SLICE)))
    assert set(files_in(tmp_path)) == {f"{DAY}/{name(1)}"}


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    change = SchemaChange(NOON + 1, DdlKind.DROP_TABLE, "DROP TABLE t", TableId("hr", "t"))
    plan = feed.plan(segment(0, SLICE), changes=[change], watermark=NOON + 2)
    receipts = feed.write(plan)
    feed.publish(plan, receipts)
    before = {p: (p.stat().st_ino, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    feed.publish(plan, receipts)
    other = storage(tmp_path)
    other.open(OWNER, None)
    Feed(other).publish(plan, receipts)
    after = {p: (p.stat().st_ino, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    # A new owner rewrites metadata, and nothing else.
    changed = {p.name for p in before if before[p] != after[p]}
    assert changed <= {"metadata"}
    assert {p: c for p, (_, c) in before.items()} == {p: c for p, (_, c) in after.items()}


class Crash(Exception):
    pass


def crash_after(survived: int, patch: pytest.MonkeyPatch) -> None:
    """Let this many files be created or replaced, then fail before the next one."""
    left = [None] * survived  # taken by several threads, one at a time

    def counted(real: Callable[..., bool]) -> Callable[..., bool]:
        def call(*arguments: object) -> bool:
            try:
                left.pop()
            except IndexError:
                raise Crash from None
            return real(*arguments)

        return call

    for step in ("create", "swap"):
        patch.setattr(LocalStaged, step, counted(getattr(LocalStaged, step)))


# Two versions' schema files, two indexes, one DDL, metadata.
@pytest.mark.parametrize("survived", range(6))
def test_a_crash_between_any_two_steps_is_repaired_by_publishing_again(
    tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, newer = table("other"), table("other", version=NOON + 1)
    change = SchemaChange(NOON + 1, DdlKind.ADD_COLUMN, "ALTER …", other.id, newer)
    parts = segment(0, SLICE, slice_of(other))
    opened(tmp_path / "whole", EMPLOYEE, other).run(parts, changes=[change])
    whole = files_in(tmp_path / "whole")

    root = tmp_path / "crashed"
    feed = opened(root, EMPLOYEE, other)
    plan = feed.plan(parts, changes=[change])
    receipts = feed.write(plan)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_after(survived, patch)
        feed.publish(plan, receipts)
    half = files_in(root)
    assert len(half) == 2 + survived
    assert "metadata" not in half
    for path in half:
        if path.endswith("CDC.index"):
            home = "/".join(path.split("/")[:2])
            assert any(p.startswith(f"{home}/meta/schema_100_") for p in half)
    if of_change(change).path in half:
        assert sum(p.endswith("CDC.index") for p in half) == 2

    again = Feed(storage(root), EMPLOYEE, other)
    again.sink.open(OWNER, feed.state)
    again.publish(plan, again.write(plan))
    assert files_in(root) == whole


def test_a_file_that_was_not_written_is_not_published(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE), segment(1, SLICE))
    receipts = feed.write(plan)
    (tmp_path / DAY / name(2)).unlink()
    with pytest.raises(SinkError, match=f"{name(2)} of micro-batch 1 was not written"):
        feed.publish(plan, receipts[:1])
    assert INDEX not in files_in(tmp_path)


def test_index_and_metadata_never_go_back(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    first = feed.plan(segment(0, SLICE), watermark=NOON)
    first_receipts = feed.write(first)
    feed.publish(first, first_receipts)
    feed.run(segment(0, SLICE), watermark=NOON + 9)
    before = files_in(tmp_path)
    feed.publish(first, first_receipts)
    assert files_in(tmp_path) == before
    assert numbers(feed.plan(segment(0, SLICE))) == [3]


def test_only_time_has_passed(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.run(watermark=None)
    assert files_in(tmp_path) == {}
    feed.run(watermark=0)
    assert files_in(tmp_path) == {"metadata": b'{"checkpoint-ts":0}'}
    feed.run(watermark=7)
    assert files_in(tmp_path) == {"metadata": b'{"checkpoint-ts":7}'}


def test_schema_changes_have_files_with_query_and_type(tmp_path: Path) -> None:
    renamed = table("renamed", version=NOON + 3)
    changes = [
        SchemaChange(NOON + 1, DdlKind.CREATE_DATABASE, "CREATE DATABASE `x`", TableId("x", "")),
        SchemaChange(
            NOON + 3, DdlKind.RENAME_TABLE, "RENAME …", renamed.id, renamed, previous=EMPLOYEE.id
        ),
        SchemaChange(NOON + 4, DdlKind.DROP_TABLE, "DROP TABLE `renamed`", renamed.id),
    ]
    opened(tmp_path).run(changes=changes, watermark=NOON + 4)
    found = files_in(tmp_path)
    del found["metadata"]
    assert found == {of_change(c).path: of_change(c).content() for c in changes}
    shown = {
        p.rsplit("/", 1)[0]: json.loads(c) for p, c in found.items() if f"_{NOON + 4}_" not in p
    }
    assert {d: (c["Query"], c["Type"], c["TableVersion"]) for d, c in shown.items()} == {
        "x/meta": ("CREATE DATABASE `x`", 1, NOON + 1),
        "hr/renamed/meta": ("RENAME …", 14, NOON + 3),
    }


def test_the_file_of_a_ddl_stays_when_rows_of_its_version_come(tmp_path: Path) -> None:
    newer = table(version=NOON + 1)
    change = SchemaChange(NOON + 1, DdlKind.ADD_COLUMN, "ALTER …", newer.id, newer)
    feed = opened(tmp_path, newer)
    feed.run(changes=[change])
    feed.run(segment(0, slice_of(newer)))
    schemas = {p: c for p, c in files_in(tmp_path).items() if "/schema_" in p}
    assert schemas == {of_change(change).path: of_change(change).content()}


def test_a_ddl_takes_the_place_of_a_bare_description(tmp_path: Path) -> None:
    newer = table(version=NOON + 1)
    change = SchemaChange(NOON + 1, DdlKind.ADD_COLUMN, "ALTER …", newer.id, newer)
    feed = opened(tmp_path, newer)
    feed.run(segment(0, slice_of(newer)))
    feed.run(changes=[change])
    assert files_in(tmp_path)[of_change(change).path] == of_change(change).content()


def test_column_numbers_on_request(tmp_path: Path) -> None:
    config = {"sink": {"cloud-storage-config": {"output-column-id": True}}}
    opened(tmp_path, config=config).run(segment(0, SLICE))
    path = of_table(EMPLOYEE, column_ids=True).path
    assert json.loads(files_in(tmp_path)[path])["TableColumns"][1]["ColumnId"] == "2"


# --- discarding -----------------------------------------------------------------------------------


def test_a_discarded_plan_leaves_no_gap_and_no_file(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.run(segment(0, SLICE))
    before = files_in(tmp_path)
    plan = feed.plan(segment(0, SLICE), segment(1, SLICE, at=NEXT_DAY))
    feed.write(plan, b"old\n")
    feed.sink.discard(plan)
    assert files_in(tmp_path) == before
    assert numbers(feed.run(segment(0, SLICE), content=b"new\n")) == [2]
    assert files_in(tmp_path)[f"{DAY}/{name(2)}"] == b"new\n"


def test_discarding_spares_what_an_index_names(tmp_path: Path) -> None:
    """Publishing had got as far as one of two indexes when the plan was given up."""
    other = table("other")
    feed = opened(tmp_path, EMPLOYEE, other)
    plan = feed.plan(segment(0, SLICE, slice_of(other)), segment(1, SLICE))
    feed.write(plan)
    feed.sink._show_table_versions([EMPLOYEE])
    feed.sink._advance_indexes({DAY: 2})
    feed.sink.discard(plan)
    feed.sink.discard(plan)
    assert set(files_in(tmp_path)) == {SCHEMA, INDEX, f"{DAY}/{name(1)}", f"{DAY}/{name(2)}"}
    for next_feed in (feed, opened(tmp_path, EMPLOYEE, other)):
        assert numbers(next_feed.plan(segment(0, SLICE, slice_of(other)))) == [3, 1]


def test_a_task_of_a_discarded_plan_creates_no_file_any_more(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    old = feed.plan(segment(0, SLICE))
    feed.sink.discard(old)
    new = feed.plan(segment(0, SLICE))
    with pytest.raises(PlanDiscarded) as late:
        Feed(storage(tmp_path)).write(old, b"late\n")
    assert late.value.verdict is Verdict.REPLAN
    feed.publish(new, feed.write(new, b"new\n"))
    assert files_in(tmp_path)[f"{DAY}/{name(1)}"] == b"new\n"


# --- steering -------------------------------------------------------------------------------------


def test_segments_are_cut_by_measured_expansion(tmp_path: Path) -> None:
    feed = opened(tmp_path, query="file-size=10000")
    assert feed.sink.segment_bytes(EMPLOYEE.id) == 10000
    feed.run(segment(0, SLICE, log_bytes=1000), content=b"x" * 4000)
    assert feed.sink.segment_bytes(EMPLOYEE.id) == 2500
    assert feed.sink.segment_bytes(TableId("hr", "other")) == 10000
    feed.run(segment(0, SLICE, log_bytes=100000), content=b"x")
    assert feed.sink.segment_bytes(EMPLOYEE.id) == 640000
    feed.run(segment(0, SLICE, log_bytes=0), content=b"x" * 99)
    assert feed.sink.segment_bytes(EMPLOYEE.id) == 640000


def test_a_damaged_index_stops_the_feed(tmp_path: Path) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    (tmp_path / INDEX).write_text("")
    with pytest.raises(SinkDamaged, match="CDC.index"):
        opened(tmp_path).plan(segment(0, SLICE))
