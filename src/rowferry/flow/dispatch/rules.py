"""The dispatch rules of one changefeed: which topic, and how the partition is found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadDispatchRule, BadFilterRule, BadUri
from rowferry.flow.decide.table_filter import TableFilter
from rowferry.flow.dispatch.partition_rule import (
    ByColumns,
    ByIndex,
    ByTable,
    Fixed,
    PartitionRule,
    named_index,
    parse_partition,
)
from rowferry.flow.dispatch.topics import PLAIN_NAMES, TopicForm, TopicRule
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.rules.dispatch import DispatchRule, dispatch_rules


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule, read; `topic` is None for the default topic.

    `in_topics` is for the tables' names as they stand in those of topics.
    """

    written: DispatchRule
    tables: TableFilter
    in_topics: TableFilter
    partition: PartitionRule
    topic: TopicRule | None


class DispatchRules:
    """`[sink] dispatchers`, read and checked; the first rule that fits a table counts.

    A table that no rule fits goes to the default topic, all its rows to one partition. Tables are
    known by their source's names, whatever name table routing gives them.
    """

    def __init__(
        self,
        spec: ChangefeedSpec,
        default_topic: str,
        one_table_per_topic: bool = False,
        form: TopicForm = PLAIN_NAMES,
    ) -> None:
        """Read the rules.

        Args:
            spec: the changefeed.
            default_topic: where rows go that no rule gives a topic.
            one_table_per_topic: the protocol cannot have two tables in one topic.
            form: where topics are; names are whole ones from here on.

        Raises:
            BadDispatchRule: an expression that cannot be used; names the rule.
            BadFilterRule: a matcher with a syntax error; names the rule.
            BadUri: there is no default topic, or no topic can have that name.
        """
        if not default_topic:
            raise BadUri("no topic is specified in sink-uri: add it as the path, host:port/topic")
        if why := form.wrong(default_topic):
            raise BadUri(f"the sink URI names the topic {default_topic!r}: {why}")
        self.default_topic = "".join(form.split(default_topic))
        self._form = form
        self.one_table_per_topic = one_table_per_topic
        case_sensitive = spec.options(FeedOptions).case_sensitive
        self._rules = [self._read(rule, case_sensitive) for rule in dispatch_rules(spec)]

    def topic_of(self, table: TableId) -> str:
        """Return the topic of a table's rows."""
        rule = self._rule_of(table)
        return rule.topic.topic_of(table) if rule and rule.topic else self.default_topic

    def topic_of_change(self, change: SchemaChange) -> str:
        """Return the topic of a schema change: that of the table's rows before it.

        One of a database, or of a table that was renamed from a bare database, goes to the default
        topic.
        """
        table = change.previous or change.table
        return self.topic_of(table) if table.table else self.default_topic

    def partition_rule(self, table: TableId) -> PartitionRule:
        """Return how the partition of a table's rows is found."""
        rule = self._rule_of(table)
        return rule.partition if rule else ByTable()

    # --- checks at creation ----------------------------------------------------------------------

    def check_tables(self, tables: Iterable[TableSchema]) -> None:
        """Judge the captured tables that there are.

        Columns that a table does not have are no fault: they may come.

        Raises:
            BadDispatchRule: a rule's index is missing or not unique, or its column has no values in
                the log.
        """
        for table in tables:
            rule = self._rule_of(table.id)
            if rule is not None:
                _check_table(rule, table)

    def static_topics(self) -> tuple[str, ...]:
        """Return the topics that rows may go to whatever tables there are, the default one last."""
        named = [r.topic.expression for r in self._rules if r.topic and r.topic.static]
        rest = dict.fromkeys(n for n in named if n != self.default_topic)
        return (*rest, self.default_topic)

    def fixed_indexes(self) -> list[tuple[DispatchRule, int]]:
        """Return the rules that name a partition by its number, with the number."""
        return [
            (rule.written, rule.partition.number)
            for rule in self._rules
            if isinstance(rule.partition, Fixed)
        ]

    def may_reach(self, rule: DispatchRule, topic: str) -> bool:
        """Return whether rows could go to this topic by this rule, whatever tables are created."""
        here = self._rules[rule.place]
        if here.topic is None:
            return topic == self.default_topic
        for database, table in here.topic.tables_of(topic):
            if database is not None and table is not None:
                shown = (r for r in self._rules if r.in_topics.matches_table(database, table))
                if here in (self._rule_of(TableId(database, table)), next(shown, None)):
                    return True
            elif any(_may_fit(f, database, table) for f in (here.tables, here.in_topics)):
                return True
        return False

    # --- the rules -------------------------------------------------------------------------------

    def _rule_of(self, table: TableId) -> _Rule | None:
        return next((rule for rule in self._rules if rule.tables.matches_table(*table)), None)

    def _read(self, rule: DispatchRule, case_sensitive: bool) -> _Rule:
        try:
            tables = TableFilter(rule.matcher, case_sensitive)
        except BadFilterRule as err:
            raise BadFilterRule(f"{rule.path}.matcher: {err.words}") from None
        try:
            one_table, form = self.one_table_per_topic, self._form
            topic = TopicRule.parse(rule.topic, one_table, form) if rule.topic else None
        except BadDispatchRule as err:
            raise BadDispatchRule(f"{rule.path}.topic: {err.words}") from None
        return _Rule(rule, tables, tables.of_topics(), parse_partition(rule), topic)


def _may_fit(tables: TableFilter, database: str | None, table: str | None) -> bool:
    """Return whether a table with one of the names, or with any, could be among these."""
    if database is not None:
        return tables.matches_database(database)
    return table is None or tables.matches_in_some_database(table)


def _check_table(rule: _Rule, table: TableSchema) -> None:
    """Refuse a rule whose index or columns cannot be used for this table."""
    partition, path = rule.partition, rule.written.path
    if isinstance(partition, ByIndex) and partition.index:
        index = named_index(table, partition.index)
        if not (index.unique or index.primary):
            raise BadDispatchRule(
                f"{path}.index = {partition.index!r}: this index of table {table.id} is not "
                "unique; name a unique one, or dispatch by columns"
            )
        names = index.columns
    elif isinstance(partition, ByColumns):
        names = partition.columns
    else:
        return
    for name in names:
        column = table.by_name.get(name.lower())
        if column is not None and column.generated == "virtual":
            raise BadDispatchRule(
                f"{path}: column {column.name} of table {table.id} is a virtual generated "
                "one, which has no value in the log; name the columns that it comes from"
            )
