"""`[sink] dispatchers`: rules that say, for tables by name, where rows go and under which name.

One list serves two stages: table routing reads `target-schema` and `target-table`, dispatch reads
the rest. This module reads the list's shape only; what the texts mean is each stage's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rowferry.errors import BadDispatchRule, UnknownOption
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import (
    Option,
    OptionShape,
    OptionTable,
    expression,
    text,
    texts,
    unknown_words,
)

_PATH: Final = "sink.dispatchers"


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """One rule as the user wrote it; a text that was not given is empty.

    Attributes:
        place: its place in the list, from 0.
        matcher: which tables it is for, in the table filter's syntax.
        partition: the partition expression; a number is given as its text.
        index: the index that `index-value` goes by.
        columns: the columns that `columns` goes by.
        topic: the topic expression.
        target_schema, target_table: the routing expressions.
    """

    place: int
    matcher: tuple[str, ...]
    partition: str = ""
    index: str = ""
    columns: tuple[str, ...] = ()
    topic: str = ""
    target_schema: str = ""
    target_table: str = ""

    @property
    def path(self) -> str:
        """The rule as errors name it: `sink.dispatchers[0]`."""
        return f"{_PATH}[{self.place}]"


_KEYS: Final[dict[str, Callable[[Any], Any]]] = {
    "matcher": texts().parse,
    "partition": expression().parse,
    "index": text().parse,
    "columns": texts().parse,
    "topic": text().parse,
    "target-schema": text().parse,
    "target-table": text().parse,
}
_FOR_TOPICS: Final = ("partition", "index", "columns", "topic")


def _read_rules(value: Any) -> tuple[DispatchRule, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(r, Mapping) for r in value):
        raise ValueError("expected a list of rules")
    return tuple(_read_rule(place, rule) for place, rule in enumerate(value))


def _read_rule(place: int, rule: Mapping[str, Any]) -> DispatchRule:
    given: dict[str, Any] = {}
    for key, value in rule.items():
        path = f"{_PATH}[{place}].{key}"
        if key not in _KEYS:
            raise UnknownOption(unknown_words(path, _KEYS))
        try:
            given[key.replace("-", "_")] = _KEYS[key](value)
        except ValueError as err:
            raise BadDispatchRule(f"{path} = {value!r}: {err}") from None
    if not given.get("matcher"):
        raise BadDispatchRule(
            f"{_PATH}[{place}] is for no table: give it a matcher, such as matcher = ['db.*']"
        )
    return DispatchRule(place, **given)


DISPATCHERS: Final = Option(
    "dispatchers",
    OptionShape(f"a list of rules, each with the keys {', '.join(_KEYS)}", _read_rules),
    (),
    "Where rows go: the first rule whose `matcher` fits a table gives its topic and its partition "
    "expression; the first of those with a target gives the name that is written. Tables that no "
    "rule fits go to the default topic, all rows of a table to one partition.",
)
DISPATCH_RULES: Final = OptionTable("sink", (DISPATCHERS,))


def dispatch_rules(spec: ChangefeedSpec) -> tuple[DispatchRule, ...]:
    """Return the rules of a changefeed, in their order.

    Raises:
        UnknownOption: a rule has a key that rules do not have.
        BadDispatchRule: a rule without a matcher, or with a value of the wrong type.
    """
    return spec.options(DISPATCH_RULES)[DISPATCHERS]


def idle_rule_notices(value: Any) -> list[str]:
    """Tell about keys of rules that change nothing where the sink has no topics."""
    idle = [key for key in _FOR_TOPICS if any(rule.get(key) not in (None, "") for rule in value)]
    if not idle:
        return []
    keys = ", ".join(idle)
    return [f"{_PATH} has no effect: {keys} concern sinks with topics only, which this is not"]
