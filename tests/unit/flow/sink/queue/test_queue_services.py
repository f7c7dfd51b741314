"""Sinks of queueing services without a server: ids, batches, partial answers, and bad input."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from nats.js.errors import ServiceUnavailableError

from rowferry.change.plan import Stretch
from rowferry.change.table import TableId
from rowferry.errors import (
    BadUri,
    MessageTooLarge,
    OptionsConflict,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TopicRefused,
)
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.queue import service_sink, sqs
from rowferry.flow.sink.queue.amazon import AmazonError
from rowferry.flow.sink.queue.delivered import DeliveredTopics
from rowferry.flow.sink.queue.jetstream import JetStreams, NatsOptions
from rowferry.flow.sink.queue.kinesis import KinesisOptions, KinesisStreams
from rowferry.flow.sink.queue.rabbitmq import RabbitMqOptions, RabbitQueues
from rowferry.flow.sink.queue.service import MARKS, ROWS, Batch, LaneName
from rowferry.flow.sink.queue.sqs import SqsOptions, SqsQueues
from rowferry.registry import CODECS, SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

LANE = LaneName("feed", "token", True, 7, ROWS, "orders", 1, 4, 3)
KEYS = "access-key=id&secret-access-key=word"


def batch(*values: bytes | None) -> Batch:
    return Batch(LANE, 5, list(values), [None] * len(values))


def test_an_id_tells_its_place() -> None:
    assert LANE.id_of(12) == "feed:rows:token:7:1:12"
    assert LANE.place_of(LANE.id_of(12)) == 12
    for other in ("feed:marks:token:7:1:12", "feed:rows:token:8:1:12", "feed:rows:x:7:1:12", ""):
        assert LANE.place_of(other) is None
    assert batch(b"a", b"b", b"c").behind(2).ids() == ["feed:rows:token:7:1:7"]
    assert LANE.writer != LaneName("feed", "token", True, 7, MARKS, "orders", 1, 4, 3).writer


@pytest.mark.parametrize(
    ("sizes", "start", "ends"),
    [([1, 1, 1, 1], 0, [3, 4]), ([9, 9, 9], 0, [1, 2, 3]), ([4, 4, 4], 1, [3]), ([], 0, [])],
)
def test_batches_end_at_the_limits(sizes: list[int], start: int, ends: list[int]) -> None:
    limits: Any = SimpleNamespace(most_messages=3, most_bytes=10, message_bytes=1)
    assert list(service_sink._ends(np.array(sizes, np.int64), start, limits)) == ends


class _Answers:
    """Stands for a service that stores only a part of a request, which no server does on demand."""

    at = "http://127.0.0.1:1"

    def __init__(self, *answers: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def call(self, action: str, content: dict[str, Any]) -> Any:
        if action == "GetQueueUrl":
            return {"QueueUrl": "http://127.0.0.1:1/orders.fifo"}
        items = content.get("Entries") or content["Records"]
        self.asked.append([dict(item) for item in items])
        return self.answers.pop(0)(items)

    def until_stored(self, attempt: Callable[[], str], doing: str) -> None:
        while attempt():
            pass


def _failing(*places: int, **about: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda entries: {
        "Failed": [{"Id": entries[n]["Id"], "Code": "InternalError", **about} for n in places]
    }


def test_sqs_sends_again_from_the_first_that_is_missing() -> None:
    client: Any = _Answers(_failing(1), _failing(), _failing())
    SqsQueues(client, SqsOptions.read({})).send(batch(b"a", b"b", b"c"))
    first, again = client.asked
    assert [e["MessageBody"] for e in again] == ["b", "c"]
    ids = [e["MessageDeduplicationId"] for e in first]
    missing, copy = (e["MessageDeduplicationId"] for e in again)
    assert missing == ids[1] and copy.startswith(f"{ids[2]}~")
    assert {e["MessageGroupId"] for e in first} == {"1"}
    named = [e["MessageAttributes"]["rowferry-id"]["StringValue"] for e in again]
    assert named == [missing, copy]


def test_sqs_stops_at_a_message_that_it_never_takes() -> None:
    client: Any = _Answers(_failing(0, SenderFault=True, Code="InvalidMessageContents"))
    with pytest.raises(SinkUnwritable, match="InvalidMessageContents"):
        SqsQueues(client, SqsOptions.read({})).send(batch(b"a"))


def test_what_is_no_text_goes_to_sqs_in_base64() -> None:
    client: Any = _Answers(_failing())
    SqsQueues(client, SqsOptions.read({})).send(batch("é\n".encode(), b"\xff", b"\x01", None))
    text, *packed, nothing = client.asked[0]
    assert text["MessageBody"] == "é\n" and "rowferry-encoding" not in text["MessageAttributes"]
    assert [base64.b64decode(e["MessageBody"]) for e in packed] == [b"\xff", b"\x01"]
    assert all("rowferry-encoding" in e["MessageAttributes"] for e in packed)
    assert "rowferry-no-value" in nothing["MessageAttributes"]


def test_an_id_is_never_too_long_for_sqs() -> None:
    assert len(sqs._short("x" * 500)) <= 128
    assert sqs._short("x" * 500) != sqs._short("x" * 501)


def test_kinesis_puts_again_from_the_first_that_is_missing() -> None:
    client: Any = _Answers(
        lambda records: {"Records": [{}, {"ErrorCode": "ProvisionedThroughputExceeded"}, {}]},
        lambda records: {"Records": [{}, {}]},
    )
    KinesisStreams(client, KinesisOptions.read({})).send(batch(b"a", b"b", b"c"))
    first, again = client.asked
    ids = batch(b"a", b"b", b"c").ids()
    assert [r["PartitionKey"] for r in first] == ids
    assert again[0] == first[1]
    assert again[1]["PartitionKey"].startswith(f"{ids[2]}~")
    assert again[1] == {**first[2], "PartitionKey": again[1]["PartitionKey"]}
    assert {int(r["ExplicitHashKey"]) for r in first} == {1 << 126}


class _Shards:
    """Stands for Kinesis with a stream whose shards are split and merged."""

    at = "http://127.0.0.1:1"
    wait_s = 1.0

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.throttles = False
        self.hash_keys: list[str] = []  # of the records that came

    def call(self, action: str, content: dict[str, Any]) -> Any:
        if action == "PutRecords":
            if self.throttles:
                raise AmazonError(500, "InternalFailure", "later")
            self.hash_keys += [record["ExplicitHashKey"] for record in content["Records"]]
            return {"Records": [{} for _ in content["Records"]]}
        facts = {"OpenShardCount": self.shards, "StreamCreationTimestamp": 7}
        return {"StreamDescriptionSummary": facts}

    def until_stored(self, attempt: Callable[[], str], doing: str) -> None:
        if why := attempt():
            raise SinkUnavailable(why)

    def error(self, err: AmazonError, doing: str) -> RowferryError:
        return SinkUnavailable(str(err))

    def close(self) -> None:
        pass


def test_a_stream_whose_shards_are_merged_is_no_other_stream() -> None:
    """Its hash keys are where they were: rows of a key stay in one shard, in their order."""

    def built(more: str = "") -> Any:
        sink = _built(f"kinesis://eu-central-1/orders?{KEYS}{more}", CODECS.load("canal-json"))
        sink._connect = lambda: KinesisStreams(service, sink._options)
        return sink

    def hash_keys(sink: Any) -> set[str]:
        (topic,) = sink._topics.values()
        service.hash_keys.clear()
        said = Encoded(pa.array([b"a"], pa.large_binary()))
        sink.deliver(Packet(0, n, topic, n, said, 1, 1) for n in range(topic.partitions))
        return set(service.hash_keys)

    service: Any = _Shards(4)
    sink = built()
    sink.open(Owner("feed", 1), None)
    before = hash_keys(sink)
    _, state = sink.allocate(Stretch((), (), {}), {})
    known = DeliveredTopics("Kinesis", "", ["orders"])
    state["delivered"] = known.foresee({"orders": "7"}, {"orders": [TableId("d", "t")]}, ())
    service.shards = 2  # on demand, by a schedule, or by an operator
    sink = built()
    sink.open(Owner("feed", 2), state)
    assert hash_keys(sink) == before and len(before) == 4
    service.throttles = True
    with pytest.raises(SinkUnavailable, match="later"):
        hash_keys(sink)
    built("&partition-num=4").probe(Owner("feed", 3))


class _KilledError(Exception):
    """Stands for the end of the process."""


class _Fickle:
    """Stands for services that refuse some messages for now, and store others behind them."""

    at = "http://127.0.0.1:1"

    def __init__(self, seed: int) -> None:
        self.stored: list[tuple[str, bytes]] = []  # with the ids by which readers know repeats
        self._chance = random.Random(seed)
        self._deduplicated: set[str] = set()

    def refuses(self) -> bool:
        return self._chance.random() < 0.3

    def dies(self) -> None:
        """End the process between two attempts, or not."""
        if self._chance.random() < 0.5:
            raise _KilledError

    def call(self, action: str, content: dict[str, Any]) -> Any:
        if action == "GetQueueUrl":
            return {"QueueUrl": "http://127.0.0.1:1/orders.fifo"}
        if action == "PutRecords":
            return {"Records": [self._put(record) for record in content["Records"]]}
        failed = [e["Id"] for e in content["Entries"] if not self._send(e)]
        return {"Failed": [{"Id": n, "Code": "InternalError"} for n in failed]}

    def until_stored(self, attempt: Callable[[], str], doing: str) -> None:
        while attempt():
            pass

    def _put(self, record: dict[str, Any]) -> dict[str, str]:
        if self.refuses():
            return {"ErrorCode": "ProvisionedThroughputExceededException"}
        self.stored.append((record["PartitionKey"], base64.b64decode(record["Data"])))
        return {}

    def _send(self, entry: dict[str, Any]) -> bool:
        if self.refuses():
            return False
        if entry["MessageDeduplicationId"] not in self._deduplicated:
            self._deduplicated.add(entry["MessageDeduplicationId"])
            named = entry["MessageAttributes"]["rowferry-id"]["StringValue"]
            self.stored.append((named, entry["MessageBody"].encode()))
        return True


class _FickleBroker:
    """The same as a connection to RabbitMQ, and its channel."""

    def __init__(self, seed: int) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.queues = RabbitQueues({}, RabbitMqOptions.read({}), "127.0.0.1:1")
        made: Any = self
        self.queues._connection = self.queues._channel = made
        self._fickle = _Fickle(seed)
        self._answers: list[Callable[[], None]] = []
        self._tag = 0

    def basic_publish(self, message: Any, **about: Any) -> None:
        self._tag += 1
        taken = not self._fickle.refuses()
        if taken:
            self.stored.append((message.properties["message_id"], message.body))
        answer, tag = self.queues._take if taken else self.queues._refuse, self._tag
        self._answers.append(lambda: answer(tag, False))

    def drain_events(self, timeout: float) -> None:
        self._answers.pop(random.Random(self._tag).randrange(len(self._answers)))()

    def collect(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("service", ["sqs", "kinesis", "rabbitmq"])
def test_readers_that_drop_repeats_end_at_the_last_state(
    service: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was stored before an earlier one follows it again, and is no repeat."""
    monkeypatch.setattr("rowferry.flow.sink.queue.service._FIRST_PAUSE_S", 0.0)
    sent = [b"%d=%d" % (place % 3, place) for place in range(10)]
    client: Any = _Fickle(seed)
    if service == "rabbitmq":
        client = _FickleBroker(seed)
        client.queues.send(batch(*sent))
    elif service == "sqs":
        SqsQueues(client, SqsOptions.read({})).send(batch(*sent))
    else:
        KinesisStreams(client, KinesisOptions.read({})).send(batch(*sent))
    kept: dict[str, bytes] = {}
    for message_id, value in client.stored:
        kept.setdefault(message_id, value)  # as the page says
    assert set(kept.values()) == set(sent)
    state = dict(value.split(b"=") for value in kept.values())
    assert state == dict(value.split(b"=") for value in sent)


