"""What the driver of an exactly-once changefeed does: it claims the ledger, and sends what follows.

A new owner first says in the ledger that it is the one, then begins once under every lane's
transactional.id. A process that was replaced either began there before, and can commit no more; or
it begins later, and then finds in the ledger that it was replaced.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from rowferry.change.event_counts import EventCounts
from rowferry.change.plan import Topic
from rowferry.errors import Fenced, SinkOwned, SinkUnavailable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.kafka.ledger import DRIVER, LedgerTopic, OwnerRecord, PlanLineage
from rowferry.flow.sink.kafka.options import KafkaSettings
from rowferry.flow.sink.kafka.transaction import TransactionalSender

_TRIES: Final = 5  # of a claim: whoever was replaced may disturb it
_AT_ONCE: Final = 8
_SMALL: Final = 1000  # bytes of a batch where nothing but a ledger's record is sent
# Runs that this process has claimed with. One epoch is opened more than once: with a changed flow,
# or when a claim failed on its way. In the ledger such a run is no stranger.
_OURS: Final[set[str]] = set()


class Announcer:
    """The one producer of the driver, and its place in the ledger. Not for several threads."""

    def __init__(self, settings: KafkaSettings, counts: EventCounts) -> None:
        """Prepare one; `claim` comes first."""
        self._settings, self._counts = settings, counts
        self._ledger: LedgerTopic | None = None
        self._sender: TransactionalSender | None = None
        self._mine: OwnerRecord | None = None  # what is committed, as far as is known
        self._lineage = PlanLineage()
        self._batch_bytes = _SMALL
        self._lanes = 0

    @property
    def lineage(self) -> PlanLineage:
        """Of what is planned from now on."""
        return self._lineage

    @property
    def missing(self) -> set[str]:
        """Topics that are not there any more, as far as is known."""
        return {self._sender.missing} if self._sender and self._sender.missing else set()

    def check(self, changefeed: str) -> None:
        """Look whether this changefeed may have the ledger; writes nothing.

        Raises:
            SinkOwned: another changefeed has it.
        """
        self._check_name(self._read().owner(), changefeed)

    def claim(self, owner: Owner, lanes: int) -> None:
        """Take the ledger and all lanes over from whoever had them.

        Raises:
            SinkOwned: another changefeed has it, or a later owner.
        """
        self._drop()
        run = secrets.token_hex(8)
        for turn in range(_TRIES):
            try:
                self._check_free(self._read().owner(), owner)
                self._sender = self._new_sender()
                self._sender.take_over()
                last = self._read().owner()
                self._check_free(last, owner)
                mine = _following(last, owner, run)
                _OURS.add(run)  # before it stands in the ledger: the answer may be lost
                self._sender.commit(DRIVER, mine.to_bytes())
                self._mine = mine
                self._lineage = _first_lineage(last, mine)
                break
            except SinkUnavailable:
                self._drop()
                if turn + 1 == _TRIES:
                    raise
        self._lanes = lanes
        self._end_lanes()

    def forget_plans(self) -> None:
        """Note that all that was planned up to now is discarded; what is planned next is later."""
        self._lineage = self._lineage._replace(discards=self._lineage.discards + 1)
        if self._mine is not None:
            try:
                self._ready()
                self._commit(replace(self._mine, floor=self._lineage.rank))
                self._end_lanes()
            except BaseException:
                self._drop()
                raise

    def begin(self, lineage: PlanLineage | None, micro_batch: int, batch_bytes: int) -> bool:
        """Return whether what follows the rows of a plan is to be sent; else it is committed.

        Args:
            lineage: the plan's; None: it has none, and nobody knows what was sent.
            micro_batch: its number.
            batch_bytes: what every topic takes at once.

        Raises:
            Fenced: another owner has begun since.
        """
        if batch_bytes != self._batch_bytes:
            self._drop()
            self._batch_bytes = batch_bytes
        self._ready()
        mine = self._mine
        return mine is None or (mine.lineage, mine.micro_batch) != (lineage, micro_batch)

    def send(self, topic: Topic, partitions: Collection[int], messages: Encoded) -> None:
        """Send messages to some partitions in one transaction with all others up to `finish`."""
        sender = self._ready()
        for partition in partitions:
            sender.send(topic.name, partition, messages)

    def finish(self, lineage: PlanLineage | None, micro_batch: int) -> None:
        """Show what was sent, if anything was, with the number of its micro-batch."""
        if self._sender is None or self._mine is None or not self._sender.is_open:
            return
        mine = self._mine
        if lineage is not None:
            mine = replace(mine, lineage=lineage, micro_batch=micro_batch)
        self._commit(mine)

    def drop(self) -> None:
        """End the producer; what was not committed is never shown. The next call begins anew."""
        self._drop()

    def close(self) -> None:
        """Let connections go."""
        self._drop()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    # --- pieces ----------------------------------------------------------------------------------

    def _read(self) -> LedgerTopic:
        if self._ledger is None:
            self._ledger = LedgerTopic(self._settings)
        return self._ledger

    def _new_sender(self) -> TransactionalSender:
        return TransactionalSender(self._settings, "driver", self._batch_bytes, self._counts)

    def _ready(self) -> TransactionalSender:
        """Return the producer; after a failure a new one.

        Raises:
            Fenced: another owner has begun since.
        """
        if self._sender is None:
            if self._mine is None:
                raise Fenced(f"topic {self._settings.ledger} was not claimed by this process")
            self._check_mine(self._read().owner(), self._mine)
            self._sender = self._new_sender()
            self._sender.take_over()
            last = self._read().owner()
            self._check_mine(last, self._mine)
            self._mine = last
        return self._sender

    def _commit(self, record: OwnerRecord) -> None:
        self._ready().commit(DRIVER, record.to_bytes())
        self._mine = record

    def _drop(self) -> None:
        if self._sender is not None:
            self._sender.give_up()
            self._sender = None

    def _end_lanes(self) -> None:
        """End what tasks have open: none of them can commit any more what it has begun."""
        with ThreadPoolExecutor(min(_AT_ONCE, self._lanes)) as pool:
            list(pool.map(self._end_lane, range(self._lanes)))

    def _end_lane(self, number: int) -> None:
        sender = TransactionalSender(self._settings, str(number), _SMALL)
        try:
            sender.take_over()
        finally:
            sender.give_up()

    def _check_mine(self, last: OwnerRecord | None, mine: OwnerRecord) -> None:
        if last is None or (last.epoch, last.run) != (mine.epoch, mine.run):
            now = "nobody" if last is None else f"owner {last.epoch}"
            raise Fenced(
                f"topic {self._settings.ledger} says that {now} of this changefeed writes now; "
                f"this is {mine.epoch}"
            )

    def _check_name(self, last: OwnerRecord | None, changefeed: str) -> None:
        if last is not None and last.changefeed != changefeed:
            raise SinkOwned(
                f"topic {self._settings.ledger} is the ledger of changefeed {last.changefeed}; "
                "name another one by ledger-topic"
            )

    def _check_free(self, last: OwnerRecord | None, owner: Owner) -> None:
        """Refuse a ledger that another changefeed has, or a later run than this one."""
        self._check_name(last, owner.changefeed)
        if last is None or (last.epoch == owner.epoch and last.run in _OURS):
            return
        if last.epoch >= owner.epoch:
            raise SinkOwned(
                f"topic {self._settings.ledger} says that run {last.epoch} of changefeed "
                f"{owner.changefeed} writes, and this is run {owner.epoch}: it was taken over, or "
                "another meta database has a changefeed of this name; name another one by "
                "ledger-topic"
            )


def _following(last: OwnerRecord | None, owner: Owner, run: str) -> OwnerRecord:
    """Return the record of a new owner; what was announced before it stays known.

    Where the same epoch is opened again, plans that it has discarded stay discarded.
    """
    mine = OwnerRecord(owner.changefeed, owner.epoch, run)
    if last is None:
        return mine
    mine = replace(mine, lineage=last.lineage, micro_batch=last.micro_batch)
    return replace(mine, floor=last.floor) if last.epoch == owner.epoch else mine


def _first_lineage(last: OwnerRecord | None, mine: OwnerRecord) -> PlanLineage:
    """Return the lineage that a new owner begins with: no plan before it has a later one.

    Where the same epoch is opened again, discards are not counted from 0 again: what is planned
    anew would look like an older plan, and lanes would refuse it or leave its rows out.
    """
    again = last is not None and last.epoch == mine.epoch
    return PlanLineage(mine.epoch, mine.floor[1] + 1 if again else 0, mine.run)
