"""A run looks now and then whether somebody wants its changefeed removed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.control.feed.service import _CancelWatch
from rowferry.errors import MetaUnavailable


def test_a_meta_database_that_is_away_for_a_moment_ends_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_CancelWatch, "EVERY_S", 0.0)
    answers: list[Any] = [False, MetaUnavailable("it restarts"), True]

    def cancel_requested(changefeed: str) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    store: Any = SimpleNamespace(cancel_requested=cancel_requested)
    stop = threading.Event()
    watch = _CancelWatch(store, "feed", stop)
    for _ in range(2):
        watch.look()
        assert not watch.asked and not stop.is_set()
    watch.look()
    assert watch.asked and stop.is_set()
