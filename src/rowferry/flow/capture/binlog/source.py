"""MySQL and MariaDB as sources: `mysql://<user>:<password>@<host>:<port>/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

from rowferry.change.chunk import Rows
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import TableNotActiveActive
from rowferry.flow.capture.binlog import options as opt
from rowferry.flow.capture.binlog.client.privileges import check_select
from rowferry.flow.capture.binlog.client.probe import cascade_notices, preflight
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.options import BINLOG_OPTIONS
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.flow.capture.binlog.read import read_log
from rowferry.flow.capture.binlog.snapshot.begin import Beginning
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.capture.contract import SourceTraits, filter_text
from rowferry.flow.decide.contract import Decision
from rowferry.moment import moment
from rowferry.mysql.key_ranges import Chunk
from rowferry.mysql.range_read import read_chunk, read_exact
from rowferry.mysql.session import Flavour, Login, connected, facts, rows
from rowferry.mysql.stamps import cure, stamping_clusters, triggers_question
from rowferry.spec.active_active import ActiveActive
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable

_SHOWN: Final = "shown"  # of a position: slices that discarded plans have shown


class BinlogSource:
    """A server's tables and its binary log; see `Source` for what it promises."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (BINLOG_OPTIONS,)
    STAMPED_BY_ROWS: ClassVar[bool] = True

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._options = spec.options(BINLOG_OPTIONS, spec.source)
        self._login = Login.of(spec.source, self._options)
        self._beginning = Beginning.of(self._options, filter_text(spec))
        self._mode = spec.options(ActiveActive)
        self._drop_marked = self._mode.bdr_mode
        self._flavour: Flavour | None = None  # of `read`: asked once in a worker
        self._exact: dict[int, dict[str, Any]] = {}
        self.notices: tuple[str, ...] = ()
        self.unnumbered: tuple[TableId, ...] = ()
        self.identity = ""

    def traits(self) -> SourceTraits:
        """Return what these sources can do."""
        return SourceTraits(
            carries_before_image=True,
            has_closed_timestamps=True,
            movable=True,
            has_places=True,
            omits_columns=self._options[opt.PARTIAL_ROW_IMAGE] == "allow",
        )

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Check the server's settings and the user's rights; returns the tables kept by name."""
        moment("probe source")
        with connected(self._login) as connection:
            needs_snapshot = self._beginning.snapshots
            found = preflight(connection, self._login, self._options, needs_snapshot)
            self.notices = found.notices
            self.identity = found.facts.identity
        server = BinlogServer(self._login)
        try:
            tables = server.tables(decision.keeps_table, lambda: 0)
            names = {t.id for t in tables if decision.captures(t)}
            self.unnumbered = tuple(n for n in server.unnumbered_tables() if n in names)
            check_select(server.connection, self._login, names)
            self.notices += tuple(
                cascade_notices(server.connection, self._login, found.facts, names)
            )
            return tables
        finally:
            server.close()

    @contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        """Hold a lock that only sessions of this server can see."""
        moment("mark source")
        with connected(self._login) as connection:
            rows(connection, self._login, "SELECT GET_LOCK(%s, 0)", (mark,))
            yield

    def check_beginning(self) -> None:
        """Make sure that the log holds the place where a changefeed without progress begins."""
        server = BinlogServer(self._login)
        try:
            self._beginning.check(server)
        finally:
            server.close()

    def check_stamps(self, tables: Iterable[TableId]) -> None:
        """Make sure that triggers stamp what is written to these tables, in the mode."""
        wanted = tuple(tables) if self._mode.enabled else ()
        if not wanted:
            return
        own = self._mode.cluster_index
        moment("list triggers of source")
        with connected(self._login) as connection:
            there = rows(connection, self._login, *triggers_question(wanted))
        for table in wanted:
            found = stamping_clusters(there, table)
            if not found:
                raise TableNotActiveActive(
                    f"table {table} of the source has no triggers that stamp its rows, without "
                    "which nobody can say which of two writes is newer, as enable-active-active "
                    f"must; {cure(table, own)}"
                )
            if found != {own}:
                others = ", ".join(str(n) for n in sorted(found - {own}))
                raise TableNotActiveActive(
                    f"the triggers of table {table} of the source have the cluster-index {others}, "
                    f"and the changefeed {own}; set cluster-index to that of the source's cluster"
                )

    def cluster_id(self) -> int:
        """Return 0: these servers have no number that survives a failover."""
        return 0

    def planner(
        self,
        decision: Decision,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: tuple[TableSchema, ...],
    ) -> BinlogPlanner:
        """Open the driver's half after a published state."""
        known = "log" in position
        state = BinlogState.from_position(position, ranges, versions) if known else None
        return BinlogPlanner(
            self._login,
            decision,
            self._beginning,
            state,
            versions,
            server_id=self._options[opt.SERVER_ID],
            follow_swaps=self._options[opt.ONLINE_SCHEMA_CHANGE] == "follow",
            drop_marked=self._drop_marked,
            retention_warning=self._options[opt.RETENTION_WARNING],
            ranges=ranges,
            shown=tuple(TableSlice.from_json(one) for one in position.get(_SHOWN, ())),
        )

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read one segment, in a task."""
        kind = segment.read["kind"]
        if kind == "log":
            partial = self._options[opt.PARTIAL_ROW_IMAGE] == "allow"
            return read_log(self._login, segment, tables, partial, self._drop_marked)
        schema, commit_ts = tables[segment.slices[0]], segment.read["commit_ts"]
        first = segment.ordinal << 40
        if kind == "exact":
            lock = self._options[opt.SNAPSHOT_LOCK] == "table"
            place, found = read_exact(self._login, schema, commit_ts, first, self._whose(), lock)
            self._exact[segment.slices[0].table_id] = place
            return found
        chunk = Chunk.from_json(segment.read["chunk"])
        parts = read_chunk(self._login, schema, chunk, commit_ts, first, self._whose())
        physical = segment.slices[0].physical_id
        return (replace(one, physical_id=physical) for one in parts)

    def found(self, segment: Segment) -> dict[str, Any] | None:
        """Return the exact place of a snapshot that only its task could find."""
        if segment.read["kind"] != "exact":
            return None
        table_id = segment.slices[0].table_id
        return {"table_id": table_id, "place": self._exact.pop(table_id)}

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the position with the exact places that tasks have found."""
        found = [r.found for r in receipts if r.found]
        if not found:
            return stretch.position
        lows = dict(stretch.position["lows"])
        lows.update({str(f["table_id"]): f["place"] for f in found})
        return {**stretch.position, "lows": lows}

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Return the position with the tables of whose snapshots readers have seen rows."""
        parts = (s for segment in stretch.segments if segment.snapshot for s in segment.slices)
        forms = [replace(one, physical_id=None).to_json() for one in parts]
        if not forms:
            return position
        shown = [*position.get(_SHOWN, ())]
        shown += [form for form in forms if form not in shown]
        return {**position, _SHOWN: shown}

    def _whose(self) -> Flavour:
        if self._flavour is None:
            moment("ask whose server")
            with connected(self._login) as connection:
                self._flavour = facts(connection, self._login).flavour
        return self._flavour
