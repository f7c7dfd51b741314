"""Dispatch for sinks whose lanes write one table side by side: neighbouring keys stay together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.plan import Output, Segment
from rowferry.change.sqltype import Kind
from rowferry.columnar.fields import ImagePresence, fields
from rowferry.flow.dispatch.by_topic import ByKey
from rowferry.flow.dispatch.contract import Routed

_BLOCK_BITS: Final = 10  # rows of so many neighbouring keys fill several pages of a table
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # keys with a stride do not meet in one lane
_HIGH: Final = np.uint64(32)


class ByNeighbours:
    """Sends all changes of a key to one partition, and mostly those of its neighbours, too.

    Lanes that write neighbouring rows wait for each other at the same pages of the table. Keys of
    one whole number go by blocks; others as `ByKey` sends them.
    """

    def __init__(self) -> None:
        self._by_key = ByKey()

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the rows with their slice's topic and each row's partition."""
        for routed in self._by_key.route(segment, outputs, rows):
            topic = routed.topic
            if topic is not None and topic.partitions > 1:
                keys = _whole_keys(rows)
                if keys is not None:
                    lanes = _lanes(keys, topic.partitions)
                    routed = Routed(routed.place, rows, topic, lanes)
            yield routed


def _lanes(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.int32]:
    mixed = ((keys >> np.uint64(_BLOCK_BITS)) * _SPREAD) >> _HIGH
    return (mixed % np.uint64(count)).astype(np.int32)


def _whole_keys(rows: Rows) -> npt.NDArray[np.uint64] | None:
    """Return each row's key as a number; None: it is not a whole number."""
    names = rows.table.handle_key
    if len(names) != 1 or rows.table.column(names[0]).type.kind is not Kind.INTEGER:
        return None
    after = _column(rows, rows.after, names[0])
    deletes = ImagePresence.of(rows).op == Op.DELETE
    if not deletes.any():
        return after
    before = _column(rows, rows.before, names[0])
    return before if after is None or before is None else np.where(deletes, before, after)


def _column(rows: Rows, image: pa.StructArray, name: str) -> npt.NDArray[np.uint64] | None:
    for field in fields(rows.table, image):
        if field.column.name == name:
            whole: npt.NDArray[np.uint64] = pc.fill_null(field.values, 0).to_numpy().view(np.uint64)
            return whole
    return None
