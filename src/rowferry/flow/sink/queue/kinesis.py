"""Amazon Kinesis as a sink: a data stream for each topic, some hash keys for each partition.

Each record names its hash key, so that a partition's records come to one shard, in their order. A
record has no place for a key of its own, and Kinesis looks for no repeats: the partition key is the
message's id, by which readers know them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from rowferry.errors import OptionsConflict, SinkUnavailable, SinkUnwritable, TopicRefused
from rowferry.flow.encode.contract import Codec
from rowferry.flow.sink.contract import SinkTraits
from rowferry.flow.sink.queue.amazon import AmazonError, AmazonOptions, packed
from rowferry.flow.sink.queue.amazon_sink import REGION, AmazonSink, AmazonTopics
from rowferry.flow.sink.queue.service import Batch, id_of_copy
from rowferry.flow.sink.queue.service_sink import queue_traits
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_HASH_KEYS: Final = 1 << 128
_LONGEST_KEY: Final = 256
_LARGEST: Final = (1 << 20) - _LONGEST_KEY
_MADE_S: Final = 120.0  # for a stream to become active
_LOOK_S: Final = 0.2


class KinesisOptions(AmazonOptions, section="sink.kinesis-config"):
    """The options of the Kinesis sink."""


class KinesisSink(AmazonSink[KinesisOptions]):
    """Records in data streams of Amazon Kinesis."""

    SERVICE, HOST, LEAD = "Amazon Kinesis", "kinesis", "Kinesis_20131202"
    OPTIONS = KinesisOptions
    TRAITS: ClassVar[SinkTraits] = queue_traits(
        "Amazon Kinesis", "sink.kinesis-config", REGION, login=False
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (KinesisOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        """Read the options, as for every service.

        Raises:
            OptionsConflict: the protocol needs a key beside the value.
        """
        if codec.TRAITS.binary_keys:
            raise OptionsConflict(
                f"protocol {spec.protocol} tells a part of each change in the message's key, and "
                f"{spec.sink.scheme} has none; use one whose values say all, such as canal-json"
            )
        super().__init__(spec, codec)

    def _connect(self) -> KinesisStreams:
        return KinesisStreams(self._client, self._options)


class KinesisStreams(AmazonTopics[KinesisOptions]):
    """The data streams of one region; see `QueueService`."""

    most_messages: ClassVar[int] = 500
    most_bytes: ClassVar[int] = 4 << 20
    message_bytes: ClassVar[int] = _LONGEST_KEY
    missing = "ResourceNotFound"

    # --- topics ----------------------------------------------------------------------------------

    def partition_counts(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return those of these topics that are there, with how many shards are open."""
        summaries = {topic: self._summary(topic) for topic in wanted}
        return {
            t: int(answer["OpenShardCount"])
            for t, answer in summaries.items()
            if answer is not None
        }

    def ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return when each stream was made."""
        summaries = {topic: self._summary(topic) for topic in topics}
        return {
            topic: None if answer is None else str(answer.get("StreamCreationTimestamp", ""))
            for topic, answer in summaries.items()
        }

    def largest_messages(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how long a record may be."""
        return dict.fromkeys(topics, min(self._options.max_message_bytes, _LARGEST))

    def create(self, wanted: Mapping[str, int]) -> None:
        """Make streams, and wait until they take records; those that are there stay as they are.

        Raises:
            TopicRefused: Kinesis refuses one, with its words.
            SinkUnavailable: one is not there in time.
        """
        self.check_create(wanted)
        for topic, shards in wanted.items():
            content = {"StreamName": topic, "ShardCount": shards}
            try:
                self._client.call("CreateStream", content)
            except AmazonError as err:
                if "ResourceInUse" not in err.code:  # somebody else makes it
                    refusal = self._client.error(err, f"creating stream {topic}")
                    if isinstance(refusal, SinkUnwritable):
                        refusal = TopicRefused(f"topic {topic!r} cannot be created: {refusal}")
                    raise refusal from None
        end = time.monotonic() + _MADE_S
        for topic in wanted:
            while (self._summary(topic) or {}).get("StreamStatus") != "ACTIVE":
                if time.monotonic() > end:
                    raise SinkUnavailable(f"{self._client.at}: stream {topic} does not begin")
                time.sleep(_LOOK_S)

    def check_create(self, wanted: Mapping[str, int]) -> None:
        """Refuse names that no stream can have; makes nothing.

        Raises:
            TopicRefused: a topic's name is too long.
        """
        for topic in wanted:
            if not _NAME.fullmatch(topic):
                raise TopicRefused(
                    f"topic {topic!r} cannot be created: a stream's name has letters, digits, '_', "
                    "'-' and '.' only, 128 of them at most"
                )
            self._summary(topic)

    def check_write(self, topics: Iterable[str]) -> None:
        """Whoever may ask for a stream may not be allowed to write; the first record tells."""
        for topic in topics:
            self._summary(topic)

    # --- messages --------------------------------------------------------------------------------

    def send(self, batch: Batch) -> None:
        """Put a batch. Where Kinesis stores a part, all from the first missing one follow again.

        Those behind it that were stored have another id then, so that readers do not take them
        for repeats. The hash key decides the shard, not the id.
        """
        lane = batch.lane
        doing = f"sending to stream {lane.topic}, partition {lane.partition}"
        hash_key = str(lane.partition * _HASH_KEYS // lane.partitions)
        ids = batch.ids()
        records: list[dict[str, Any]] = [
            {
                "Data": packed(value or b""),
                "PartitionKey": message_id[-_LONGEST_KEY:],
                "ExplicitHashKey": hash_key,
            }
            for message_id, value in zip(ids, batch.values, strict=True)
        ]

        def attempt() -> str:
            nonlocal ids, records
            moment("put records")
            content = {"StreamName": lane.topic, "Records": records}
            answer = self._sent("PutRecords", content, doing)
            if isinstance(answer, str):
                return answer
            refused = [n for n, one in enumerate(answer["Records"]) if one.get("ErrorCode")]
            if not refused:
                return ""
            first = answer["Records"][refused[0]]
            for n in set(range(refused[0], len(records))).difference(refused):
                records[n]["PartitionKey"] = id_of_copy(ids[n])[-_LONGEST_KEY:]
            ids, records = ids[refused[0] :], records[refused[0] :]
            return f"{first['ErrorCode']}: {first.get('ErrorMessage', '')}"

        self._client.until_stored(attempt, doing)

    def _summary(self, topic: str) -> dict[str, Any] | None:
        """Return what a stream is; None: there is none."""
        try:
            answer = self._client.call("DescribeStreamSummary", {"StreamName": topic})
        except AmazonError as err:
            if self.missing in err.code:
                return None
            raise self._client.error(err, f"asking for stream {topic}") from None
        return dict(answer["StreamDescriptionSummary"])
