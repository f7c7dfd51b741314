"""What a real broker takes from the sink: repeats, zombies, topics of one piece, logins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from rowferry.change.plan import Again, Plan, Segment, Stretch, TableSlice, Topic
from rowferry.errors import (
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
    TopicRefused,
    Verdict,
)
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.flow.sink.pulsar.lane import Lane
from rowferry.flow.sink.pulsar.sink import PulsarSink
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.build import build_spec
from rowferry.testing.servers import Pulsar, TokenEndpoint

TABLE = parse_create("CREATE TABLE shop.t (id int PRIMARY KEY)", "shop").at(100)
SLICE = TableSlice(TABLE.id, TABLE.table_id, TABLE.version)


class Place:
    """A topic of a test's own, and sinks that write to it as processes would."""

    def __init__(self, broker: Pulsar) -> None:
        self.broker, self.topic = broker, f"place-{uuid4().hex}"
        self.uri = f"pulsar://{broker.address}/{self.topic}?protocol=canal-json&partition-num=1"
        self.web = f"&web-service-url={broker.web_url}"
        self._built: list[PulsarSink] = []

    def sink(self, more: str | None = None, uri: str = "", **config: Any) -> PulsarSink:
        whole = (uri or self.uri) + (self.web if more is None else more)
        settings = {"sink": {"pulsar-config": config}} if config else None
        spec, _ = build_spec(
            "range://h:1", whole, settings, tables=option_tables, sinks=sink_traits
        )
        found = assemble(spec).sink
        assert isinstance(found, PulsarSink)
        self._built.append(found)
        return found

    def opened(self, more: str | None = None, **config: Any) -> PulsarSink:
        found = self.sink(more, **config)
        found.probe(Owner("feed", 0))
        found.open(Owner("feed", 1), None)
        return found

    def close(self) -> None:
        for sink in self._built:
            sink.close()

    def stored(self) -> list[bytes | None]:
        return [m.value for m in self.broker.read_all(self.topic)]


@pytest.fixture
def place(pulsar_broker: Pulsar) -> Iterator[Place]:
    found = Place(pulsar_broker)
    yield found
    found.close()


def planned(sink: PulsarSink, number: int = 1, again: Again = Again.SAME) -> Plan:
    segment = Segment(0, {}, (SLICE,), 1, 1, again=again)
    stretch = Stretch((segment,), (), {}, watermark=None)
    outputs, state = sink.allocate(stretch, {SLICE: TABLE})
    return Plan.from_json(Plan(number, 1, 0, stretch, outputs, state).to_json())


def packets(plan: Plan, *parts: Sequence[bytes | None]) -> Iterator[Packet]:
    topic = Topic.from_json(plan.outputs[0].target)
    for number, values in enumerate(parts):
        messages = Encoded(pa.array(values, pa.large_binary()))
        yield Packet(0, number, topic, 0, messages, plan.micro_batch, 1)


def words(begin: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(begin, end)]


@pytest.mark.parametrize("came", [4, 10, 13, 20])
def test_a_replay_that_cuts_its_batches_otherwise(place: Place, came: int) -> None:
    """Options were changed between the tries: nothing is lost, and nothing is there twice."""
    sink = place.opened(f"{place.web}&batching-max-messages=5")
    plan = planned(sink)
    sink.deliver(packets(plan, words(0, came)))
    assert place.stored() == words(0, came)
    other = place.sink(f"{place.web}&batching-max-messages=7&compression-type=zstd")
    other.deliver(packets(plan, words(0, 6), words(6, 20)))
    assert place.stored() == words(0, 20)
    sink.deliver(packets(planned(sink, 2), words(20, 22)))
    assert place.stored() == words(0, 22)


