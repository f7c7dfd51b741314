"""Which places a changefeed may have, and which of a stored one may be replaced."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.control.operator.checks.prepare import check_alterable
from rowferry.errors import SpecChanged
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import ChangefeedSpec

SOURCE = "mysql://cdc@db:3306/"
KAFKA = "kafka://one:9092/changes?protocol=canal-json"
PROXY = "https://one/in?protocol=canal-json"


def spec(sink: str, source: str = SOURCE, config: dict[str, Any] | None = None) -> ChangefeedSpec:
    return build_spec(source, sink, config, "feed", tables=option_tables, sinks=sink_traits)[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KAFKA, KAFKA.replace("one", "two")),
        (PROXY, PROXY.replace("one", "two")),
        ("mysql://cdc@one:3306/", "mysql://cdc@two:3307/"),  # a replica that was promoted
        ("mysql://cdc@one:3306/", "mysql+ssl://cdc@one:3306/"),
    ],
)
def test_the_same_target_at_another_address(old: str, new: str) -> None:
    wanted = spec(new)
    check_alterable(spec(old), wanted, assemble(wanted))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KAFKA, KAFKA.replace("changes", "others")),
        (KAFKA, KAFKA.replace("canal-json", "open-protocol")),
        (KAFKA, "mysql://cdc@one:3306/"),
        ("file:///here?protocol=csv", "file:///there?protocol=csv"),
        ("s3://here/a?protocol=csv", "s3://there/a?protocol=csv"),
    ],
)
def test_another_target(old: str, new: str) -> None:
    wanted = spec(new)
    with pytest.raises(SpecChanged, match="make a new changefeed"):
        check_alterable(spec(old), wanted, assemble(wanted))


@pytest.mark.parametrize(
    "changed",
    ["date-separator=month", "enable-partition-separator=false", "time-zone=Asia/Tokyo"],
)
def test_directories_of_a_storage_stay_as_they_are(changed: str) -> None:
    """Readers go by their names: older rows would stand behind newer ones."""
    storage = "file:///here?protocol=csv"
    key = changed.partition("=")[0]
    wanted = spec(f"{storage}&{changed}")
    with pytest.raises(SpecChanged, match=f"sink.{key} of changefeed 'feed' .* cannot be changed"):
        check_alterable(spec(storage), wanted, assemble(wanted))
    check_alterable(wanted, wanted, assemble(wanted))


def cased(config: dict[str, Any], case_sensitive: bool) -> ChangefeedSpec:
    return spec(KAFKA, config={**config, "case-sensitive": case_sensitive})


MASK = {"matcher": ["Shop.*"], "columns": ["email"], "action": "null"}
COMPUTED = {"matcher": ["Shop.*"], "column": "x", "type": "int", "expression": "1"}
SELECTOR = {"matcher": ["Shop.*"], "columns": ["*", "!email"]}


@pytest.mark.parametrize("was", [False, True])
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"transform": {"masks": [MASK]}}, "transform.masks"),
        ({"transform": {"computed": [COMPUTED]}}, "transform.computed"),
        ({"sink": {"column-selectors": [SELECTOR]}}, "sink.column-selectors"),
    ],
)
def test_rules_that_never_change_go_by_the_same_case_for_ever(
    config: dict[str, Any], named: str, was: bool
) -> None:
    """A mask for `Shop.people` would not be one for `shop.people` any more, which goes out."""
    old, new = (cased(config, one) for one in (was, not was))
    with pytest.raises(SpecChanged, match=f"case-sensitive .* because {named} would be for other"):
        check_alterable(old, new, assemble(new))
    check_alterable(old, old, assemble(old))


def test_rules_that_may_change_may_go_by_another_case() -> None:
    filters = {"matcher": ["shop.t"], "ignore-event": ["delete"]}
    config = {
        "filter": {"rules": ["shop.*"], "event-filters": [filters]},
        "sink": {"dispatchers": [{"matcher": ["shop.*"], "partition": "ts"}]},
        "transform": {"masks": []},
    }
    old, new = (cased(config, one) for one in (False, True))
    check_alterable(old, new, assemble(new))
