"""What every sink with topics does: topics are found or made, then get rows, DDLs and watermarks.

A queue of its own kind says how topics are asked for and made, and how messages are sent.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Final, Protocol

from rowferry.change.chunk import DdlKind, SchemaChange, Watermark
from rowferry.change.event_counts import EventCounts
from rowferry.change.plan import Output, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TargetLost, TopicRefused
from rowferry.flow.dispatch.by_topic import ByTopic
from rowferry.flow.dispatch.contract import Dispatch
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.queue.delivered import ANEW, KEY, DeliveredTopics, gone

DEFAULT_PARTITIONS: Final = 3  # of topics that are created, where nobody says how many
_SEGMENT_BYTES: Final = 16 << 20
_LOOK_S: Final = 10.0  # between two looks at the topics' ids


class AskedTopics(Protocol):
    """Asks a queue for topics and makes them (driver)."""

    @property
    def cluster(self) -> str:
        """The id of the brokers' cluster, once topics were asked for; "": they have none."""

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return the brokers' own ids of topics, which a topic that is made again does not keep.

        None: there is no such topic. "": the id is not known.
        """

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be in each of these topics."""

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make topics, each with its partitions; those that are there already stay as they are.

        Raises:
            TopicRefused: the broker refuses one, with its words.
        """

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Ask whether topics could be made; makes none.

        Raises:
            TopicRefused: the broker would refuse one, with its words.
        """

    def check_write(self, topics: Iterable[str]) -> None:
        """Ask whether this login may write to topics that are there.

        Raises:
            SinkUnwritable: it may not.
        """