def test_what_a_zombie_can_do(place: Place) -> None:
    """While it holds its producer, nobody sends; what it sends later adds nothing."""
    zombie = place.opened()
    plan = planned(zombie)
    held = zombie._begin(Topic.from_json(plan.outputs[0].target), 0, 1, "rows")
    successor = place.sink()
    successor.open(Owner("feed", 2), None)
    with pytest.raises(SinkUnavailable, match="another process of this changefeed") as busy:
        successor.deliver(packets(plan, words(0, 5)))
    assert busy.value.verdict is Verdict.RETRY
    zombie._drop_lanes()
    assert isinstance(held, Lane)
    successor.deliver(packets(plan, words(0, 5)))
    successor.deliver(packets(planned(successor, 2), words(5, 8)))
    zombie.deliver(packets(plan, words(0, 5)))
    assert place.stored() == words(0, 8)


def test_a_changefeed_that_begins_anew_sends_everything(place: Place) -> None:
    """Its micro-batches have the numbers of an earlier one of the same name."""
    first = place.opened()
    first.deliver(packets(planned(first, 7), words(0, 5)))
    first.close()
    second = place.opened()
    second.deliver(packets(planned(second, 1), words(5, 9)))
    assert place.stored() == words(0, 9)


def test_a_snapshot_that_is_read_again_is_sent_whole(place: Place) -> None:
    """Its rows may be others: by their places alone they would be taken for repeats."""
    sink = place.opened()
    plan = planned(sink, again=Again.EQUIVALENT)
    sink.deliver(packets(plan, words(0, 5)))
    sink.deliver(packets(plan, words(3, 8)))
    assert place.stored() == [*words(0, 5), *words(3, 8)]


def test_keys_and_values(place: Place) -> None:
    sink = place.opened()
    plan = planned(sink)
    topic = Topic.from_json(plan.outputs[0].target)
    values, keys = [b"a", None, b"\xff\x00"], [b"k1", "ü".encode(), None]
    both = Encoded(pa.array(values, pa.large_binary()), pa.array(keys, pa.large_binary()))
    sink.deliver(iter([Packet(0, 0, topic, 0, both, 1, 1)]))
    sink._codec = replace_traits(sink)
    binary = Encoded(
        pa.array([b"b"], pa.large_binary()), pa.array([b"\xff\x00"], pa.large_binary())
    )
    sink.deliver(iter([Packet(0, 0, topic, 0, binary, 2, 1)]))
    found = [(m.key, m.value) for m in place.broker.read_all(place.topic)]
    assert found == [*zip(keys, values, strict=True), (b"\xff\x00", b"b")]


def replace_traits(sink: PulsarSink) -> Any:
    class Binary:
        TRAITS = replace(sink._codec.TRAITS, binary_keys=True)

    return Binary()


def test_without_an_admin_interface(place: Place) -> None:
    """A topic of one piece is written as it is; one that is missing is refused, with the cure."""
    with pytest.raises(TopicRefused, match="is not there, .* set web-service-url"):
        place.opened("")
    place.broker.ask("PUT", f"/persistent/public/default/{place.topic}")
    sink = place.opened("")
    sink.deliver(packets(planned(sink), words(0, 3)))
    assert place.stored() == words(0, 3)


def test_a_topic_with_too_few_partitions_and_one_that_may_not_be_made(place: Place) -> None:
    place.broker.create_topic(place.topic, 2)
    few = place.uri.replace("partition-num=1", "partition-num=3")
    with pytest.raises(TopicRefused, match=r"more than that of actual topic \(2\)"):
        place.sink(uri=few).probe(Owner("feed", 0))
    elsewhere = place.uri.replace(place.topic, f"persistent://public/nowhere/{place.topic}")
    with pytest.raises(TopicRefused, match="namespaces create public/nowhere"):
        place.sink(uri=elsewhere).probe(Owner("feed", 0))
    missing = place.uri.replace(place.topic, f"{place.topic}-x")
    with pytest.raises(TopicRefused, match="`auto-create-topic` is false"):
        place.sink(f"{place.web}&auto-create-topic=false", missing).probe(Owner("feed", 0))
    assert f"{place.topic}-x" not in place.broker.topics()