@pytest.mark.parametrize("seed", range(50))
def test_readers_that_forget_higher_places(seed: int) -> None:
    """Whatever is killed in between, a whole replay comes at last."""
    sent = [b"%d=%d" % (place % 3, place) for place in range(10)]
    client: Any = _Fickle(seed)
    put = client.call

    def call(action: str, content: dict[str, Any]) -> Any:
        client.dies()
        return put(action, content)

    client.call = call
    is_done = False
    while not is_done:
        with suppress(_KilledError):
            KinesisStreams(client, KinesisOptions.read({})).send(batch(*sent))
            is_done = True
    state, places = {}, dict[str, int]()
    for message_id, value in client.stored:
        place = int(message_id.partition("~")[0].rpartition(":")[2])
        if message_id not in places:  # as the page says
            places = {known: n for known, n in places.items() if n <= place}
            places[message_id] = place
            key, state[key] = value.split(b"=")
    assert state == dict(value.split(b"=") for value in sent)


def test_a_broker_that_refuses_several_at_once() -> None:
    broker = _FickleBroker(0)
    queues = broker.queues
    queues._sent, queues._refused = 5, set()
    queues._take(2, False)
    queues._refuse(3, True)  # all up to it that have no answer
    queues._take(5, True)
    assert queues._refused == {1, 3} and queues._up_to == 5


