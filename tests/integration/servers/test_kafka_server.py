"""Kafka brokers: life, topics, reading, and every way to come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from process_kit import is_gone, listens

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import Kafka, KafkaListener, TokenEndpoint, java_server

SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = [
    (KafkaListener.PLAINTEXT, ""),
    *((KafkaListener.SASL_PLAINTEXT, mechanism) for mechanism in SASL),
    (KafkaListener.SSL, ""),
    *((KafkaListener.SASL_SSL, mechanism) for mechanism in SASL),
    (KafkaListener.MTLS, ""),
]


def send(settings: dict[str, Any], topic: str, *values: bytes, partition: int = 0) -> None:
    """Write messages and wait for the broker's word on each."""
    refusals: list[object] = []
    producer = Producer(settings)
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda err, _: refusals.append(err) if err else None,
        )
    assert producer.flush(60) == 0
    assert not refusals


def test_a_topic_is_written_read_grown_and_deleted(kafka_broker: Kafka) -> None:
    broker, topic = kafka_broker, "servers-topic"
    broker.create_topic(topic, 2, {"max.message.bytes": "20000"})
    assert broker.topics()[topic] == 2
    assert broker.topic_config(topic)["max.message.bytes"] == "20000"
    assert broker.read_all(topic) == []
    send(broker.client_settings(), topic, b"b", b"c", partition=1)
    send(broker.client_settings(), topic, b"a", partition=0)
    expected = [(0, 0, None, b"a"), (1, 0, None, b"b"), (1, 1, None, b"c")]
    assert broker.read_all(topic) == expected
    assert broker.read_all(topic, partition=1) == expected[1:]
    broker.add_partitions(topic, 3)
    assert broker.topics()[topic] == 3
    broker.delete_topic(topic)
    assert topic not in broker.topics()
    with pytest.raises(SourceUnavailable, match=topic):
        broker.read_all(topic)


def test_no_topic_appears_by_itself(kafka_broker: Kafka) -> None:
    producer = Producer({**kafka_broker.client_settings(), "message.timeout.ms": 2000})
    refused: list[object] = []
    try:
        producer.produce("servers-none", b"x", on_delivery=lambda err, _: refused.append(err))
    except KafkaException as err:
        refused.append(err)
    producer.flush(60)
    assert refused[0] is not None
    assert "servers-none" not in kafka_broker.topics()


def test_every_way_in_and_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = tuple(KafkaListener)[1:]
    options = {"message.max.bytes": "30000"}
    with Kafka.start(tmp_path / "one", options, listeners) as broker:
        broker.create_topic("t")
        for listener, mechanism in WAYS:
            value = f"{listener} {mechanism}".encode()
            send(broker.client_settings(listener, mechanism), "t", value)
        with TokenEndpoint() as tokens:
            send(_by_token(broker, tokens), "t", b"token")
        assert tokens.grants == 1
        written = broker.read_all("t")
        assert len(written) == len(WAYS) + 1
        assert broker.topic_config("t")["max.message.bytes"] == "30000"
        with pytest.raises(KafkaException):  # no certificate
            _reach({**broker.client_settings(KafkaListener.SSL), **_at(broker, KafkaListener.MTLS)})
        with pytest.raises(KafkaException):  # a wrong password
            sasl = broker.client_settings(KafkaListener.SASL_PLAINTEXT)
            _reach({**sasl, "sasl.password": "other"})

        pid, address = broker.pid, broker.bootstrap
        broker.kill()
        assert is_gone(pid)
        assert not broker.alive
        broker.restart()
        assert (broker.bootstrap, broker.pid != pid) == (address, True)
        assert broker.read_all("t") == written
        pid, port = broker.pid, int(address.rpartition(":")[2])
        with _other_broker(tmp_path / "two", port, monkeypatch) as other:
            assert other.bootstrap != address
        broker.stop()
    assert is_gone(pid)
    assert not listens(port)
    with pytest.raises(SourceUnavailable, match="is down"):
        _ = broker.pid
    broker.stop()  # again: nothing to do


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="did not start.*log.cleaner.threads") as caught:
        Kafka.start(tmp_path, {"log.cleaner.threads": "many"})
    assert "\n" not in str(caught.value)


def _other_broker(folder: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Start a broker whose first choice of a port is lost."""
    real, tries = java_server.free_ports, []

    def offer(count: int) -> list[int]:
        ports = real(count)
        tries.append(ports)
        return [taken, *ports[1:]] if len(tries) == 1 else ports

    monkeypatch.setattr(java_server, "free_ports", offer)
    broker = Kafka.start(folder)
    assert len(tries) == 2
    return broker


def _at(broker: Kafka, listener: KafkaListener) -> dict[str, Any]:
    return {"bootstrap.servers": broker.address(listener)}


def _reach(settings: dict[str, Any]) -> None:
    Producer(settings).list_topics(timeout=1)


def _by_token(broker: Kafka, tokens: TokenEndpoint) -> dict[str, Any]:
    settings = broker.client_settings(KafkaListener.SASL_SSL, "OAUTHBEARER")
    del settings["sasl.username"], settings["sasl.password"]
    return settings | {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": tokens.client_id,
        "sasl.oauthbearer.client.secret": tokens.client_secret,
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
    }
