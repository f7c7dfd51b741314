"""Sinks of queueing services: each lane's messages in batches, with ids that a replay gives again.

Rows are visible as soon as they are sent. A micro-batch that is carried out again sends the same
messages with the same ids: a service that looks at them stores each once, and readers of the
others can tell.
"""

from __future__ import annotations

import secrets
import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rowferry.change.event_counts import CALLS, SENT_BYTES
from rowferry.change.plan import Plan, Topic
from rowferry.errors import BadUri, OptionsConflict, RowferryError, SinkUnavailable
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, Packet, SinkTraits
from rowferry.flow.sink.lanes import in_lanes
from rowferry.flow.sink.queue.delivered import gone
from rowferry.flow.sink.queue.lineage import LineageSink
from rowferry.flow.sink.queue.service import MARKS, ROWS, Batch, LaneName, QueueService
from rowferry.flow.sink.queue.topic_sink import DEFAULT_PARTITIONS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option, Section, flag, option, size, text, whole
from rowferry.spec.uri_form import UriForm, UriPart


class QueueOptions(Section, section="sink"):
    """What every queueing service has: each names its section."""

    partition_num = option(
        whole(1, 10_000),
        0,
        "How many partitions of each topic are written; absent: as many as the topic has, and "
        f"{DEFAULT_PARTITIONS} where the topic is created. The count that a topic had when the "
        "changefeed first wrote to it stays.",
        uri=True,
        alterable=False,
    )
    auto_create_topic = option(flag(), True, "Create topics that are missing.", uri=True)
    max_message_bytes = option(
        size(1024, 512 << 20),
        1 << 20,
        "The largest message. Where the service takes less, that counts.",
        uri=True,
    )


def certificate() -> Option[str]:
    """Return the option of a client's certificate; `private_key` belongs to it."""
    return option(text(), "", "File of this client's certificate.", uri=True, names="path")


def private_key() -> Option[str]:
    """Return the option of the key of a client's certificate."""
    words = "File of the private key of that certificate."
    return option(text(), "", words, uri=True, names="path")


def refuse_half(cert: str, key: str) -> None:
    """Raise OptionsConflict where only one of a certificate and its key is given."""
    if bool(cert) != bool(key):
        raise OptionsConflict("cert and key belong together; give both or none")


def queue_traits(service: str, section: str, address: UriPart, *, login: bool = True) -> SinkTraits:
    """Return what is true of every queueing service; `address` is what its URI names first."""
    topic = UriPart("Topic", "orders")
    return SinkTraits(
        takes_files=False,
        needs_shuffle=True,
        counts_messages=True,
        movable=True,
        kind="queue",
        section=section,
        takes_partial_rows=True,
        takes_raw_changes=True,
        has_topics=True,
        form=UriForm(service, address=address, path=topic, login=login),
    )


