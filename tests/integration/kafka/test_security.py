"""Logins, certificates and rights: what lets a feed in, and what it is told when it is kept out."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest

from rowferry.change.plan import Plan, Stretch, Topic
from rowferry.errors import RowferryError, SinkUnavailable, SinkUnwritable, TopicRefused, Verdict
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import LaneSink, Owner, Packet
from rowferry.spec.build import build_spec
from rowferry.testing.servers import Kafka, KafkaListener, TokenEndpoint
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.kafka import USER

QUICK = "protocol=open-protocol&partition-num=1&read-timeout=2s"


class Door:
    """One way into a broker, with a topic of its own."""

    def __init__(
        self, broker: Kafka, listener: KafkaListener, more: str = "", scheme: str = "kafka"
    ):
        self.broker = broker
        self.topic = f"door-{uuid4().hex}"
        self.uri = f"{scheme}://{broker.address(listener)}/{self.topic}?{QUICK}{more}"

    def enter(self, **kafka: Any) -> None:
        """Create a changefeed and let it write a watermark.

        Raises:
            RowferryError: it is kept out.
        """
        config = {"sink": {"kafka-config": kafka}} if kafka else None
        spec, _ = build_spec(
            "range://h:1", self.uri, config, tables=option_tables, sinks=sink_traits
        )
        sink = assemble(spec).sink
        sink.probe(Owner("feed", 0))
        sink.open(Owner("feed", 1), None)
        stretch = Stretch((), (), {}, watermark=7)
        outputs, state = sink.allocate(stretch, {})
        sink.publish(Plan(1, 1, 0, stretch, outputs, state), (), {})
        sink.close()
        assert len(self.broker.read_all(self.topic)) == 1

    def refused(self, **kafka: Any) -> str:
        """Return the words of a refusal for good; nothing was made."""
        with pytest.raises(RowferryError) as caught:
            self.enter(**kafka)
        assert caught.value.verdict is Verdict.STOP, caught.value
        words = str(caught.value)
        assert "\n" not in words
        assert self.broker.password not in words
        assert self.topic not in self.broker.topics()
        return words


def sasl(broker: Kafka, mechanism: str) -> str:
    return f"&sasl-user={USER}&sasl-password={broker.password}&sasl-mechanism={mechanism}"


@pytest.mark.parametrize("mechanism", ["plain", "SCRAM-SHA-256", "scram-sha-512"])
def test_passwords(guarded_broker: Kafka, mechanism: str) -> None:
    broker, way = guarded_broker, KafkaListener.SASL_PLAINTEXT
    login = sasl(broker, mechanism)
    Door(broker, way, login).enter()
    wrong = Door(broker, way, login.replace(broker.password, "nobody-knows"))
    words = wrong.refused()
    assert "Authentication failed" in words or "Authentication fails" in words
    assert broker.address(way) in words
    assert "nobody-knows" not in words


def test_a_password_with_tls_and_in_the_address(guarded_broker: Kafka) -> None:
    broker, ca = guarded_broker, guarded_broker.certificates.ca
    login = sasl(broker, "scram-sha-512")
    Door(broker, KafkaListener.SASL_SSL, f"{login}&ca={ca}", "kafka+ssl").enter()
    door = Door(broker, KafkaListener.SASL_SSL, f"&sasl-mechanism=plain&ca={ca}")
    door.uri = door.uri.replace("kafka://", f"kafka://{USER}:{broker.password}@")
    door.enter()


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as endpoint:
        yield endpoint


def test_tokens(guarded_broker: Kafka, tokens: TokenEndpoint) -> None:
    def told(secret: str) -> dict[str, Any]:
        return {
            "sasl-mechanism": "OAUTHBEARER",
            "sasl-oauth-client-id": tokens.client_id,
            "sasl-oauth-client-secret": base64.b64encode(secret.encode()).decode(),
            "sasl-oauth-token-url": tokens.url,
            "sasl-oauth-scopes": ["kafka", "more"],
        }

    Door(guarded_broker, KafkaListener.SASL_PLAINTEXT).enter(**told(tokens.client_secret))
    assert tokens.grants >= 1
    assert tokens.asked[-1]["scope"] == ["kafka more"]
    words = Door(guarded_broker, KafkaListener.SASL_PLAINTEXT).refused(**told("nobody-knows"))
    assert "nobody-knows" not in words
    assert "invalid_client" in words


def test_certificates(guarded_broker: Kafka, tmp_path: Path) -> None:
    broker, own = guarded_broker, guarded_broker.certificates
    Door(broker, KafkaListener.SSL, f"&ca={own.ca}").enter()
    Door(broker, KafkaListener.SSL, f"&ca={own.ca}", "kafka+ssl").enter()
    Door(broker, KafkaListener.SSL, "&enable-tls=true&insecure-skip-verify=true").enter()
    pair = f"&cert={own.client}&key={own.client_key}"
    Door(broker, KafkaListener.MTLS, f"&ca={own.ca}{pair}").enter()
    other = Certificates.make(tmp_path / "other")
    strange = Door(broker, KafkaListener.SSL, f"&ca={other.ca}").refused()
    assert "certificate verify failed" in strange
    assert "certificate" in Door(broker, KafkaListener.MTLS, f"&ca={own.ca}").refused()
    not_theirs = f"&ca={own.ca}&cert={other.client}&key={other.client_key}"
    assert "certificate" in Door(broker, KafkaListener.MTLS, not_theirs).refused()


def test_the_wrong_kind_of_listener(guarded_broker: Kafka) -> None:
    """It may be a broker that is just starting: tried again, with words that help."""
    door = Door(guarded_broker, KafkaListener.PLAINTEXT, "&enable-tls=true")
    with pytest.raises(SinkUnavailable, match="SSL|Disconnected") as caught:
        door.enter()
    assert "\n" not in str(caught.value)
    assert guarded_broker.bootstrap in str(caught.value)


def test_missing_rights(guarded_broker: Kafka) -> None:
    broker, way = guarded_broker, KafkaListener.SASL_PLAINTEXT
    login = sasl(broker, "plain")
    door = Door(broker, way, login)
    broker.forbid("CREATE", user=USER)
    broker.forbid("CREATE", door.topic, USER)
    with pytest.raises((TopicRefused, SinkUnwritable), match="uthoriz") as caught:
        door.enter()
    assert caught.value.verdict is Verdict.STOP
    door = Door(broker, way, login)
    broker.create_topic(door.topic, 1)
    broker.forbid("WRITE", door.topic, USER)
    with pytest.raises(SinkUnwritable, match=f"may not write to topic {door.topic}"):
        door.enter()
    assert broker.read_all(door.topic) == []


@pytest.mark.parametrize("count", [1, 1, 30_000])
def test_a_right_that_is_withdrawn_while_the_feed_runs(guarded_broker: Kafka, count: int) -> None:
    """The library raises what is fatal from any of its calls, and before the failed message."""
    topic = f"withdrawn-{uuid4().hex}"
    guarded_broker.create_topic(topic, 1)
    uri = f"kafka://{guarded_broker.bootstrap}/{topic}?{QUICK}"
    spec, _ = build_spec("range://h:1", uri, tables=option_tables, sinks=sink_traits)
    sink = cast(LaneSink, assemble(spec).sink)

    def packets(number: int) -> Iterator[Packet]:
        messages = Encoded(pa.array([b"x" * 50] * number, pa.large_binary()))
        yield from (Packet(0, n, Topic(topic, 1, 1 << 20), 0, messages) for n in range(2))

    sink.deliver(packets(1))
    guarded_broker.forbid("WRITE", topic)
    with pytest.raises(SinkUnwritable, match=f"sending to {topic} partition 0: .*authoriz"):
        sink.deliver(packets(count))
    sink.close()
    assert len(guarded_broker.read_all(topic)) == 2


def test_settings_that_may_not_be_looked_at(guarded_broker: Kafka) -> None:
    """A login may write without a right to see the topic's settings."""
    door = Door(guarded_broker, KafkaListener.SASL_PLAINTEXT, sasl(guarded_broker, "plain"))
    guarded_broker.create_topic(door.topic, 1)
    guarded_broker.forbid("DESCRIBE_CONFIGS", door.topic, USER)
    door.enter()


def test_nobody_at_home() -> None:
    with pytest.raises(SinkUnavailable, match="127.0.0.1:1, listing topics") as caught:
        spec, _ = build_spec(
            "range://h:1",
            "kafka://127.0.0.1:1/t?protocol=open-protocol&read-timeout=300ms",
            tables=option_tables,
            sinks=sink_traits,
        )
        assemble(spec).sink.probe(Owner("feed", 0))
    assert caught.value.verdict is Verdict.RETRY
