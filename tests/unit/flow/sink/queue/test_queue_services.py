"""Sinks of queueing services without a server: ids, batches, partial answers, and bad input."""

from __future__ import annotations

import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rowferry.errors import BadUri, OptionsConflict, RowferryError, SinkUnwritable, TopicRefused
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.sink.queue import service_sink, sqs
from rowferry.flow.sink.queue.amazon import AmazonError
from rowferry.flow.sink.queue.kinesis import KinesisOptions, KinesisStreams
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
    assert [e["MessageDeduplicationId"] for e in again] == [ids[1], f"{ids[2]}~1"]
    assert {e["MessageGroupId"] for e in first} == {"1"}
    named = [e["MessageAttributes"]["rowferry-id"]["StringValue"] for e in again]
    assert named == ids[1:]


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
    assert again == first[1:]
    assert [r["PartitionKey"] for r in first] == batch(b"a", b"b", b"c").ids()
    assert {int(r["ExplicitHashKey"]) for r in first} == {1 << 126}


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
