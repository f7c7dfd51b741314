"""The ledger of an exactly-once changefeed: a compacted topic that says what was committed.

Partition 0 belongs to the driver, partition n + 1 to lane n. A record is written in the same
transaction as the messages that it speaks of, and replaces the one before it: only the last record
of a partition counts. So it is found by a look at the partition's end, however long the topic is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from rowferry.errors import SinkUnavailable, TargetLost
from rowferry.flow.sink.kafka.client import Troubles, as_error, options_checked
from rowferry.flow.sink.kafka.options import KafkaSettings
from rowferry.moment import moment

DRIVER: Final = 0  # the driver's partition
WHOLE: Final = -1  # all messages of a segment
# Old records go early: nobody reads them.
CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_WINDOW: Final = 16  # offsets at a partition's end that are read first; what ends a transaction too
_WIDER: Final = 16
_SOON: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class PlanLineage(NamedTuple):
    """Whose plan it is. Plans of a later run, and plans made anew, have a greater one.

    Attributes:
        epoch: of the run that planned.
        discards: how many plans that run had discarded before.
        run: chosen at random by that run, so that no other changefeed's can be equal.
    """

    epoch: int = 0
    discards: int = 0
    run: str = ""

    @classmethod
    def parse(cls, text: str) -> PlanLineage:
        """Read what `str` wrote."""
        epoch, discards, run = text.split(".")
        return cls(int(epoch), int(discards), run)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.discards}.{self.run}"

    @property
    def rank(self) -> tuple[int, int]:
        """What decides which of two is later."""
        return self.epoch, self.discards


class Committed(NamedTuple):
    """How far a partition's messages of a micro-batch are committed.

    Attributes:
        segment: all segments before it are, as far as they have messages for this partition.
        messages: how many of this segment's are, `WHOLE`: all.
    """

    segment: int
    messages: int = WHOLE


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """What a lane has committed of its last micro-batch, by topic and partition."""

    changefeed: str
    lineage: PlanLineage
    micro_batch: int
    done: Mapping[tuple[str, int], Committed] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its form in the ledger."""
        done: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, partition), far in self.done.items():
            done.setdefault(topic, {})[partition] = tuple(far)  # type: ignore[assignment]
        form = {"changefeed": self.changefeed, "lineage": str(self.lineage)}
        return _text({**form, "micro-batch": self.micro_batch, "done": done})

    @classmethod
    def of(cls, data: bytes) -> LaneRecord:
        """Read what `to_bytes` wrote."""
        form = json.loads(data)
        done = {
            (topic, int(partition)): Committed(*far)
            for topic, partitions in form["done"].items()
            for partition, far in partitions.items()
        }
        lineage = PlanLineage.parse(form["lineage"])
        return cls(form["changefeed"], lineage, int(form["micro-batch"]), done)


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Who may write, and the last micro-batch whose schema changes and watermark were committed.

    Attributes:
        epoch: of the owner; whoever has a smaller one was replaced.
        run: chosen at random by the owner.
        floor: plans below it were discarded.
        lineage, micro_batch: of the last plan that was announced to the end.
    """

    changefeed: str
    epoch: int
    run: str
    floor: tuple[int, int] = (0, 0)
    lineage: PlanLineage = PlanLineage()
    micro_batch: int = 0

    def to_bytes(self) -> bytes:
        """Return its form in the ledger."""
        who = {"changefeed": self.changefeed, "epoch": self.epoch, "run": self.run}
        last = {"lineage": str(self.lineage), "micro-batch": self.micro_batch}
        return _text({**who, "floor": self.floor, **last})

    @classmethod
    def of(cls, data: bytes) -> OwnerRecord:
        """Read what `to_bytes` wrote."""
        form = json.loads(data)
        first, second = form["floor"]
        return cls(
            form["changefeed"],
            int(form["epoch"]),
            form["run"],
            (int(first), int(second)),
            PlanLineage.parse(form["lineage"]),
            int(form["micro-batch"]),
        )


class LedgerTopic:
    """Reads the last committed records. Not for several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Make a reader, which connects when it is first asked."""
        self.topic = settings.ledger
        self._timeout_s = 3 * settings.timeout_s
        self._troubles = Troubles(settings.connection["bootstrap.servers"])
        own: dict[str, Any] = {
            **settings.connection,
            "group.id": "rowferry-ledger",  # nothing is stored under it
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
            "error_cb": self._troubles,
            "log_level": 0,
        }
        with options_checked():
            self._consumer = Consumer(own)

    def owner(self) -> OwnerRecord | None:
        """Return the driver's last record; None: there never was one."""
        return self.read(())[0]

    def read(self, lanes: Iterable[int]) -> tuple[OwnerRecord | None, dict[int, LaneRecord]]:
        """Return the driver's last record and those of some lanes; lanes without one are left out.

        Raises:
            TargetLost: the ledger is gone, or holds what is none of a ledger.
            SinkUnavailable, SinkUnwritable: no broker answers, or it refuses the right to read.
        """
        records = self._last([DRIVER, *(lane + 1 for lane in lanes)])
        try:
            owner = OwnerRecord.of(records.pop(DRIVER)) if DRIVER in records else None
            return owner, {number - 1: LaneRecord.of(data) for number, data in records.items()}
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            raise TargetLost(
                f"Kafka at {self._troubles.at}: topic {self.topic} holds something else than "
                "this changefeed's ledger; name another one by ledger-topic"
            ) from None

    def close(self) -> None:
        """Let the connection go."""
        self._consumer.close()

    def _last(self, partitions: Iterable[int]) -> dict[int, bytes]:
        moment("read ledger")
        last: dict[int, bytes] = {}
        left = dict.fromkeys(partitions, _WINDOW)
        end = time.monotonic() + self._timeout_s
        while left:
            starts = {}
            for number, window in left.items():
                first, behind = self._bounds(number, end)
                starts[number] = max(first, behind - window)
                if starts[number] == first:
                    left[number] = 0  # no more than this is there
            last |= self._from(starts, end)
            left = {n: window * _WIDER for n, window in left.items() if window and n not in last}
        return last

    def _bounds(self, number: int, end: float) -> tuple[int, int]:
        """Return the first offset of a partition, and the one behind its last committed record.

        Brokers that have just made a topic, or moved it, say for a moment that they lack it.
        """
        place = TopicPartition(self.topic, number)
        while True:
            try:
                bounds = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
            except KafkaException as err:
                if err.args[0].code() in _SOON and time.monotonic() < end:
                    time.sleep(0.05)
                    continue
                raise as_error(err.args[0], f"reading {self.topic}", self._troubles) from None
            if bounds is not None:
                return bounds
            raise SinkUnavailable(f"Kafka at {self._troubles.at}, reading {self.topic}: no answer")

    def _from(self, starts: Mapping[int, int], end: float) -> dict[int, bytes]:
        """Return the last record of each partition at or behind an offset."""
        last: dict[int, bytes] = {}
        left = set(starts)
        with self._asking():
            self._consumer.assign([TopicPartition(self.topic, n, o) for n, o in starts.items()])
        try:
            while left:
                with self._asking():
                    one = self._consumer.poll(0.1)
                if one is not None:
                    error, number = one.error(), int(one.partition() or 0)
                    if error is None:
                        last[number] = one.value() or b""
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(number)
                    else:
                        raise as_error(error, f"reading {self.topic}", self._troubles)
                if left and time.monotonic() > end:
                    raise SinkUnavailable(
                        f"Kafka at {self._troubles.at}, reading {self.topic}: no answer"
                    )
        finally:
            with self._asking():
                self._consumer.unassign()
        return last

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as err:
            raise as_error(err.args[0], f"reading {self.topic}", self._troubles) from None


def _text(form: Mapping[str, Any]) -> bytes:
    return json.dumps(form, separators=(",", ":")).encode()
