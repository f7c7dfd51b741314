"""The client library's errors in our words, with a verdict."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from rowferry.errors import MessageTooLarge, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.kafka.client import Troubles, as_error


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (KafkaError._TIMED_OUT, "timed out", SinkUnavailable),
        (
            KafkaError.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or",
            SinkUnavailable,
        ),
        (KafkaError._TRANSPORT, "refused", SinkUnavailable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown", SinkUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, "replicas", SinkUnavailable),
        (KafkaError._AUTHENTICATION, "wrong", SinkUnwritable),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "wrong", SinkUnwritable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right", SinkUnwritable),
        (KafkaError._SSL, "certificate verify failed", SinkUnwritable),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", SinkUnavailable),
        (KafkaError._TRANSPORT, "tlsv13 alert certificate required", SinkUnwritable),
        (KafkaError._TRANSPORT, "ssl/tls alert bad certificate", SinkUnwritable),
        (KafkaError._TRANSPORT, "tlsv1 alert unknown ca", SinkUnwritable),
        (
            KafkaError._AUTHENTICATION,
            'Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}',
            SinkUnwritable,
        ),
        (
            KafkaError._AUTHENTICATION,
            "Failed to acquire SASL OAUTHBEARER token: Failed to connect",
            SinkUnavailable,
        ),
        (KafkaError.MSG_SIZE_TOO_LARGE, "large", MessageTooLarge),
    ],
)
def test_verdicts(code: int, words: str, kind: type[Exception]) -> None:
    found = as_error(KafkaError(code, f"{words},\n  twice"), "sending", Troubles("b:1"))
    assert type(found) is kind
    assert f"Kafka at b:1, sending: {words}, twice" in str(found)


def test_what_went_wrong_on_the_connection_says_more() -> None:
    troubles = Troubles("b:1")
    error = KafkaError(KafkaError._TIMED_OUT, "timed out")
    troubles(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    troubles(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    found = as_error(error, "sending", troubles)
    assert "sending: timed out (connection refused); start the brokers" in str(found)
    troubles(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    troubles(KafkaError(KafkaError._TRANSPORT, "disconnected"))
    found = as_error(error, "sending", troubles)
    assert isinstance(found, SinkUnwritable)
    assert "sending: wrong password" in str(found)


def test_what_was_wrong_before_it_worked_is_no_reason() -> None:
    troubles = Troubles()
    troubles(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    troubles.forget()
    found = as_error(KafkaError(KafkaError._TIMED_OUT, "timed out"), "sending", troubles)
    assert isinstance(found, SinkUnavailable)
    assert found.words.startswith("Kafka, sending: timed out; start the brokers")
