"""The Kafka sink: tasks send rows, the driver makes topics and sends schema changes and watermarks.

Rows are visible as soon as they are sent. A micro-batch that is carried out again sends them again,
in the same order: readers may see a row more than once, never out of its turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote

from rowferry.change.chunk import SchemaChange, Watermark
from rowferry.change.plan import Output, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadUri, SinkUnavailable, TargetLost, TopicRefused
from rowferry.flow.dispatch.by_topic import ByTopic
from rowferry.flow.dispatch.contract import Dispatch
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.kafka.delivered import ANEW, KEY, DeliveredTopics, gone
from rowferry.flow.sink.kafka.options import DEFAULT_PARTITIONS, KafkaOptions, read_settings
from rowferry.flow.sink.kafka.sender import Sender
from rowferry.flow.sink.kafka.topics import Topics
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys

_SEGMENT_BYTES: Final = 16 << 20
_LOOK_S: Final = 10.0  # between two looks at the topics' ids


class KafkaSink:
    """Messages in topics; the partition of each row is the dispatch rules' answer."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="kafka",
        section="sink.kafka-config",
        takes_partial_rows=True,
        takes_raw_changes=True,
        has_topics=True,
        place_keys=PlaceKeys(
            ("brokers", "topic"),
            ("brokers", "topic"),
            lambda found: f"kafka://{found['brokers']}/{quote(found['topic'], safe='')}",
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (KafkaOptions.TABLE,)
    flush_interval_s: ClassVar[float] = 0.2
    whole_transactions: ClassVar[bool] = False
    separates_partitions: ClassVar[bool] = False

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or no broker.
            BadOption, OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        self._settings = read_settings(spec)
        if not spec.sink.address:
            raise BadUri("the sink URI names no broker; write it as kafka://host:9092/topic")
        if not self._settings.topic:
            raise BadUri("no topic is specified in sink-uri; write it as kafka://host:9092/topic")
        self._codec = codec
        self._rules = DispatchRules(spec, self._settings.topic, codec.TRAITS.one_table_per_topic)
        self._dispatch = ByTopic(self._rules)
        self._client: Topics | None = None
        self._topics: dict[str, Topic] = {}
        self._owners: dict[str, TableId] = {}  # of topics that hold one table only
        self._senders: dict[int, Sender] = {}
        self._brokers = str(self._settings.connection["bootstrap.servers"])
        self._delivered = DeliveredTopics(self._brokers, self._rules.static_topics())
        self._ids: dict[str, str] = {}  # of the topics above, "": not known
        self._state: dict[str, Any] | None = None  # of the last published plan
        self._is_old = False  # the state tells partitions, and not yet what was delivered
        self._looked_at = 0.0
        self._foreseen: tuple[str, ...] = ()  # topics of the tables at creation

    @property
    def dispatch(self) -> Dispatch:
        """By the dispatch rules."""
        return self._dispatch

    def segment_bytes(self, table: TableId) -> int:
        """Return a size that gives every core something to do without flooding small packets."""
        return _SEGMENT_BYTES

    def partition_label(self, commit_ts: int) -> str:
        """Let all commits share a segment."""
        return ""

    # --- before a run ----------------------------------------------------------------------------

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Refuse tables that the rules cannot serve.

        Raises:
            BadDispatchRule: a rule names an index that a table lacks.
            TopicRefused: two tables share a topic, and the protocol allows one.
        """
        self._rules.check_tables(tables)
        for table in tables:
            self._own(self._rules.topic_of(table.id), table.id)
        self._owners.clear()
        self._foreseen = tuple(self._rules.topic_of(table.id) for table in tables)

    def probe(self, owner: Owner) -> None:
        """Ask the brokers whether this changefeed may write here; makes no topic.

        Raises:
            SinkUnavailable, SinkUnwritable: no broker answers, or it refuses the login or the
                right to write.
            TopicRefused: a topic is missing or too small, or cannot be made.
        """
        counts = self._asked().partition_counts()
        names = dict.fromkeys((*self._foreseen, *self._rules.static_topics()))
        wanted = {name: self._partitions(name, counts.get(name)) for name in names}
        missing = self._missing(wanted, counts)
        self._asked().check_write(wanted.keys() - missing.keys())
        self._asked().check_create(missing)
        made = self._settings.partitions or DEFAULT_PARTITIONS
        for rule, index in self._rules.fixed_indexes():
            reached = {n: c for n, c in counts.items() if self._rules.may_reach(rule, n)}
            used = {n: min(c, self._settings.partitions or c) for n, c in reached.items()}
            if "{" in rule.topic or not used:
                used["a topic that will be created"] = made
            for name, count in used.items():
                if index >= count:
                    raise TopicRefused(
                        f"{rule.path}.partition = {index}: {name} has {count} partitions in use, "
                        f"0 to {count - 1}; choose one of those"
                    )

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Connect, and make topics that are missing. Repeats of older owners do no harm here.

        Raises:
            TargetLost: a topic that got something is gone, or was made again.
        """
        self._topics, self._owners, self._ids = {}, {}, {}
        counts = self._asked().partition_counts()
        self._state = state
        self._is_old = state is not None and KEY not in state
        self._delivered.resume(owner, state or {}, self._asked().cluster)
        self._look()
        self._recall(state, counts)
        self._meet(dict.fromkeys(self._rules.static_topics()), counts)

    # --- a micro-batch ---------------------------------------------------------------------------

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give each slice its topic, making topics that are missing.

        Raises:
            TopicRefused: a topic cannot be made, is too small, or serves another table.
            TargetLost: a topic that got something is gone, or was made again.
        """
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._look()
        names = {one: self._rules.topic_of(table.id) for one, table in tables.items()}
        changes = [self._rules.topic_of_change(c) for c in stretch.schema_changes]
        wanted = dict.fromkeys([*names.values(), *changes])
        if wanted.keys() - self._topics.keys():
            self._meet(wanted, self._asked().partition_counts())
        for one, name in names.items():
            self._own(name, tables[one].id)
        outputs = tuple(
            Output(segment.ordinal, place, self._topics[names[one]].to_json())
            for segment in stretch.segments
            for place, one in enumerate(segment.slices)
        )
        written: dict[str, set[TableId]] = {}
        for one, name in names.items():
            written.setdefault(name, set()).add(tables[one].written_as)
        marked = stretch.watermark is not None and self._marks(stretch.watermark)
        sent = self._topics.keys() if marked else wanted.keys()
        ids = {name: self._ids[name] for name in sent}
        state = {
            "topics": {t.name: t.partitions for t in self._topics.values()},
            "owners": {t: list(name) for t, name in self._owners.items()},
            KEY: self._delivered.foresee(ids, written, stretch.schema_changes),
        }
        return outputs, None if state == self._state else state

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""
        met: set[str] = set()
        with self._sending(met):
            for packet in packets:
                met.add(packet.topic.name)
                self._sender(packet.topic).send(
                    packet.topic.name, packet.partition, packet.messages
                )

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Send the schema changes in order, then the watermark; on return they are durable."""
        if plan.sink_state and plan.sink_state["topics"].keys() - self._topics.keys():
            # Another process allocated this plan, and met topics that were not there before.
            self._recall(plan.sink_state, self._asked().partition_counts())
        changed = {self._rules.topic_of_change(c) for c in plan.stretch.schema_changes}
        with self._sending(self._delivered.known.keys() | changed):
            for change in plan.stretch.schema_changes:
                self._send_change(change, plan.planned_at_ms)
            if plan.stretch.watermark is not None:
                mark = Watermark(plan.stretch.watermark)
                encoded = self._codec.encode_watermark(mark, plan.planned_at_ms)
                if encoded is not None:
                    for topic in self._active_topics():
                        self._send(topic, range(topic.partitions), encoded)
        if plan.sink_state is not None:
            self._state = plan.sink_state
            self._delivered.publish(plan.sink_state)

    def discard(self, plan: Plan) -> bool:
        """What was sent stays; it will be sent again, in order."""
        return True

    def close(self) -> None:
        """Let connections go."""
        self._drop_senders()
        self._client = None

    # --- pieces ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look whether the topics that got something are there, and are the same ones."""
        self._delivered.check(self._asked().ids(self._delivered.known))
        self._looked_at = time.monotonic()

    def _marks(self, watermark: int) -> bool:
        """Return whether the protocol tells watermarks."""
        return self._codec.encode_watermark(Watermark(watermark), 0) is not None

    def _asked(self) -> Topics:
        if self._client is None:
            self._client = Topics(self._settings)
        return self._client

    def _partitions(self, name: str, there: int | None) -> int:
        """Return how many partitions of a topic are used; `there`: how many it has, None: no topic.

        Raises:
            TopicRefused: it has fewer than were asked for, or is missing and may not be made.
        """
        asked = self._settings.partitions
        if there is None:
            if not self._settings.options.auto_create_topic:
                raise TopicRefused(
                    f"`auto-create-topic` is false, and {name} not found; create it, or allow it"
                )
            return asked or DEFAULT_PARTITIONS
        if asked and asked > there:
            raise TopicRefused(
                f"the number of partition ({asked}) specified in sink-uri is more than that of "
                f"actual topic ({there}): {name}; lower partition-num, or add partitions"
            )
        return asked or there

    def _missing(self, wanted: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
        """Return the topics that must be made, each with its partitions.

        Raises:
            TopicRefused: they may not be made, or could never be written.
        """
        missing = {name: count for name, count in wanted.items() if name not in counts}
        factor = self._settings.options.replication_factor
        for name in missing:
            self._partitions(name, None)
        if missing and self._settings.options.required_acks == -1:
            least = self._asked().least_in_sync()
            if factor < least:
                raise TopicRefused(
                    f"{min(missing)} would be created with replication-factor = {factor}, and the "
                    f"broker wants {least} replicas in sync before a message counts; raise it"
                )
        return missing

    def _recall(self, state: dict[str, Any] | None, counts: Mapping[str, int]) -> None:
        """Take in the topics of a plan, with the partition counts that are in use.

        One that is gone and that nobody needs any more is left out.
        """
        told = state or {"topics": {}, "owners": {}}
        self._owners |= {t: TableId(*name) for t, name in told["owners"].items()}
        kept = {name: self._kept(name, told["topics"][name], counts) for name in told["topics"]}
        there = {*counts, *self._rules.static_topics()}
        self._meet({name: kept[name] for name in kept if name in there}, counts)

    def _kept(self, name: str, stored: int, counts: Mapping[str, int]) -> int | None:
        """Return how many partitions of a topic stay in use; None: it is another topic now.

        Raises:
            TargetLost: it is gone, or has fewer of them: topics never lose any.
        """
        known = name in self._delivered.known
        if known and name not in counts:
            raise gone(name, self._brokers)
        if stored <= counts.get(name, stored):
            return stored
        if known or self._is_old:
            raise TargetLost(
                f"Kafka at {self._brokers}: topic {name} has {counts[name]} partitions, and this "
                f"changefeed has written to {stored}: it was deleted and made again; {ANEW}"
            )
        return None

    def _meet(self, wanted: Mapping[str, int | None], counts: Mapping[str, int]) -> None:
        """Learn of topics that are new here, or make them.

        Args:
            wanted: each with how many of its partitions were in use before; None: it is new.
            counts: the topics that there are.
        """
        for name in wanted:
            if name not in counts and name in self._delivered.known:
                raise gone(name, self._brokers)
        used = {
            name: stored or self._partitions(name, counts.get(name))
            for name, stored in wanted.items()
            if name not in self._topics
        }
        missing = self._missing(used, counts)
        if missing:
            self._asked().create(missing)
            counts = self._asked().partition_counts()  # others may have made them meanwhile
        for name, count in used.items():
            if count > counts.get(name, count):
                raise TopicRefused(
                    f"topic {name} has {counts[name]} partitions, and this changefeed writes to "
                    f"{count}; add the missing ones"
                )
        limits = self._asked().largest_messages(used)
        self._topics |= {name: Topic(name, count, limits[name]) for name, count in used.items()}
        found = self._asked().ids(used)
        self._delivered.check(found)
        self._ids |= {name: found[name] or "" for name in used}

    def _own(self, topic: str, table: TableId) -> None:
        if not self._codec.TRAITS.one_table_per_topic:
            return
        owner = self._owners.setdefault(topic, table)
        if owner != table:
            raise TopicRefused(
                f"topic {topic} would hold {owner} and {table}, and this protocol needs a topic "
                'for each table: add a dispatcher with topic = "{schema}_{table}"'
            )

    def _active_topics(self) -> list[Topic]:
        default = self._topics.get(self._settings.topic)
        others = [t for t in self._topics.values() if t is not default]
        return [*others, *([default] if default else [])]

    def _send_change(self, change: SchemaChange, planned_at_ms: int) -> None:
        if not change.query:
            return  # the statement of a change before it has made this one, too
        where = self._codec.TRAITS.schema_change_goes_to
        encoded = self._codec.encode_schema_change(change, planned_at_ms)
        if encoded is None or where == "nowhere":
            return
        name = self._rules.topic_of_change(change)
        if name not in self._topics:
            raise gone(name, self._brokers)  # it was there when this was planned
        topic = self._topics[name]
        self._send(topic, range(topic.partitions) if where == "all-partitions" else [0], encoded)

    def _send(self, topic: Topic, partitions: Sequence[int], messages: Encoded) -> None:
        for partition in partitions:
            self._sender(topic).send(topic.name, partition, replace(messages, partitions=None))

    def _sender(self, topic: Topic) -> Sender:
        limit = topic.max_message_bytes
        if limit not in self._senders:
            self._senders[limit] = Sender(self._settings, limit)
        return self._senders[limit]

    @contextmanager
    def _sending(self, needed: Collection[str]) -> Iterator[None]:
        """Wait at the end until all is durable; on an error, look for topics that were deleted."""
        try:
            yield
            for sender in self._senders.values():
                sender.flush()
        except BaseException as err:
            lost = {s.missing for s in self._senders.values() if s.missing}
            self._drop_senders()  # a failed one sends no more, and nothing may arrive late
            if lost and isinstance(err, SinkUnavailable):
                lost -= self._asked().partition_counts().keys()  # a broker may learn of one late
                for name in sorted(lost.intersection(needed)):
                    raise gone(name, self._brokers) from None
                self._topics = {n: t for n, t in self._topics.items() if n not in lost}
            raise

    def _drop_senders(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.give_up()
