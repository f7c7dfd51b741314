"""Amazon SQS as a sink: a FIFO queue for each topic, a message group for each partition.

SQS keeps the order of a group, and drops messages whose deduplication id it has seen within five
minutes. A replay that comes later stores them again: readers know them by that id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from rowferry.errors import SinkUnavailable, SinkUnwritable, TopicRefused
from rowferry.flow.sink.contract import SinkTraits
from rowferry.flow.sink.queue.amazon import (
    AmazonClient,
    AmazonError,
    AmazonOptions,
    is_for_now,
    packed,
)
from rowferry.flow.sink.queue.amazon_sink import REGION, AmazonSink, AmazonTopics
from rowferry.flow.sink.queue.service import Batch, id_of_copy
from rowferry.flow.sink.queue.service_sink import queue_traits
from rowferry.flow.sink.queue.topic_sink import DEFAULT_PARTITIONS
from rowferry.moment import moment
from rowferry.spec.option import OptionTable

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,75}")
_TAG: Final = "rowferry-partitions"
_LONGEST_ID: Final = 128
_OVERHEAD: Final = 2048  # bytes of a message's attributes, at most
# What a message may hold by SQS's rules; everything else goes in base64.
_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


class SqsOptions(AmazonOptions, section="sink.sqs-config"):
    """The options of the SQS sink."""


class SqsSink(AmazonSink[SqsOptions]):
    """Messages in FIFO queues of Amazon SQS."""

    SERVICE, HOST, LEAD = "Amazon SQS", "sqs", "AmazonSQS"
    OPTIONS = SqsOptions
    TRAITS: ClassVar[SinkTraits] = queue_traits(
        "Amazon SQS", "sink.sqs-config", REGION, login=False
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (SqsOptions.TABLE,)

    def _connect(self) -> SqsQueues:
        return SqsQueues(self._client, self._options)


class SqsQueues(AmazonTopics[SqsOptions]):
    """The queues of one region; see `QueueService`."""

    most_messages: ClassVar[int] = 10
    most_bytes: ClassVar[int] = 180_000  # of 256 KiB, which base64 may fill
    message_bytes: ClassVar[int] = _OVERHEAD
    missing = "QueueDoesNotExist"

    def __init__(self, client: AmazonClient, options: SqsOptions) -> None:
        super().__init__(client, options)
        self._urls: dict[str, str] = {}

    # --- topics ----------------------------------------------------------------------------------

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with their partition counts.

        A queue has any number of groups: how many are in use stands in a tag.
        """
        counts = {}
        for topic in wanted:
            if not self._find(topic):
                continue
            content = {"QueueUrl": self._urls[topic]}
            answer = self._client.granted("ListQueueTags", content, f"asking for queue {topic}")
            known = str((answer.get("Tags") or {}).get(_TAG, ""))
            usual = self._options.partition_num or DEFAULT_PARTITIONS
            counts[topic] = int(known) if known.isdigit() else usual
        return counts

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return when each queue was made."""
        return {
            topic: self._attribute(topic, "CreatedTimestamp") if self._find(topic) else None
            for topic in topics
        }

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a message may be, also where it goes in base64."""
        most = self._options.max_message_bytes
        limits = {}
        for topic in topics:
            allowed = int(self._attribute(topic, "MaximumMessageSize") or most)
            limits[topic] = max(min(most, (allowed - _OVERHEAD) * 3 // 4), 1)
        return limits

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make queues; those that are there already stay as they are.

        Raises:
            TopicRefused: SQS refuses one, with its words.
        """
        self.check_create(wanted)
        for topic, partitions in wanted.items():
            if self._find(topic):
                continue
            content = {
                "QueueName": _queue(topic),
                "Attributes": {
                    "FifoQueue": "true",
                    "DeduplicationScope": "messageGroup",
                    "FifoThroughputLimit": "perMessageGroupId",
                },
                "tags": {_TAG: str(partitions)},
            }
            try:
                self._client.granted("CreateQueue", content, f"creating queue {_queue(topic)}")
            except SinkUnwritable as err:
                raise TopicRefused(f"topic {topic!r} cannot be created: {err}") from None

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Refuse names that no queue can have; makes nothing.

        Raises:
            TopicRefused: a topic's name is too long, or has a dot.
        """
        for topic in wanted:
            if not _NAME.fullmatch(topic):
                raise TopicRefused(
                    f"topic {topic!r} cannot be created: a queue's name has letters, digits, - and "
                    "_ only, 75 of them at most; name another topic, or add a dispatcher"
                )
            self._find(topic)

    def check_write(self, topics: Iterable[str]) -> None:
        """Whoever may ask for a queue may not be allowed to send; the first message tells."""
        for topic in topics:
            self._find(topic)

    # --- messages --------------------------------------------------------------------------------

    def send(self, batch: Batch) -> None:
        """Send a batch. Where SQS stores a part, all from the first missing one follow again.

        Those behind it that were stored have another id then, so that neither SQS nor readers
        take them for repeats.
        """
        lane = batch.lane
        doing = f"sending to queue {_queue(lane.topic)}, group {lane.partition}"
        entries = [self._entry(batch, place) for place in range(len(batch.values))]

        def attempt() -> str:
            nonlocal entries
            content = {"QueueUrl": self._url(lane.topic), "Entries": entries}
            moment("send to a FIFO queue")
            answer = self._sent("SendMessageBatch", content, doing)
            if isinstance(answer, str):
                return answer
            failed = {f["Id"]: f for f in answer.get("Failed") or ()}
            if not failed:
                return ""
            first = next(n for n, e in enumerate(entries) if e["Id"] in failed)
            why = failed[entries[first]["Id"]]
            words = f"{why.get('Code')}: {why.get('Message')}"
            if why.get("SenderFault") and not is_for_now(str(why.get("Code"))):
                raise SinkUnwritable(f"{self._client.at}, {doing}: {words}; correct the option")
            entries = entries[first:]
            for entry in entries:
                if entry["Id"] not in failed:
                    own_id = lane.id_of(batch.first + int(entry["Id"]))
                    _name(entry, id_of_copy(own_id))
            return words

        self._client.until_stored(attempt, doing)

    # --- pieces ----------------------------------------------------------------------------------

    def _entry(self, batch: Batch, place: int) -> dict[str, Any]:
        value, key = batch.values[place], batch.keys[place]
        about = {"rowferry-epoch": _string(str(batch.lane.epoch))}
        if key is not None:
            about["rowferry-key"] = {"DataType": "Binary", "BinaryValue": packed(key)}
        body = _as_text(value or b"")
        if value is None:
            about["rowferry-no-value"] = _string("true")
            body = "-"  # SQS has no empty messages
        elif body is None:
            about["rowferry-encoding"] = _string("base64")
            body = packed(value)
        entry = {
            "Id": str(place),
            "MessageBody": body,
            "MessageGroupId": str(batch.lane.partition),
            "MessageAttributes": about,
        }
        _name(entry, batch.lane.id_of(batch.first + place))
        return entry

    def _find(self, topic: str) -> bool:
        """Return whether a queue is there, and know its address."""
        try:
            answer = self._client.call("GetQueueUrl", {"QueueName": _queue(topic)})
        except AmazonError as err:
            self._urls.pop(topic, None)
            if self.missing in err.code or "NonExistentQueue" in err.code:
                return False
            raise self._client.error(err, f"asking for queue {_queue(topic)}") from None
        self._urls[topic] = str(answer["QueueUrl"])
        return True

    def _url(self, topic: str) -> str:
        if topic not in self._urls and not self._find(topic):
            raise SinkUnavailable(f"{self._client.at}: there is no queue {_queue(topic)}")
        return self._urls[topic]

    def _attribute(self, topic: str, name: str) -> str:
        content = {"QueueUrl": self._url(topic), "AttributeNames": [name]}
        answer = self._client.granted("GetQueueAttributes", content, f"asking for queue {topic}")
        return str((answer.get("Attributes") or {}).get(name, ""))


def _queue(topic: str) -> str:
    return f"{topic}.fifo"


def _name(entry: dict[str, Any], message_id: str) -> None:
    """Give a message its id: one for SQS, one for readers."""
    entry["MessageDeduplicationId"] = _short(message_id)
    entry["MessageAttributes"]["rowferry-id"] = _string(message_id)


def _string(words: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": words}


def _short(message_id: str) -> str:
    """Return an id that SQS takes."""
    if len(message_id) <= _LONGEST_ID:
        return message_id
    return hashlib.sha256(message_id.encode()).hexdigest()


def _as_text(value: bytes) -> str | None:
    """Return a value as a text that SQS takes; None: it is none."""
    try:
        words = value.decode()
    except UnicodeDecodeError:
        return None
    return words if _TEXT.fullmatch(words) else None
