"""The judge of lake tables under the nemesis: it must notice each way to be wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from kit_scenario import ACCOUNT, account, bank, insert, row

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.testing.model import History
from rowferry.testing.nemesis_lake import LakeVersion, judge_versions, name_then
from rowferry.testing.nemesis_output import ProgressWatch, Written
from rowferry.testing.validators import SnapshotWindow

LATER = TableId("bank", "later")
Rows = list[dict[str, Any]]


def version(number: int, checkpoint_ts: int, **more: Any) -> LakeVersion:
    return replace(LakeVersion(number, number, checkpoint_ts, True, True), **more)


class Lake:
    """Versions of tables, each with its rows."""

    def __init__(self, *versions: tuple[LakeVersion, Rows], name: TableId = ACCOUNT) -> None:
        self._name, self._versions = name, versions

    def names(self) -> list[TableId]:
        return [self._name]

    def versions(self, table: TableId) -> list[LakeVersion]:
        return [one for one, _ in self._versions]

    def rows(self, table: TableId, number: int) -> Rows:
        return next(rows for one, rows in self._versions if one.number == number)


def written(history: History, low: int = 0, high: int = 0, allow_repeats: bool = False) -> Written:
    windows = [SnapshotWindow(ACCOUNT, low, high)]
    return Written(history, windows, lambda tables: None, allow_repeats)


FIRST = [row(1, "ann", 60), row(2, "bob", 40)]
MOVED = [row(1, "ann", 50), row(2, "bob", 50)]
THIRD = [*MOVED, row(3, "cy", 0)]
GOOD = [(version(1, 12), FIRST), (version(2, 25), MOVED), (version(3, 35), THIRD)]


def judged(lake: Lake, *seen: int, **more: Any) -> list[str]:
    return list(judge_versions(lake, seen, written(bank(), **more)))


def test_versions_that_are_the_source_at_their_watermarks_pass() -> None:
    assert judged(Lake(*GOOD), 12, 28, 35) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (MOVED[:1], r"missing \[\(2,\)\]"),
        (THIRD, r"extra \[\(3,\)\]"),
        (FIRST, "other"),
        ([*MOVED, MOVED[0]], "3 rows for 2"),
    ],
)
def test_a_version_with_other_rows_is_noticed(rows: Rows, words: str) -> None:
    (failure,) = [f for f in judged(Lake(GOOD[0], (version(2, 25), rows))) if "at 25" in f]
    assert failure.startswith("P4: ")
    assert re.search(words, failure), failure


def test_a_commit_behind_its_watermark_is_noticed() -> None:
    """The lake said 25, and the table got the rows with a later commit only."""
    failures = judged(Lake(GOOD[0], GOOD[2]), 25)
    assert [f for f in failures if "at 25" in f]
    assert not [f for f in failures if "at 35" in f]


def test_rows_of_a_micro_batch_in_two_commits_are_noticed() -> None:
    again = (version(3, 25, micro_batch=2), MOVED)
    assert judged(Lake(*GOOD[:2], again)) == [
        "P1: bank.account: rows of micro-batch 2 are in two commits"
    ]
    assert judged(Lake(*GOOD[:2], again), allow_repeats=True) == []
    statement = (version(3, 25, micro_batch=2, brings_rows=False), MOVED)
    assert judged(Lake(*GOOD[:2], statement)) == []


def test_versions_inside_a_snapshot_are_no_promise() -> None:
    early = (version(1, 12), FIRST[:1])
    assert judged(Lake(early, GOOD[1]), low=5, high=20) == []
    filling = (version(1, 12, settled=False), FIRST[:1])
    assert judged(Lake(filling, GOOD[1])) == []


def test_a_table_is_judged_by_the_name_that_it_had() -> None:
    history = bank()
    moved = replace(account(45), id=LATER)
    rename = SchemaChange(45, DdlKind.RENAME_TABLE, "RENAME", LATER, moved, previous=ACCOUNT)
    history.note_schema_change(rename)
    history.note_commit(80, [insert(row(9, "zoe", 0), LATER)])
    named = Lake(GOOD[0], (version(2, 48), [*MOVED, row(3, "cyd", 0)]), name=LATER)
    assert not list(judge_versions(named, [], written(history)))
    wrong = Lake(GOOD[0], (version(2, 48), MOVED), name=LATER)
    (failure,) = judge_versions(wrong, [], written(history))
    assert "bank.later (bank.later) at 48" in failure


def test_which_name_a_table_had() -> None:
    create = SchemaChange(10, DdlKind.CREATE_TABLE, "CREATE", LATER, replace(account(), id=LATER))
    rename = SchemaChange(20, DdlKind.RENAME_TABLE, "RENAME", ACCOUNT, account(20), previous=LATER)
    assert [name_then(ACCOUNT, [create, rename], ts) for ts in (25, 20, 15, 10, 5)] == [
        ACCOUNT,
        ACCOUNT,
        LATER,
        LATER,
        None,
    ]


def test_an_output_that_goes_back_is_noticed() -> None:
    reached = [0]
    watch = ProgressWatch(lambda: reached[-1])
    watch.stop()  # it is the test that looks
    assert watch.checkpoint_ts == 0
    for now in (5, 9, 7):
        reached.append(now)
        watch.look()
    assert watch.watermarks == [5, 9]
    assert watch.failures == ["P3: the output went back from 9 to 7"]
