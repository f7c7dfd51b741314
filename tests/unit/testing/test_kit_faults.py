"""Random histories: sound feeds pass, and each kind of fault is caught by its validator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kit_scenario import (
    ACCOUNT,
    FULL,
    Event,
    Mark,
    broken_promises,
    good_feed,
    histories,
)

from rowferry.change.chunk import Op
from rowferry.testing.feed import Delivered
from rowferry.testing.model import Row
from rowferry.testing.validators import DeliveryOracle

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def feeds(draw: Any) -> tuple[DeliveryOracle, list[Event]]:
    """A sound feed with watermarks at random and stretches delivered again."""
    oracle = DeliveryOracle(draw(histories()), FULL)
    last = oracle.history.last_commit_ts()
    marks = draw(st.sets(st.integers(5, last))) | {last}
    events = good_feed(oracle, *marks)
    if draw(st.booleans()):  # a crash before a watermark: everything since the last one again
        place = draw(st.sampled_from([i for i, e in enumerate(events) if isinstance(e, Mark)]))
        since = max((i + 1 for i, e in enumerate(events[:place]) if isinstance(e, Mark)), default=0)
        upto = draw(st.integers(since, place))
        events = events[:upto] + events[since:]
    return oracle, events


def rows_of(events: list[Event]) -> list[int]:
    return [i for i, e in enumerate(events) if isinstance(e, Delivered)]


def pick(draw: Any, places: list[int]) -> int:
    assume(places)
    return draw(st.sampled_from(places))


def once(events: list[Event]) -> list[int]:
    """Return the rows that come once, and whose key changes once in their transaction."""
    names = [(e.key, e.commit_ts) if isinstance(e, Delivered) else None for e in events]
    return [i for i in rows_of(events) if names.count(names[i]) == 1]


def lose(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, once(events))
    return events[:place] + events[place + 1 :]


def invent(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, rows_of(events))
    row = events[place]._replace(key=(99,))
    return [*events[:place], row, *events[place:]]


def mutate(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, [i for i in once(events) if events[i].after is not None])
    row = events[place]
    return [*events[:place], row._replace(after={**row.after, "balance": 77}), *events[place + 1 :]]


def swap(draw: Any, events: list[Event]) -> list[Event]:
    single = once(events)
    pairs = [
        (i, j)
        for i in single
        for j in single
        if i < j and events[i].key == events[j].key and events[i].commit_ts < events[j].commit_ts
    ]
    assume(pairs)
    i, j = draw(st.sampled_from(pairs))
    found = list(events)
    found[i], found[j] = found[j], found[i]
    return found


def repeat_changed(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, [i for i in once(events) if events[i].after is not None])
    row = events[place]
    return [*events, row._replace(after={**row.after, "owner": "zed"})]


def repeat_rewritten(draw: Any, events: list[Event]) -> list[Event]:
    return [*events, events[pick(draw, rows_of(events))]._replace(digest=2)]


def watermark_back(draw: Any, events: list[Event]) -> list[Event]:
    marks = [e.commit_ts for e in events if isinstance(e, Mark)]
    return [*events, Mark(draw(st.integers(0, max(marks) - 1)))]


def late(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, once(events))
    return [*events[:place], *events[place + 1 :], events[place]]


def wrong_before(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, [i for i in rows_of(events) if events[i].before is not None])
    row = events[place]
    found = list(events)
    found[place] = row._replace(before={**row.before, "balance": 77})
    return found


def wrong_version(draw: Any, events: list[Event]) -> list[Event]:
    place = pick(draw, once(events))
    row = events[place]
    found = list(events)
    found[place] = row._replace(version=draw(st.sampled_from([0, row.commit_ts + 1])))
    return found


def resurrect(draw: Any, events: list[Event]) -> list[Event]:
    single = once(events)
    places = [
        i
        for i in single
        if events[i].op is Op.DELETE
        and not any(isinstance(e, Delivered) and e.key == events[i].key for e in events[i + 1 :])
    ]
    place = pick(draw, places)
    return events[:place] + events[place + 1 :]


FAULTS: list[tuple[Callable[[Any, list[Event]], list[Event]], set[str]]] = [
    (lose, {"P1"}),
    (invent, {"P1"}),
    (mutate, {"P1"}),
    (swap, {"P2"}),
    (repeat_changed, {"P2"}),
    (repeat_rewritten, {"P2"}),
    (watermark_back, {"P3"}),
    (late, {"P1", "P3"}),
    (wrong_before, {"P5"}),
    (wrong_version, {"P6"}),
    (resurrect, {"P1"}),
]


@QUICK
@given(feeds())
def test_sound_feeds_break_nothing(made: tuple[DeliveryOracle, list[Event]]):
    oracle, events = made
    assert broken_promises(events, oracle) == set()


@pytest.mark.parametrize(("fault", "promises"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
@QUICK
@given(data=st.data())
def test_each_kind_of_fault_is_caught(fault: Any, promises: set[str], data: Any):
    oracle, events = data.draw(feeds())
    broken = fault(data.draw, events)
    assert broken_promises(broken, oracle) >= promises


@QUICK
@given(data=st.data())
def test_what_the_rebuild_shows_is_what_the_last_state_shows(data: Any):
    """P4 at the end fails exactly when the rows applied by hand differ from the model's."""
    oracle, events = data.draw(feeds())
    assume(not oracle.schema_changes())
    broken = lose(data.draw, events)
    last = oracle.history.last_commit_ts()
    only_end = [e for e in broken if isinstance(e, Delivered)] + [Mark(last)]
    state: dict[Any, Row] = {}
    for event in sorted((e for e in broken if isinstance(e, Delivered)), key=lambda e: e.commit_ts):
        if event.after is None:
            state.pop(event.key, None)
        else:
            state[event.key] = event.after
    same = state == oracle.history.rows_at(ACCOUNT, last)
    assert ("P4" in broken_promises(only_end, oracle)) is not same
