"""The moments and histories that planted defects name as likely to notice them: `make mutants`.

They are parts of the two searches: a case of the walk over all moments, as its failure would name
it (`mysql:log:run job#1:kill`), or one history: `history 11 mysql kafka/canal-json`. A file of
tests (`tests/histories/test_soft_delete.py`) is run as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hunt
import pytest
from moment_walk import Case, Walk

from rowferry.testing.histories.feeds import Services
from rowferry.testing.histories.history import run_history

ACTS = 20
ORDERED = hunt.orders().first
HISTORIES = [one for one in ORDERED if one.startswith("history ")]
CASES = [one for one in ORDERED if not one.startswith(("history ", "tests/"))]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_moment(walk: Walk, case: str) -> None:
    found = walk.run(Case.parse(case))
    assert not found.failure, found.failure
    assert found.reached or not hunt.orders().sound, "the feed never came by that gap"


@pytest.mark.parametrize("history", HISTORIES)
def test_history(services: Services, tmp_path: Path, history: str) -> None:
    _, number, server, sinks = history.split()
    wanted = tuple(sinks.split(","))
    found = run_history(services, tmp_path / "history", int(number), server, wanted, acts=ACTS)
    assert not found.failures, found.failures[0]
