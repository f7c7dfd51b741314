"""MySQL and MariaDB as sources: `mysql://<user>:<password>@<host>:<port>/`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.dialect import SourceDialect
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput, TableNotActiveActive
from rowferry.flow.capture.binlog.client.privileges import check_select
from rowferry.flow.capture.binlog.client.probe import cascade_notices, check_logged, preflight
from rowferry.flow.capture.binlog.client.retention import log_kept
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.frame.shared_log import SHARED_LOGS
from rowferry.flow.capture.binlog.frame.transaction_lookup import transaction_places
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.read import read_log
from rowferry.flow.capture.binlog.snapshot.begin import Beginning
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.capture.contract import ListedTable, LogKept, SourceTraits, filter_text
from rowferry.flow.decide.contract import Decision
from rowferry.moment import moment
from rowferry.mysql.dialect import MYSQL_DIALECT
from rowferry.mysql.key_ranges import Chunk
from rowferry.mysql.key_values import missing_keys
from rowferry.mysql.listing import listed_databases, listed_tables
from rowferry.mysql.range_read import read_chunk, read_exact
from rowferry.mysql.session import Flavour, Login, connected, facts, rows
from rowferry.mysql.stamps import cure, stamping_clusters, triggers_question
from rowferry.spec.active_active import ActiveActive
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri_form import HOST, UriForm

# A place of the log in words of the server that told it; its identity is one of them.
_PLACE: Final = {"server": str, "file": str, "offset": int, "gtid": str}
# MySQL's `uuid:1-5,…` and MariaDB's `0-1-100,…`; a file of the log looks like neither.
_GTIDS: Final = re.compile(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:.*|\d+-\d+-\d+.*", re.S
)
_SHOWN: Final = "shown"  # of a position: slices that discarded plans have shown


class BinlogSource:
    """A server's tables and its binary log; see `Source` for what it promises."""

    TABLES: ClassVar[tuple[OptionTable, ...]] = (BinlogOptions.TABLE,)
    DIALECT: ClassVar[SourceDialect] = MYSQL_DIALECT
    STAMPED_BY_ROWS: ClassVar[bool] = True
    FORM: ClassVar[UriForm] = UriForm("MySQL or MariaDB", address=HOST, path=None)
    KEEPS_KEYS: ClassVar[bool] = False

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._options = spec.options(BinlogOptions, spec.source)
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
            omits_columns=self._options.partial_row_image == "allow",
            rereads=True,
        )

    def check_place(self, place: Mapping[str, Any]) -> None:
        """Raise BadInput unless that is a place: of a server's file, between two transactions."""
        if {k: type(v) for k, v in place.items()} != _PLACE:
            raise BadInput(f"position: needs exactly {', '.join(_PLACE)}; offset is a number")

    @staticmethod
    def shown_position(position: Mapping[str, Any]) -> dict[str, str]:
        """Return the log's file, the offset in it, the GTIDs before it, and whose they are."""
        if not position.get("log"):
            return {}
        log = LogPosition.from_json(position["log"])
        place = {"file": log.file, "offset": str(log.offset)} if log.file else {}
        gtids = {"gtids": log.gtids} if log.gtids else {}
        return {**place, **gtids, "server": log.server}

    @staticmethod
    def kept_log_bytes() -> int:
        """Return what is kept for changefeeds that share a connection, of all servers."""
        return SHARED_LOGS.nbytes

    @staticmethod
    def start_at(position: Mapping[str, Any], commit_ts: int) -> dict[str, str]:
        """Return the GTIDs behind which a position at this commit-ts goes on."""
        if not position.get("log"):
            return {}
        log = LogPosition.from_json(position["log"])
        at_border = log.last_ts == commit_ts and not log.txn_ts
        return {BinlogOptions.start_gtid.key: log.gtids} if at_border and log.gtids else {}

    @staticmethod
    def start_option(place: str) -> str:
        """Return the option that takes GTIDs, or the one that takes FILE:OFFSET."""
        is_gtids = _GTIDS.fullmatch(place) is not None
        return (BinlogOptions.start_gtid if is_gtids else BinlogOptions.start_position).key

    @staticmethod
    def shown_segment(segment: Segment) -> dict[str, str]:
        """Return the log's file, and from which offset of it up to which."""
        read = segment.read
        if read["kind"] != "log":
            return {}
        return {"file": read["file"], "from": str(read["from"]), "to": str(read["to"])}

    def transaction_places(
        self, segment: Segment, wanted: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return file, offset and GTID of transactions, by commit-ts."""
        if segment.read["kind"] != "log":
            return {}
        return transaction_places(self._login, segment, wanted)

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Check the server's settings and the user's rights; returns the tables kept by name."""
        moment("probe source")
        with connected(self._login) as connection:
            needs_snapshot = self._beginning.snapshots
            outcome = preflight(connection, self._login, self._options, needs_snapshot)
            self.notices = outcome.notices
            self.identity = outcome.facts.identity
        server = BinlogServer(self._login)
        try:
            tables = server.tables(decision.keeps_table, lambda: 0)
            names = {t.id for t in tables if decision.captures(t)}
            self.unnumbered = tuple(n for n in server.unnumbered_tables() if n in names)
            check_logged(server.connection, self._login, outcome.facts, names)
            check_select(server.connection, self._login, names)
            self.notices += tuple(
                cascade_notices(server.connection, self._login, outcome.facts, names)
            )
            return tables
        finally:
            server.close()

    def databases(self, most: int) -> tuple[str, ...]:
        """Return the names of the databases that the user may see, at most so many."""
        moment("list databases of source")
        with connected(self._login) as connection:
            return listed_databases(connection, self._login, most)

    def tables_of(self, database: str, most: int) -> tuple[ListedTable, ...]:
        """Return the tables of a database that the user may see, at most so many."""
        moment("list tables of a database")
        with connected(self._login) as connection:
            listed = listed_tables(connection, self._login, database, most)
            return tuple(ListedTable(name, rows) for name, rows in listed)

    def health(self) -> tuple[int, LogKept | None]:
        """Return the server's clock in milliseconds, and how long it keeps its log."""
        server = BinlogServer(self._login)
        try:
            return server.clock_ms(), log_kept(server.connection, self._login)
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
            clusters = stamping_clusters(there, table)
            if not clusters:
                raise TableNotActiveActive(
                    f"table {table} of the source has no triggers that stamp its rows, without "
                    "which nobody can say which of two writes is newer, as enable-active-active "
                    f"must; {cure(table, own)}"
                )
            if clusters != {own}:
                others = ", ".join(str(n) for n in sorted(clusters - {own}))
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
            server_id=self._options.server_id,
            follow_swaps=self._options.online_schema_change == "follow",
            drop_marked=self._drop_marked,
            retention_warning=self._options.retention_warning,
            ranges=ranges,
            shown=tuple(TableSlice.from_json(one) for one in position.get(_SHOWN, ())),
        )

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read one segment, in a task."""
        kind = segment.read["kind"]
        if kind == "log":
            partial = self._options.partial_row_image == "allow"
            return read_log(self._login, segment, tables, partial, self._drop_marked)
        schema, commit_ts = tables[segment.slices[0]], segment.read["commit_ts"]
        first = segment.ordinal << 40
        if kind == "exact":
            lock = self._options.snapshot_lock == "table"
            place, chunks = read_exact(
                self._login, schema, commit_ts, first, self._whose(), lock, _server_of(segment)
            )
            self._exact[segment.slices[0].table_id] = place
            return chunks
        chunk = Chunk.from_json(segment.read["chunk"])
        server = _server_of(segment)
        parts = read_chunk(self._login, schema, chunk, commit_ts, first, self._whose(), server)
        physical = segment.slices[0].physical_id
        return (replace(one, physical_id=physical) for one in parts)

    def part_of(self, segment: Segment) -> dict[str, Any]:
        """Return the key range of a segment that reads rows again."""
        part: dict[str, Any] = segment.read["chunk"]
        return part

    def missing(self, segment: Segment, table: TableSchema, keys: pa.StructArray) -> pa.StructArray:
        """Return the keys of which the table has no row now."""
        return missing_keys(self._login, table, keys, self._whose(), _server_of(segment))

    def facts_read(self, segment: Segment) -> dict[str, Any] | None:
        """Return the exact place of a snapshot that only its task could find."""
        if segment.read["kind"] != "exact":
            return None
        table_id = segment.slices[0].table_id
        return {"table_id": table_id, "place": self._exact.pop(table_id)}

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the position with the exact places that tasks have found."""
        places = [r.source_facts for r in receipts if r.source_facts]
        if not places:
            return stretch.position
        lows = dict(stretch.position["lows"])
        lows.update({str(f["table_id"]): f["place"] for f in places})
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


def _server_of(segment: Segment) -> str:
    """Return whose rows a snapshot's segment has; plans of older versions do not tell."""
    return str(segment.read.get("server", ""))