# --- who it is -----------------------------------------------------------------------------------


def enters(place: Place, more: str | None = None, uri: str = "", **config: Any) -> None:
    sink = place.sink(more, uri, **config)
    sink.probe(Owner("feed", 0))
    sink.open(Owner("feed", 1), None)
    before = len(place.stored())
    sink.deliver(packets(planned(sink), words(0, 1)))
    assert len(place.stored()) == before + 1


def refused(place: Place, more: str | None = None, uri: str = "", **config: Any) -> str:
    with pytest.raises(RowferryError) as caught:
        enters(place, more, uri, **config)
    assert caught.value.verdict is Verdict.STOP, caught.value
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_tokens(place: Place, tmp_path: Path) -> None:
    broker = place.broker
    broker.create_topic(place.topic, 1)
    role = f"role-{uuid4().hex}"
    token = broker.token(role)
    kept_out = refused(place, **{"authentication-token": token})
    assert token not in kept_out
    broker.grant(role, "produce")
    enters(place, **{"authentication-token": token})
    (tmp_path / "token").write_text(f"{token}\n")
    enters(place, **{"token-from-file": str(tmp_path / "token")})
    wrong = token[:-4] + "AAAA"
    with pytest.raises(SinkUnavailable, match="Timeout") as caught:  # all that the library tells
        enters(place, **{"authentication-token": wrong, "operation-timeout": 2})
    assert wrong not in str(caught.value)
    needed = refused(place, **{"authentication-token": token, "deduplication": "required"})
    assert "deduplication is off" in needed


def test_certificates(place: Place) -> None:
    broker, ca = place.broker, place.broker.certificates.ca
    broker.create_topic(place.topic, 1)
    uri = place.uri.replace(f"pulsar://{broker.address}", f"pulsar+ssl://{broker.tls_address}")
    web, trust = f"&web-service-url={broker.web_tls_url}", f"&tls-trust-certs-file-path={ca}"
    enters(place, web + trust, uri)
    assert "certificate" in refused(place, web, uri)
    assert "certificate" in refused(place, "", uri)
    enters(place, f"{web}&insecure-skip-verify=true", uri)
    own = {
        "auth-tls-certificate-path": str(broker.certificates.client),
        "auth-tls-private-key-path": str(broker.certificates.client_key),
    }
    assert "rights" in refused(place, web + trust, uri, **own)
    broker.grant("client", "produce")
    enters(place, web + trust, uri, **own)


def test_oauth(place: Place, tmp_path: Path) -> None:
    broker = place.broker
    broker.create_topic(place.topic, 1)
    role = f"role-{uuid4().hex}"
    broker.grant(role, "produce")
    file = tmp_path / "credentials.json"
    with TokenEndpoint(lambda: broker.token(role)) as endpoint:
        known = {"client_id": endpoint.client_id, "client_secret": endpoint.client_secret}
        file.write_text(json.dumps(known))
        login = {
            "oauth2-issuer-url": endpoint.issuer,
            "oauth2-private-key": str(file),
            "oauth2-audience": "urn:pulsar",
        }
        enters(place, oauth2=login)
        assert endpoint.asked[-1]["audience"] == ["urn:pulsar"]
        file.write_text(json.dumps({**known, "client_secret": "nobody-knows"}))
        words = refused(place, oauth2=login)
        assert "401" in words and "nobody-knows" not in words
    with pytest.raises(SinkUnavailable, match="does not answer"):
        enters(place, oauth2=login)


def test_nobody_listens(place: Place) -> None:
    uri = place.uri.replace(place.broker.address, "127.0.0.1:1")
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1: .*start the brokers"):
        place.sink("", uri).probe(Owner("feed", 0))
    with pytest.raises(SinkUnwritable, match="certificate"):
        tls = place.uri.replace(
            f"pulsar://{place.broker.address}", f"pulsar+ssl://{place.broker.tls_address}"
        )
        place.sink("", tls).probe(Owner("feed", 0))