def test_a_queue_that_stays_full() -> None:
    broker = _FickleBroker(0)
    broker.queues._wait_s = 0.1
    broker._fickle.refuses = lambda: True  # type: ignore[method-assign]
    with pytest.raises(SinkUnavailable, match="sending to queue orders.1: .* is full"):
        broker.queues.send(batch(b"a"))
    assert broker.stored == []


def test_a_refusal_for_good_is_one() -> None:
    def refuse(items: Any) -> Any:
        raise AmazonError(400, "AccessDenied", "not you")

    client: Any = _Answers(refuse)
    client.error = lambda err, doing: SinkUnwritable(f"{doing}: {err}")
    with pytest.raises(SinkUnwritable, match="not you"):
        KinesisStreams(client, KinesisOptions.read({})).send(batch(b"a"))


@pytest.mark.parametrize("topic", ["a.b", "x" * 76])
def test_sqs_has_no_such_queue(topic: str) -> None:
    with pytest.raises(TopicRefused, match="letters, digits"):
        SqsQueues(_Answers(), SqsOptions.read({})).check_create({topic: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "kind", "words"),
    [
        ("redis://h:1", BadUri, "no topic is specified.*redis://h:1/topic"),
        ("redis://a:1,b:2/t", BadUri, "must name one server"),
        ("redis:///t", BadUri, "must name one server"),
        ("redis+ssl://h/t?cert=/x", OptionsConflict, "cert and key belong together"),
        ("nats:///t", BadUri, "names no server"),
        ("nats+ssl://h/t?key=/x", OptionsConflict, "cert and key"),
        ("nats+ssl://h/t?ca=/missing.pem", RowferryError, "ca, cert or key.*missing.pem"),
        ("nats://u:p@h/t?credentials-file=/x", OptionsConflict, "the URI's user and credentials"),
        ("rabbitmq://a,b/t", BadUri, "must name one broker"),
        ("rabbitmq+ssl://h/t?cert=/x", OptionsConflict, "cert and key"),
        (f"sqs:///t?{KEYS}", BadUri, "must name a region.*sqs://REGION/topic"),
        (f"sqs://u:p@x/t?{KEYS}", BadUri, "and no user"),
        (f"sqs://evil.example/t?{KEYS}", BadUri, "must name a region"),
        (f"sqs://eu-central-1/?{KEYS}", BadUri, "no topic"),
        ("kinesis://eu-central-1/t?access-key=id", OptionsConflict, "secret-access-key are needed"),
    ],
)
def test_bad_uris(uri: str, kind: type[RowferryError], words: str) -> None:
    with pytest.raises(kind, match=words) as said:
        _built(uri, CanalJson)
    assert "word" not in str(said.value).replace("words", "")


