"""Where a column of texts is cut into pieces: by rows and by bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def cuts_of(
    texts: pa.LargeBinaryArray, most_rows: int, most_bytes: int, between: int = 0
) -> list[int]:
    """Return where pieces of neighbouring texts begin, and the end of the last.

    A piece has so many rows at most and, unless it has a single one, so many bytes of texts and of
    what stands `between` them.
    """
    count = len(texts)
    if not count:
        return []
    offsets: npt.NDArray[np.int64] = np.frombuffer(texts.buffers()[1], np.int64)
    ends = offsets[texts.offset : texts.offset + count + 1] + between * np.arange(count + 1)
    begins = [0]
    while begins[-1] < count:
        here = begins[-1]
        room = ends[here] + most_bytes + between
        fitting = int(np.searchsorted(ends, room, side="right")) - 1
        begins.append(max(here + 1, min(fitting, here + most_rows, count)))
    return begins
