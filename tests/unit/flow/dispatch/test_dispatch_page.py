"""The examples of the page about dispatch, carried out."""

from __future__ import annotations

import tomllib
from typing import Any

from page_examples import all_blocks
from rowferry.change.table import TableId
from rowferry.flow.assemble import sink_traits
from rowferry.flow.dispatch.partition_rule import ByCommitTs, ByIndex, Fixed
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.spec.build import build_spec


def test_the_examples_hold() -> None:
    session: dict[str, Any] = {"__name__": "page"}
    found = [b for b in all_blocks("python") if b.page == "dispatch.md"]
    assert len(found) > 8
    for block in found:
        exec(compile(block.text, str(block), "exec"), session)


def test_the_configuration_says_what_the_page_says() -> None:
    (block,) = (b for b in all_blocks("toml") if b.page == "dispatch.md")
    config = tomllib.loads(block.text)
    spec, notices = build_spec(
        "mysql://db", "kafka://broker/feed?protocol=canal-json", config, sinks=sink_traits
    )
    rules = DispatchRules(spec, "feed")
    assert notices == []
    assert rules.partition_rule(TableId("shop", "users")) == ByIndex()
    assert rules.partition_rule(TableId("shop", "log")) == ByCommitTs()
    assert rules.partition_rule(TableId("crm", "log")) == Fixed(2)
    assert rules.topic_of(TableId("shop", "log")) == "feed"
    assert rules.static_topics() == ("crm", "feed")
