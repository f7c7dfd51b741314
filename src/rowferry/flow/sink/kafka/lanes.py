"""What tasks of an exactly-once changefeed do: each lane's messages in transactions of its own.

Which lane a partition belongs to is in the plan, and so is the same each time that it is carried
out, on however many cores. Whoever carries out a lane begins under its transactional.id, which ends
what others have open there, and only then reads the ledger: what it says can not change any more.
What is committed is left out, the rest is sent, and the new state of the lane is committed with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rowferry.change.event_counts import EventCounts
from rowferry.errors import Fenced, PlanDiscarded, TargetLost
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.kafka.ledger import (
    WHOLE,
    Committed,
    LaneRecord,
    LedgerTopic,
    OwnerRecord,
    PlanLineage,
)
from rowferry.flow.sink.kafka.options import KafkaSettings
from rowferry.flow.sink.kafka.transaction import TransactionalSender

_EARLY: Final = 3  # a transaction is ended at this part of its time, so that it never runs out


class LaneTransactions:
    """One lane of one micro-batch, from its first packet on."""

    def __init__(
        self,
        settings: KafkaSettings,
        ledger: LedgerTopic,
        changefeed: str,
        owner: OwnerRecord | None,
        first: Packet,
        counts: EventCounts,
    ) -> None:
        """Take the lane over, and learn what of it is committed.

        Args:
            settings: how to connect and to send.
            ledger: where to look.
            changefeed: whose lane it is.
            owner: who may write, as of a moment ago: whoever was replaced disturbs nobody.
            first: its first packet.
            counts: where to count what was sent.

        Raises:
            Fenced: another owner has begun since.
            PlanDiscarded: the plan was taken back.
        """
        self.number = first.topic.lane_of(first.partition)
        self._ledger = ledger
        self._lineage = PlanLineage.parse(first.topic.lineage)
        self._exact = first.topic.exact
        self._batch, self._epoch = first.micro_batch, first.epoch
        self._early_s = settings.transaction_s / _EARLY
        self._check_owner(owner)
        self.sender = TransactionalSender(
            settings, str(self.number), first.topic.batch_bytes, counts
        )
        try:
            self.sender.take_over()
            owner, records = ledger.read([self.number])  # nothing there can change any more
            self._check_owner(owner)
            self._record = self._started(records.get(self.number), changefeed)
        except BaseException:
            self.sender.give_up()
            raise
        self._committed = dict(self._record.done)
        self._sent: dict[tuple[str, int], Committed] = {}  # since the last commit
        self._passed: dict[tuple[str, int], Committed] = {}  # of all packets that came

    def add(self, packet: Packet) -> None:
        """Send a packet, but for what is committed."""
        place = (packet.topic.name, packet.partition)
        before = self._passed.get(place, Committed(packet.segment, 0))
        if before.segment < packet.segment:
            before = Committed(packet.segment, 0)
        count = len(packet.messages.values)
        self._passed[place] = Committed(packet.segment, before.messages + count)
        known = self._committed.get(place)
        skipped = 0
        if known is not None and packet.segment <= known.segment:
            if packet.segment < known.segment or known.messages == WHOLE:
                return
            skipped = min(max(known.messages - before.messages, 0), count)
        if skipped < count:
            messages = _behind(packet.messages, skipped)
            self.sender.send(packet.topic.name, packet.partition, messages)
        self._sent[place] = self._passed[place]

    def keep_young(self, segment: int) -> None:
        """Commit what was sent before a segment's packet, if the transaction is getting old.

        Messages that a replay makes anew cannot be counted: their segment is shown as a whole.
        """
        if self.sender.age_s < self._early_s:
            return
        inside = any(far.segment >= segment for far in self._sent.values())
        if self._exact or not inside:
            self._commit({p: _closed(far, segment) for p, far in self._sent.items()})

    def finish(self) -> None:
        """Commit the rest; on return all is shown."""
        if self._sent:
            self._commit({place: Committed(far.segment) for place, far in self._sent.items()})

    def _commit(self, done: dict[tuple[str, int], Committed]) -> None:
        self._record = replace(self._record, done={**self._record.done, **done})
        self.sender.commit(self.number + 1, self._record.to_bytes())
        self._sent.clear()

    def _started(self, last: LaneRecord | None, changefeed: str) -> LaneRecord:
        """Return the lane's record for this micro-batch, as far as it was carried out."""
        mine = LaneRecord(changefeed, self._lineage, self._batch)
        if last is None:
            return mine
        if last.lineage == self._lineage and last.micro_batch == self._batch:
            return last
        if (last.lineage.rank, last.micro_batch) >= (self._lineage.rank, self._batch):
            raise Fenced(
                f"topic {self._ledger.topic} says that lane {self.number} is at micro-batch "
                f"{last.micro_batch} of a later run, and this is {self._batch}"
            )
        return mine

    def _check_owner(self, owner: OwnerRecord | None) -> None:
        if owner is None:
            raise TargetLost(
                f"topic {self._ledger.topic} does not say any more who may write; restore it, or "
                "begin anew: rowferry changefeed reset --snapshot"
            )
        if owner.epoch > self._epoch:
            raise Fenced(
                f"topic {self._ledger.topic} says that owner {owner.epoch} of this changefeed "
                f"writes now; this is {self._epoch}"
            )
        if self._lineage.rank < owner.floor:
            raise PlanDiscarded(f"micro-batch {self._batch} was discarded")


class TransactionLanes:
    """The lanes that one task carries out."""

    def __init__(self, settings: KafkaSettings, changefeed: str, counts: EventCounts) -> None:
        self._settings, self._changefeed, self._counts = settings, changefeed, counts
        self._open: dict[int, LaneTransactions] = {}
        self._ledger: LedgerTopic | None = None
        self._owner: OwnerRecord | None = None  # as of the first packet

    @property
    def missing(self) -> set[str]:
        """Topics that are not there any more, as far as is known."""
        return {lane.sender.missing for lane in self._open.values() if lane.sender.missing}

    def add(self, packet: Packet) -> None:
        """Send a packet in its lane's transaction, but for what is committed."""
        for lane in self._open.values():
            lane.keep_young(packet.segment)
        number = packet.topic.lane_of(packet.partition)
        if number not in self._open:
            if self._ledger is None:
                self._ledger = LedgerTopic(self._settings)
            if not self._open:
                self._owner = self._ledger.owner()
            about = (self._settings, self._ledger, self._changefeed, self._owner)
            self._open[number] = LaneTransactions(*about, packet, self._counts)
        self._open[number].add(packet)

    def finish(self) -> None:
        """Commit all lanes; on return all is shown."""
        for lane in self._open.values():
            lane.finish()
        self.drop()

    def drop(self) -> None:
        """End all producers; what was not committed is never shown."""
        lanes, self._open = self._open, {}
        for lane in lanes.values():
            lane.sender.give_up()

    def close(self) -> None:
        """Let connections go."""
        self.drop()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


def _behind(messages: Encoded, skipped: int) -> Encoded:
    """Return messages without the first ones."""
    if not skipped:
        return messages
    keys = None if messages.keys is None else messages.keys.slice(skipped)
    return Encoded(messages.values.slice(skipped), keys)


def _closed(far: Committed, segment: int) -> Committed:
    """Return how far a partition is, where packets of a segment come next."""
    return Committed(far.segment) if far.segment < segment else far
