"""P9: clusters that converge pass; each way of not converging is found."""

from __future__ import annotations

import re
from typing import TypeAlias

import pytest

from rowferry.testing.validators import ClusterRow, ClustersConverge

Sight: TypeAlias = tuple[str, dict[int, ClusterRow]]


def row(stamp: int, value: str = "", deleted: bool = False) -> ClusterRow:
    return ClusterRow(stamp, deleted, (value or f"v{stamp}",))


SOUND: list[Sight] = [
    ("east", {1: row(10), 2: row(11)}),
    ("west", {1: row(12), 3: row(13)}),
    ("east", {1: row(12), 2: row(11), 3: row(14, deleted=True)}),
    ("west", {1: row(12), 2: row(11), 3: row(14, deleted=True)}),
]


def judged(*sights: Sight) -> list[str]:
    judge = ClustersConverge()
    for cluster, rows in (*SOUND, *sights):
        judge.observe(cluster, rows)
    judge.settled()
    return judge.failures


def test_clusters_that_converge() -> None:
    west = {1: row(12), 2: row(11)}
    assert judged() == []
    assert judged(("west", west)) == []  # a marked row is purged in one of them
    back = {**west, 3: row(15)}
    assert judged(("west", west), ("east", back), ("west", back)) == []  # written again, later


@pytest.mark.parametrize(
    ("sights", "words"),
    [
        ([("west", {**SOUND[3][1], 1: row(16)})], "clusters differ in row 1"),
        ([("west", {1: row(12), 3: row(14, deleted=True)})], "row 2 is gone and was not marked"),
        ([("west", {**SOUND[3][1], 3: row(13)})], "row 3 went back from 14 to 13"),
        ([("west", {**SOUND[3][1], 1: row(12, "other")})], "row 1 of 12 is .* in west and .*other"),
        ([("west", {**SOUND[3][1], 3: row(14)})], "row 3 of 14 is"),
        (
            [("west", {1: row(12), 2: row(11)}), ("west", SOUND[3][1])],
            "row 3 of 14 came back after it was removed",
        ),
    ],
)
def test_what_does_not_converge(sights: list[Sight], words: str) -> None:
    failures = judged(*sights)
    assert failures and all(line.startswith("P9: ") for line in failures)
    assert any(re.search(words, line) for line in failures)
