"""The range source: `range://HOST:PORT` of a master that speaks the range CDC protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rowferry.change.chunk import Rows
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadUri
from rowferry.flow.capture.contract import SourceTraits, filter_text
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.flow.capture.range_log.planner import RangePlanner
from rowferry.flow.capture.range_log.read import read_segment
from rowferry.flow.capture.range_log.reroute import patiently
from rowferry.flow.capture.range_log.state import RangeState
from rowferry.flow.decide.contract import Decision
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import Option, OptionTable, one_of, whole

FEED_LEVEL = Option(
    "feed-level",
    one_of("transaction", "range"),
    "transaction",
    "`transaction`: a table's changes come in commit-ts order and no transaction is split over "
    "watermarks. `range`: order holds within a range only; lower latency while transactions hang.",
    uri=True,
    alterable=False,
)
ON_LOG_LOST = Option(
    "on-log-lost",
    one_of("stop", "resnapshot"),
    "stop",
    "When the source compacted its log past our position: `stop` with an error that names range "
    "and gap, or `resnapshot` the table (TRUNCATE first, then all its rows again).",
    uri=True,
)
START_TS = Option(
    "start-ts",
    whole(0, 2**63 - 1),
    0,
    "Begin with the first transaction whose commit-ts is above this one; no snapshot is made.",
    uri=True,
    alterable=False,
)
RANGE_OPTIONS = OptionTable("source", (FEED_LEVEL, ON_LOG_LOST, START_TS))


class RangeSource:
    """Ranges pulled over gRPC; see `Source` for what it promises."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (RANGE_OPTIONS,)
    STAMPED_BY_ROWS: ClassVar[bool] = False

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._master = spec.source.address
        host, _, port = self._master.rpartition(":")
        if not host or not port.isdecimal() or spec.source.path not in ("", "/"):
            raise BadUri(f"{spec.source} is no range source; write range://HOST:PORT")
        self._subscriber = spec.changefeed_id
        self._options = spec.options(RANGE_OPTIONS, spec.source)
        self._rules = filter_text(spec)
        self._cluster_id = 0
        self._gives_old_rows = True  # unless a probe finds otherwise
        self.notices: tuple[str, ...] = ()
        self.unnumbered: tuple[TableId, ...] = ()
        self.identity = ""
        self._client: RangeClient | None = None  # of `read`: kept between a worker's segments

    def traits(self) -> SourceTraits:
        """Return what range sources can do; old rows, as the last probe saw it."""
        return SourceTraits(
            carries_before_image=self._gives_old_rows,
            has_closed_timestamps=self._options[FEED_LEVEL] == "transaction",
        )

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Ask the master and the catalog; returns the tables that the decision keeps by name."""
        planner = self._planner(decision, None, ())
        try:
            found = patiently(planner.named, f"asking the master at {self._master}")
            self._cluster_id, self._gives_old_rows = planner.cluster_id, planner.gives_old_rows
            self.identity = str(self._cluster_id)
            return found
        finally:
            planner.close()

    def cluster_id(self) -> int:
        """Return the cluster's number, as the last probe saw it."""
        return self._cluster_id

    def planner(
        self,
        decision: Decision,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: tuple[TableSchema, ...],
    ) -> RangePlanner:
        """Open the driver's half after a published state."""
        known = {(v.table_id, v.version): v for v in versions}
        state = RangeState.from_position(position, ranges, known) if position else None
        return self._planner(decision, state, versions)

    def _planner(
        self, decision: Decision, state: RangeState | None, versions: tuple[TableSchema, ...]
    ) -> RangePlanner:
        return RangePlanner(
            RangeClient(self._master, self._subscriber),
            decision,
            by_range=self._options[FEED_LEVEL] == "range",
            resnapshot=self._options[ON_LOG_LOST] == "resnapshot",
            state=state,
            versions=versions,
            rules=self._rules,
            start_ts=self._options[START_TS],
        )

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read one segment, in a task."""
        if self._client is None:
            self._client = RangeClient(self._master, self._subscriber)
        return read_segment(self._client, segment, tables[segment.slices[0]])

    def found(self, segment: Segment) -> None:
        """Nothing: a range's snapshots and logs are planned completely."""

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the planned position."""
        return stretch.position

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Return the position as it is: what is read again is the same, or as good."""
        return position
