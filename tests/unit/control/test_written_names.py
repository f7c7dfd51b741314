"""Names that table routing gives: whose they are is told by the log, at every place of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from loop_kit import ORDER, Bench, forget_scripted_source, register_scripted_source
from server_kit import Fleet

from rowferry.change.chunk import DdlKind, Rows, SchemaChange
from rowferry.change.table import TableId
from rowferry.control.feed.loop import Loop
from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadRoute, SnapshotGone
from rowferry.flow.assemble import assemble
from rowferry.testing.storage import storage_changes

A, B, C = TableId("a", "t"), TableId("b", "t"), TableId("c", "t")
ALL_IN_ONE = {"matcher": ["*.*"], "target-schema": "all"}
KILLS = [(call, when) for call in ORDER for when in ("before", "after")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    found = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    yield found
    found.close()


@pytest.fixture
def bench(tmp_path: Path, store: MetaStore) -> Iterator[Bench]:
    register_scripted_source()
    found = Bench(tmp_path / "out", store)
    sink = {**found.spec.section("sink"), "dispatchers": [ALL_IN_ONE]}
    found.spec = replace(found.spec, config={"sink": sink})
    store.update_spec("feed", found.spec)
    yield found
    forget_scripted_source()


def run_out(loop: Loop) -> None:
    for _ in range(20):
        if loop.step().caught_up:
            return
    raise AssertionError("the loop never caught up")


def rows_of(bench: Bench) -> list[tuple[TableId, int]]:
    changes = storage_changes(bench.root, assemble(bench.spec).encode)
    return [
        (c.table.id, i)
        for c in changes
        if isinstance(c, Rows)
        for i in c.after.field("id").to_pylist()
    ]


def test_two_tables_of_one_name_at_the_beginning(bench: Bench) -> None:
    bench.script.begin_with(A, B)
    bench.script.commit_to(A, 1)
    for _ in range(2):  # whoever runs it again is told the same
        with pytest.raises(BadRoute, match=r"a.t and b.t would both be written as all.t"):
            bench.loop().step()
    assert bench.store.pending("feed") is None
    assert not bench.root.exists() or not list(bench.root.rglob("CDC*"))


@pytest.mark.parametrize("how", ["create", "rename"])
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_later_table_with_the_name_of_one_of_the_beginning(
    bench: Bench, how: str, is_new_process: bool
) -> None:
    bench.script.begin_with(A, TableId("b", "u"))
    bench.script.commit_to(A, 1)
    loop = bench.loop()
    loop.step()
    if how == "create":
        bench.script.create(B)
    else:
        bench.script.rename(TableId("b", "u"), B)
    bench.script.commit_to(B, 2)
    loop = bench.loop() if is_new_process else loop
    with pytest.raises(BadRoute, match=r"a.t and b.t would both be written as all.t"):
        loop.step()
    with pytest.raises(BadRoute):
        bench.loop().step()
    assert rows_of(bench) == [(("all", "t"), 1)]


def hand_over(bench: Bench) -> None:
    """Let `all.t` be of one table, then of another, then of the first again."""
    script = bench.script
    script.begin_with(A)
    script.commit_to(A, 1)
    script.drop(A)
    script.create(B)
    script.commit_to(B, 2)
    script.rename(B, TableId("b", "v"))
    script.create(C)
    script.drop(C)
    script.create(A)
    script.commit_to(A, 3)
    script.commit_to(TableId("b", "v"), 4)


HANDED_OVER = [(("all", "t"), 1), (("all", "t"), 2), (("all", "t"), 3), (("all", "v"), 4)]


@pytest.mark.parametrize("most_changes", [1, 9])
@pytest.mark.parametrize("kill", [None, *KILLS])
def test_a_name_goes_to_another_table_where_the_log_says_so(
    bench: Bench, most_changes: int, kill: tuple[str, str] | None
) -> None:
    """Also after a kill at each call of each step: what was followed is followed anew."""
    hand_over(bench)
    bench.script.most_changes = most_changes
    for _ in range(20):
        if kill is not None:
            bench.journal.fail(kill[1], kill[0], RuntimeError("killed"))
        with suppress(RuntimeError):
            run_out(bench.loop())
        if bench.loop().step().caught_up:
            break
    assert sorted(rows_of(bench)) == sorted(HANDED_OVER)


def test_a_plan_that_was_taken_back_takes_no_name(bench: Bench) -> None:
    """It has met a table that comes later; the next plan may end before that."""
    script = bench.script
    script.begin_with(A)
    script.commit_to(A, 1)
    script.drop(A)
    script.create(B)
    script.most_changes = 9
    loop = bench.loop()
    bench.journal.fail("after", "record", SnapshotGone("gone"))
    with pytest.raises(SnapshotGone):
        loop.step()
    loop.replan("gone")
    script.most_changes = 1
    script.commit_to(B, 2)
    run_out(bench.loop())
    assert rows_of(bench) == [(("all", "t"), 1), (("all", "t"), 2)]


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_table_that_left_without_a_word_gives_its_name_free(
    bench: Bench, is_new_process: bool
) -> None:
    """Its DROP TABLE may be left out by an event filter."""
    script = bench.script
    other = TableId("c", "u")
    script.begin_with(A, other)
    script.commit_to(A, 1)
    loop = bench.loop()
    loop.step()
    script.commit_to(other, 2)
    script.let_go(A)
    loop.step()
    script.create(B)
    script.commit_to(B, 3)
    run_out(bench.loop() if is_new_process else loop)
    assert sorted(rows_of(bench)) == [(("all", "t"), 1), (("all", "t"), 3), (("all", "u"), 2)]


def test_a_server_goes_on_with_a_plan_that_hands_a_name_over(bench: Bench) -> None:
    bench.script.begin_with(A)
    bench.script.commit_to(A, 1)
    bench.script.drop(A)
    bench.script.create(B)
    bench.script.most_changes = 9
    bench.journal.fail("after", "record", RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        bench.loop().step()
    bench.script.commit_to(B, 2)
    fleet = Fleet(bench.root.parent, bench.store)
    with fleet.member():
        fleet.until(lambda: len(rows_of(bench)) == 2, "all rows")
    assert fleet.feed("feed").state is FeedState.NORMAL


def test_new_rules_are_judged_where_the_log_stands(bench: Bench) -> None:
    bench.script.begin_with(A, TableId("b", "u"))
    bench.script.commit_to(A, 1)
    run_out(bench.loop())
    rule = {"matcher": ["*.*"], "target-schema": "all", "target-table": "one"}
    sink = {**bench.spec.section("sink"), "dispatchers": [rule]}
    bench.spec = replace(bench.spec, config={"sink": sink})
    bench.store.update_spec("feed", bench.spec)
    bench.script.commit_to(A, 2)
    with pytest.raises(BadRoute, match=r"a.t and b.u would both be written as all.one"):
        bench.loop().step()
    assert rows_of(bench) == [(("all", "t"), 1)]


@pytest.mark.parametrize("killed", [False, True])
def test_a_dropped_database_leaves_the_tables_of_others(bench: Bench, killed: bool) -> None:
    """Those of the beginning, too, in every try: else the statement would drop them."""
    script = bench.script
    script.begin_with(TableId("a", "t"), TableId("b", "u"))
    script.drop(TableId("a", "t"))
    change = SchemaChange(script.ts(1), DdlKind.DROP_DATABASE, "DROP DATABASE a", TableId("a", ""))
    script.entries.append(change)
    script.most_changes = 9
    loop = bench.loop()
    if killed:
        bench.journal.fail("after", "record", RuntimeError("killed"))
        with pytest.raises(RuntimeError):
            loop.step()
        loop = bench.loop()
    told: list[str] = []
    publish = loop._flow.sink.publish

    def noting(plan: object, *rest: object) -> None:
        told.extend(c.query for c in plan.stretch.schema_changes)  # type: ignore[attr-defined]
        publish(plan, *rest)  # type: ignore[arg-type]

    loop._flow.sink.publish = noting  # type: ignore[method-assign]
    run_out(loop)
    assert told == ["DROP TABLE `all`.`t`", ""]
