"""Whatever happens between two calls of a feed, it ends equal to its source or stops by name.

A failure prints the line that repeats it. `make moments` tries every event in every gap; here it is
a part that is well chosen (see `chosen_cases`).
"""

from __future__ import annotations

import pytest
from moment_events import EVENTS
from moment_kit import Gap
from moment_scenes import SCENES
from moment_walk import SERVERS, Case, Walk, chosen_cases

# A feed asks by the clock how long its source keeps the log: one that is quick does not come by.
ONCE_A_MINUTE = {"ask whether log expires", "ask how long log is kept", "read purge settings"}


@pytest.fixture(scope="session")
def chosen(walk: Walk, request: pytest.FixtureRequest) -> list[Case]:
    one = request.config.getoption("--moment")
    return [Case.parse(str(one))] if one else chosen_cases(walk)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_feed_ends_right_whatever_happens_in_a_gap(
    walk: Walk, chosen: list[Case], server: str, scene: str
) -> None:
    failures = []
    cases = [case for case in chosen if (case.server, case.scene) == (server, scene)]
    for case in cases:
        found = walk.run(case)
        if not found.reached and not found.failure:  # a busy machine takes other ways
            found = walk.run(case)
        if found.failure:
            failures.append(f"{case.repeat}\n    {found.failure}")
        elif not found.reached and len(case.acts) == 1:  # a first event may change the way
            if case.acts[0][0].name not in ONCE_A_MINUTE:
                failures.append(f"{case.repeat}\n    the feed never came by that gap")
    assert not failures, "\n" + "\n".join(failures)


def test_every_name_and_every_event_is_among_the_chosen_ones(walk: Walk) -> None:
    cases = chosen_cases(walk)
    assert {event for case in cases for _, event in case.acts} == EVENTS.keys()
    met = {gap.name for server in SERVERS for scene in SCENES for gap in walk.gaps(server, scene)}
    assert {gap.name for case in cases for gap, _ in case.acts} == met
    assert len(met) > 70


def test_a_case_is_read_back_from_its_repeat_line() -> None:
    acts = ((Gap("read chunk", 2), "rename away"), (Gap("run job", 1), "kill"))
    case = Case("mysql", "begin", acts)
    assert str(case) == "mysql:begin:read chunk#2:rename away:run job#1:kill"
    assert Case.parse(str(case)) == case
