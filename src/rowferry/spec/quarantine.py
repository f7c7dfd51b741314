"""What becomes of a row that the target refuses: the changefeed stops, or the row is parked."""

from __future__ import annotations

from rowferry.errors import OptionsConflict
from rowferry.spec.active_active import read_active_active
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Section, one_of, option, whole
from rowferry.spec.sink_traits import SinkTraits, check_atomicity


class QuarantineOptions(Section, section=""):
    """Options of the top level."""

    on_bad_row = option(
        one_of("stop", "quarantine"),
        "stop",
        "What becomes of a row that the sink refuses: `stop` stops the changefeed, `quarantine` "
        "parks the row, and later changes of its key behind it, until an operator sends them "
        "again or drops them.",
    )
    quarantine_limit = option(
        whole(1, 100_000),
        1000,
        "How many parked rows the changefeed may have when it goes on; with more, or with more "
        "than 64 MiB of them, it stops. One micro-batch may park as many once more.",
    )

    @property
    def parks(self) -> bool:
        """Whether refused rows are parked."""
        return self.on_bad_row == "quarantine"


def check_quarantine(spec: ChangefeedSpec, sink: SinkTraits, raw_changes: bool) -> None:
    """Check whether refused rows can be parked, where a changefeed asks for it.

    `raw_changes`: updates that change a key stay whole.

    Raises:
        OptionsConflict: they cannot; the text says why.
    """
    if not spec.options(QuarantineOptions).parks:
        return
    lead = "on-bad-row = quarantine"
    if not sink.names_refused_rows:
        raise OptionsConflict(
            f"{lead}: a {spec.sink.scheme} sink {sink.refuses_no_row}; leave on-bad-row out"
        )
    written = spec.written(spec.sink, "sink", "transaction-atomicity")
    level = check_atomicity(sink, spec.sink.scheme, "" if written is None else str(written))
    if level != "none":
        raise OptionsConflict(
            f"{lead} takes single rows out of their transactions, and transaction-atomicity = "
            f"{level} keeps those whole; set one of the two back to its default"
        )
    if read_active_active(spec).enabled:
        raise OptionsConflict(f"{lead} cannot be used with enable-active-active; leave one out")
    if raw_changes:
        raise OptionsConflict(
            f"{lead} knows rows by their keys, and output-raw-change-event = true lets one change "
            "move a row to another key; leave one out"
        )
