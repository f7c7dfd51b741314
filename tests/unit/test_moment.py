"""Names of calls: silent in production, heard by whoever watches."""

from __future__ import annotations

import pytest

from rowferry.moment import moment, watched


def test_a_name_is_heard_while_somebody_watches() -> None:
    heard: list[str] = []
    moment("before")
    with watched(heard.append):
        moment("inside")
    moment("after")
    assert heard == ["inside"]


def test_the_inner_watch_hears_until_it_ends() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with watched(outer.append):
        with watched(inner.append):
            moment("one")
        moment("two")
    assert (outer, inner) == (["two"], ["one"])


def test_what_a_hook_raises_is_raised_at_the_call() -> None:
    def fail(name: str) -> None:
        raise ConnectionError(name)

    with pytest.raises(ConnectionError, match="list tables"), watched(fail):
        moment("list tables")
    moment("nobody watches any more")
