"""A producer whose messages are shown all at once, together with a record in the ledger.

Whoever begins under a transactional.id ends what others have open under it, and they can commit no
more. When `begin` returns, every earlier transaction of the id is shown, or never will be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
from confluent_kafka import KafkaException

from rowferry.change.event_counts import EventCounts
from rowferry.errors import RowferryError
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.kafka.client import as_error
from rowferry.flow.sink.kafka.options import BATCH_OVERHEAD, KafkaSettings
from rowferry.flow.sink.kafka.sender import Sender, delivery_ms
from rowferry.moment import moment


class TransactionalSender(Sender):
    """A producer with a transactional.id; `begin` it before anything is sent."""

    def __init__(
        self,
        settings: KafkaSettings,
        name: str,
        batch_bytes: int,
        counts: EventCounts | None = None,
    ) -> None:
        """Make one; takes nothing from others yet.

        Args:
            settings: how to connect and to send.
            name: which of the changefeed's: a lane's number, or "driver".
            batch_bytes: what every topic takes at once.
            counts: where to count what was sent.
        """
        timeout_ms = round(1000 * settings.transaction_s)
        self._wait_s = delivery_ms(settings) / 1000
        self._since = 0.0  # when the open transaction began; 0: none is open
        super().__init__(
            settings,
            batch_bytes,
            counts,
            {
                "transactional.id": f"{settings.ledger}.{name}",
                "transaction.timeout.ms": timeout_ms,
                "socket.timeout.ms": min(settings.connection["socket.timeout.ms"], timeout_ms),
                "message.timeout.ms": min(delivery_ms(settings), timeout_ms),
                "message.max.bytes": max(
                    settings.options.max_message_bytes + BATCH_OVERHEAD, batch_bytes, 1000
                ),
                "reconnect.backoff.ms": 5,
                # A message that fails ends the transaction: nothing behind it is shown either.
                "enable.gapless.guarantee": False,
            },
        )

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._since > 0

    @property
    def age_s(self) -> float:
        """How long the open transaction has been open; 0: none is."""
        return time.monotonic() - self._since if self._since else 0.0

    def take_over(self) -> None:
        """End what others have open under this id; from now on they can commit nothing."""
        moment("begin transactions")
        with self._transacting("beginning transactions"):
            # The library looks for a connection every half second only, unless there is one: first
            # to any broker, then to those that it names.
            for _ in range(2):
                self._producer.list_topics(self._settings.ledger, timeout=self._wait_s)
            self._producer.init_transactions(self._wait_s)

    def send(self, topic: str, partition: int, messages: Encoded) -> None:
        """Queue messages of the open transaction, or of a new one."""
        if not self._since:
            with self._transacting("beginning a transaction"):
                self._producer.begin_transaction()
            self._since = time.monotonic()
        super().send(topic, partition, messages)

    def commit(self, partition: int, record: bytes) -> None:
        """Show all that was sent, and a record in the ledger, or (on raise) perhaps nothing.

        Whether it was shown after all is known to whoever begins next under this id.
        """
        values = pa.array([record], pa.large_binary())
        keys = pa.array([b"%d" % partition], pa.large_binary())
        self.send(self._settings.ledger, partition, Encoded(values, keys))
        self.flush()
        moment("commit transaction")
        with self._transacting("committing a transaction"):
            self._producer.commit_transaction(self._wait_s)
        moment("transaction committed")
        self._since = 0.0

    def give_up(self) -> None:
        """Forget what is queued and was not committed, so that nothing of it is ever shown."""
        super().give_up()
        if self._since:
            self._since = 0.0
            moment("abort transaction")
            # If it cannot be done now, whoever begins next does it, or the brokers by time.
            with suppress(RowferryError), self._transacting("ending a transaction"):
                self._producer.abort_transaction(min(self._wait_s, 2.0))

    @contextmanager
    def _transacting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as err:
            self._serve(0)
            raise as_error(err.args[0], doing, self._troubles) from None
