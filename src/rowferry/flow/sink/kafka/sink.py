"""The Kafka sink: tasks send rows, the driver makes topics and sends schema changes and watermarks.

Rows are visible as soon as they are sent. A micro-batch that is carried out again sends them again,
in the same order: readers may see a row more than once, never out of its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar
from urllib.parse import quote

from rowferry.change.plan import Plan, Topic
from rowferry.errors import BadUri, SinkUnavailable, TopicRefused
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Packet, SinkTraits
from rowferry.flow.sink.kafka.options import KafkaOptions, read_settings
from rowferry.flow.sink.kafka.sender import Sender
from rowferry.flow.sink.kafka.topics import Topics
from rowferry.flow.sink.queue.delivered import gone
from rowferry.flow.sink.queue.topic_sink import TopicSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri_form import UriForm, UriPart


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
        )
        self._client: Topics | None = None
        self._senders: dict[int, Sender] = {}

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""
        met: set[str] = set()
        with self._sending(met):
            for packet in packets:
                met.add(packet.topic.name)
                self._sender(packet.topic).send(
                    packet.topic.name, packet.partition, packet.messages
                )

    def close(self) -> None:
        """Let connections go."""
        self._drop_senders()
        self._client = None

    # --- pieces ----------------------------------------------------------------------------------

    def _asked(self) -> Topics:
        if self._client is None:
            self._client = Topics(self._settings)
        return self._client

    def _partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        return self._asked().partition_counts()

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
        for partition in partitions:
            self._sender(topic).send(topic.name, partition, replace(messages, partitions=None))

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
        except BaseException as err:
            lost = {s.missing for s in self._senders.values() if s.missing}
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
