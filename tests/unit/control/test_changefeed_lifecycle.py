"""The state table: every state with every verb."""

from __future__ import annotations

import pytest

from rowferry.control.lifecycle import INITIAL, FeedState, Verb, move, possible
from rowferry.errors import IllegalMove

# Written as a picture, apart from the table under test: rows are states, columns verbs.
EXPECTED = """
           pause    resume  update   remove   wait     start   fault    recover  give-up  reach-target
normal     stopped  -       -        removed  pending  -       warning  -        failed   finished
warning    stopped  -       -        removed  pending  -       warning  normal   failed   finished
pending    stopped  -       -        removed  -        normal  -        -        failed   -
stopped    -        normal  stopped  removed  -        -       -        -        -        -
failed     -        normal  failed   removed  -        -       -        -        -        -
finished   -        normal  -        removed  -        -       -        -        -        -
removed    -        -       -        -        -        -       -        -        -        -
"""  # noqa: E501


def _cells() -> list[tuple[FeedState, Verb, str]]:
    head, *lines = EXPECTED.strip().splitlines()
    verbs = [Verb(v) for v in head.split()]
    cells = []
    for line in lines:
        state, *found = line.split()
        cells += [(FeedState(state), verb, to) for verb, to in zip(verbs, found, strict=True)]
    return cells


def test_the_picture_covers_every_state_and_verb() -> None:
    assert {(s, v) for s, v, _ in _cells()} == {(s, v) for s in FeedState for v in Verb}


@pytest.mark.parametrize(("state", "verb", "to"), _cells())
def test_each_verb_in_each_state(state: FeedState, verb: Verb, to: str) -> None:
    if to != "-":
        assert move(state, verb) is FeedState(to)
        return
    with pytest.raises(IllegalMove) as raised:
        move(state, verb)
    words = raised.value.words
    assert words.startswith(f"cannot {verb} a {state} changefeed; possible: ")
    allowed = words.rpartition("possible: ")[2].split(", ")
    assert allowed == ([str(v) for v in possible(state)] or ["nothing"])


def test_every_state_can_be_reached_from_the_first_one() -> None:
    reached, fresh = set(), {INITIAL}
    while fresh:
        reached |= fresh
        fresh = {move(s, v) for s in fresh for v in possible(s)} - reached
    assert reached == set(FeedState)


def test_only_normal_and_warning_run() -> None:
    assert {s for s in FeedState if s.runs} == {FeedState.NORMAL, FeedState.WARNING}
