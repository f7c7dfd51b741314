"""Rows of captured tables that are read beside the log, part by part: again, or as they join.

A part has a place of its own in the log, `low`: a commit-ts that is taken between two transactions,
when a stretch of the log ends. It is read at a later moment, by a micro-batch of its own, and all
of the log behind `low` follows. Until the log has passed the moment at which it was read, the
watermark stands; then the next part has its turn. So other tables wait for one small part at most.

Of a table that joins all changes are delivered from its joining on, also of rows whose part comes
later: that part is newer. The watermark stands until the last part of all tables that join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from rowferry.change.plan import Again, Segment, TableSlice
from rowferry.change.position import Stage
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableSchema
from rowferry.errors import BadInput, SnapshotOutdated
from rowferry.flow.capture.binlog.client.server import BinlogServer, passed
from rowferry.flow.capture.binlog.reread import Reread
from rowferry.flow.capture.binlog.snapshot.joining import all_is_visible
from rowferry.flow.capture.binlog.snapshot.same_table import can_be_read_as
from rowferry.flow.capture.binlog.state import BinlogState, BinlogTable
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.key_ranges import estimate_rows, order_of_key, row_bytes
from rowferry.mysql.key_values import estimate_range, key_bound, next_within
from rowferry.mysql.snapshot_position import Place, high_position

_LEAST_ROWS: Final = 500
_MOST_ROWS: Final = 500_000
_ROWS_A_TASK: Final = 10_000
_MOST_TASKS: Final = 4
_MOST_SEGMENTS: Final = 64


class Rereads:
    """Cuts the parts of what is to be read again; all that it knows is in the state."""

    def __init__(self, server: BinlogServer, decision: Decision) -> None:
        self._server, self._decision = server, decision
        # Where the log ended when a table that joins could not be read, by the id of its reading.
        self._unread: dict[str, Place] = {}
        # Of those that were asked for: what the table was like then, too.
        self._unlike: dict[str, tuple[Place, TableSchema | None]] = {}

    def follow(self, state: BinlogState, wanted: Sequence[Resnapshot]) -> None:
        """Begin what is wanted and new; forget what nobody wants any more."""
        ids = {one.id for one in wanted}
        for known in [n for n, one in state.rereads.items() if n not in ids and not one.joins]:
            del state.rereads[known]
        for one in wanted:
            if one.id not in state.rereads:
                self._begin(state, one)

    def is_due(self, state: BinlogState) -> bool:
        """Return whether the next part may have its place where the log stands."""
        if state.hold is not None or state.lows or state.log.txn_ts:
            return False
        if any(state.in_stage(stage) for stage in (Stage.REGISTERED, Stage.SNAPSHOT)):
            return False
        waiting = chain(self._joins(state), self._open(state))
        return next(waiting, None) is not None

    def cut(self, state: BinlogState, appetite: Appetite) -> list[Segment]:
        """Return the next part, to be read at the place that was taken; none: not now.

        The table must be now as it was at that place: if the log has still to tell what became of
        it, the part waits for that.
        """
        low, state.reread_low = state.reread_low, 0
        if joins := list(self._joins(state)):
            return self._cut_joins(state, joins, low, appetite)
        one = next(self._open(state), None)
        if one is None:
            return []
        table = state.tables[one.table_id]
        try:
            self._decision.check_where(table.schema, one.where)
        except BadInput as err:
            one.outcome, one.words = ResnapshotOutcome.FAILED, err.words
            return []
        if not self._is_readable(table, low):
            self._end_if_lost(state, one, table.schema)
            return []
        self._unlike.pop(one.id, None)
        # A log runs ahead of what snapshots show: an older row must not follow a newer one.
        if not all_is_visible(self._server, state.log):
            return []
        segments = self._parts_of(state, one, low, appetite.reread_bytes, 0)
        if segments:
            state.unsettled_from, state.hold = low, {}
        return segments

    def lost(self, state: BinlogState) -> list[BinlogTable]:
        """Return tables that join and cannot be read, for a reason that the log does not tell."""
        gone = []
        for one in self._joins(state):
            since = self._unread.get(one.id)
            if since is not None and passed(state.log, since):
                table = state.tables[one.table_id]
                if not self._is_readable(table, state.log.last_ts):
                    gone.append(table)
                del self._unread[one.id]
        return gone

    def is_joining(self, state: BinlogState) -> bool:
        """Return whether rows of tables that join are still to come: the watermark stands."""
        return any(one.joins for one in list(state.rereads.values()))

    def settle(self, state: BinlogState) -> None:
        """End what is complete: the log has passed the last part."""
        for one in list(state.rereads.values()):
            if one.joins and (one.complete or one.table_id not in state.tables):
                del state.rereads[one.id]
            elif one.complete and one.outcome is ResnapshotOutcome.OPEN:
                one.outcome = ResnapshotOutcome.DONE

    def ended(self, state: BinlogState) -> list[Reread]:
        """Return those that have ended."""
        over = ResnapshotOutcome.OPEN
        return [r for r in state.rereads.values() if r.outcome is not over and not r.joins]

    def shares(self, state: BinlogState) -> list[SnapshotShare]:
        """Return how far those are that have not come to their last part."""
        return [
            SnapshotShare(state.tables[one.table_id].schema.id, one.done, max(one.done, one.total))
            for one in state.rereads.values()
            if not one.complete
            and one.outcome is ResnapshotOutcome.OPEN
            and one.table_id in state.tables
        ]

    # --- pieces ----------------------------------------------------------------------------------

    def _joins(self, state: BinlogState) -> Iterator[Reread]:
        """Yield the tables that join and have rows that were not planned yet."""
        for one in list(state.rereads.values()):
            if one.joins and not one.complete and one.table_id in state.tables:
                yield one

    def _cut_joins(
        self, state: BinlogState, joins: Sequence[Reread], low: int, appetite: Appetite
    ) -> list[Segment]:
        """Return the next part: of one table, or of many that are small."""
        if not all_is_visible(self._server, state.log):
            return []
        segments: list[Segment] = []
        left = appetite.reread_bytes
        for one in joins:
            if not self._is_readable(state.tables[one.table_id], low):
                server = self._server
                if one.id not in self._unread:
                    self._unread[one.id] = high_position(
                        server.connection, server.login, server.flavour
                    )
                continue
            self._unread.pop(one.id, None)
            parts = self._parts_of(state, one, low, left, len(segments))
            segments += parts
            left -= sum(part.log_bytes for part in parts)
            if left <= 0 or len(segments) + _MOST_TASKS > _MOST_SEGMENTS:
                break
        if segments:
            state.unsettled_from, state.hold = low, {}
        return segments

    def _is_readable(self, table: BinlogTable, low: int) -> bool:
        """Return whether a table is now as it was at a place of the log."""
        schema = table.schema
        if schema.version > low or schema.handle_index is None:
            return False
        now = self._server.table(schema.id, schema.table_id)
        return now is not None and can_be_read_as(now, schema)

    def _end_if_lost(self, state: BinlogState, one: Reread, schema: TableSchema) -> None:
        """End what can never be read: the log has told all, and the table is still another one."""
        if schema.handle_index is None:
            one.outcome = ResnapshotOutcome.FAILED
            one.words = f"{schema.id} has no usable key any more, and cannot be read in parts"
            return
        server = self._server
        now = server.table(schema.id, schema.table_id)
        if now is not None and can_be_read_as(now, schema):
            return  # its version is newer than the part's place
        since, seen = self._unlike.get(one.id, (None, None))
        if since is None or seen != now:
            place = high_position(server.connection, server.login, server.flavour)
            self._unlike[one.id] = place, now
        elif passed(state.log, since):
            one.outcome = ResnapshotOutcome.FAILED
            one.words = (
                f"{schema.id} has other columns or another key than the log tells, or is gone: "
                "somebody altered it with sql_log_bin = 0"
            )

    def _parts_of(
        self, state: BinlogState, one: Reread, low: int, size: int, ordinal: int
    ) -> list[Segment]:
        """Return the next parts of one table; none: it is altered this moment."""
        table, before = state.tables[one.table_id], replace(one)
        try:
            segments = self._parts(one, table.schema, low, size, ordinal)
        except SnapshotOutdated:
            if one.outcome is ResnapshotOutcome.OPEN:
                state.rereads[one.id] = before  # what was cut is not read after all
            return []
        # What the log tells of its name from here on meets rows that are newer than `low`.
        table.progress = table.progress.with_(init_snapshot_ts=low, current_snapshot_ts=low)
        table.read_as = table.schema
        return segments

    def _open(self, state: BinlogState) -> Iterator[Reread]:
        """Yield what is to be read; whatever lost its table on the way has ended."""
        for one in list(state.rereads.values()):
            if one.outcome is not ResnapshotOutcome.OPEN or one.complete or one.joins:
                continue
            if one.table_id in state.tables:
                yield one
            elif any(str(name) == one.name for name in state.by_name()):
                one.outcome = ResnapshotOutcome.DONE
                one.words = f"{one.name} was emptied or made anew meanwhile: the log has all of it"
            else:
                one.outcome = ResnapshotOutcome.FAILED
                one.words = f"{one.name} was dropped, renamed or left out meanwhile"

    def _begin(self, state: BinlogState, wanted: Resnapshot) -> None:
        table = state.by_name().get(wanted.table)
        if table is not None and table.progress.stage is not Stage.LOG:
            return  # it is being read as a whole: its turn comes after that
        one = Reread(wanted.id, table.schema.table_id if table else 0, str(wanted.table))
        one.where = wanted.where
        state.rereads[wanted.id] = one
        if table is None:
            one.outcome, one.words = (
                ResnapshotOutcome.FAILED,
                f"{wanted.table} is not captured any more",
            )
            return
        try:
            self._measure(one, table, wanted)
        except (BadInput, SnapshotOutdated) as err:
            one.outcome, one.words = ResnapshotOutcome.FAILED, err.words

    def _measure(self, one: Reread, table: BinlogTable, wanted: Resnapshot) -> None:
        schema, server = table.schema, self._server
        if not server.tells_gtids():
            raise BadInput(
                "the source has no GTIDs, without which a snapshot has no place in the "
                "log; run: SET GLOBAL gtid_mode = ON, step by step as the manual says"
            )
        if schema.handle_index is None:
            raise BadInput(f"{schema.id} has no usable key, and cannot be read in parts")
        one.key = schema.handle_index.columns
        one.order = order_of_key(server.connection, server.login, schema)
        one.first = key_bound(schema, wanted.first) if wanted.first else None
        one.last = key_bound(schema, wanted.last) if wanted.last else None
        if one.first is None and one.last is None:
            one.total = estimate_rows(server.connection, server.login, schema)
        else:
            one.total = estimate_range(server.connection, server.login, schema, one.first, one.last)

    def _parts(
        self, one: Reread, schema: TableSchema, low: int, size: int, first_ordinal: int
    ) -> list[Segment]:
        server = self._server
        if one.joins and not one.key:
            one.total = estimate_rows(server.connection, server.login, schema)
        parts, digest = server.partitions(schema.id)
        index = schema.handle_index
        key = index.columns if index else ()
        order = order_of_key(server.connection, server.login, schema)  # before the next bound
        other_key = one.key != key or one.order not in ("", order)
        if one.digest != digest or other_key:
            if other_key and (one.first or one.last):
                one.outcome = ResnapshotOutcome.FAILED
                one.words = f"the key of {schema.id} is another one now; ask for its new range"
                raise SnapshotOutdated(one.words)
            one.part, one.bound, one.digest, one.key = 0, None, digest, key
        one.order = order
        each = max(1, row_bytes(server.connection, server.login, schema))
        rows = max(_LEAST_ROWS, min(_MOST_ROWS, size // each))
        tasks = max(1, min(_MOST_TASKS, rows // _ROWS_A_TASK))
        segments: list[Segment] = []
        for ordinal in range(first_ordinal, first_ordinal + tasks):
            name = parts[one.part] if parts else ""
            lower, closed = (one.first, True) if one.bound is None else (one.bound, False)
            chunk, is_last = next_within(
                server.connection,
                server.login,
                schema,
                lower,
                closed,
                one.last,
                wish_rows=max(1, rows // tasks),
                partition=name,
            )
            physical = one.part if parts else None
            segments.append(
                Segment(
                    ordinal,
                    {
                        "kind": "snapshot",
                        "server": server.facts.identity,
                        "chunk": replace(chunk, order=order).to_json(),
                        "commit_ts": low,
                        "resnapshot": one.id,
                    },
                    (TableSlice(schema.id, schema.table_id, schema.version, physical),),
                    low,
                    low,
                    max(1, chunk.rows) * each,
                    snapshot=True,
                    again=Again.EQUIVALENT,
                    share=max(1, chunk.rows),
                    reread=not one.joins,
                    where=one.where,
                    beside=True,
                )
            )
            one.done += chunk.rows
            one.bound = chunk.upper
            if is_last:
                one.part, one.bound = one.part + 1, None
                if one.part >= len(parts):
                    one.complete = True
                    break
        return segments
