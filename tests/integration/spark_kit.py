"""Tasks that do what a test says; workers import them from here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pyarrow as pa

from rowferry.change.plan import Receipt, Segment, Topic
from rowferry.errors import BY_CODE
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet
from rowferry.spark.job import SegmentTask


class LanedTask(SegmentTask):
    """Packs two packets for each lane of four, the lanes in turn; delivers them for real."""

    def pack(self, ordinal: int) -> Iterator[Packet | Receipt]:
        for number in range(8):
            lane = number % 4
            value = b'{"lane":%d,"place":[%d,%d]}' % (lane, ordinal, number)
            messages = Encoded(pa.array([value], pa.large_binary()))
            yield Packet(ordinal, number, Topic("shop.orders", 4, 1000), lane, messages)
        yield Receipt(ordinal, 0, 8, 1000, note={"pid": os.getpid()})


class LongLaneTask(SegmentTask):
    """Packs one packet for partition 0 and many for partition 1, which another task sends."""

    def pack(self, ordinal: int) -> Iterator[Packet | Receipt]:
        for number in range(1 if ordinal == 0 else 20):
            value = b'{"lane":%d}' % ordinal
            messages = Encoded(pa.array([value], pa.large_binary()))
            yield Packet(ordinal, number, Topic("shop.orders", 2, 1000), ordinal, messages)
        yield Receipt(ordinal, 0, 1, 1000)


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
