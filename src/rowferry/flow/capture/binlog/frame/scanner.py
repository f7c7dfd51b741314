"""Frames the log on the driver: borders, commit timestamps, segments, statements.

The scanner reads no rows. It walks over a stream in compiled code, which stops for what a stretch
depends on: a table that it has not met, a statement, the end of a file, a segment that is long
enough. Whatever it has framed can be taken at a border between transactions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from rowferry.change.plan import Segment
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import CorruptLog, EventUnknown, SourceUnavailable
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.client.stream import LogStream
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.ddl.text import first_words
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, parse_table_map
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.compressed import inflate_payload
from rowferry.flow.capture.binlog.frame.gtid_run import GtidRun
from rowferry.flow.capture.binlog.frame.scan import Maps, SegmentPairs, run_walk
from rowferry.flow.capture.binlog.frame.segment_draft import SegmentDraft
from rowferry.flow.capture.binlog.frame.segment_join import SliceBytes, join_segments
from rowferry.flow.capture.binlog.frame.xa import PreparedRows
from rowferry.flow.capture.binlog.position import Gtids, LogPosition
from rowferry.flow.capture.binlog.read import skip_event
from rowferry.flow.capture.contract import Appetite
from rowferry.flow.capture.label_end import label_end
from rowferry.mysql.session import Flavour

SEGMENT_BYTES: Final = 32 << 20
CARRY_BYTES: Final = 512 << 10  # segments up to this size take their bytes along
HUGE_TXN: Final = 2 << 20  # bytes without a border after which part of a transaction is framed
_CLAMP_STEP_MS: Final = 1_000  # the clock is taken over in steps: each one ends a segment
_NEVER: Final = 1 << 62
_TWO_DAYS: Final = (2 * 86_400_000) << PHYSICAL_SHIFT
_ROW_STATEMENTS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH"})
_ROWS_PLEASE: Final = "run: SET GLOBAL binlog_format = ROW, and let no session change it"


class TableBook(Protocol):
    """Who knows the tables; asked when the log names one, or holds a statement."""

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        """Return the version that the rows after a TABLE_MAP have; None: not captured."""

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


class Scanner:
    """Frames one stream from a position on. Not for use from several threads at once."""

    def __init__(
        self, stream: LogStream, position: LogPosition, book: TableBook, appetite: Appetite
    ) -> None:
        self._stream = stream
        self._book = book
        self._flavour = position.flavour
        self._server = position.server
        self._maria = position.flavour is Flavour.MARIADB
        self._appetite = appetite
        self._segment_bytes: Callable[[TableId], int] = appetite.segment_bytes
        self.file = position.file
        self._run = GtidRun(position.executed)
        self._tail = stream.tail
        self._maps = Maps()
        self._schemas: list[TableSchema | None] = []
        self._names: list[TableId] = []
        self._open: SegmentDraft | None = None
        self._segments: list[Segment] = []
        self._joinable: dict[int, SliceBytes] = {}  # by the segments' identity
        self._xa = PreparedRows(position.server, position.prepared)
        self._prepare = b""  # the XA_PREPARE of the compressed transaction that is looked into
        self._lows: dict[int, Gtids] = {}
        self._excluded: set[int] = set()
        self.statement: LoggedStatement | None = None
        self.ended = False  # the next transaction lies behind the wanted end
        self.stopped = False  # the next event lies behind the wanted place
        self._place = appetite.until_place
        self._stop_at = self._stop_in_file()
        self.clamped = 0
        state = np.zeros(k.STATE_SIZE, np.int64)
        state[k.OFFSET] = position.offset
        state[k.LAST_TS] = position.last_ts
        state[k.TXN_TS] = position.txn_ts
        state[k.TXN_AT] = state[k.TXN_OFFSET] = -1
        state[k.UNTIL_TS] = _NEVER if appetite.until_ts is None else appetite.until_ts
        state[k.DAY_END] = state[k.CUT_AT] = _NEVER
        state[k.WHOLE] = appetite.whole_transactions
        state[k.CLAMP_MS] = book.source_ms() + k.AHEAD_MS
        self._state = state
        self._kept = state.copy()  # where the walk can begin again: the last border, mostly

    # --- what the planner asks -------------------------------------------------------------------

    @property
    def at_border(self) -> bool:
        """Whether everything framed so far ends between two transactions."""
        return bool(self._kept[k.TXN_TS] == 0)

    @property
    def blocked(self) -> bool:
        """Whether nothing more is framed before `take`."""
        return self.statement is not None or self.ended or self.stopped

    def backlog(self) -> tuple[int, int]:
        """Return how many segments and bytes can be taken, about."""
        size = sum(s.log_bytes for s in self._segments)
        count = len(self._segments)
        if self._open is not None and self._open.file == self.file:
            size += max(0, int(self._kept[k.OFFSET]) - self._open.start)
            count += 1
        return count, size

    @property
    def breadth(self) -> int:
        """How many tables the segment has that is being framed, or the last one."""
        if self._open is not None:
            return len(self._open.slices)
        return len(self._segments[-1].slices) if self._segments else 0

    def take(self) -> tuple[tuple[Segment, ...], LogPosition]:
        """Return the segments framed so far and the position behind them; at a border only."""
        if self._open is not None and self._open.pairs.seen(int(self._kept[k.COUNT])):
            self._close_segment(self._kept)
        framed, self._segments = self._segments, []
        sizes, self._joinable = self._joinable, {}
        if self._appetite.fewer_slices:
            framed = join_segments(framed, [sizes.get(id(s)) for s in framed], self._appetite)
        taken = tuple(replace(s, ordinal=place) for place, s in enumerate(framed))
        if len(self._maps) > 4096 and self._open is None:
            self.forget_tables()
        return taken, self.position()

    def position(self) -> LogPosition:
        """Return the place of the last border (or of the statement that stopped the walk)."""
        kept = self._kept
        return LogPosition(
            flavour=self._flavour,
            server=self._server,
            file=self.file,
            offset=int(kept[k.OFFSET]),
            gtids=str(self._executed()),
            last_ts=int(kept[k.LAST_TS]),
            txn_ts=int(kept[k.TXN_TS]),
            prepared=self._xa.to_json(),
        )

    def move_clock(self, commit_ts: int) -> None:
        """Let later commit timestamps be above a watermark; only while nothing is framed."""
        if commit_ts > self._kept[k.LAST_TS]:
            self._both(k.LAST_TS, commit_ts)

    def forget_tables(self) -> None:
        """Ask about every table again: definitions or the filter's answer may have changed."""
        self._maps = Maps()
        self._schemas, self._names = [], []

    def go_on(self) -> None:
        """Frame on behind the statement that was taken."""
        self.statement = None
        self.forget_tables()

    def exclude_until(self, table_id: int, low: Gtids) -> None:
        """Leave a table's rows out while transactions belong to `low` (its snapshot has them)."""
        if not self._executed().contains(low):
            self._lows[table_id] = low
            self._both(k.EACH, 1)

    def waits_for(self) -> set[int]:
        """Return the tables whose snapshot's position has not been passed."""
        if not self._lows:
            return set()
        executed = self._executed()
        return {t for t, low in self._lows.items() if not executed.contains(low)}

    # --- framing ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Wait for bytes and frame them."""
        self.receive()
        self.frame()

    def frame_to(self, offset: int) -> LogPosition:
        """Frame up to an offset of the file, the wanted end, or the end of a bounded stream."""
        self._stop_at = offset
        while not self.ended and self._kept[k.OFFSET] < offset:
            self.advance()
        return self.position()

    def receive(self) -> None:
        """Wait for bytes (the only part that waits)."""
        moved = self._stream.fill()
        for array in (self._state, self._kept):
            array[k.AT] -= moved
            array[k.TXN_AT] -= moved
        if self._open is not None:
            self._open.carried_from = max(0, self._open.carried_from - moved)

    def frame(self) -> None:
        """Frame the bytes that have come."""
        while not self.blocked:
            reason = run_walk(
                self._stream.data,
                self._stream.filled,
                5,
                self._tail,
                self._maria,
                self._stop_at,
                self._state,
                self._kept,
                self._maps,
                self._open.pairs if self._open else SegmentPairs(),
                False,
                joined=self._stream.joined,
            )
            if reason == k.MORE:
                break
            if reason == k.JOIN:
                if not self._stream.join_packets(int(self._state[k.AT])):
                    break
                continue
            self._handle(reason)
        self._keep()

    def _keep(self) -> None:
        """Settle on what was framed, so that its bytes can go."""
        if self._state[k.TXN_TS] == 0:
            self._kept[:] = self._state
        elif self._stream.filled - int(self._kept[k.AT]) > HUGE_TXN and not self.blocked:
            self._kept[:] = self._state
        else:
            self._state[:] = self._kept
        behind = int(self._kept[k.AT])
        if self._open is not None:
            self._carry(self._open, behind)
        self._stream.start = max(self._stream.start, behind)

    def _handle(self, reason: int) -> None:
        state = self._state
        if reason == k.SPECIAL:
            self._special()
        elif reason == k.FIRST_ROW:
            self._open_segment()
        elif reason == k.NEW_PAIR:
            self._add_pair()
        elif reason == k.CUT:
            if self._open is not None and not self._open.pairs.seen(int(state[k.COUNT])):
                # So much lies between the transaction's begin and its first captured rows: a
                # segment holds one event of them, however long that makes it.
                self._both(k.CUT_AT, int(state[k.OFFSET]) + 1)
            else:
                self._cut()
        elif reason == k.NEW_DAY:
            self._close_segment(state)
        elif reason == k.NEW_RUN:
            self._new_run()
            state[k.ACCEPT] = 0 if state[k.EACH] else 1
        elif reason == k.EACH_TXN:
            self._look_at_lows(self._is_in)
            state[k.ACCEPT] = 1
        elif reason == k.CLAMP:
            self._renew_clamp()
        elif reason == k.UNTIL:
            self.ended = True
        elif reason == k.REFUSED:
            raise self._stream.error(self._packet())
        elif reason == k.END and self._place is not None and not self._is_end_of_stream():
            self.stopped = True
        elif reason == k.END and self._place is None and self._stop_at != _NEVER:
            self.ended = True
        elif reason == k.END:
            raise SourceUnavailable(f"the server ended the log's stream at {self._where()}")
        else:
            raise CorruptLog(f"the event at {self._where()} cannot be read")

    # --- segments --------------------------------------------------------------------------------

    def _open_segment(self) -> None:
        state = self._state
        inside = bool(state[k.IN_TXN]) or state[k.TXN_OFFSET] < 0
        begin = int(state[k.OFFSET] if inside else state[k.TXN_OFFSET])
        buffered = int(state[k.AT] if inside else state[k.TXN_AT])
        txn_ts = int(state[k.TXN_TS])
        self._open = SegmentDraft(
            server=self._server,
            file=self.file,
            start=begin,
            last_ts=int(state[k.LAST_TS] if inside else state[k.TXN_LAST_TS]),
            txn_ts=txn_ts if inside else 0,
            clamp_ms=int(state[k.CLAMP_MS]),
            first_ts=txn_ts,
            carried_from=max(0, buffered),
            xa=self._xa.inside,
        )
        if buffered < self._stream.start:
            self._open.payload = None
        if inside:
            captured = np.flatnonzero(self._maps.captured[: len(self._maps)])
            self._open.maps = [self._maps.bodies[int(s)].hex() for s in captured]
        far = self._maria and begin >= (1 << 32) - (1 << 30)
        self._both(k.OPEN, 1)
        self._both(k.CUT_AT, _NEVER if far else begin + SEGMENT_BYTES)
        self._both(k.DAY_END, label_end(txn_ts, txn_ts + _TWO_DAYS, self._appetite.partition_label))

    def _add_pair(self) -> None:
        opened = self._open
        assert opened is not None
        slot, partition = int(self._state[k.PAIR_SLOT]), int(self._state[k.PAIR_PARTITION])
        schema = self._schemas[slot]
        assert schema is not None
        if opened.add(slot, self._names[slot], schema, partition):
            wish = opened.start + max(1 << 20, self._segment_bytes(schema.id))
            if self._state[k.CUT_AT] != _NEVER and wish < self._state[k.CUT_AT]:
                self._both(k.CUT_AT, wish)

    def _cut(self) -> None:
        """End the segment where the walk stands, inside a transaction if need be."""
        inside = self._state[k.TXN_TS] != 0
        self._close_segment(self._state, inside=inside)
        self._kept[:] = self._state
        self._kept[k.OPEN] = 0

    def _close_segment(self, upto: Any, inside: bool = False) -> None:
        """End the open segment at a border, or `inside` a transaction, whose state is `upto`."""
        opened = self._open
        if opened is None:
            return
        seen = opened.pairs.seen(int(upto[k.COUNT]))
        if seen:
            end = int(upto[k.OFFSET] if inside else upto[k.CAPTURED_END])
            last = int(upto[k.TXN_TS] if inside else upto[k.CAPTURED_TS])
            behind = int(self._state[k.AT])  # bytes behind the segment's end do no harm
            self._carry(opened, behind)
            segment = opened.finished(seen, end, last, self._maria, self._tail)
            (self._xa.parts if opened.xa else self._segments).append(segment)
            # Where tables wait for their snapshot, a neighbour may leave out what this one holds.
            if not opened.xa and not self._state[k.EACH]:
                self._joinable[id(segment)] = opened.bytes_of(seen)
        self._open = None
        self._both(k.OPEN, 0)
        self._both(k.DAY_END, _NEVER)
        self._both(k.CUT_AT, _NEVER)

    def _carry(self, opened: SegmentDraft, behind: int) -> None:
        stream = self._stream
        opened.carry(stream.data, stream.start, behind, self._tail, self._maps, CARRY_BYTES)

    # --- GTIDs and the clock ---------------------------------------------------------------------

    def _executed(self) -> Gtids:
        """Return the transactions up to the last border."""
        kept = self._kept
        return self._run.upto(int(kept[k.RUN_NEXT]) - (2 if kept[k.TXN_TS] else 1))

    def _new_run(self) -> None:
        """Begin a run of GTIDs with the event where the walk stands."""
        body, last = self._body(), int(self._state[k.RUN_NEXT]) - 1
        number = _whole(body[:8] if self._maria else body[17:25])
        if not 0 < number < ev.MOST_TRANSACTIONS:
            raise CorruptLog(f"the GTID at {self._where()} has the number {number}")
        if self._maria:
            domain = _whole(body[8:12])
            self._run.begin_maria(last, domain, self._event_server(), number)
            self._set_run(domain, self._event_server(), number)
        else:
            uuid = body[1:17]
            halves = np.frombuffer(uuid, np.int64)
            self._run.begin_mysql(last, uuid, number)
            self._set_run(int(halves[0]), int(halves[1]), number)

    def _set_run(self, a: int, b: int, number: int) -> None:
        for index, value in ((k.RUN_A, a), (k.RUN_B, b), (k.RUN_NEXT, number), (k.RUN_OPEN, 1)):
            self._both(index, value)

    def _is_in(self, low: Gtids) -> bool:
        """Return whether the transaction whose GTID event the walk stands at is among these."""
        body = self._body()
        if isinstance(low, GtidPosition):
            return low.holds(_whole(body[8:12]), _whole(body[:8]))
        return low.holds(body[1:17], _whole(body[17:25]))

    def _look_at_lows(self, is_in: Callable[[Gtids], bool]) -> None:
        """Decide which joining tables the next transaction still belongs to the snapshot of."""
        executed = self._run.upto(int(self._state[k.RUN_NEXT]) - 1)
        for table_id in [t for t, low in self._lows.items() if executed.contains(low)]:
            del self._lows[table_id]
        held = {table_id for table_id, low in self._lows.items() if is_in(low)}
        if held != self._excluded:
            self._excluded = held
            self._close_segment(self._state)
            for slot, schema in enumerate(self._schemas):
                if schema is not None:
                    self._maps.captured[slot] = schema.table_id not in held
        if not self._lows:
            self._both(k.EACH, 0)

    def _renew_clamp(self) -> None:
        """Ask the source's clock again; a time that is still far ahead is not believed."""
        clamp = self._book.source_ms() + k.AHEAD_MS
        if clamp - int(self._state[k.CLAMP_MS]) >= _CLAMP_STEP_MS:
            self._close_segment(self._state)  # a segment is read with one clamp
            self._both(k.CLAMP_MS, clamp)
        else:
            self._state[k.ACCEPT] = 2
            self.clamped += 1

    def _tagged_gtid(self) -> None:
        """Begin a transaction whose GTID has a tag."""
        state = self._state
        gtid = ev.parse_tagged_gtid(self._body())
        if self._lows:
            self._look_at_lows(
                lambda low: isinstance(low, GtidSet) and low.holds(gtid.uuid, gtid.number, gtid.tag)
            )
        if gtid.commit_us // 1000 > state[k.CLAMP_MS]:
            self._renew_clamp()
            state[k.ACCEPT] = 0
        self._run.begin_mysql(int(state[k.RUN_NEXT]) - 1, gtid.uuid, gtid.number, gtid.tag)
        self._set_run(-1, -1, gtid.number)  # no plain GTID continues it
        state[k.RUN_NEXT] = gtid.number + 1
        stamp = k.tick(int(state[k.LAST_TS]), gtid.commit_us // 1000, int(state[k.CLAMP_MS]))
        if stamp > state[k.UNTIL_TS]:
            self.ended = True
            return
        if state[k.OPEN] and stamp > state[k.DAY_END]:
            self._close_segment(state)
        state[k.TXN_AT] = state[k.AT]
        state[k.TXN_LAST_TS] = state[k.LAST_TS]
        begin = int(state[k.OFFSET])
        self._skip()
        state[k.TXN_OFFSET] = max(begin, int(state[k.OFFSET]) - self._event_size())
        state[k.LAST_TS] = state[k.TXN_TS] = stamp
        state[k.ALONE] = 1
        state[k.IN_TXN] = state[k.STATEMENT] = 0

    # --- single events ---------------------------------------------------------------------------

    def _special(self) -> None:
        header = int(self._state[k.EVENT_AT])
        code = int(self._stream.data[header + 4])
        if code == ev.TABLE_MAP:
            self._meet_table()
        elif code in (ev.QUERY, ev.QUERY_COMPRESSED):
            self._meet_statement(ev.parse_query(self._body(), code == ev.QUERY_COMPRESSED))
        elif code == ev.EXECUTE_LOAD_QUERY:
            self._meet_statement(ev.parse_load(self._body()))
        elif code == ev.ROTATE:
            self._rotate()
        elif code == ev.FORMAT:
            end = int(self._state[k.EVENT_END])
            body = self._stream.data[header + ev.HEADER : end].tobytes()
            self._tail = 4 if ev.has_checksums(body) else 0
            self._skip()
        elif code in (ev.PREVIOUS_GTIDS, ev.MARIA_GTID_LIST):
            self._skip()
        elif code == ev.GTID_TAGGED:
            self._tagged_gtid()
        elif code == ev.MARIA_GTID:
            self._meet_maria_xa()
        elif code == ev.XA_PREPARE:
            self._prepared_xa()
        elif code == ev.TRANSACTION_PAYLOAD:
            self._meet_payload()
        elif k._is_rows(code):
            number = int.from_bytes(self._body()[:6], "little")
            raise CorruptLog(f"rows of table number {number} at {self._where()} have no TABLE_MAP")
        else:
            raise EventUnknown(
                f"{ev.event_name(code)} (code {code}) at {self._where()} is not understood; "
                "the changes in it cannot be delivered"
            )

    def _meet_table(self) -> None:
        body = self._body()
        mapped = parse_table_map(body, self._flavour)
        schema = self._book.captured(mapped, int(self._state[k.TXN_TS]))
        if schema is not None and self._open is not None:
            if self._open.version_of(schema.table_id) not in (None, schema.version):
                self._cut()  # the same table goes on with another version
        held = schema is not None and schema.table_id in self._excluded
        captured, mark = schema is not None and not held, self._book.is_mark(mapped.table)
        self._maps.put(body, captured, mark)
        self._schemas.append(schema)
        self._names.append(mapped.table)

    def _meet_statement(self, query: ev.Query) -> None:
        state = self._state
        if state[k.HALF]:
            self._end_statement()
            return
        first, second = first_words(query.sql)
        if first == "XA":
            self._meet_xa(second, query.sql)
            return
        if first == "ROLLBACK":
            if state[k.IN_TXN]:
                raise EventUnknown(
                    f"QUERY_EVENT at {self._where()} rolls rows back that stand in the log before "
                    "it (a transaction that mixes engines); they cannot be told apart"
                )
            self._skip()
            if second != "TO":
                k.close_transaction(state, self._kept)
            return
        if first in ("BEGIN", "SAVEPOINT", "RELEASE") or (first, second) == (
            "START",
            "TRANSACTION",
        ):
            self._skip()
            return
        if first == "SELECT":  # the log has it only where the function that it calls changes rows
            raise EventUnknown(
                f"QUERY_EVENT at {self._where()} calls a function that changes rows as a "
                f"statement; {_ROWS_PLEASE}"
            )
        if first in _ROW_STATEMENTS:
            if table := self._book.named(query):
                raise EventUnknown(
                    f"QUERY_EVENT at {self._where()} changes rows of {table} as a statement; "
                    f"{_ROWS_PLEASE}"
                )
            self._end_statement()
            return
        effects = self._book.effects(query)
        commit_ts = int(state[k.TXN_TS])
        if effects is not None:
            self._close_segment(self._kept)
            state[k.OPEN] = 0
        goes_on = query.sql.rstrip().upper().endswith("START TRANSACTION")
        self._end_statement(goes_on)
        if effects is not None:
            self.statement = LoggedStatement(query, effects, commit_ts)
            state[k.TXN_AT] = state[k.TXN_OFFSET] = -1
            self._kept[:] = state

    def _end_statement(self, goes_on: bool = False) -> None:
        self._skip()
        if self._state[k.ALONE] and not goes_on:
            k.close_transaction(self._state, self._kept)
        elif goes_on:
            self._state[k.ALONE] = 0

    def _rotate(self) -> None:
        state = self._state
        name, offset = ev.parse_rotate(self._body())
        if name != self.file:
            self._close_segment(state)
            self.file = name
            if self._place is not None:
                self._stop_at = self._stop_in_file()
            self._skip()
            state[k.OFFSET] = offset
        else:
            before = int(state[k.OFFSET])
            self._skip()
            state[k.OFFSET] = before
        self._kept[:] = state

    def _stop_in_file(self) -> int:
        """Return the offset of the present file behind which nothing is framed."""
        if self._place is None or not self.file:
            return _NEVER
        last = str(self._place["file"])
        if self.file == last:
            return int(self._place["offset"])
        return 0 if (len(self.file), self.file) > (len(last), last) else _NEVER

    def _meet_payload(self) -> None:
        """Look into a compressed transaction: which tables it holds."""
        outer, self._prepare = self._state, b""
        nested = outer.copy()
        whole, nested[k.WHOLE] = int(outer[k.WHOLE]), 1
        nested[k.CUT_AT] = nested[k.DAY_END] = _NEVER
        scratch = nested.copy()
        for block in inflate_payload([self._body()]):
            nested[k.AT] = 0
            while True:
                reason = run_walk(
                    block, len(block), 0, 0, self._maria, _NEVER, nested, scratch, self._maps,
                    self._open.pairs if self._open else SegmentPairs(), False,
                )  # fmt: skip
                if reason == k.MORE:
                    break
                if reason == k.FIRST_ROW:
                    self._open_segment()
                    nested[k.OPEN] = 1
                elif reason == k.NEW_PAIR:
                    for index in (k.PAIR_SLOT, k.PAIR_PARTITION):
                        outer[index] = nested[index]
                    self._add_pair()
                elif reason == k.SPECIAL:
                    self._special_inside(block, nested)
                else:
                    raise CorruptLog(f"the TRANSACTION_PAYLOAD_EVENT at {self._where()} is damaged")
        outer[k.COUNT], outer[k.WHOLE] = nested[k.COUNT], whole
        outer[k.IN_TXN] = max(int(outer[k.IN_TXN]), int(nested[k.IN_TXN]), int(_ended(nested)))
        self._skip()
        if self._prepare:
            self._end_prepared(self._prepare)
            return
        k.close_transaction(outer, self._kept)
        if outer[k.OPEN] and outer[k.OFFSET] >= outer[k.CUT_AT]:
            self._cut()

    def _special_inside(self, block: Any, nested: Any) -> None:
        header, end = int(nested[k.EVENT_AT]), int(nested[k.EVENT_END])
        code, body = int(block[header + 4]), block[header + ev.HEADER : end].tobytes()
        if code == ev.TABLE_MAP:
            mapped = parse_table_map(body, self._flavour)
            schema = self._book.captured(mapped, int(nested[k.TXN_TS]))
            held = schema is not None and schema.table_id in self._excluded
            captured, mark = schema is not None and not held, self._book.is_mark(mapped.table)
            self._maps.put(body, captured, mark)
            self._schemas.append(schema)
            self._names.append(mapped.table)
            return
        if code == ev.XA_PREPARE:
            self._prepare, nested[k.AT] = body, end
            return
        if code == ev.QUERY:
            words = first_words(ev.parse_query(body).sql)
            if words[0] in ("SAVEPOINT", "BEGIN") or words in (("XA", "START"), ("XA", "END")):
                if words[1] == "START":
                    self._begin_xa()
                    nested[k.OPEN] = 0
                nested[k.AT] = end
                return
        raise EventUnknown(
            f"{ev.event_name(code)} (code {code}) inside the compressed transaction at "
            f"{self._where()} is not understood"
        )

    # --- XA --------------------------------------------------------------------------------------

    def _meet_xa(self, verb: str, sql: str) -> None:
        state = self._state
        if verb in ("START", "BEGIN"):
            self._begin_xa()
            state[k.ALONE] = 0
            self._skip()
        elif verb == "END":
            self._skip()
        elif verb in ("COMMIT", "ROLLBACK"):
            self._end_xa(sql, commit=verb == "COMMIT")
            self._skip()
            k.close_transaction(state, self._kept)
        else:
            raise EventUnknown(f"the statement XA {verb} at {self._where()} is not understood")

    def _begin_xa(self) -> None:
        if self._open is not None and not self._open.xa:
            self._close_segment(self._kept)
        else:
            self._open = None  # seen a second time: its bytes had not all come
        self._both(k.OPEN, 0)
        self._xa.begin()

    def _meet_maria_xa(self) -> None:
        flags = self._body()[12]
        if flags & 0x40:
            self._begin_xa()
        self._state[k.ACCEPT] = 0 if self._fits_run() else 1
        if self._state[k.ACCEPT]:
            self._new_run()
        self._state[k.ACCEPT] = 1

    def _fits_run(self) -> bool:
        state, domain = self._state, _whole(self._body()[8:12])
        same = state[k.RUN_A] == domain and state[k.RUN_B] == self._event_server()
        return bool(state[k.RUN_OPEN] and same)

    def _event_server(self) -> int:
        header = int(self._state[k.EVENT_AT])
        return _whole(self._stream.data[header + 5 : header + 9].tobytes())

    def _prepared_xa(self) -> None:
        """Remember a prepared transaction's rows until it is committed or rolled back."""
        body = self._body()
        self._skip()
        self._end_prepared(body)

    def _end_prepared(self, body: bytes) -> None:
        state = self._state
        if self._open is not None:
            self._close_segment(state, inside=True)
        self._segments += self._xa.prepare(body)
        state[k.IN_TXN] = 0
        k.close_transaction(state, self._kept)

    def _end_xa(self, sql: str, commit: bool) -> None:
        commit_ts = int(self._state[k.TXN_TS])
        found = self._xa.end(sql, commit, commit_ts, self._where())
        if commit:
            self._close_segment(self._kept)
        self._segments += found

    # --- small pieces ----------------------------------------------------------------------------

    def _both(self, index: int, value: int) -> None:
        self._state[index] = value
        self._kept[index] = value

    def _event_size(self) -> int:
        return int(self._state[k.EVENT_END] - self._state[k.EVENT_AT])

    def _packet(self) -> bytes:
        begin, end = int(self._state[k.EVENT_AT]) - 1, int(self._state[k.EVENT_END])
        return self._stream.data[begin:end].tobytes()

    def _body(self) -> bytes:
        """Return the body of the event where the walk stands; its checksum was checked."""
        begin, end = int(self._state[k.EVENT_AT]), int(self._state[k.EVENT_END])
        data = self._stream.data
        stop = end - self._tail
        if self._tail:
            told = int.from_bytes(data[stop:end].tobytes(), "little")
            if zlib.crc32(data[begin:stop].data) != told:
                raise CorruptLog(f"the checksum of the event at {self._where()} does not fit")
        return data[begin + ev.HEADER : stop].tobytes()

    def _skip(self) -> None:
        """Step over the event where the walk stands."""
        skip_event(self._stream.data, self._state)

    def _is_end_of_stream(self) -> bool:
        """Return whether the walk stands at no event, but at the server's last packet."""
        return bool(self._stream.data[int(self._state[k.EVENT_AT]) - 1] == 0xFE)

    def _where(self) -> str:
        return f"{self.file}:{int(self._state[k.OFFSET])}"


def _ended(nested: Any) -> bool:
    return bool(nested[k.CAPTURED_TS] == nested[k.LAST_TS] and nested[k.TXN_TS] == 0)


def _whole(data: bytes) -> int:
    return int.from_bytes(data, "little")
