"""A sink that takes everything and keeps nothing: to measure a source, or to try settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from rowferry.change.plan import Output, Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableSchema
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner, SinkTraits
from rowferry.flow.sink.defaults import SegmentDefaults
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri_form import UriForm

# The sink URI where one is needed and nothing is delivered.
NOWHERE: Final = "blackhole://"


class Blackhole(SegmentDefaults):
    """Counts rows and bytes, and lets them go. Any number of changefeeds may share it."""

    TRAITS: ClassVar[SinkTraits] = SinkTraits(
        takes_files=False,
        needs_shuffle=False,
        kind="blackhole",
        refuses_no_row="takes every row",
        protocol="allowed",
        default_protocol="json",
        atomicity=("none", "table"),
        takes_partial_rows=True,
        keeps_rows=False,
        form=UriForm("Nowhere, for trials", address=None, path=None, login=False),
    )

    def __init__(self, spec: ChangefeedSpec, codec: Codec) -> None:
        pass

    def probe(self, owner: Owner) -> None:
        """There is nothing that could refuse."""

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """There is nothing to claim: repeats do no harm where nothing is kept."""

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Give every slice of every segment an output without a target."""
        outputs = (
            Output(segment.ordinal, place, {})
            for segment in stretch.segments
            for place in range(len(segment.slices))
        )
        return tuple(outputs), None

    def write(
        self, segment: Segment, outputs: Sequence[Output], frames: Iterator[tuple[int, Encoded]]
    ) -> Iterator[Receipt]:
        """Count the frames and drop them."""
        rows = dict.fromkeys((o.slice for o in outputs), 0)
        size = dict(rows)
        for place, frame in frames:
            rows[place] += frame.row_count
            size[place] += frame.nbytes
        return iter(
            [Receipt(segment.ordinal, o.slice, rows[o.slice], size[o.slice]) for o in outputs]
        )

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Nothing becomes visible."""

    def discard(self, plan: Plan) -> bool:
        """Nothing was kept, and nobody has seen it."""
        return False
