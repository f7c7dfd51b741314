"""Which rule of `[[sink.lake.layouts]]` a table has, and whether a column of it is masked."""

from __future__ import annotations

from collections.abc import Sequence

from rowferry.change.table import TableId
from rowferry.errors import BadFilterRule
from rowferry.flow.decide.table_filter import NameFilter, TableFilter
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.rules.layout import LayoutRule
from rowferry.spec.rules.transform import TransformOptions


class TableLayouts:
    """Rules by table; the first that fits counts. Tables have their names in the source."""

    def __init__(self, spec: ChangefeedSpec, rules: Sequence[LayoutRule]) -> None:
        """Read the matchers.

        Raises:
            BadFilterRule: a matcher with a syntax error; names the rule.
        """
        exact = spec.options(FeedOptions).case_sensitive
        self._rules = [(rule, _tables(rule, exact)) for rule in rules]
        masks = spec.options(TransformOptions).masks if rules else ()
        self._masks = [(TableFilter(m.matcher, exact), NameFilter(m.columns)) for m in masks]

    def rule_of(self, table: TableId) -> LayoutRule | None:
        """Return the rule of a table."""
        name = table.database, table.table
        return next((rule for rule, tables in self._rules if tables.matches_table(*name)), None)

    def is_masked(self, table: TableId, column: str) -> bool:
        """Return whether a rule of `[[transform.masks]]` fits a column."""
        name = table.database, table.table
        return any(t.matches_table(*name) and c.matches(column) for t, c in self._masks)


def _tables(rule: LayoutRule, case_sensitive: bool) -> TableFilter:
    try:
        return TableFilter(rule.matcher, case_sensitive)
    except BadFilterRule as err:
        raise BadFilterRule(f"{rule.path('matcher')}: {err.words}") from None
