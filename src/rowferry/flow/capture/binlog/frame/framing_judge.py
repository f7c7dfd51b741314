"""What the planner decides at the events that stop its walk: tables, statements, XA, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import CorruptLog, EventUnknown
from rowferry.flow.capture.binlog.client.gtid import GtidSet
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, parse_table_map
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.framed_gtids import FramedGtids
from rowferry.flow.capture.binlog.frame.known_tables import KnownTables
from rowferry.flow.capture.binlog.frame.segment_cutter import SegmentCutter
from rowferry.flow.capture.binlog.frame.special_events import ROW_STATEMENTS, EventJudge
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.frame.walk_state import NEVER, WalkState
from rowferry.flow.capture.binlog.frame.xa import PreparedRows, without_tables
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql.session import Flavour

_CLAMP_STEP_MS: Final = 1_000  # the clock is taken over in steps: each one ends a segment
_ROWS_PLEASE: Final = "run: SET GLOBAL binlog_format = ROW, and let no session change it"


class KnowsTables(Protocol):
    """Who knows the tables; asked when the log names one, or holds a statement."""

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        """Return the version that the rows after a TABLE_MAP have; None: not captured."""

    def is_captured(self, table: TableId) -> bool:
        """Return whether rows of a table are delivered as the log tells them now."""

    def effects(self, query: ev.Query) -> Effects | None:
        """Return what a statement does to captured tables; None: nothing."""

    def named(self, query: ev.Query) -> str:
        """Return the captured table that a statement names, for an error; empty: none."""

    def is_mark(self, table: TableId) -> bool:
        """Return whether rows of this table mark a transaction that is not captured."""

    def source_ms(self) -> int:
        """Ask the source's clock."""


@dataclass(slots=True)
class LoggedStatement:
    """A statement that changes captured tables: the stretch ends with it."""

    query: ev.Query
    effects: Effects
    commit_ts: int


