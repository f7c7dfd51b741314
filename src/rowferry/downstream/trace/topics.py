"""Looks for a row in the topic of its table: in the partitions that can hold its key, backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from rowferry.change.chunk import Change, Rows
from rowferry.change.plan import Topic
from rowferry.change.position import physical_ms
from rowferry.downstream.trace.delivered import OutputFindings, TraceLimits, matching
from rowferry.downstream.trace.row_key import RowKey, holds_all
from rowferry.errors import BadTrace, DecodeError
from rowferry.flow.dispatch.by_topic import partitions_of
from rowferry.flow.dispatch.partition_rule import (
    ByColumns,
    ByCommitTs,
    ByIndex,
    ByTable,
    Fixed,
    PartitionRule,
    hashed_columns,
)
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec
from rowferry.flow.encode.large_message import LargeMessageOptions
from rowferry.flow.sink.kafka.options import KafkaSettings, read_settings
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import wants_raw_changes
from rowferry.spec.sink_traits import SinkTraits

if TYPE_CHECKING:
    from rowferry.downstream.consume.kafka_topics import PartitionReader, TopicMessage

_FIRST_STRETCH: Final = 20_000  # offsets; each further one is twice as long
_LONGEST_STRETCH: Final = 640_000
_CLOCKS_MS: Final = 300_000  # by how much the clocks of source and broker may differ
_MOST_UNREAD: Final = 100_000  # messages that wait for what tells how to read them
_PLAIN: Final = ("", "none")


def changes_in_topics(
    spec: ChangefeedSpec,
    codec: Codec,
    sink: SinkTraits,
    key: RowKey,
    limits: TraceLimits,
    in_use: int,
) -> OutputFindings:
    """Return the changes of a row that are in its table's topic.

    `in_use` is how many partitions of the topic the changefeed writes to; 0: not known.

    Raises:
        BadTrace: the topic is not there.
        SinkUnavailable, SinkUnwritable: the broker does not answer, or refuses the login.
    """
    # Imported here: its library comes with an extra, which readers of files need not have.
    from rowferry.downstream.consume.kafka_topics import PartitionReader

    settings = read_settings(spec)
    rules = DispatchRules(spec, settings.topic, codec.TRAITS.one_table_per_topic)
    topic = rules.topic_of(key.table.id)
    reader = PartitionReader(settings)
    try:
        count = reader.partitions(topic)
        if not count:
            raise BadTrace(
                f"topic {topic!r} is not there: nothing was delivered of {key.table.id} yet, or it "
                "was deleted"
            )
        used = Topic(topic, in_use or min(settings.partitions or count, count), 0)
        moves = wants_raw_changes(spec, sink)
        wanted = _partitions(rules.partition_rule(key.table.id), key, used, moves)
        search = _Search(reader, settings, codec, key, limits, _needles(spec, codec, key))
        for number in wanted:
            search.look(topic, number)
        return search.findings
    finally:
        reader.close()


def _partitions(rule: PartitionRule, key: RowKey, topic: Topic, moves: bool) -> list[int]:
    """Return the partitions that can hold changes of the row.

    A row that moves to another key by one message goes where the new key goes.
    """
    match rule:
        case ByTable() | Fixed():
            known = True
        case ByCommitTs():
            known = False
        case ByIndex() | ByColumns():
            names = {v.column.name for v in key.values}
            columns = hashed_columns(rule, key.table)
            known = not moves and (columns is None or all(c.name in names for c in columns))
    if not known:
        return list(range(topic.partitions))
    return [int(p) for p in np.unique(partitions_of(rule, key.as_insert(), topic))]


def _needles(spec: ChangefeedSpec, codec: Codec, key: RowKey) -> tuple[bytes, ...]:
    """Return bytes without which a message holds no change of the row; none: any may hold one."""
    if LargeMessageOptions.TABLE in codec.TABLES:
        large = spec.options(LargeMessageOptions)
        settings = (large.large_message_handle_option, large.large_message_handle_compression)
        if any(one not in _PLAIN for one in settings):
            return ()
    return key.needles(codec, key.table)


class _Search:
    """Reads partitions backwards in stretches, each of them forwards."""

    def __init__(
        self,
        reader: PartitionReader,
        settings: KafkaSettings,
        codec: Codec,
        key: RowKey,
        limits: TraceLimits,
        needles: tuple[bytes, ...],
    ) -> None:
        self._reader, self._settings, self._codec = reader, settings, codec
        self._key, self._limits, self._needles = key, limits, needles
        self.findings = OutputFindings()

    def look(self, topic: str, partition: int) -> None:
        """Look through one partition, from its end on."""
        low, end = self._reader.bounds(topic, partition)
        if self._limits.since:
            earliest = physical_ms(self._limits.since) - _CLOCKS_MS
            begin = self._reader.offset_at(topic, partition, earliest)
            low = end if begin is None else max(low, begin)
        known, size = len(self.findings.changes), _FIRST_STRETCH
        where = f"{topic}[{partition}]"
        unread: list[TopicMessage] = []
        while end > low:
            if len(self.findings.changes) - known >= self._limits.limit:
                self.findings.stop(f"{where}: messages before {end} were not read: --limit")
                break
            start = max(low, end - size)
            try:
                unread = self._stretch(topic, partition, start, end, unread)
            except TimeoutError:
                self.findings.stop(f"{where}: messages before {end} were not read: time was up")
                break
            end, size = start, min(2 * size, _LONGEST_STRETCH)
        if unread:
            first = unread[0].offset
            self.findings.stop(f"{where}: {len(unread)} messages, one at {first}, cannot be read")

    def _stretch(
        self, topic: str, partition: int, start: int, end: int, unread: list[TopicMessage]
    ) -> list[TopicMessage]:
        """Take what a stretch holds; returns what cannot be read, also of earlier stretches.

        Some formats tell a table's columns in a message of its own, which came before.
        """
        stretch = self._reader.stretch(topic, partition, start, end, self._limits.ends_at)
        for message in stretch:
            self.findings.count("messages")
            if not self._needles or self._may_hold(message):
                unread += self._left(message)
        return [left for message in unread[:_MOST_UNREAD] for left in self._left(message)]

    def _left(self, message: TopicMessage) -> list[TopicMessage]:
        try:
            self._take(message)
        except DecodeError:
            return [message]
        return []

    def _may_hold(self, message: TopicMessage) -> bool:
        content = b"\0".join(part for part in (message.key, message.value) if part)
        return holds_all(content, self._needles)

    def _take(self, message: TopicMessage) -> None:
        place = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        output = f"{message.topic}/{message.partition}"
        for rows in self._rows(message):
            self.findings.changes += matching(
                rows, self._key, self._limits, lambda n: place, "", (message.offset,), output
            )

    def _rows(self, message: TopicMessage) -> Iterator[Rows]:
        changes: list[Change] = list(self._codec.decode_message(message.key, message.value))
        for change in changes:
            if isinstance(change, Rows) and change.table.id == self._key.table.written_as:
                yield change
