"""Which of many failed messages tells why: the first one that did not fail because of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from rowferry.flow.sink.kafka.sender import Sender

PURGED = KafkaError(KafkaError._PURGE_QUEUE)
IN_FLIGHT = KafkaError(KafkaError._PURGE_INFLIGHT)
FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


@pytest.mark.parametrize(
    ("errors", "first"),
    [
        ([], None),
        ([None, None], None),
        ([FORBIDDEN, TOO_LARGE, PURGED], 0),
        ([PURGED, IN_FLIGHT, PURGED], 0),
        ([PURGED, None, IN_FLIGHT, FORBIDDEN, PURGED, TOO_LARGE], 3),
    ],
)
def test_the_first_cause_is_told(errors: list[KafkaError | None], first: int | None) -> None:
    sender: Any = Sender.__new__(Sender)
    sender._failures = None
    messages = [SimpleNamespace(number=n) for n in range(len(errors))]
    for error, message in zip(errors, messages, strict=True):
        sender._note(error, message)
    found = sender._first_failure()
    assert found == (None if first is None else (errors[first], messages[first]))
