"""How long the stages of a step took, and what Prometheus reads of it."""

from __future__ import annotations

import pytest

from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.under_way import StageTimes
from rowferry.control.fleet import measures


def test_a_stage_that_fails_is_measured_too() -> None:
    stages = StageTimes()
    with stages.measured("plan"):
        pass
    with pytest.raises(ValueError), stages.measured("record"):
        raise ValueError
    stages.read(None)
    assert list(stages.seconds) == ["plan", "record"]
    stages.read(1500)
    assert stages.seconds["read"] == 1.5


def test_micro_batches_with_rows_are_seen_by_stage() -> None:
    def seen() -> tuple[float, float]:
        labels = {"stage": "job of a test"}
        count = measures.REGISTRY.get_sample_value("rowferry_stage_seconds_count", labels)
        total = measures.REGISTRY.get_sample_value("rowferry_stage_seconds_sum", labels)
        return count or 0.0, total or 0.0

    measures.note_step("f", StepResult(True, rows=5, stages={"job of a test": 0.25}))
    assert seen() == (1, 0.25)
    measures.note_step("f", StepResult(True, rows=0, stages={"job of a test": 9.0}))
    measures.note_step("f", StepResult(False, rows=5, stages={"job of a test": 9.0}))
    assert seen() == (1, 0.25)
