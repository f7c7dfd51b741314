"""The driver's half: which snapshot parts and log stretches come next, and which DDLs follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Stretch, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT, RangeProgress, Stage, physical_ms
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, SourceMismatch
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.client.probe import check_server_id
from rowferry.flow.capture.binlog.client.retention import (
    check_reachable,
    retention_left,
    retention_notice,
)
from rowferry.flow.capture.binlog.client.server import BinlogServer, is_at, passed
from rowferry.flow.capture.binlog.client.stream import FAR, LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.captured_tables import CapturedTables
from rowferry.flow.capture.binlog.frame.read_ahead import ReadAhead
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.shared_log import (
    KEPT_BYTES,
    SHARED_LOGS,
    SharedKey,
    SharedLogLost,
)
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.snapshot.begin import Beginning
from rowferry.flow.capture.binlog.snapshot.joining import Joining
from rowferry.flow.capture.binlog.snapshot.rereads import Rereads
from rowferry.flow.capture.binlog.snapshot.snapshots import (
    SnapshotShares,
    cut_snapshots,
    find_hold,
    restart_altered,
    restart_moved,
    restart_shown,
    take_back,
)
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.capture.contract import Appetite, PlannerPosition, SnapshotShare
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.session import Flavour, Login

ENOUGH_BYTES: Final = 64 << 20  # of log: a stretch this long is worth a job
WAIT_S: Final = 0.3
# The same where each table costs files of its own, for so much log of each.
_BYTES_A_TABLE: Final = 256 << 10
_ENOUGH_FOR_MANY: Final = 256 << 20
_WAIT_FOR_MANY_S: Final = 1.2
RETENTION_EVERY_S: Final = 60.0
_NEAR_END: Final = 1 << 20  # of log: who is no further behind follows the source
_SHARED_BEHIND: Final = KEPT_BYTES // 4  # who is no further behind reads together with others


class BinlogPlanner:
    """Plans stretches for one changefeed; see `Planner` for what it promises."""

    def __init__(
        self,
        login: Login,
        decision: Decision,
        beginning: Beginning,
        state: BinlogState | None,
        versions: tuple[TableSchema, ...],
        server_id: int,
        follow_swaps: bool,
        drop_marked: bool,
        retention_warning: timedelta,
        ranges: tuple[RangeProgress, ...],
        shown: tuple[TableSlice, ...] = (),
    ) -> None:
        self._server = BinlogServer(login)
        self._decision = decision
        self._beginning = beginning
        self._server_id = server_id
        self._follow_swaps = follow_swaps
        self._drop_marked = drop_marked
        self._retention_warning = retention_warning
        self._retention_at = 0.0
        self._retention_ms: int | None = None
        self._state = state or BinlogState(
            LogPosition(self._server.flavour, self._server.facts.identity)
        )
        self._is_new = state is None
        # Discarded plans have used ids up as well.
        used = (v.table_id + 1 for v in versions)
        self._state.next_table_id = max((self._state.next_table_id, *used))
        self._before: dict[int, RangeProgress] = {r.range_id: r for r in ranges}
        self._known = {(v.table_id, v.version) for v in versions}
        # Of discarded plans: tables whose rows readers have seen, and what they were like.
        self._shown = {one.table_id for one in shown}
        seen_as = {(one.table_id, one.version) for one in shown}
        self._shown_as = [v for v in versions if (v.table_id, v.version) in seen_as]
        self._met: list[TableSchema] = []
        self._warnings: list[str] = []
        self._shares = SnapshotShares(self._server)
        self._rereads = Rereads(self._server, decision)
        self._joining = Joining(self._server, self._warnings.append)
        self._ahead: ReadAhead | None = None
        self._appetite: Appetite | None = None
        self._opened = False
        self._may_share = False  # it reads where others do
        self._is_near = False  # the log's end is no further than what others keep
        self._follows = False  # the last stretch had all that there was, but for a moment's writes
        self._closed = False
        self._key: SharedKey = (login, self._server.facts.identity, server_id)
        SHARED_LOGS.enter(self._key)
        self._source_ms = 0
        self._watermark = 0

    # --- the contract ----------------------------------------------------------------------------

    def plan(self, appetite: Appetite) -> Stretch:
        """Return what comes next after the last planned stretch."""
        state = self._state
        if not self._opened:
            stretch = self._open()
            self._opened = True
            if stretch is not None:
                return self._completed(stretch)
        if state.finished:
            return self._completed(Stretch((), (), {}, finished=True, caught_up=True))
        if changes := self._let_join(appetite):
            return self._completed(Stretch((), changes, {}))
        if appetite.until_ts is not None:
            self._check_end(appetite.until_ts)
        if state.in_stage(Stage.SNAPSHOT):
            segments = cut_snapshots(state, self._server, appetite)
            return self._completed(Stretch(tuple(segments), (), {}))
        with self._undisturbed():
            find_hold(state, self._server)  # what was planned before has been carried out by now
        if appetite.resnapshots or state.rereads:
            with self._undisturbed():
                self._rereads.follow(state, appetite.resnapshots)
                parts = self._rereads.cut(state, appetite) if state.reread_low else []
                if parts:
                    return self._completed(Stretch(tuple(parts), (), {}))
            if changes := self._take_back_lost():
                return self._completed(Stretch((), changes, {}))
        return self._plan_log(appetite)

    def ended_resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return what was read again to its end, or could not be."""
        return tuple(
            Resnapshot(r.id, TableId("", ""), outcome=r.outcome, rows=r.done, words=r.words)
            for r in self._rereads.ended(self._state)
        )

    def place_reached(self, place: Mapping[str, Any]) -> PlannerPosition:
        """Return where all that was planned ends, as seen from a place of the log."""
        state = self._state
        if place["server"] != self._server.facts.identity:
            return PlannerPosition.ELSEWHERE
        waits = state.hold is not None or state.lows or state.log.txn_ts
        waits = waits or self._rereads.is_joining(state)
        if waits or state.in_stage(Stage.REGISTERED) or state.in_stage(Stage.SNAPSHOT):
            return PlannerPosition.BEFORE
        if not self._opened or state.log.server != place["server"]:
            return PlannerPosition.BEFORE
        if is_at(state.log, place):
            return PlannerPosition.AT
        return PlannerPosition.PAST if passed(state.log, place) else PlannerPosition.BEFORE

    def has_news(self) -> bool:
        """Return whether the log's reader has framed something, or has failed."""
        return self._ahead is None or self._ahead.has_news()

    def retention_ms(self) -> int | None:
        """Return for how long the server keeps the log at our position, as asked a while ago."""
        return self._retention_ms

    def table_versions(self) -> tuple[TableSchema, ...]:
        """Return the table versions that were met for the first time since the last call."""
        new_versions, self._met = tuple(self._met), []
        return new_versions

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        """Return the tables whose snapshot has not ended, or that are read again, in rows."""
        return (*self._shares.of(self._state), *self._rereads.shares(self._state))

    def warnings(self) -> tuple[str, ...]:
        """Return what an operator should know and has not been told yet."""
        new_warnings = tuple(self._warnings)
        del self._warnings[: len(new_warnings)]  # framing ahead adds to the same list
        return new_warnings

    def lag_ms(self) -> int | None:
        """Return how far the last planned watermark is behind the source's clock."""
        if not self._source_ms or not self._watermark:
            return None
        return max(0, self._source_ms - physical_ms(self._watermark))

    def close(self) -> None:
        """Close the connections."""
        self._close_log()
        self._server.close()
        if not self._closed:
            self._closed = True
            SHARED_LOGS.exit(self._key)

    # --- beginning -------------------------------------------------------------------------------

    def _open(self) -> Stretch | None:
        """Bring the state to what the settings ask for; a stretch if something must be told."""
        state, server, decision = self._state, self._server, self._decision
        # Above all that was shown: what takes it back comes after it.
        state.log.last_ts = max((state.log.last_ts, *(v.version for v in self._shown_as)))
        if self._is_new:
            self._beginning.start(state, server, decision)
            again = self._shown_as if self._beginning.snapshots else ()
            changes = restart_shown(state, again, decision)
        else:
            for table_id in self._shown & state.tables.keys():
                state.tables[table_id].tell()
            begun = state.in_stage(Stage.SNAPSHOT)
            changes = self._follow_server()
            self._beginning.follow_filter(state, server, decision)
            changes += restart_altered(state, server, decision, self._shown)
            if begun and not state.in_stage(Stage.SNAPSHOT):
                # Others were read to their end, and nobody has looked where that is.
                state.hold = {}
        return Stretch((), tuple(changes), {}) if changes else None

    def _follow_server(self) -> list[SchemaChange]:
        """Go on by GTID where another server answers than before; returns what readers are told.

        Raises:
            SourceMismatch: it lacks what was seen of the other one, or that has no GTIDs.
        """
        log, server = self._state.log, self._server
        if log.server == server.facts.identity:
            return []
        if log.flavour is Flavour.MYSQL and not log.gtids:
            raise SourceMismatch(
                f"{server.login} is now {server.facts.identity}, before it was {log.server}, whose "
                "log had no GTIDs up to here: where it goes on in another log nobody can say; let "
                "that server answer again, or make a new changefeed"
            )
        # Also before a snapshot is read on: a replica that is behind has no such rows yet.
        check_reachable(server.connection, server.login, server.facts, "", 4, log.gtids)
        self._warnings.append(
            f"{server.login} is now {server.facts.identity}, before it was {log.server}: "
            "going on by GTID"
        )
        log.server, log.file, log.offset = server.facts.identity, "", 4
        return restart_moved(self._state, server, self._decision)

    def _check_end(self, until_ts: int) -> None:
        """Refuse an end at which the snapshot cannot be consistent."""
        lows = [t.low_ts for t in self._state.in_stage(Stage.SNAPSHOT)]
        if lows and until_ts < max(lows):
            raise BadOption(
                f"the end asked for, commit-ts {until_ts}, lies before the snapshot: the first "
                f"commit-ts at which everything is delivered is above {max(lows)}"
            )

    def _completed(self, stretch: Stretch) -> Stretch:
        """Add the position and the progress rows that changed; note new table versions."""
        state = self._state
        now = {  # without tables that were met ahead, behind the position
            k: t.progress
            for k, t in state.tables.items()
            if k in self._before or t.schema.version <= state.log.last_ts
        }
        changed = tuple(p for k, p in now.items() if self._before.get(k) != p)
        gone = tuple(sorted(set(self._before) - set(now)))
        self._before = now
        schemas = [t.schema for k, t in state.tables.items() if t.schema.version and k in now]
        schemas += [c.schema for c in stretch.schema_changes if c.schema is not None]
        for schema in schemas:
            self._meet(schema)
        return replace(stretch, position=state.to_position(), ranges=changed, gone_ranges=gone)

    def _meet(self, schema: TableSchema) -> None:
        key = (schema.table_id, schema.version)
        if key not in self._known:
            self._known.add(key)
            self._met.append(schema)

    def _let_join(self, appetite: Appetite) -> tuple[SchemaChange, ...]:
        """Let registered tables join where the log stands, if it is their time."""
        state = self._state
        if not state.in_stage(Stage.REGISTERED) or state.in_stage(Stage.SNAPSHOT):
            return ()
        with self._undisturbed():
            if not self._joining.is_due(state):
                return ()
            waiting = {t.schema.table_id for t in state.in_stage(Stage.REGISTERED)}
            changes = self._joining.join(state, self._decision, self._beside(appetite))
            left = {t.schema.table_id for t in state.in_stage(Stage.REGISTERED)}
        if changes or waiting != left:
            self._close_log()  # what was framed ahead knows nothing of them
        return tuple(changes)

    def _beside(self, appetite: Appetite) -> Callable[[TableSchema], bool]:
        """Return which tables are read in parts while the log goes on: where somebody waits for it.

        Not where the feed ends at a given place, which parts would lie behind, and no table whose
        keys may not be part of a position.
        """
        others = bool(self._state.in_stage(Stage.LOG))
        ends = appetite.until_ts is not None or self._beginning.only_snapshot

        def is_beside(table: TableSchema) -> bool:
            keyed = table.handle_index is not None and not appetite.hides_key(table)
            return keyed and others and not ends

        return is_beside

    def _take_back_lost(self) -> tuple[SchemaChange, ...]:
        """Register tables anew that join and cannot be read, without a word of it in the log."""
        state = self._state
        changes: list[SchemaChange] = []
        with self._undisturbed():
            lost = self._rereads.lost(state)
            for table in lost:
                state.log.last_ts += 1
                changes += take_back(state, table, self._decision, state.log.last_ts)
        if lost:
            self._close_log()  # what was framed ahead knows nothing of that
        return tuple(changes)

    # --- the log ---------------------------------------------------------------------------------

    def _open_log(self, appetite: Appetite) -> ReadAhead:
        state, server = self._state, self._server
        log = state.log
        check_reachable(
            server.connection, server.login, server.facts, log.file, log.offset, log.gtids
        )
        self._book = CapturedTables(
            state,
            server,
            self._decision,
            self._beginning.snapshots,
            self._follow_swaps,
            self._drop_marked,
            self._warnings.append,
        )
        stream = self._open_stream(appetite)
        try:
            scanner = Scanner(stream, log, self._book, appetite)
            for table_id, low in state.lows.items():
                scanner.exclude_until(table_id, parse_gtids(low["gtid"], server.flavour))
            self._ahead = ReadAhead(stream, scanner, appetite.stretch_bytes)
        except BaseException:
            stream.close()  # nobody else knows of it, and a shared one counts its readers
            raise
        self._appetite = appetite
        return self._ahead

    def _open_stream(self, appetite: Appetite) -> PacketBuffer:
        """Open the log where the state stands: the shared one, or a connection of our own."""
        server, log = self._server, self._state.log
        start = StartAt(log.file, log.offset) if log.file else StartAt(gtids=log.gtids)
        if server.flavour is Flavour.MARIADB and log.gtids and not log.txn_ts:
            if log.offset >= FAR:
                start = StartAt(gtids=log.gtids)
        if self._may_share and start.file and not log.txn_ts:
            shared = SHARED_LOGS.join(self._key, server.flavour, start, self._replica_number)
            if shared is not None:
                return shared
        number, identity = self._replica_number(), server.facts.identity
        return LogStream(server.login, server.flavour, start, number, server=identity)

    def _replica_number(self) -> int:
        # A number that was given was checked when the feed was created: the server may still list
        # our own reader of a moment ago.
        server = self._server
        return self._server_id or check_server_id(server.connection, server.login, 0)

    def _undisturbed(self) -> AbstractContextManager[Any]:
        """Return what keeps framing from the connection and the state, which it uses as well."""
        return self._ahead.changed if self._ahead is not None else nullcontext()

    def _close_log(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
            self._book.rewind()

    def _plan_log(self, appetite: Appetite) -> Stretch:
        if appetite != self._appetite:
            self._close_log()  # what was framed ahead was cut for another one
        try:
            stretch = self._take_next(appetite)
        except SharedLogLost:
            self._close_log()
            self._may_share = False  # until it is near the end again
            stretch = self._take_next(appetite)
        if stretch.caught_up or self._is_near:
            self._share_log()
        return stretch

    def _take_next(self, appetite: Appetite) -> Stretch:
        ahead = self._ahead or self._open_log(appetite)
        with ahead.changed:  # until the end: framing changes the state, too
            return self._completed(self._take_log(ahead, appetite))

    def _share_log(self) -> None:
        """Read the log together with others of this process from now on, where that can be."""
        self._may_share = True
        log, ahead = self._state.log, self._ahead
        if ahead is None or ahead.is_shared or log.txn_ts or not log.file:
            return
        if SHARED_LOGS.serves(self._key, log.file, log.offset):
            self._close_log()

    def _take_log(self, ahead: ReadAhead, appetite: Appetite) -> Stretch:
        """Take what was framed (inside `changed`)."""
        state = self._state
        scanner = ahead.scanner
        at_end = self._gather(ahead)
        self._warn_of_retention()
        if not (scanner.at_border or scanner.statement):
            return Stretch((), (), {})  # a long transaction is still being framed
        clock_ms = self._source_ms
        segments, state.log = scanner.take()
        for schema in self._book.made():
            self._meet(schema)
        changes: tuple[Any, ...] = ()
        if scanner.statement is not None:
            # The statement replaces versions, also those that rows before it have.
            framed = {(one.table_id, one.version) for s in segments for one in s.slices}
            for table in state.tables.values():
                if (table.schema.table_id, table.schema.version) in framed:
                    self._meet(table.schema)
            changes = self._book.apply(scanner.statement)
            scanner.go_on()
            scanner.move_clock(max((c.commit_ts for c in changes), default=0))
            state.log = scanner.position()
            at_end = False
        elif scanner.ended and appetite.until_ts is not None:
            scanner.move_clock(appetite.until_ts)
            state.log = scanner.position()
        elif at_end and not segments:
            now, end = clock_ms << PHYSICAL_SHIFT, appetite.until_ts
            scanner.move_clock(now if end is None else min(now, end))
            state.log = scanner.position()
        state.lows = {k: v for k, v in state.lows.items() if k in scanner.waits_for()}
        if state.hold is not None and passed(state.log, state.hold):
            state.hold, state.unsettled_from = None, 0
        if state.hold is None:
            self._rereads.settle(state)
        if clamped := scanner.take_clamped():
            self._warnings.append(
                f"{clamped} transactions have a time more than 60 s ahead of the "
                "source's clock (SET timestamp?): they were given the clock's"
            )
        ahead.poke()
        held = state.hold is not None or bool(state.lows) or bool(state.in_stage(Stage.REGISTERED))
        held = held or self._rereads.is_joining(state)
        watermark = None if held else state.log.last_ts - (1 if state.log.txn_ts else 0)
        self._watermark = watermark or self._watermark
        if self._beginning.only_snapshot and not held:
            state.finished = True
        elif not state.reread_low and self._rereads.is_due(state):
            self._take_low(scanner, appetite)
        return Stretch(
            segments=segments,
            schema_changes=changes,
            position={},
            watermark=watermark,
            caught_up=at_end and not held,
            # Until the log has passed what a part has shown, the watermark stands: nobody waits.
            follows=self._follows and state.hold is None,
            finished=state.finished,
        )

    def _take_low(self, scanner: Scanner, appetite: Appetite) -> None:
        """Give the next part of what is read again its place: between what comes and what came."""
        low = self._state.log.last_ts + 1
        if appetite.until_ts is None or low <= appetite.until_ts:
            scanner.move_clock(low)  # nothing is framed behind what was taken
            self._state.log = scanner.position()
            self._state.reread_low = low

    def _gather(self, ahead: ReadAhead) -> bool:
        """Wait until there is something to take; returns whether that is all that there is."""
        began, pause = time.monotonic(), 0.02
        while True:
            enough_bytes, patience_s = self._enough(ahead.scanner)
            until = began + patience_s
            ahead.wait(enough_bytes, min(WAIT_S, until - time.monotonic()))
            scanner = ahead.scanner
            if scanner.blocked:
                self._follows = False
                self._source_ms = self._server.clock_ms()
                return scanner.ended
            _, size = scanner.backlog()
            look = ahead.look(self._server)
            self._source_ms = look.clock_ms
            scanner.note_end(look.file, look.offset)
            at_end = scanner.at_border and look.is_reached_by(scanner.position())
            # Also who never comes to the end shares: each that reads alone costs so much that many
            # of them, after a restart under load, would not come to it any more.
            self._is_near = look.is_near(scanner.position(), _SHARED_BEHIND)
            enough_bytes, patience_s = self._enough(scanner)  # more tables may be known by now
            until = began + patience_s
            enough = scanner.at_border and size >= enough_bytes
            # Where others write all the time the end is never reached: whoever follows them takes
            # what there is, and the sink's own pace decides how often.
            self._follows = at_end or (
                ahead.is_drained and size > 0 and look.is_near(scanner.position(), _NEAR_END)
            )
            if (self._follows and self._is_settled_by(scanner)) or enough:
                return at_end
            if time.monotonic() >= until:
                return at_end
            # The server is slower than we are, and a fuller stretch is better.
            ahead.changed.wait(min(pause, max(0.0, until - time.monotonic())))
            pause *= 4

    def _is_settled_by(self, scanner: Scanner) -> bool:
        """Return whether what was framed passes all that parts of tables have shown."""
        return self._state.hold is None or passed(scanner.position(), self._state.hold)

    def _enough(self, scanner: Scanner) -> tuple[int, float]:
        """Return how much log is worth a job, and how long to wait for it."""
        wanted = scanner.breadth * _BYTES_A_TABLE
        if self._appetite is None or not self._appetite.fewer_slices or wanted <= ENOUGH_BYTES:
            return ENOUGH_BYTES, WAIT_S
        return min(wanted, _ENOUGH_FOR_MANY), _WAIT_FOR_MANY_S

    def _warn_of_retention(self) -> None:
        now = time.monotonic()
        log, server = self._state.log, self._server
        if now < self._retention_at or not log.file:
            return
        self._retention_at = now + RETENTION_EVERY_S
        words = retention_notice(
            server.connection,
            server.login,
            server.facts,
            log.file,
            self._retention_warning,
            physical_ms(log.last_ts),
        )
        if words:
            self._warnings.append(words)
        left = retention_left(server.connection, server.login, log.file, physical_ms(log.last_ts))
        self._retention_ms = None if left is None else int(left.total_seconds() * 1000)
