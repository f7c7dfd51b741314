"""The Kafka sink: tasks send rows, the driver makes topics and sends schema changes and watermarks.

Rows are visible as soon as they are sent. A micro-batch that is carried out again sends them again,
in the same order: readers may see a row more than once, never out of its turn. With exactly-once
they are sent in transactions that say how far they came: a repeat leaves out what is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote

from rowferry.change.plan import Again, Plan, Stretch, Topic
from rowferry.errors import BadUri, OptionsConflict, SinkUnavailable, TopicRefused
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.kafka.exactly_once import ExactlyOnce
from rowferry.flow.sink.kafka.ledger import PlanLineage
from rowferry.flow.sink.kafka.options import KafkaOptions, read_settings
from rowferry.flow.sink.kafka.sender import Sender
from rowferry.flow.sink.kafka.topics import Topics
from rowferry.flow.sink.queue.delivered import gone
from rowferry.flow.sink.queue.topic_sink import TopicSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri_form import UriForm, UriPart

_KEY: Final = "lineage"


class KafkaSink(TopicSink):
    """Messages in topics; the partition of each row is the dispatch rules' answer."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        movable=True,
        kind="kafka",
        names_refused_rows=True,
        section="sink.kafka-config",
        takes_partial_rows=True,
        takes_raw_changes=True,
        has_topics=True,
        place_keys=PlaceKeys(
            ("brokers", "topic"),
            ("brokers", "topic"),
            lambda parameters: (
                f"kafka://{parameters['brokers']}/{quote(parameters['topic'], safe='')}"
            ),
        ),
        form=UriForm(
            "Kafka",
            address=UriPart("Brokers", "broker-1:9092,broker-2:9092"),
            path=UriPart("Topic", "orders"),
            login=False,
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (KafkaOptions.TABLE,)

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
        super().__init__(
            codec,
            DispatchRules(spec, self._settings.topic, codec.TRAITS.one_table_per_topic),
            "Kafka",
            str(self._settings.connection["bootstrap.servers"]),
            self._settings.partitions,
            self._settings.options.auto_create_topic,
            (self._settings.ledger,) if self._settings.ledger else (),
        )
        self._client: Topics | None = None
        self._senders: dict[int, Sender] = {}
        self._once: ExactlyOnce | None = None
        if self._settings.ledger:
            if self._settings.ledger in self._rules.static_topics():
                raise OptionsConflict(
                    f"ledger-topic = {self._settings.ledger} is a topic for rows; name another one"
                )
            self._once = ExactlyOnce(self._settings, spec.changefeed_id, self._asked, self.counts)

    def probe(self, owner: Owner) -> None:
        """Ask the brokers whether this changefeed may write here; makes no topic.

        Raises:
            SinkUnavailable, SinkUnwritable: no broker answers, or it refuses the login or the
                right to write.
            TopicRefused: a topic is missing or too small, or cannot be made.
            SinkOwned: the ledger is another changefeed's.
        """
        super().probe(owner)
        if self._once is not None:
            self._once.probe(owner)

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Connect, and make topics that are missing.

        With exactly-once no older owner can show anything any more on return.

        Raises:
            TargetLost: a topic that got something is gone, or was made again.
            SinkOwned: the ledger is another changefeed's.
        """
        super().open(owner, state)
        if self._once is not None:
            self._ids[self._settings.ledger] = self._once.open(owner)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""
        met: set[str] = set()
        with self._sending(met):
            for packet in packets:
                met.add(packet.topic.name)
                if self._once is not None:
                    self._once.lanes.add(packet)
                else:
                    self._sender(packet.topic).send(
                        packet.topic.name, packet.partition, packet.messages
                    )

    def discard(self, plan: Plan) -> bool:
        """What was sent stays; it will be sent again, in order."""
        if self._once is not None:
            self._once.announcer.forget_plans()
        return super().discard(plan)

    def close(self) -> None:
        """Let connections go."""
        self._drop_senders()
        if self._once is not None:
            self._once.close()
        self._client = None

    # --- pieces ----------------------------------------------------------------------------------

    def _asked(self) -> Topics:
        if self._client is None:
            self._client = Topics(self._settings)
        return self._client

    def _partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        return self._asked().partition_counts()

    def _target(self, topic: Topic, stretch: Stretch) -> Topic:
        if self._once is None:
            return topic
        return replace(
            topic,
            exact=all(segment.again is Again.SAME for segment in stretch.segments),
            lineage=str(self._once.announcer.lineage),
            lanes=self._settings.options.transaction_lanes,
            batch_bytes=self._batch_bytes(),
        )

    def _own_state(self) -> dict[str, Any]:
        return {} if self._once is None else {_KEY: str(self._once.announcer.lineage)}

    def _announce(self, plan: Plan) -> None:
        if self._once is None:
            super()._announce(plan)
            return
        known = str((plan.sink_state or self._state or {}).get(_KEY, ""))
        lineage = PlanLineage.parse(known) if known else None
        announcer = self._once.announcer
        if announcer.begin(lineage, plan.micro_batch, self._batch_bytes()):
            super()._announce(plan)
            announcer.finish(lineage, plan.micro_batch)

    def _batch_bytes(self) -> int:
        """Return what every topic takes at once."""
        return min(t.max_message_bytes for t in self._topics.values())

    def _meet(self, wanted: Mapping[str, int | None], counts: Mapping[str, int]) -> None:
        if self._once is not None and self._settings.ledger in wanted:
            raise TopicRefused(
                f"a dispatch rule sends rows to {self._settings.ledger}, which is this "
                "changefeed's ledger; correct the rule, or name another one by ledger-topic"
            )
        super()._meet(wanted, counts)

    def _check_missing(self, missing: Mapping[str, int]) -> None:
        factor = self._settings.options.replication_factor
        if self._settings.options.required_acks != -1:
            return
        least = self._asked().least_in_sync()
        if factor < least:
            raise TopicRefused(
                f"{min(missing)} would be created with replication-factor = {factor}, and the "
                f"broker wants {least} replicas in sync before a message counts; raise it"
            )

    def _send(self, plan: Plan, topic: Topic, partitions: Sequence[int], messages: Encoded) -> None:
        plain = replace(messages, partitions=None)
        if self._once is not None:
            self._once.announcer.send(topic, partitions, plain)
            return
        for partition in partitions:
            self._sender(topic).send(topic.name, partition, plain)

    def _sender(self, topic: Topic) -> Sender:
        limit = topic.max_message_bytes
        if limit not in self._senders:
            self._senders[limit] = Sender(self._settings, limit, self.counts)
        return self._senders[limit]

    @contextmanager
    def _sending(self, needed: Collection[str]) -> Iterator[None]:
        """Wait at the end until all is durable; on an error, look for topics that were deleted."""
        try:
            yield
            for sender in self._senders.values():
                sender.flush()
            if self._once is not None:
                self._once.lanes.finish()
        except BaseException as err:
            lost = {s.missing for s in self._senders.values() if s.missing}
            if self._once is not None:
                lost |= self._once.missing
            self._drop_senders()  # a failed one sends no more, and nothing may arrive late
            if lost and isinstance(err, SinkUnavailable):
                lost -= self._partition_counts(lost).keys()  # a broker may learn of one late
                for name in sorted(lost.intersection(needed)):
                    raise gone(name, self._at) from None
                self._topics = {n: t for n, t in self._topics.items() if n not in lost}
            raise

    def _drop_senders(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.give_up()
        if self._once is not None:
            self._once.drop()
