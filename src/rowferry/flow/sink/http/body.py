"""Messages become request bodies: as many in one as its limits allow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.encode.contract import TextBody
from rowferry.flow.sink.packing import cuts_of


def bodies(
    messages: pa.LargeBinaryArray, form: TextBody, max_rows: int, max_bytes: int
) -> Iterator[bytes]:
    """Yield the messages in their order, joined to bodies.

    A body has at most `max_rows` messages and, unless a single one is longer, at most `max_bytes`
    of messages and what stands between them.
    """
    cuts = cuts_of(messages, max_rows, max_bytes, len(form.between))
    for start, stop in pairwise(cuts):
        part = messages.slice(start, stop - start).cast(pa.binary())
        whole = pa.ListArray.from_arrays(pa.array([0, stop - start], pa.int32()), part)
        joined = pc.binary_join(whole, form.between)[0]
        yield form.opening + joined.as_buffer().to_pybytes() + form.closing