class ServiceSink(LineageSink):
    """Messages in a queueing service; a module for each says how it stores them."""

    SERVICE: ClassVar[str]

    def __init__(self, spec: ChangefeedSpec, codec: Codec, options: QueueOptions, at: str) -> None:
        """Remember what settings amount to; opens no connection.

        Args:
            spec: the changefeed.
            codec: the protocol.
            options: what every service has.
            at: the service's address, for the words of errors.

        Raises:
            BadUri: the URI names no topic.
            BadDispatchRule: a rule cannot be used.
        """
        topic = spec.sink.path.strip("/")
        if not topic:
            raise BadUri(
                f"no topic is specified in sink-uri; write it as {spec.sink.scheme}://"
                f"{spec.sink.address}/topic"
            )
        super().__init__(
            codec,
            DispatchRules(spec, topic, codec.TRAITS.one_table_per_topic),
            self.SERVICE,
            at,
            options.partition_num or None,
            options.auto_create_topic,
        )
        self._changefeed = spec.changefeed_id
        self._epoch = 0
        self._connected: QueueService | None = None
        self._lanes: dict[tuple[str, int], _Lane] = {}

    @abstractmethod
    def _connect(self) -> QueueService:
        """Return a connection to the service; it need not be tried yet."""

    # --- a run -----------------------------------------------------------------------------------

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Connect, and make topics that are missing.

        Raises:
            TargetLost: a topic that got something is gone, or was made again.
        """
        self._epoch = owner.epoch
        super().open(owner, state)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order; on return all of them are durable."""
        met: set[str] = set()

        def work(packet: Packet, stop: threading.Event) -> None:
            met.add(packet.topic.name)
            topic, about = packet.topic, (packet.micro_batch, ROWS, packet.epoch)
            self._lane(topic, packet.partition, topic.lineage, *about).add(packet.messages, stop)

        with self._sending(met):
            in_lanes(packets, _lane_of, self._service().width, work)

    def close(self) -> None:
        """Let connections go."""
        service, self._connected = self._connected, None
        self._lanes = {}
        if service is not None:
            service.close()

    # --- pieces ----------------------------------------------------------------------------------

    def _service(self) -> QueueService:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def _asked(self) -> QueueService:
        return self._service()

    def _partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        return self._service().partition_counts(wanted)

    def _check_missing(self, missing: Mapping[str, int]) -> None:
        """Whatever can be made can be written."""

    def _send(self, plan: Plan, topic: Topic, partitions: Sequence[int], messages: Encoded) -> None:
        lineage = self._known_by(plan)
        about = (lineage, plan.micro_batch, MARKS, self._epoch)
        plain = replace(messages, partitions=None)
        for partition in partitions:
            self._lane(topic, partition, *about).add(plain, threading.Event())

    def _lane(
        self, topic: Topic, partition: int, lineage: str, micro_batch: int, kind: str, epoch: int
    ) -> _Lane:
        place = topic.name, partition
        if place not in self._lanes:
            # Without a lineage the content may be another one each time: so are its ids.
            token = lineage.partition(".")[0]
            name = LaneName(
                self._changefeed,
                token or secrets.token_hex(8),
                bool(token),
                micro_batch,
                kind,
                *place,
                topic.partitions,
                epoch,
            )
            self._lanes[place] = _Lane(self._service(), name, self.counts.add)
        return self._lanes[place]

    @contextmanager
    def _sending(self, needed: Collection[str]) -> Iterator[None]:
        """All is durable at the end; on an error, look for topics that were deleted."""
        self._lanes = {}
        try:
            yield
        except BaseException as err:
            used: dict[str, int] = {}
            for name, partition in self._lanes:
                used[name] = max(used.get(name, 0), partition + 1)
            self.close()  # nothing may arrive late
            if isinstance(err, SinkUnavailable):
                lost = self._lost(used)
                for name in sorted(lost.intersection(needed)):
                    raise gone(name, self._at) from None
                self._topics = {n: t for n, t in self._topics.items() if n not in lost}
            raise
        self._lanes = {}

    def _lost(self, used: Mapping[str, int]) -> set[str]:
        """Return the topics that lack a partition which was used, as far as that can be known."""
        try:
            counts = self._partition_counts(used)
        except RowferryError:
            return set()  # what failed first says more
        least = {name: 1 if self.loses_partitions else count for name, count in used.items()}
        return {name for name, count in least.items() if counts.get(name, 0) < count}


class _Lane:
    """Sends to one partition for one micro-batch, one batch after the other."""

    def __init__(self, service: QueueService, name: LaneName, count: Any) -> None:
        self._service, self._name, self._count = service, name, count
        self._next = 0
        self._stored: int | None = None

    def add(self, messages: Encoded, stop: threading.Event) -> None:
        """Send messages; those that are stored already are left out."""
        if self._stored is None:
            # Also asked where nothing of it can be there: a newer process may have sent since.
            stored = self._service.stored(self._name)
            self._stored = stored if self._name.exact else 0
        first, total = self._next, len(messages.values)
        self._next += total
        start = min(max(self._stored - first, 0), total)
        ends = _ends(messages.sizes, start, self._service)
        for end in ends:
            if stop.is_set():
                return  # another lane has failed
            part = slice(start, end)
            values = messages.values[part].to_pylist()
            keys: list[bytes | None] = [None] * len(values)
            if messages.keys is not None:
                keys = messages.keys[part].to_pylist()
            self._service.send(Batch(self._name, first + start, values, keys))
            self._count(f"{CALLS}.message", end - start)
            self._count(SENT_BYTES, messages.values[part].nbytes)
            start = end


def _lane_of(packet: Packet) -> tuple[str, int]:
    return packet.topic.name, packet.partition


def _ends(sizes: npt.NDArray[np.int64], start: int, service: QueueService) -> Iterator[int]:
    """Yield where each batch ends: at a service's limits, and with one message at least."""
    sums = np.cumsum(sizes + service.message_bytes)
    while start < len(sizes):
        before = int(sums[start - 1]) if start else 0
        fitting = int(np.searchsorted(sums, before + service.most_bytes, "right"))
        start = min(max(fitting, start + 1), start + service.most_messages)
        yield start
