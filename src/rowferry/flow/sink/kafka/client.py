"""What went wrong in the Kafka client library, in our words and with a verdict."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from rowferry.errors import (
    BadOption,
    MessageTooLarge,
    RowferryError,
    SinkUnavailable,
    SinkUnwritable,
)

_FOR_GOOD: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
# Another producer has begun under the same transactional.id, or the brokers have ended a
# transaction that was open for too long.
_TAKEN_OVER: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
    }
)
_ALERT: Final = re.compile("alert [a-z ]*(certificate|unknown ca)")
_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"
_FENCED: Final = "brokers are currently fenced"
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


class Troubles:
    """What went wrong on a client's connections, from the library's own thread.

    That is the first thing that no repetition cures, else the last thing.

    Attributes:
        at: the brokers' address, for the words of errors.
    """

    def __init__(self, at: str = "") -> None:
        self.at = at
        self._lock = threading.Lock()
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Note an error: this is the library's `error_cb`."""
        with self._lock:
            # "All brokers are down" and lost connections follow what says why.
            known = self._last
            if known is None or not (
                _for_good(known) or error.code() == KafkaError._ALL_BROKERS_DOWN
            ):
                self._last = error

    def last(self) -> KafkaError | None:
        """Return it; None when nothing went wrong."""
        with self._lock:
            return self._last

    def forget(self) -> None:
        """Begin anew: something worked, so what went wrong before is no reason any more."""
        with self._lock:
            self._last = None


def as_error(error: KafkaError, doing: str, troubles: Troubles | None = None) -> RowferryError:
    """Return our error for the library's, with its verdict."""
    why = troubles.last() if troubles else None
    cause = why if why is not None and _for_good(why) else error
    at = f" at {troubles.at}" if troubles and troubles.at else ""
    words = f"Kafka{at}, {doing}: {words_of(cause)}"
    if why is not None and why is not cause and words_of(why) not in words:
        words += f" ({words_of(why)})"
    if cause.code() in _TOO_LARGE:
        return MessageTooLarge(
            f"{words}; raise max.message.bytes of the topic, or set large-message-handle-option"
        )
    if _for_good(cause):
        return SinkUnwritable(f"{words}; correct the login, the rights or the option")
    if cause.code() in _TAKEN_OVER:
        return SinkUnavailable(
            f"{words}; another process began to send the same, or the transaction was open for "
            "longer than transaction-timeout"
        )
    return SinkUnavailable(f"{words}; start the brokers, or correct host and port in the sink URI")


def _for_good(error: KafkaError) -> bool:
    """Return whether no repetition cures it."""
    text = error.str()
    if _ALERT.search(text):
        return True  # it refuses our certificate, which looks like a lost connection
    if error.code() == KafkaError._SSL and "Disconnected" in text:
        return False  # it went away in the middle of a handshake
    if error.code() == KafkaError.INVALID_REPLICATION_FACTOR and _FENCED in text:
        return False  # brokers that start, or were too slow, are not counted for a while
    if _NO_TOKEN in text:
        return '"error"' in text  # whoever gives tokens refuses; else it does not answer
    return error.code() in _FOR_GOOD


def words_of(error: KafkaError) -> str:
    """Return what the library says, in one line."""
    return " ".join(error.str().split())


@contextmanager
def options_checked() -> Iterator[None]:
    """Turn what the library says about options into our words; it never shows their values."""
    try:
        yield
    except KafkaException as err:
        raise BadOption(f"the Kafka client refuses its settings: {err.args[0].str()}") from None
