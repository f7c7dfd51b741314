"""Messages become request bodies: as many in one as its limits allow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.encode.contract import TextBody


def bodies(
    messages: pa.LargeBinaryArray, form: TextBody, max_rows: int, max_bytes: int
) -> Iterator[bytes]:
    """Yield the messages in their order, joined to bodies.

    A body has at most `max_rows` messages and, unless a single one is longer, at most `max_bytes`
    of messages and what stands between them.
    """
    cuts = _cuts(messages, len(form.between), max_rows, max_bytes)
    for start, stop in zip(cuts, cuts[1:], strict=False):
        part = messages.slice(start, stop - start).cast(pa.binary())
        whole = pa.ListArray.from_arrays(pa.array([0, stop - start], pa.int32()), part)
        joined = pc.binary_join(whole, form.between)[0]
        yield form.opening + joined.as_buffer().to_pybytes() + form.closing


def _cuts(messages: pa.LargeBinaryArray, between: int, max_rows: int, max_bytes: int) -> list[int]:
    """Return where bodies begin, and the end of the last."""
    count = len(messages)
    if count == 0:
        return []
    offsets: npt.NDArray[np.int64] = np.frombuffer(messages.buffers()[1], np.int64)
    ends = offsets[messages.offset : messages.offset + count + 1] + between * np.arange(count + 1)
    begins = [0]
    while begins[-1] < count:
        here = begins[-1]
        room = ends[here] + max_bytes + between
        fitting = int(np.searchsorted(ends, room, side="right")) - 1
        begins.append(max(here + 1, min(fitting, here + max_rows, count)))
    return begins
