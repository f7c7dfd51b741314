"""Sequence ids: by them the brokers know a message that they have already.

The brokers keep, for each producer's name, the greatest id that they have stored, and drop what is
not greater. Of a batch they look at the id of its first message, and drop or store it whole. So the
first id of a batch must tell where the batch ends: whatever way a replay cuts its batches, one that
is dropped ends at or before what is stored, and nothing in it is missing.

    bits  63 … 38  the micro-batch, counted from the beginning of the lineage
          37 … 10  the place of the batch's last message in its lane
           9 …  0  the message's place in its batch
"""

from __future__ import annotations

from typing import Final

from rowferry.errors import SinkUnwritable
from rowferry.flow.sink.queue.lineage import SendLineage

_OFFSET_BITS: Final = 10
_PLACE_BITS: Final = 28
_PLACES: Final = 1 << _PLACE_BITS


class Sequence:
    """The ids of one lane's messages in one micro-batch."""

    def __init__(self, lineage: SendLineage, micro_batch: int) -> None:
        self._base = (micro_batch - lineage.origin) << (_OFFSET_BITS + _PLACE_BITS)
        self._next = 0

    def batch(self, size: int) -> int:
        """Return the id of the first message of the next batch; each further one is one more.

        Raises:
            SinkUnwritable: the micro-batch has more messages in this lane than there are ids.
        """
        self._next += size
        if self._next > _PLACES:
            raise SinkUnwritable(
                f"a micro-batch has more than {_PLACES} messages for one partition; give the "
                "topic more partitions"
            )
        return self._base | (self._next - 1) << _OFFSET_BITS

    def until(self, last: int) -> int:
        """Return how many of this micro-batch's messages are behind what is stored.

        Args:
            last: the greatest id that the brokers know for the producer's name.
        """
        if last < self._base:
            return 0
        return ((last >> _OFFSET_BITS) & (_PLACES - 1)) + 1
