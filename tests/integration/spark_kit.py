"""A task that does what its segment says; workers import it from here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from rowferry.change.plan import Receipt, Segment
from rowferry.errors import BY_CODE
from rowferry.spark.job import SegmentTask


class ObedientTask(SegmentTask):
    """`read["do"]`: give so many receipts, raise an error by its code, break, or die."""

    def run(self, ordinal: int) -> Iterator[Receipt]:
        segment = Segment.from_json(json.loads(self._segments[ordinal][0]))
        do = segment.read["do"]
        if isinstance(do, int):
            note = {"pid": os.getpid()}
            return iter(
                [Receipt(ordinal, i, 1000 + i, 1 << 40, 7, note if i else None) for i in range(do)]
            )
        if do in BY_CODE:
            raise BY_CODE[do](f"segment {ordinal}: it's [so] “bad”")
        if do == "die":
            os._exit(3)
        raise KeyError(do)