class TopicSink(ABC):
    """Messages in topics; the partition of each row is the dispatch rules' answer.

    Attributes:
        loses_partitions: a topic may be counted as fewer partitions than it once was, and still
            takes messages for all of them, in order: they are names that the queue maps to what
            it has.
    """

    loses_partitions: ClassVar[bool] = False
    flush_interval_s: ClassVar[float] = 0.05
    whole_transactions: ClassVar[bool] = False
    separates_partitions: ClassVar[bool] = False

    def __init__(
        self,
        codec: Codec,
        rules: DispatchRules,
        service: str,
        brokers: str,
        partitions: int | None,
        auto_create: bool,
        own_topics: Collection[str] = (),
    ) -> None:
        """Remember what settings amount to; opens no connection.

        Args:
            codec: the protocol.
            rules: which topic and partition rows go to.
            service: what people call the queue, for errors.
            brokers: its address.
            partitions: how many of each topic are written; None: as many as there are.
            auto_create: whether missing topics are made.
            own_topics: those that hold no rows, and must stay what they are once there are some.
        """
        self.counts = EventCounts()
        self._codec = codec
        self._rules = rules
        self._dispatch = ByTopic(rules)
        self._at = f"{service} at {brokers}"
        self._asked_partitions, self._auto_create = partitions, auto_create
        self._topics: dict[str, Topic] = {}
        self._owners: dict[str, TableId] = {}  # of topics that hold one table only
        self._own_topics = tuple(own_topics)
        static = (*rules.static_topics(), *own_topics)
        self._delivered = DeliveredTopics(service, brokers, static)
        self._ids: dict[str, str] = {}  # of the topics above, "": not known
        self._state: dict[str, Any] | None = None  # of the last published plan
        self._is_old = False  # the state tells partitions, and not yet what was delivered
        self._looked_at = 0.0
        self._attempt = ""
        self._foreseen: tuple[str, ...] = ()  # topics of the tables at creation

    # --- what each queue has of its own ----------------------------------------------------------

    @abstractmethod
    def _asked(self) -> AskedTopics:
        """Return who asks the brokers, connected."""

    @abstractmethod
    def _partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return the topics that there are, with their partition counts; at least these."""

    @abstractmethod
    def _sending(self, needed: Collection[str]) -> AbstractContextManager[None]:
        """Wait at the end until all is durable; on an error, look for topics that were deleted."""

    @abstractmethod
    def _send(self, plan: Plan, topic: Topic, partitions: Sequence[int], messages: Encoded) -> None:
        """Send what follows the rows of a plan to some partitions, inside `_sending`."""

    @abstractmethod
    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""

    @abstractmethod
    def close(self) -> None:
        """Let connections go."""

    @abstractmethod
    def _check_missing(self, missing: Mapping[str, int]) -> None:
        """Refuse topics that could be made, and never written."""

    def _topic(self, name: str, partitions: int, limit: int) -> Topic:
        """Return a topic as it is used."""
        return Topic(name, partitions, limit)

    def _target(self, topic: Topic, stretch: Stretch) -> Topic:
        """Return what is recorded of a topic for one plan."""
        return topic

    def _own_state(self) -> dict[str, Any]:
        """Return what the state holds besides topics."""
        return {}

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
        names = dict.fromkeys((*self._foreseen, *self._rules.static_topics()))
        counts = self._partition_counts(names)
        wanted = {name: self._partitions(name, counts.get(name)) for name in names}
        missing = self._missing(wanted, counts)
        self._asked().check_write(wanted.keys() - missing.keys())
        self._asked().check_create(missing)
        asked = self._asked_partitions
        made = asked or DEFAULT_PARTITIONS
        for rule, index in self._rules.fixed_indexes():
            reached = {n: c for n, c in counts.items() if self._rules.may_reach(rule, n)}
            used = {n: min(c, asked or c) for n, c in reached.items()}
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
        self._attempt = secrets.token_hex(4)
        stored = (state or {}).get("topics", {})
        counts = self._partition_counts({**stored, **dict.fromkeys(self._rules.static_topics())})
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
        for name in self._unneeded(wanted):
            self._topics.pop(name, None)  # it may be gone, or another one by now
        if wanted.keys() - self._topics.keys():
            self._meet(wanted, self._partition_counts(wanted))
        for one, name in names.items():
            self._own(name, tables[one].id)
        outputs = tuple(
            Output(
                segment.ordinal, place, self._recorded(self._topics[names[one]], stretch).to_json()
            )
            for segment in stretch.segments
            for place, one in enumerate(segment.slices)
        )
        written: dict[str, set[TableId]] = {}
        for one, name in names.items():
            written.setdefault(name, set()).add(tables[one].written_as)
        marked = stretch.watermark is not None and self._marks(stretch.watermark)
        sent = self._topics.keys() if marked else wanted.keys()
        ids = {name: self._ids[name] for name in (*sent, *self._own_topics)}
        state = {
            "topics": {t.name: t.partitions for t in self._topics.values()},
            "owners": {t: list(name) for t, name in self._owners.items()},
            KEY: self._delivered.foresee(ids, written, stretch.schema_changes),
            **self._own_state(),
        }
        return outputs, None if state == self._state else state

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Send the schema changes in order, then the watermark; on return they are durable."""
        if plan.sink_state:
            self._take_over(plan.sink_state)
        changed = {self._rules.topic_of_change(c) for c in plan.stretch.schema_changes}
        begun = self._begun_by(plan)
        if missing := dict.fromkeys(sorted(begun - self._topics.keys())):
            self._meet(missing, self._partition_counts(missing))
        with self._sending(self._delivered.known.keys() | changed - begun):
            self._announce(plan)
        if plan.sink_state is not None:
            self._state = plan.sink_state
            self._delivered.publish(plan.sink_state)

    def discard(self, plan: Plan) -> bool:
        """What was sent stays; it will be sent again, in order."""
        self._attempt = secrets.token_hex(4)
        return True

    # --- pieces ----------------------------------------------------------------------------------

    def _recorded(self, topic: Topic, stretch: Stretch) -> Topic:
        target = self._target(topic, stretch)
        if target.lineage or not self._codec.TRAITS.remembers:
            return target
        return replace(target, attempt=self._attempt)

    def _take_over(self, state: dict[str, Any]) -> None:
        """Know the topics of a plan that another process has allocated.

        It may have met topics that were not there before, or that have been given more partitions
        since: keys stay in those that the plan's rows are in.
        """
        planned = state["topics"]
        self._topics = {
            name: topic
            for name, topic in self._topics.items()
            if planned.get(name, topic.partitions) == topic.partitions
        }
        if planned.keys() - self._topics.keys():
            self._recall(state, self._partition_counts(planned))

    def _announce(self, plan: Plan) -> None:
        """Send what follows the rows of a plan."""
        for change in plan.stretch.schema_changes:
            self._send_change(plan, change)
        if plan.stretch.watermark is not None:
            mark = Watermark(plan.stretch.watermark)
            encoded = self._codec.encode_watermark(mark, plan.planned_at_ms)
            if encoded is not None:
                for topic in self._active_topics():
                    self._send(plan, topic, range(topic.partitions), encoded)

    def _look(self) -> None:
        """Look whether the topics that got something are there, and are the same ones."""
        self._delivered.check(self._asked().ids(self._delivered.known))
        self._looked_at = time.monotonic()

    def _unneeded(self, wanted: Collection[str]) -> set[str]:
        """Return those of some topics to which nothing was sent that a table would miss."""
        needed = {*self._delivered.known, *self._rules.static_topics(), *self._own_topics}
        return set() if self._is_old else set(wanted) - needed

    def _begun_by(self, plan: Plan) -> set[str]:
        """Return the topics that begin with a CREATE TABLE of a plan: nothing is in them yet.

        One of a table that was dropped may have been deleted, even after this was planned.
        """
        first: dict[str, SchemaChange] = {}
        for change in plan.stretch.schema_changes:
            first.setdefault(self._rules.topic_of_change(change), change)
        begun = [name for name, one in first.items() if one.kind is DdlKind.CREATE_TABLE]
        return self._unneeded(begun) - {Topic.from_json(o.target).name for o in plan.outputs}

    def _marks(self, watermark: int) -> bool:
        """Return whether the protocol tells watermarks."""
        return self._codec.encode_watermark(Watermark(watermark), 0) is not None

    def _partitions(self, name: str, there: int | None) -> int:
        """Return how many partitions of a topic are used; `there`: how many it has, None: no topic.

        Raises:
            TopicRefused: it has fewer than were asked for, or is missing and may not be made.
        """
        asked = self._asked_partitions
        if there is None:
            if not self._auto_create:
                raise TopicRefused(
                    f"`auto-create-topic` is false, and {name} not found; create it, or allow it"
                )
            return asked or DEFAULT_PARTITIONS
        if asked and asked > there and not self.loses_partitions:
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
        for name in missing:
            self._partitions(name, None)
        if missing:
            self._check_missing(missing)
        return missing

    def _recall(self, state: dict[str, Any] | None, counts: Mapping[str, int]) -> None:
        """Take in the topics of a plan, with the partition counts that are in use.

        One that is gone and that nobody needs any more is left out.
        """
        recorded = state or {"topics": {}, "owners": {}}
        self._owners |= {t: TableId(*name) for t, name in recorded["owners"].items()}
        kept = {
            name: self._kept(name, recorded["topics"][name], counts) for name in recorded["topics"]
        }
        there = {*counts, *self._rules.static_topics()}
        self._meet({name: kept[name] for name in kept if name in there}, counts)

    def _kept(self, name: str, stored: int, counts: Mapping[str, int]) -> int | None:
        """Return how many partitions of a topic stay in use; None: it is another topic now.

        Raises:
            TargetLost: it is gone, or has fewer of them, and topics here never lose any.
        """
        known = name in self._delivered.known
        if known and name not in counts:
            raise gone(name, self._at)
        if self.loses_partitions or stored <= counts.get(name, stored):
            return stored
        if known or self._is_old:
            raise TargetLost(
                f"{self._at}: topic {name} has {counts[name]} partitions, and this "
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
                raise gone(name, self._at)
        used = {
            name: stored or self._partitions(name, counts.get(name))
            for name, stored in wanted.items()
            if name not in self._topics
        }
        missing = self._missing(used, counts)
        if missing:
            self._asked().create(missing)
            counts = self._partition_counts(used)  # others may have made them meanwhile
        for name, count in used.items():
            if count > counts.get(name, count) and not self.loses_partitions:
                raise TopicRefused(
                    f"topic {name} has {counts[name]} partitions, and this changefeed writes to "
                    f"{count}; add the missing ones"
                )
        limits = self._asked().largest_messages(used)
        self._topics |= {
            name: self._topic(name, count, limits[name]) for name, count in used.items()
        }
        ids = self._asked().ids(used)
        self._delivered.check(ids)
        self._ids |= {name: ids[name] or "" for name in used}

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
        default = self._topics.get(self._rules.default_topic)
        others = [t for t in self._topics.values() if t is not default]
        return [*others, *([default] if default else [])]

    def _send_change(self, plan: Plan, change: SchemaChange) -> None:
        if not change.query:
            return  # the statement of a change before it has made this one, too
        where = self._codec.TRAITS.schema_change_goes_to
        encoded = self._codec.encode_schema_change(change, plan.planned_at_ms)
        if encoded is None or where == "nowhere":
            return
        name = self._rules.topic_of_change(change)
        if name not in self._topics:
            raise gone(name, self._at)  # it was there when this was planned
        topic = self._topics[name]
        everywhere = where == "all-partitions"
        self._send(plan, topic, range(topic.partitions) if everywhere else [0], encoded)