def test_kinesis_has_no_place_for_keys() -> None:
    with pytest.raises(OptionsConflict, match="kinesis has none; use one whose values say all"):
        _built(f"kinesis://eu-central-1/t?{KEYS}", CODECS.load("open-protocol"))


def _built(uri: str, codec: Any) -> Any:
    source = Uri.parse("range://127.0.0.1:1", "source")
    spec = ChangefeedSpec("feed", source, Uri.parse(uri, "sink"))
    made: Any = SINKS.load(spec.sink.scheme)
    return made(spec, codec)


@pytest.fixture
def streams() -> Iterator[JetStreams]:
    made = JetStreams({}, NatsOptions.read({}), "127.0.0.1:1")
    yield made
    made.close()


def _judged(streams: JetStreams, **error: Any) -> RowferryError:
    """What comes of a message that a server refuses."""

    async def publish() -> int:
        return streams._judge("orders-0", [{"seq": 1}, {"error": error}])

    with pytest.raises(RowferryError) as raised:
        streams._run(publish(), "sending to stream orders-0")
    return raised.value


@pytest.mark.parametrize(
    ("code", "err_code", "kind", "words"),
    [
        (503, 10008, SinkUnavailable, "sending to stream orders-0: words"),  # no leader
        (500, 10049, SinkUnavailable, "words"),
        (503, 10077, SinkUnavailable, "words"),  # the stream is full
        (400, 10054, MessageTooLarge, "raise max_msg_size of the stream"),
        (400, 10060, SinkUnwritable, "correct the stream"),  # another stream has the subject
    ],
)
def test_what_a_server_says_of_a_message(
    streams: JetStreams, code: int, err_code: int, kind: type[RowferryError], words: str
) -> None:
    err = _judged(streams, code=code, err_code=err_code, description="words")
    assert type(err) is kind and words in str(err)


def test_a_server_that_has_no_words(streams: JetStreams) -> None:
    async def ask() -> None:
        raise ServiceUnavailableError

    with pytest.raises(SinkUnavailable):
        streams._run(ask(), "asking for stream orders-0")


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [([], 1 << 20), ([-1, None], 1 << 20), ([-1, 100_000], 95_904), ([100_000, 500], 250)],
)
def test_what_a_stream_takes(
    streams: JetStreams, sizes: list[int | None], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = [SimpleNamespace(config=SimpleNamespace(max_msg_size=size)) for size in sizes]
    monkeypatch.setattr(streams, "_connection", lambda: None)
    monkeypatch.setattr(streams, "_client", SimpleNamespace(max_payload=8 << 20))
    monkeypatch.setattr(streams, "_info", lambda topic, n: dict(enumerate(infos)).get(n))
    assert streams.largest_messages(["orders"]) == {"orders": limit}
    monkeypatch.setattr(streams, "_client", None)
