"""What a queueing service must be able to do: say which topics it has, and store batches in order.

A topic is whatever the service keeps messages in: a stream, a queue or some of them. Its partitions
each keep their order. Every message has an id that a replay gives it again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.queue.topic_sink import AskedTopics
from rowferry.flow.sink.web_calls import on_one_line

ROWS, MARKS = "rows", "marks"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class LaneName:
    """The messages of one micro-batch for one partition of a topic, and who sends them.

    Attributes:
        lineage: tells this plan from another one of the same number.
        exact: a replay sends the same messages; else they have names that no replay has.
        kind: what tasks send, or what the driver sends behind it.
        partitions: how many of the topic are in use.
        epoch: of whoever sends; not part of the name.
    """

    changefeed: str
    lineage: str
    exact: bool
    micro_batch: int
    kind: str
    topic: str
    partition: int
    partitions: int
    epoch: int

    @property
    def writer(self) -> str:
        """Who sends this kind of messages to the partition, one micro-batch after the other."""
        return f"{self.changefeed}:{self.kind}"

    @property
    def run(self) -> str:
        """Which micro-batch of this writer it is."""
        return f"{self.lineage}:{self.micro_batch}"

    def id_of(self, place: int) -> str:
        """Return the id of one message: no other one of its topic has it."""
        return f"{self.writer}:{self.run}:{self.partition}:{place}"

    def place_of(self, message_id: str) -> int | None:
        """Return the place of a message of this lane; None: it is another one's."""
        lead, _, place = message_id.rpartition(":")
        own = lead == f"{self.writer}:{self.run}:{self.partition}"
        return int(place) if own and place.isdigit() else None


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of a lane that are sent at once.

    Attributes:
        first: the place of the first one in its lane.
        values: None: a message without a value (a tombstone).
        keys: None: the protocol has none.
    """

    lane: LaneName
    first: int
    values: list[bytes | None]
    keys: list[bytes | None]

    def ids(self) -> list[str]:
        """Return the ids of the messages."""
        return [self.lane.id_of(self.first + n) for n in range(len(self.values))]

    def behind(self, count: int) -> Batch:
        """Return what is left without the first messages."""
        return Batch(self.lane, self.first + count, self.values[count:], self.keys[count:])


class QueueService(AskedTopics, Protocol):
    """A connection to a service; it is made when it is first used.

    Attributes:
        most_messages: how many messages a batch may have.
        most_bytes: how long keys and values of a batch may be together; one message may be longer.
        message_bytes: what counts for each message beside its key and value.
        width: how many lanes are sent side by side; above 1, `send` is called by several threads.
    """

    most_messages: ClassVar[int]
    most_bytes: ClassVar[int]
    message_bytes: ClassVar[int]
    width: int

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts.

        Raises:
            SinkUnavailable, SinkUnwritable: no answer, or a refusal.
        """

    def stored(self, lane: LaneName) -> int:
        """Return how many of a lane's messages are there; 0 also where nobody can tell."""

    def send(self, batch: Batch) -> None:
        """Store messages, in their order; on return all of them are durable.

        On raise some may be, and all behind the first that is not may be missing or not.

        Raises:
            SinkUnavailable, SinkUnwritable: no answer, or a refusal.
            Fenced: a newer process of the changefeed has sent to this partition.
        """

    def close(self) -> None:
        """Let connections go: nothing arrives later. On repeat: nothing."""


def id_of_copy(message_id: str) -> str:
    """Return an id for a message that is stored, and follows again behind one that was missing.

    Under its own id it would pass for a repeat, and whoever drops those would end with the older
    state before it. Each is chosen at random: a replay's copies must count, too.
    """
    return f"{message_id}~{secrets.token_hex(4)}"


def until_stored(attempt: Callable[[], str], wait_s: float, doing: str) -> None:
    """Call `attempt` until it returns "", with growing pauses; else it returns why not.

    Args:
        attempt: sends what is missing.
        wait_s: for how long.
        doing: where that is, and what is done there, for the words of the error.

    Raises:
        SinkUnavailable: not all was stored in time.
    """
    end, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
    while why := attempt():
        if time.monotonic() + pause > end:
            raise SinkUnavailable(f"{doing}: {on_one_line(why)}")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
