"""Lanes of Redis and NATS: a part that is there is not sent again, old processes are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from queue_feed_kit import SERVERS, Queue

from rowferry.change.plan import Topic
from rowferry.errors import Fenced, SinkUnavailable, SinkUnwritable
from rowferry.flow.encode.canal_json.codec import CanalJson
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers.queues.redis_server import RedisServer

WORDS = [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture(params=["redis", "nats", "rabbitmq"])
def guarded(request: pytest.FixtureRequest) -> Queue:
    """Those that look at passwords; moto takes every key."""
    return Queue(request.param, request.getfixturevalue(SERVERS[request.param]))


@pytest.fixture(params=["redis", "nats"])
def exact(request: pytest.FixtureRequest) -> Queue:
    return Queue(request.param, request.getfixturevalue(SERVERS[request.param]))


def built(queue: Queue, topic: str, login: str = "", more: str = "", wait: str = "5s") -> Any:
    address = queue.address
    if login:
        scheme, _, rest = address.partition("://")
        address = f"{scheme}://{login}@{rest.rpartition('@')[2]}"
    uri = Uri.parse(f"{address}/{topic}?timeout={wait}{more}", "sink")
    source = Uri.parse("range://127.0.0.1:1", "source")
    made: Any = SINKS.load(queue.kind)
    return made(ChangefeedSpec("feed", source, uri), CanalJson)


def packets(
    topic: str, words: list[bytes], micro_batch: int = 1, lineage: str = "token.0", epoch: int = 1
) -> Iterator[Packet]:
    place = Topic(topic, 1, 1000, lineage=lineage)
    said = Encoded(pa.array(words, pa.large_binary()))
    yield Packet(0, 0, place, 0, said, micro_batch, epoch)


def opened(queue: Queue, topic: str) -> Any:
    sink = built(queue, topic)
    sink.open(Owner("feed", 1), None)
    return sink


def values(queue: Queue, topic: str) -> list[bytes | None]:
    return [m.value for m in queue.read_all(topic) if m.partition == 0]


def test_only_what_is_missing_is_added(exact: Queue) -> None:
    topic = f"delivery-{uuid4().hex}"
    sink = opened(exact, topic)
    sink.deliver(packets(topic, WORDS[:3]))
    other = built(exact, topic)
    other.deliver(packets(topic, WORDS))
    assert values(exact, topic) == WORDS
    other.deliver(packets(topic, WORDS[:2], lineage="another.0"))  # it only has the same number
    assert values(exact, topic) == [*WORDS, *WORDS[:2]]
    for one in (sink, other):
        one.close()


def test_what_replicas_lack_does_not_count_when_it_comes_again(redis_server: RedisServer) -> None:
    """The server has it by then, and a failover would lose it."""
    queue, topic = Queue("redis", redis_server), f"delivery-{uuid4().hex}"
    opened(queue, topic).close()
    for attempt in (WORDS[:3], WORDS[:3], WORDS):
        sink = built(queue, topic, more="&wait-replicas=1", wait="1s")
        with pytest.raises(SinkUnavailable, match="0 replicas have what was sent"):
            sink.deliver(packets(topic, attempt))
        sink.close()
    assert values(queue, topic) == WORDS
    other = built(queue, topic)
    other.deliver(packets(topic, WORDS))
    assert values(queue, topic) == WORDS
    other.close()


@pytest.mark.parametrize("lineage", ["token.0", ""])  # "": rows of a snapshot
def test_a_process_that_was_replaced_is_refused(exact: Queue, lineage: str) -> None:
    topic = f"delivery-{uuid4().hex}"
    sink, newer = opened(exact, topic), built(exact, topic)
    newer.deliver(packets(topic, WORDS[:1], 2, "newer.1", epoch=2))
    with pytest.raises(Fenced, match="another process of this changefeed") as said:
        sink.deliver(packets(topic, WORDS[1:], lineage=lineage))
    assert exact.server.address in str(said.value)
    assert values(exact, topic) == WORDS[:1]
    for one in (sink, newer):
        one.close()


def test_somebody_else_sent_in_between(exact: Queue) -> None:
    """What a process knows of a stream's end is old by then, also for rows of a snapshot."""
    topic = f"delivery-{uuid4().hex}"
    sink, other = opened(exact, topic), built(exact, topic)
    for one, word, micro_batch in ((sink, b"a", 1), (other, b"b", 2), (sink, b"c", 3)):
        one.deliver(packets(topic, [word], micro_batch, lineage=""))
    assert values(exact, topic) == WORDS[:3]
    for one in (sink, other):
        one.close()


def test_a_wrong_password(guarded: Queue) -> None:
    sink = built(guarded, "orders", "feed:nonsense")
    with pytest.raises(SinkUnwritable, match="correct") as said:
        sink.probe(Owner("feed", 1))
    assert "nonsense" not in str(said.value)
    sink.close()


def test_nobody_listens(queue: Queue) -> None:
    uri = f"{queue.address}/t?timeout=1s{queue.parameters}"
    uri = uri.replace(queue.server.address, "127.0.0.1:1")
    source = Uri.parse("range://127.0.0.1:1", "source")
    made: Any = SINKS.load(queue.kind)
    sink = made(ChangefeedSpec("feed", source, Uri.parse(uri, "sink")), CanalJson)
    with pytest.raises(SinkUnavailable, match="127.0.0.1:1.*; (start|correct)"):
        sink.probe(Owner("feed", 1))
    sink.close()
