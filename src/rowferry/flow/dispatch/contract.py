"""What a dispatch promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Segment, Topic


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of one slice, and where each of them goes.

    Attributes:
        place: the slice's place in its segment.
        topic: where the slice's rows go; None for a sink without topics.
        partitions: the partition of each row inside the topic; None for a sink without topics.
    """

    place: int
    rows: Rows
    topic: Topic | None = None
    partitions: npt.NDArray[np.int32] | None = None


class Dispatch(Protocol):
    """Says to which of a segment's outputs each row goes."""

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the rows with their places; order is kept inside each slice and partition."""
