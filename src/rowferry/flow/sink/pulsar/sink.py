"""The Pulsar sink: tasks send rows, the driver makes topics and sends DDLs and watermarks.

Rows are visible as soon as they are sent. A micro-batch that is carried out again sends them again,
under the same producer's name and with the same sequence ids: brokers that deduplicate leave them
out, so that readers see each message once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Final
from urllib.parse import quote

from rowferry.change.plan import Plan, Topic
from rowferry.errors import OptionsConflict, RowferryError, SinkUnavailable
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.pulsar.client import PulsarClient
from rowferry.flow.sink.pulsar.lane import Lane, Outbox
from rowferry.flow.sink.pulsar.options import (
    TOPIC_FORM,
    OAuthOptions,
    PulsarOptions,
    read_settings,
)
from rowferry.flow.sink.pulsar.sequence import Sequence as Ids
from rowferry.flow.sink.pulsar.topics import PulsarTopics, lane_name, refuse_unless
from rowferry.flow.sink.queue.delivered import gone
from rowferry.flow.sink.queue.lineage import LineageSink, SendLineage
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import PlaceKeys
from rowferry.spec.uri_form import UriForm, UriPart

LOG: Final = logging.getLogger("rowferry.sink.pulsar")
_AT_ONCE: Final = 8  # producers that are begun side by side


class PulsarSink(LineageSink):
    """Messages in topics of Pulsar; the partition of each row is the dispatch rules' answer."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        counts_messages=True,
        movable=True,
        kind="pulsar",
        section="sink.pulsar-config",
        takes_partial_rows=True,
        takes_raw_changes=True,
        has_topics=True,
        place_keys=PlaceKeys(
            ("service-url", "topic"),
            ("service-url", "topic"),
            lambda parameters: f"{parameters['service-url']}/{quote(parameters['topic'], ':/')}",
        ),
        form=UriForm(
            "Pulsar",
            address=UriPart("Brokers", "broker-1:6650,broker-2:6650"),
            path=UriPart("Topic", "persistent://public/default/orders"),
            login=False,
        ),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (PulsarOptions.TABLE, OAuthOptions.TABLE)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options; opens no connection.

        Raises:
            BadUri: the URI names no topic, or no broker.
            BadOption, OptionsConflict, BadDispatchRule: an option or a rule cannot be used.
        """
        self._settings = read_settings(spec)
        options = self._settings.options
        if options.deduplication == "required" and not self._settings.web_url:
            raise OptionsConflict(
                "deduplication = required needs web-service-url: nobody else tells whether it is on"
            )
        one_table = codec.TRAITS.one_table_per_topic
        super().__init__(
            codec,
            DispatchRules(spec, self._settings.topic, one_table, TOPIC_FORM),
            "Pulsar",
            self._settings.at,
            options.partition_num or None,
            options.auto_create_topic,
        )
        self._changefeed = spec.changefeed_id
        self._library: PulsarClient | None = None
        self._managed: PulsarTopics | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._outbox: Outbox | None = None

    # --- before a run ----------------------------------------------------------------------------

    def probe(self, owner: Owner) -> None:
        """Ask the brokers whether this changefeed may write here; makes no topic.

        Without an admin interface only a connection is tried: brokers that make topics by
        themselves would make those that one asks for.

        Raises:
            SinkUnavailable, SinkUnwritable: no broker answers, or it refuses the login or the
                right to write.
            TopicRefused: a topic is missing or too small, or cannot be made.
        """
        self._asked().connect()
        if self._asked().is_managed:
            super().probe(owner)

    # --- a micro-batch ---------------------------------------------------------------------------

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""
        met: set[str] = set()
        with self._sending(met):
            for packet in packets:
                met.add(packet.topic.name)
                lane = self._lanes.get((packet.topic.name, packet.partition))
                if lane is None:
                    lane = self._begin(packet.topic, packet.partition, packet.micro_batch, "rows")
                lane.add(packet.messages)

    def close(self) -> None:
        """Let connections go."""
        self._drop_lanes()
        if self._managed is not None:
            self._managed.close()
        if self._library is not None:
            self._library.close()
        self._managed = self._library = None

    # --- pieces ----------------------------------------------------------------------------------

    def _client(self) -> PulsarClient:
        if self._library is None:
            self._library = PulsarClient(self._settings)
        return self._library

    def _asked(self) -> PulsarTopics:
        if self._managed is None:
            self._managed = PulsarTopics(self._settings, self._client())
        return self._managed

    def _partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        return self._asked().partition_counts(wanted)

    def _check_missing(self, missing: Mapping[str, int]) -> None:
        """Whatever can be made can be written."""

    def _topic(self, name: str, partitions: int, limit: int) -> Topic:
        return Topic(name, partitions, limit, whole=name in self._asked().whole)

    def _meet(self, wanted: Mapping[str, int | None], counts: Mapping[str, int]) -> None:
        known = set(self._topics)
        super()._meet(wanted, counts)
        if self._settings.options.deduplication == "off":
            return
        for name in self._topics.keys() - known:
            topic = self._topics[name]
            lanes = [lane_name(name, n, topic.whole) for n in range(topic.partitions)]
            why = self._asked().deduplicate(name, lanes)
            if self._settings.options.deduplication == "required":
                refuse_unless(why, name)
            if why:
                LOG.warning(
                    "changefeed %s: deduplication of topic %s is off (%s): after a failure, "
                    "messages may be there twice",
                    *(self._changefeed, name, why),
                )

    def _send(self, plan: Plan, topic: Topic, partitions: Sequence[int], messages: Encoded) -> None:
        used = replace(topic, lineage=self._known_by(plan))
        new = [n for n in partitions if (topic.name, n) not in self._lanes]

        def begin(number: int) -> Lane:
            return self._begin(used, number, plan.micro_batch, "marks")

        if len(new) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(new))) as pool:
                list(pool.map(begin, new))
        for number in partitions:
            lane = self._lanes.get((topic.name, number)) or begin(number)
            lane.add(replace(messages, partitions=None))

    def _begin(self, topic: Topic, partition: int, micro_batch: int, kind: str) -> Lane:
        """Return a new lane; `kind` tells what tasks send from what the driver does."""
        lineage = (
            SendLineage.parse(topic.lineage) if topic.lineage else SendLineage("", micro_batch - 1)
        )
        producer = f"rowferry:{self._changefeed}:{lineage.token}:{kind}" if lineage.token else None
        if self._outbox is None:
            self._outbox = Outbox(self._settings, self._client())
        lane = Lane(
            self._settings,
            self._client(),
            self._outbox,
            topic,
            partition,
            producer,
            Ids(lineage, micro_batch),
            self._codec.TRAITS.binary_keys,
            self.counts,
        )
        self._lanes[topic.name, partition] = lane
        return lane

    @contextmanager
    def _sending(self, needed: Collection[str]) -> Iterator[None]:
        """Wait at the end until all is durable; on an error, look for topics that were deleted."""
        self._outbox = Outbox(self._settings, self._client())
        try:
            yield
            for lane in self._lanes.values():
                lane.finish()
            self._outbox.drain()
        except BaseException as err:
            missing = self._outbox.missing
            used = {name for name, _ in self._lanes} | ({missing} if missing else set())
            self._drop_lanes()
            if isinstance(err, SinkUnavailable):
                lost = self._lost(used, missing)
                for name in sorted(lost.intersection(needed)):
                    raise gone(name, self._at) from None
                self._topics = {n: t for n, t in self._topics.items() if n not in lost}
            raise
        self._drop_lanes()

    def _lost(self, used: set[str], missing: str) -> set[str]:
        """Return the topics that are not there any more, as far as that can be known."""
        if not self._asked().is_managed:
            return {missing} if missing else set()
        try:
            return used - self._partition_counts(used).keys()
        except RowferryError:
            return set()  # what failed first says more

    def _drop_lanes(self) -> None:
        """End all producers: nothing arrives late, and another process may go on."""
        lanes, self._lanes = list(self._lanes.values()), {}
        if len(lanes) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(lanes))) as pool:
                list(pool.map(Lane.close, lanes))
        elif lanes:
            lanes[0].close()
