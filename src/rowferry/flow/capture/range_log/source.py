"""The range source: `range://HOST:PORT` of a master that speaks the range CDC protocol.

With `range+ssl://` it speaks it over TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rowferry.change.chunk import Rows
from rowferry.change.dialect import SourceDialect
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadUri
from rowferry.flow.capture.contract import SourceTraits, filter_text
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.flow.capture.range_log.client_access import RangeAccess
from rowferry.flow.capture.range_log.planner import RangePlanner
from rowferry.flow.capture.range_log.read import read_segment
from rowferry.flow.capture.range_log.reroute import patiently
from rowferry.flow.capture.range_log.state import RangeState
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, one_of, option, text, whole
from rowferry.spec.uri_form import UriForm, UriPart


class RangeSourceOptions(Section, section="source"):
    """The options of range sources."""

    feed_level = option(
        one_of("transaction", "range"),
        "transaction",
        "`transaction`: a table's changes come in commit-ts order and no transaction is split over "
        "watermarks. `range`: order holds within a range only; lower latency while transactions "
        "hang.",
        uri=True,
        alterable=False,
    )
    on_log_lost = option(
        one_of("stop", "resnapshot"),
        "stop",
        "When the source compacted its log past our position: `stop` with an error that names "
        "range and gap, or `resnapshot` the table (TRUNCATE first, then all its rows again).",
        uri=True,
    )
    start_ts = option(
        whole(0, 2**63 - 1),
        0,
        "Begin with the first transaction whose commit-ts is above this one; no snapshot is made.",
        uri=True,
        alterable=False,
    )
    ca = option(
        text(),
        "",
        "range+ssl: file with the authorities' certificates (PEM) that the store's must be signed "
        "by.",
        uri=True,
        names="path",
    )
    cert = option(
        text(),
        "",
        "range+ssl: file with our own certificate (PEM), where the store asks for one.",
        uri=True,
        names="path",
    )
    key = option(text(), "", "range+ssl: file with its key (PEM).", uri=True, names="path")
    token = option(text(), "", "The token that the range store wants.", uri=True, secret=True)


_TLS = "range+ssl"
_SPANS = 8  # of a segment, that are shown


class RangeSource:
    """Ranges pulled over gRPC; see `Source` for what it promises."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (RangeSourceOptions.TABLE,)
    DIALECT: ClassVar[SourceDialect] = MYSQL_DIALECT
    STAMPED_BY_ROWS: ClassVar[bool] = False
    FORM: ClassVar[UriForm] = UriForm(
        "Range store", address=UriPart("Master", "127.0.0.1:7001"), path=None, login=False
    )
    KEEPS_KEYS: ClassVar[bool] = True

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._master = spec.source.address
        host, _, port = self._master.rpartition(":")
        if not host or not port.isdecimal() or spec.source.path not in ("", "/"):
            raise BadUri(
                f"{spec.source} is no range source; write {spec.source.scheme}://HOST:PORT"
            )
        self._subscriber = spec.changefeed_id
        self._options = spec.options(RangeSourceOptions, spec.source)
        self._access = RangeAccess(
            spec.source.scheme == _TLS,
            self._options.ca,
            self._options.cert,
            self._options.key,
            self._options.token,
        )
        self._access.check(self._master)
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
            has_closed_timestamps=self._options.feed_level == "transaction",
            snapshot_unit="parts",
        )

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Ask the master and the catalog; returns the tables that the decision keeps by name."""
        planner = self._planner(decision, None, ())
        try:
            tables = patiently(planner.named, f"asking the master at {self._master}")
            self._cluster_id, self._gives_old_rows = planner.cluster_id, planner.gives_old_rows
            self.identity = str(self._cluster_id)
            return tables
        finally:
            planner.close()

    @staticmethod
    def shown_position(position: Mapping[str, Any]) -> dict[str, str]:
        """Return up to where all logs were read; each range's own place is in its progress."""
        if not position:
            return {}
        names = {"resolved_ts": "resolved_ts", "catalog_index": "catalog_index"}
        names["cluster"] = "cluster_id"
        return {name: str(position[key]) for name, key in names.items()}

    @staticmethod
    def shown_segment(segment: Segment) -> dict[str, str]:
        """Return behind which index the log was read, up to which; of several ranges, of each."""
        spans = segment.read.get("spans", ())
        if not spans:
            return {}
        names = {"range": "range_id", "from": "from", "to": "until"}
        return {
            name: ",".join(str(span[key]) for span in spans[:_SPANS]) for name, key in names.items()
        }

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
            RangeClient(self._master, self._subscriber, access=self._access),
            decision,
            by_range=self._options.feed_level == "range",
            resnapshot=self._options.on_log_lost == "resnapshot",
            state=state,
            versions=versions,
            rules=self._rules,
            start_ts=self._options.start_ts,
        )

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read one segment, in a task."""
        if self._client is None:
            self._client = RangeClient(self._master, self._subscriber, access=self._access)
        return read_segment(self._client, segment, tables[segment.slices[0]])

    def facts_read(self, segment: Segment) -> None:
        """Nothing: a range's snapshots and logs are planned completely."""

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the planned position."""
        return stretch.position

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Return the position as it is: what is read again is the same, or as good."""
        return position
