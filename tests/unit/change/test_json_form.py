"""Forms are read strictly: what is unknown, missing or of another shape is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from test_stored_forms import CHANGE, PLAN, SPEC

from rowferry.change.json_form import BadForm, JsonForm
from rowferry.change.plan import Plan, TableSlice
from rowferry.spec.changefeed import ChangefeedSpec


def damaged(change: Callable[[Any], object]) -> str:
    form = deepcopy(PLAN.to_json())
    change(form)
    with pytest.raises(BadForm) as found:
        Plan.from_json(form)
    return str(found.value)


def test_what_is_wrong_is_named_with_its_place() -> None:
    def segment(form: Any) -> Any:
        return form["stretch"]["segments"][0]

    assert damaged(lambda f: f.update(epoch=1)) == "epoch: Plan has no such field"
    assert damaged(lambda f: f.pop("outputs")) == "outputs: this field of Plan is missing"
    assert damaged(lambda f: segment(f).update(more=1)) == (
        "stretch.segments[0].more: Segment has no such field"
    )
    assert damaged(lambda f: segment(f).pop("read")) == (
        "stretch.segments[0].read: this field of Segment is missing"
    )
    assert damaged(lambda f: segment(f).update(again="often")) == (
        "stretch.segments[0].again: KeyError('often')"
    )
    assert damaged(lambda f: segment(f).update(slices="text")) == (
        "stretch.segments[0].slices: a list is expected"
    )
    assert damaged(lambda f: segment(f)["slices"][1].append(1)) == (
        "stretch.segments[0].slices[1].TableSlice has 5 values, not 6"
    )
    assert damaged(lambda f: segment(f).update(payload="a")).startswith(
        "stretch.segments[0].payload: "
    )
    change = "stretch.schema_changes[0]"
    assert damaged(lambda f: f["stretch"]["schema_changes"][0].update(table=["a"])).startswith(
        f"{change}.table: "
    )
    assert damaged(lambda f: f["stretch"]["schema_changes"][0]["schema"].pop("database")) == (
        f"{change}.schema.database: this field of TableSchema is missing"
    )
    assert damaged(lambda f: f.update(stretch=None)) == "stretch.Stretch has another form"


def test_whatever_is_no_form_at_all_is_refused() -> None:
    for form in (None, 1, "text", [1]):
        with pytest.raises(BadForm):
            Plan.from_json(form)  # type: ignore[arg-type]
    with pytest.raises(BadForm):
        TableSlice.from_json({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(BadForm, match="source: this field of ChangefeedSpec is missing"):
        ChangefeedSpec.from_json({k: v for k, v in SPEC.to_json().items() if k != "source"})


def test_a_form_shares_no_list_with_what_it_was_made_of() -> None:
    form = CHANGE.to_json()
    form["table"].append("more")
    assert CHANGE.to_json()["table"] == ["shop", "orders"]


def test_a_type_without_a_form_is_refused_before_anything_is_written() -> None:
    @dataclass(frozen=True)
    class Odd(JsonForm):
        one: set[int]

    with pytest.raises(TypeError, match="has no JSON form"):
        Odd({1}).to_json()
