"""`[sink] dispatchers`: rules that say, for tables by name, where rows go and under which name.

One list serves two stages: table routing reads `target-schema` and `target-table`, dispatch reads
the rest. This module reads the list's shape only; what the texts mean is each stage's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from rowferry.errors import BadDispatchRule
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, expression, option
from rowferry.spec.rules.matched import matched_rules

_PATH: Final = "sink.dispatchers"
_NAME: Final = re.compile(r"""\s*(?:`((?:``|[^`])+)`|([^`"',\[\]]*[^`"',\[\]\s]))\s*(,|$)""")


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

    def listed_columns(self) -> tuple[str, ...] | None:
        """Return the columns of a partition `[a, b]`; None: it is no list.

        Names stand between commas; blanks around them are trimmed, odd ones are in back-quotes.

        Raises:
            BadDispatchRule: the list cannot be read.
        """
        bare = self.partition.strip()
        if not (bare.startswith("[") and bare.endswith("]")):
            return None
        inner, here, names, more = bare[1:-1], 0, [], True
        lead = f"{self.path}.partition = {self.partition!r}"
        if not inner.strip():
            raise BadDispatchRule(f"{lead} names no column")
        while more:
            match = _NAME.match(inner, here)
            if match is None:
                raise BadDispatchRule(
                    f"{lead} is not a list of columns such as [a, b] or [`a,b`, c]"
                )
            names.append(match[1].replace("``", "`") if match[1] else match[2])
            here, more = match.end(), match[3] == ","
        return tuple(names)


_FOR_TOPICS: Final = ("partition", "index", "columns", "topic")


class DispatchOptions(Section, section="sink"):
    """Where rows go."""

    dispatchers = option(
        matched_rules(_PATH, DispatchRule, BadDispatchRule, partition=expression()),
        (),
        "Where rows go: the first rule whose `matcher` fits a table gives its topic and its "
        "partition expression; the first of those with a target gives the name that is written. "
        "Tables that no rule fits go to the default topic, all rows of a table to one partition.",
    )


def dispatch_rules(spec: ChangefeedSpec) -> tuple[DispatchRule, ...]:
    """Return the rules of a changefeed, in their order.

    Raises:
        UnknownOption: a rule has a key that rules do not have.
        BadDispatchRule: a rule without a matcher, or with a value of the wrong type.
    """
    return spec.options(DispatchOptions).dispatchers


def idle_rule_notices(value: Any) -> list[str]:
    """Tell about keys of rules that change nothing where the sink has no topics."""
    idle = [key for key in _FOR_TOPICS if any(rule.get(key) not in (None, "") for rule in value)]
    if not idle:
        return []
    keys = ", ".join(idle)
    return [f"{_PATH} has no effect: {keys} concern sinks with topics only, which this is not"]