class FramingJudge(EventJudge):
    """Decides what a stretch holds.

    Attributes:
        statement_met: the statement with which the stretch ends.
        ended: the next transaction lies behind the wanted end.
        stop_at: the offset of the present file behind which nothing is framed.
        clamped: transactions whose time is not believed.
        prepared: the XA_PREPARE of the compressed transaction that is looked into.
        payload_stands_alone: that has a table with another version than the open segment has.
        delivered_ts: commit-ts of a CREATE TABLE … SELECT whose statement was delivered, and that
            the walk begins with because another server sends it as a whole; 0: it does not.
        met_delivered: that statement was met.
    """

    def __init__(
        self,
        point: WalkPoint,
        tables: KnownTables,
        cutter: SegmentCutter,
        gtids: FramedGtids,
        xa: PreparedRows,
        book: KnowsTables,
        flavour: Flavour,
        appetite: Appetite,
        delivered_ts: int,
    ) -> None:
        self._point, self._tables, self._cutter = point, tables, cutter
        self._gtids, self._xa, self._book = gtids, xa, book
        self._flavour = flavour
        self._place = appetite.until_place
        self.statement_met: LoggedStatement | None = None
        self.ended = False
        self.stop_at = self._stop_in_file()
        self.clamped = 0
        self.prepared, self.payload_stands_alone = b"", False
        self.delivered_ts, self.met_delivered = delivered_ts, False

    # --- tables and statements -------------------------------------------------------------------

    def table(self, body: bytes, inside: bool) -> None:
        """Ask what a table's rows are; one that goes on with another version ends the segment."""
        mapped = parse_table_map(body, self._flavour)
        schema = self._book.captured(mapped, self._point.state.txn_ts)
        if schema is None and self._xa.inside:
            self._xa.pass_over(mapped.table)
        draft = self._cutter.draft
        if schema is not None and draft is not None:
            if draft.version_of(schema.table_id) not in (None, schema.version):
                if inside:
                    self.payload_stands_alone = True
                else:
                    self._cutter.cut()
        held = schema is not None and schema.table_id in self._gtids.held and not self._xa.inside
        self._tables.put(body, mapped.table, schema, held, self._book.is_mark(mapped.table))

    def statement(self, query: ev.Query, verb: str) -> Effects | None:
        """Ask what a statement does; one with effects ends the segment.

        Raises:
            EventUnknown: it changes rows of a captured table, or may do so.
        """
        if verb == "SELECT":  # the log has it only where the function that it calls changes rows
            raise EventUnknown(
                f"QUERY_EVENT at {self._point} calls a function that changes rows as a "
                f"statement; {_ROWS_PLEASE}"
            )
        if verb in ROW_STATEMENTS:
            if table := self._book.named(query):
                raise EventUnknown(
                    f"QUERY_EVENT at {self._point} changes rows of {table} as a statement; "
                    f"{_ROWS_PLEASE}"
                )
            return None
        if verb == "CREATE" and self._point.state.txn_ts == self.delivered_ts:
            self.met_delivered = True
            return None  # also a second time, where not all of its transaction had come
        effects = self._book.effects(query)
        if effects is not None and effects.filled:
            raise EventUnknown(
                f"QUERY_EVENT at {self._point} makes {effects.filled[0]} and its rows as a "
                f"statement; {_ROWS_PLEASE}"
            )
        if effects is not None:
            self._cutter.close(self._point.border)
            self._point.state.open = 0
        return effects

    def carried_out(self, query: ev.Query, effects: Effects, commit_ts: int) -> None:
        """End the stretch here."""
        state = self._point.state
        self.statement_met = LoggedStatement(query, effects, commit_ts)
        state.txn_at = state.txn_offset = -1
        self._point.border.take(state)

    def rollback(self) -> None:
        """Refuse one behind rows of its transaction."""
        if self._point.state.in_txn:
            raise EventUnknown(
                f"QUERY_EVENT at {self._point} rolls rows back that stand in the log before "
                "it (a transaction that mixes engines); they cannot be told apart"
            )

    # --- the clock -------------------------------------------------------------------------------

    def tagged_gtid(self, gtid: ev.TaggedGtid) -> None:
        """Do for a GTID with a tag what the scanner does for others."""
        state = self._point.state
        if self._gtids.has_lows:
            self._gtids.look_at_lows(
                lambda low: (
                    isinstance(low, GtidSet) and low.holds(gtid.uuid, gtid.number, gtid.tag)
                ),
                self.hold_tables,
            )
        if gtid.commit_us // 1000 > state.clamp_ms:
            self.renew_clamp()
            state.accept = 0
        self._gtids.begin_tagged(gtid)

    def takes(self, commit_ts: int) -> bool:
        """End the stretch before the wanted end, the segment before another date."""
        state = self._point.state
        if commit_ts > state.until_ts:
            self.ended = True
            return False
        if state.open and commit_ts > state.day_end:
            self._cutter.close(state)
        return True

    def renew_clamp(self) -> None:
        """Ask the source's clock again; a time that is still far ahead is not believed."""
        state = self._point.state
        clamp = self._book.source_ms() + k.AHEAD_MS
        if clamp - state.clamp_ms >= _CLAMP_STEP_MS:
            self._cutter.close(state)  # a segment is read with one clamp
            state.clamp_ms = self._point.border.clamp_ms = clamp
        else:
            state.accept = 2
            self.clamped += 1

    def hold_tables(self) -> None:
        """Leave out the rows of tables whose snapshot has them, from here on."""
        self._cutter.close(self._point.state)
        self._tables.hold(self._gtids.held)

    # --- files -----------------------------------------------------------------------------------

    def rotate(self) -> None:
        """Go on in the next file."""
        point, state = self._point, self._point.state
        name, offset = ev.parse_rotate(point.body())
        if name != point.file:
            if state.txn_ts:
                self._roll_back()
            self._cutter.close(state)
            point.file = name
            if self._place is not None:
                self.stop_at = self._stop_in_file()
        else:
            offset = state.offset
        point.skip()
        state.offset = offset
        point.border.take(state)

    def _roll_back(self) -> None:
        """Drop a transaction in which a file ends: the server died while it wrote the file.

        No transaction goes on in another file. When the server came up again it rolled this one
        back; MySQL cuts it off the file, too, and MariaDB leaves there what it had written.
        """
        if not self._point.is_made_up:
            raise CorruptLog(f"the file of the log ends at {self._point} inside a transaction")
        self._cutter.roll_back()
        self._xa.abandon()
        if self._gtids.held:
            self._tables.hold(self._gtids.held)

    def _stop_in_file(self) -> int:
        """Return the offset of the present file behind which nothing is framed."""
        file = self._point.file
        if self._place is None or not file:
            return NEVER
        last = str(self._place["file"])
        if file == last:
            return int(self._place["offset"])
        return 0 if (len(file), file) > (len(last), last) else NEVER

    # --- XA --------------------------------------------------------------------------------------

    def begin_xa(self, state: WalkState) -> None:
        """Begin to keep rows back.

        Also those of tables that are left out: which snapshots have them is decided by the commit.
        And others are asked about once more: of which of them it has rows that are not captured.
        """
        if self._cutter.draft is not None and not self._cutter.draft.xa:
            self._cutter.close(self._point.border)
        else:
            self._cutter.draft = None  # seen a second time: its bytes had not all come
        for one in (state, self._point.state, self._point.border):
            one.open = 0
        self._xa.begin()
        if self._gtids.held:
            self._tables.hold(())
        self._tables.ask_about_others()

    def maria_xa(self, body: bytes) -> None:
        """Begin a transaction that is prepared, or end one."""
        if self._gtids.has_lows:  # the walk does not ask again
            self._gtids.look_at_lows(self._gtids.is_in, self.hold_tables)
        if body[12] & 0x40:
            self.begin_xa(self._point.state)
        if not self._gtids.fits_run(int.from_bytes(body[8:12], "little")):
            self._gtids.begin_run()

    def prepare_inside(self, body: bytes) -> None:
        """Remember it until the compressed transaction was walked through."""
        self.prepared = body

    def prepare_xa(self, body: bytes) -> None:
        """Remember a prepared transaction's rows until it is committed or rolled back."""
        state = self._point.state
        if self._cutter.draft is not None:
            self._cutter.close(state, inside=True)
        self._cutter.add(without_tables(self._xa.prepare(body), self._gtids.held))
        if self._gtids.held:
            self._tables.hold(self._gtids.held)
        state.in_txn = 0

    def end_xa(self, sql: str, commit: bool) -> None:
        """Let a prepared transaction's rows go out, or forget them."""
        committed = self._xa.end(
            sql, commit, self._point.state.txn_ts, str(self._point), self._book.is_captured
        )
        if commit:
            self._cutter.close(self._point.border)
        self._cutter.add(without_tables(committed, self._gtids.held))
