"""Compares what a feed delivered with the whole history, change by change and image by image."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rowferry.testing.histories.facts import Image, Name, TableFacts
from rowferry.testing.histories.forms import HistoryFormat
from rowferry.testing.histories.outputs import Ddl, DeliveredRow, Event, WatermarkMark
from rowferry.testing.histories.truth import JOURNAL, OUTSIDE, CommittedStep, Truth

Cells = tuple[tuple[str, Hashable], ...]
Move = tuple[str, Cells | None, Cells | None]  # op, before, after

_MOST = 12  # failures that are told of one feed
# What canal-json calls each kind of statement; the others are not asked for.
CANAL_KINDS: Mapping[str, set[str]] = {
    "create": {"CREATE"},
    "create-like": {"CREATE"},
    "create-select": {"CREATE"},
    "drop": {"ERASE"},
    "truncate": {"TRUNCATE"},
    "rename": {"RENAME"},
    "swap": {"RENAME"},
    "add-column": {"ALTER"},
    "drop-column": {"ALTER"},
    "modify-column": {"ALTER"},
    "change-column": {"ALTER"},
    "rename-column": {"ALTER"},
    "add-index": {"CINDEX"},
    "drop-index": {"DINDEX"},
    "add-key": {"CINDEX"},
    "drop-key": {"DINDEX"},
    "create-database": {"QUERY"},
    "drop-database": {"QUERY"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One feed to be judged.

    Attributes:
        first: the number of the last step that was committed before the feed began.
        settled: the number of the last step before its snapshot was complete.
        repeats: whether the sink may show a change again.
        ddl_form: how schema changes are told: "canal-json", "files", "any", or "" for not at all.
    """

    form: HistoryFormat
    first: int
    settled: int
    repeats: bool
    ddl_form: str = ""


@dataclass
class Judgement:
    """What was found; `compared` counts changes.

    `inferred` are schema changes whose text was not understood in full, after which the table had
    changed again: columns are then corrected with the next row, which is told as a version.
    """

    failures: list[str]
    inferred: list[str] = field(default_factory=list)
    compared: int = 0
    snapshot_rows: int = 0
    ddls: int = 0


@dataclass
class JoinedTable:
    """A table that joined in a history's middle, and the rows that it had.

    Attributes:
        step: the step that brought it.
        last: the first step after it without the table.
        low: the commit-ts of its snapshot.
        seen: the last step that is in the snapshot.
    """

    name: Name
    step: int
    last: int
    low: int
    seen: int
    rows: list[DeliveredRow] = field(default_factory=list)

    def covers(self, step: int, name: Name) -> bool:
        """Return whether a step's changes are in the snapshot."""
        return name == self.name and self.step <= step <= max(self.seen, self.step)


class Judge:
    """Holds one feed's events against the truth."""

    def __init__(self, truth: Truth, case: Case, events: Sequence[Event]) -> None:
        self._truth, self._case = truth, case
        self._form = case.form
        self._events = events
        self._verdict = Judgement([])
        self._moments: list[tuple[int, int]] = []  # commit-ts and step, of steps in the journal
        self._low = 0
        self._exact: dict[Name, list[int]] = {}  # steps that a keyless table's snapshot may show
        self._partitions: dict[tuple[TableFacts, Hashable], str] = {}

    def judge(self) -> Judgement:
        """Return all that is wrong."""
        if self._read_journal():
            self._check_marks()
            self._check_rows()
            self._check_ddls()
        return self._verdict

    def _fail(self, words: str) -> None:
        if len(self._verdict.failures) < _MOST:
            self._verdict.failures.append(words)

    # --- which commit-ts is which step ------------------------------------------------------------

    def _read_journal(self) -> bool:
        steps = {s.token: s for s in self._truth.steps if s.token}
        early = {s.token for s in self._truth.steps[: self._case.first + 1] if s.token}
        seen: dict[int, list[int]] = {}
        for e in self._events:
            if isinstance(e, DeliveredRow) and e.table == JOURNAL:
                if e.op != "insert" or e.after is None:
                    self._fail(f"the journal has {e}")
                    return False
                cell = e.after["token"]
                token = int(cell["v"] if isinstance(cell, dict) else cell)
                stamps = seen.setdefault(token, [])
                if e.ts not in stamps:
                    stamps.append(e.ts)
        lows = {ts for token in early for ts in seen.get(token, [])}
        if len(lows) != 1:
            self._fail(f"the journal's snapshot has the commit-ts {sorted(lows)}, not one")
            return False
        (self._low,) = lows
        pairs = []
        for token, stamps in seen.items():
            late = [ts for ts in stamps if ts != self._low]
            if token not in steps:
                self._fail(f"token {token} was delivered, and never committed")
            elif len(late) > 1:
                self._fail(f"token {token} came with the commit-ts {late}")
            elif late:
                pairs.append((late[0], steps[token].number))
        self._moments = sorted(pairs)
        numbers = [n for _, n in self._moments]
        if numbers != sorted(numbers):
            self._fail(f"commit-ts do not follow the commits: {self._moments}")
            return False
        first = numbers[0] if numbers else len(self._truth.steps)
        missing = [
            s.number
            for s in self._truth.steps
            if s.token and s.number >= first and s.number not in set(numbers)
        ]
        lost = [
            s.number
            for s in self._truth.steps
            if s.token and s.number < first and s.token not in seen
        ]
        if missing or lost:
            self._fail(f"steps {lost + missing} of the journal were never delivered")
            return False
        if any(s.token for s in self._truth.steps[self._case.settled + 1 : first]):
            self._fail(f"the log was followed from step {first} only")
        return True

    def _step_at(self, ts: int) -> CommittedStep | None:
        """Return the step of a commit-ts; None: there is none."""
        at = bisect_left(self._moments, (ts, 0))
        if at < len(self._moments) and self._moments[at][0] == ts:
            return self._truth.steps[self._moments[at][1]]
        low = self._moments[at - 1][1] if at else self._case.first - 1
        high = self._moments[at][1] if at < len(self._moments) else len(self._truth.steps)
        between = [s for s in self._truth.steps[low + 1 : high] if not s.token]
        if not at:
            between = between[-1:]
        return between[0] if len(between) == 1 else None

    # --- watermarks and order ---------------------------------------------------------------------

    def _check_marks(self) -> None:
        marks: dict[str, int] = {}
        seen: set[tuple[str, str]] = set()
        newest: dict[tuple[str, Name], int] = {}
        for e in self._events:
            if isinstance(e, WatermarkMark):
                if e.ts < marks.get(e.where, 0):
                    self._fail(f"{e} goes back from {marks[e.where]}")
                marks[e.where] = max(e.ts, marks.get(e.where, 0))
            elif isinstance(e, DeliveredRow):
                known = (e.where, e.raw) in seen
                if e.ts <= marks.get(e.where, 0) and not known:
                    self._fail(f"{_short(e)} came after the watermark {marks[e.where]}")
                newest[e.where, e.table] = max(e.ts, newest.get((e.where, e.table), 0))
                seen.add((e.where, e.raw))
            elif self._case.repeats:  # files stand in no order with `metadata`
                shown = f"{e.ts} {e.query}"
                if e.ts <= marks.get(e.where, 0) and (e.where, shown) not in seen:
                    self._fail(f"{e.query!r} at {e.ts} came after the watermark {marks[e.where]}")
                seen.add((e.where, shown))
        if self._case.repeats and self._case.ddl_form and marks:  # one topic, to its end
            for where in sorted({where for where, _ in newest}):
                if marks.get(where, 0) < max(marks.values()):
                    self._fail(f"partition {where} has no watermark {max(marks.values())}")

    # --- rows -------------------------------------------------------------------------------------

    def _check_rows(self) -> None:
        groups: dict[tuple[int, Name], list[DeliveredRow]] = {}
        snapshot: dict[Name, list[DeliveredRow]] = {}
        again = self._read_again()
        entries = self._entries() + again
        taken_back = {entry.name for entry in again}
        last: dict[tuple[str, Name], int] = {}
        for e in self._events:
            if not isinstance(e, DeliveredRow) or e.table == JOURNAL:
                continue
            if e.table[0] == OUTSIDE:
                self._fail(f"{_short(e)} is of a table that is not captured")
            elif e.ts <= self._low and e.table in taken_back:
                continue
            elif e.ts <= self._low:
                snapshot.setdefault(e.table, []).append(e)
            elif (entry := _entry_of(entries, e)) is not None:
                entry.rows.append(e)
            elif (step := self._step_at(e.ts)) is None:
                self._fail(f"{_short(e)}: nothing was committed then")
            else:
                groups.setdefault((step.number, e.table), []).append(e)
                place = (e.where.rpartition("/")[0], e.table)  # a directory has its own order
                if not self._case.repeats and step.number < last.get(place, 0):
                    self._fail(f"{_short(e)} came after step {last[place]}")
                last[place] = max(step.number, last.get(place, 0))
        self._check_snapshot(snapshot, taken_back)
        for entry in entries:
            self._check_entry(entry)
        start = self._moments[0][1] if self._moments else len(self._truth.steps)
        for step in self._truth.steps[1:]:
            wanted = {c.table for effect in step.effects for c in effect.changes}
            wanted |= {table for number, table in groups if number == step.number}
            if step.number < start and not any((step.number, t) in groups for t in wanted):
                continue  # it was before the feed's beginning, or is in its snapshot
            for name in sorted(t for t in wanted if t[0] != OUTSIDE):
                own = groups.get((step.number, name), [])
                if not own and any(step.number <= p for p in self._exact.get(name, [])):
                    continue  # it is in the snapshot, which was taken later
                if any(e.covers(step.number, name) for e in entries):
                    continue  # it is in the snapshot with which the table joined
                self._check_group(step, name, groups.get((step.number, name), []))

    def _entries(self) -> list[JoinedTable]:
        """Return the tables that came among the captured ones by a RENAME, with rows."""
        steps, joined = self._truth.steps, []
        start = self._moments[0][1] if self._moments else len(steps)
        for step in steps[start:]:
            before = steps[step.number - 1].tables
            for name in step.tables if step.kind == "move-in" else ():
                if name in before or name[0] == OUTSIDE:
                    continue
                gone = (s.number for s in steps[step.number :] if name not in s.tables)
                last = next(gone, len(steps))
                since = max((ts for ts, n in self._moments if n < step.number), default=self._low)
                until = min((ts for ts, n in self._moments if n >= last), default=1 << 64)
                own = (e for e in self._events if isinstance(e, DeliveredRow) and e.table == name)
                low = min((e.ts for e in own if since < e.ts < until), default=since)
                # the step of a snapshot's commit-ts, or the one before it, is in the snapshot
                seen = [n for ts, n in self._moments if ts <= low]
                joined.append(JoinedTable(name, step.number, last, low, max(seen, default=0)))
        return joined

    def _read_again(self) -> list[JoinedTable]:
        """Return the tables whose snapshot was taken back by a TRUNCATE, and begun anew."""
        by_name: dict[Name, JoinedTable] = {}
        for e in self._events:
            if not isinstance(e, Ddl) or not e.query.startswith("TRUNCATE TABLE "):
                continue
            step = self._step_at(e.ts)
            if step is not None and step.kind == "truncate":
                continue  # the history's own
            own = (r for r in self._events if isinstance(r, DeliveredRow) and r.table == e.table)
            low = min((r.ts for r in own if r.ts > e.ts), default=e.ts)
            seen = [n for ts, n in self._moments if ts <= low]
            first = self._case.first
            there = (s.number for s in self._truth.steps[first:] if e.table not in s.tables)
            last = next(there, len(self._truth.steps))
            by_name[e.table] = JoinedTable(e.table, first, last, low, max(seen, default=first))
        return list(by_name.values())

    def _check_entry(self, entry: JoinedTable) -> None:
        """Compare the snapshot with which a table joined: its rows of one moment, or several."""
        steps = self._truth.steps[entry.step : entry.last]
        self._verdict.snapshot_rows += len(entry.rows)
        delivered = Counter(
            self._cells(steps[0].tables[entry.name], r.after, None) for r in entry.rows
        )
        if self._case.repeats:
            delivered = Counter(set(delivered))
        fitting = []
        for step in steps:
            table = step.tables[entry.name]
            wanted = Counter(self._image(table, i) for i in step.state[entry.name].values())
            if delivered == (Counter(set(wanted)) if self._case.repeats else wanted):
                fitting.append(step.number)
        if not steps[0].tables[entry.name].key:
            self._exact[entry.name] = fitting
        if fitting:
            return
        self._check_moving_snapshot(entry.name, entry.rows, steps[:_MOST])

    def _check_snapshot(
        self, snapshot: Mapping[Name, Sequence[DeliveredRow]], taken_back: Collection[Name]
    ) -> None:
        case = self._case
        steps = self._truth.steps[case.first : case.settled + 1]
        for name, rows in snapshot.items():
            versions = [s for s in steps if name in s.tables]
            if not versions:
                self._fail(f"{name}: a snapshot of a table that was not there")
                continue
            self._verdict.snapshot_rows += len(rows)
            if len(steps) > 1 and not versions[0].tables[name].key:
                self._exact[name] = self._places(name, rows, versions)
                continue
            if len(steps) > 1:
                self._check_moving_snapshot(name, rows, versions)
                continue
            table = versions[0].tables[name]
            delivered = Counter(
                c for r in rows if (c := self._cells(table, r.after, r)) is not None
            )
            wanted = Counter(self._image(table, i) for i in versions[0].state[name].values())
            if self._case.repeats:
                delivered, wanted = Counter(set(delivered)), Counter(set(wanted))
            if delivered != wanted:
                self._fail(f"snapshot of {name}: {_unlike(wanted - delivered, delivered - wanted)}")
        if len(steps) > 1:
            for name, table in steps[-1].tables.items():
                if not table.key and name not in {*snapshot, *taken_back}:
                    self._exact[name] = self._places(
                        name, [], [s for s in steps if name in s.tables]
                    )
        if len(steps) == 1:
            for name, own in steps[0].state.items():
                missing = name not in snapshot and name not in taken_back
                if own and missing and name[0] != OUTSIDE:
                    self._fail(f"{name}: its {len(own)} rows are not in the snapshot")

    def _places(
        self, name: Name, rows: Sequence[DeliveredRow], versions: Sequence[CommittedStep]
    ) -> list[int]:
        """Return where the snapshot of a table without a key may have been taken: in one piece."""
        delivered = Counter(self._cells(versions[0].tables[name], r.after, None) for r in rows)
        places = []
        for step in versions:
            wanted = Counter(self._image(step.tables[name], i) for i in step.state[name].values())
            if delivered == wanted or (self._case.repeats and set(delivered) == set(wanted)):
                places.append(step.number)
        if not places:
            self._fail(
                f"snapshot of {name} (no key) is that of no moment: {_brief(delivered, 600)}"
            )
        return places

    def _check_moving_snapshot(
        self, name: Name, rows: Sequence[DeliveredRow], versions: Sequence[CommittedStep]
    ) -> None:
        """Of a table that was written to meanwhile, every row must have been there at some time."""
        known: set[Cells] = set()
        for step in versions:
            known |= {self._image(step.tables[name], i) for i in step.state[name].values()}
        delivered: set[Cells | None] = set()
        for r in rows:
            cells = {self._cells(s.tables[name], r.after, None) for s in versions}
            delivered |= cells
            if not cells & known:
                self._fail(f"{_short(r)}: such a row was never there")
        lasting = set.intersection(
            *({self._image(s.tables[name], i) for i in s.state[name].values()} for s in versions)
        )
        for image in lasting - delivered:
            self._fail(
                f"snapshot of {name}: {_brief(image)} was there all the time, and is missing"
            )

    def _check_group(self, step: CommittedStep, name: Name, rows: Sequence[DeliveredRow]) -> None:
        before = self._truth.steps[step.number - 1]
        table = step.tables.get(name) if step.kind == "create-select" else before.tables.get(name)
        if table is None:
            self._fail(f"{_short(rows[0])}: there was no such table in step {step.number}")
            return
        moves: list[Move] = []
        for r in rows:
            old = self._cells(table, r.before, r, r.op == "delete")
            new = self._cells(table, r.after, r)
            moves.append((r.op, old, new))
        self._verdict.compared += len(moves)
        if not table.key:
            self._check_keyless(step, table, moves)
            return
        by_key: dict[tuple[Hashable, ...], list[Move]] = {}
        for row, move in zip(rows, moves, strict=True):
            image = dict(move[2] if move[2] is not None else move[1] or ())
            if any(n not in image for n in table.key):
                return  # told already
            at = tuple(image[n] for n in table.key)
            by_key.setdefault(at, []).append(move)
            self._check_partition(table, at, row)
        wanted: dict[tuple[Hashable, ...], list[tuple[Image | None, Image | None]]] = {}
        for effect in step.effects:
            for c in effect.changes:
                if c.table == name:
                    image = c.after if c.after is not None else c.before or {}
                    key = tuple(self._form.of_truth(table.column(n), image[n]) for n in table.key)
                    wanted.setdefault(key, []).append((c.before, c.after))
        loose = any(effect.loose for effect in step.effects)
        start = {} if step.kind == "create-select" else before.state.get(name, {})
        states = {
            tuple(self._form.of_truth(table.column(n), i[n]) for n in table.key): i
            for i in start.values()
        }
        for key in dict.fromkeys([*wanted, *by_key]):
            fits = self._fits(
                table, states.get(key), wanted.get(key, []), by_key.get(key, []), loose
            )
            if not fits:
                self._fail(
                    f"step {step.number} ({step.kind}), {name}, key {key}: "
                    f"{self._described(table, wanted.get(key, []), by_key.get(key, []))}"
                    f" after {[e.sql[:300] for e in step.effects]}"
                )

    def _check_partition(self, table: TableFacts, key: Hashable, row: DeliveredRow) -> None:
        """A key stays in its partition, as long as its table is the same."""
        if self._case.repeats and all(table.column(n).family == "int" for n in table.key):
            where = self._partitions.setdefault((table, key), row.where)
            if where != row.where:
                self._fail(f"{_short(row)}: this key was in {where} before")

    def _check_keyless(self, step: CommittedStep, table: TableFacts, moves: Sequence[Move]) -> None:
        """Rows cannot be told apart: what came and what went must be the same."""
        net: Counter[Cells] = Counter()
        for effect in step.effects:
            for c in effect.changes:
                if c.table == table.name:
                    if c.after is not None:
                        net[self._image(table, c.after)] += 1
                    if c.before is not None:
                        net[self._image(table, c.before)] -= 1
        if any(op == "update" and old is None for op, old, _ in moves):
            return  # this format does not tell what went
        net = Counter({k: v for k, v in net.items() if v})
        delivered = _net_of(moves)
        if self._case.repeats:
            signs = {k: v > 0 for k, v in net.items()}

            def fits(some: Sequence[Move]) -> bool:
                return signs == {k: v > 0 for k, v in _net_of(some).items()}

            if self._whole(moves, fits):
                return
        elif net == delivered:
            return
        self._fail(
            f"step {step.number}, {table.name} (no key): {_unlike(net, delivered)} after "
            f"{[e.sql[:300] for e in step.effects]}"
        )

    # --- one key ----------------------------------------------------------------------------------

    def _fits(
        self,
        table: TableFacts,
        start: Image | None,
        wanted: Sequence[tuple[Image | None, Image | None]],
        moves: Sequence[Move],
        loose: bool,
    ) -> bool:
        if not wanted:
            return not moves or (
                loose and self._whole(moves, lambda m: self._walks(table, start, [], m))
            )
        if not moves:
            return loose and _same_ends(wanted)

        def exact(some: Sequence[Move]) -> bool:
            return self._exactly(table, wanted, some)

        if self._whole(moves, exact):
            return True
        return loose and self._whole(
            moves, lambda m: self._walks(table, start, [after for _, after in wanted], m)
        )

    def _whole(self, moves: Sequence[Move], fits: Any) -> bool:
        """Return whether moves are right, or right after some attempts that are beginnings."""
        if fits(moves):
            return True
        if not self._case.repeats:
            return False
        for size in range(1, len(moves)):
            tail = list(moves[-size:])
            if fits(tail) and _is_beginnings(list(moves[:-size]), tail):
                return True
        return False

    def _exactly(
        self,
        table: TableFacts,
        wanted: Sequence[tuple[Image | None, Image | None]],
        moves: Sequence[Move],
    ) -> bool:
        at = 0
        for before, after in wanted:
            options = self._moves_of(table, before, after)
            for option in options:
                given = moves[at : at + len(option)]
                if len(given) == len(option) and all(map(self._same, option, given)):
                    at += len(option)
                    break
            else:
                return False
        return at == len(moves)

    def _moves_of(
        self, table: TableFacts, before: Image | None, after: Image | None
    ) -> list[list[Move]]:
        old = None if before is None else self._image(table, before)
        new = None if after is None else self._image(table, after)
        if before is None:
            return [[("insert", None, new)]]
        if after is None:
            return [[("delete", old, None)]]
        split: list[Move] = [("delete", old, None), ("insert", None, new)]
        whole: list[Move] = [("update", old, new)]
        differing = {n for n in table.unique_columns if repr(before[n]) != repr(after[n])}
        if not differing:
            return [whole]
        hidden = all(table.column(n).virtual for n in differing)
        return [split, whole] if hidden else [split]

    def _same(self, wanted: Move, delivered: Move) -> bool:
        op, old, new = wanted
        if op != delivered[0] or new != delivered[2]:
            return False
        if op == "update" and not self._form.has_before:
            return True
        if op == "delete" and self._form.key_only:
            return delivered[1] is not None and set(delivered[1]) <= set(old or ())
        return old == delivered[1]

    def _walks(
        self,
        table: TableFacts,
        start: Image | None,
        states: Sequence[Image | None],
        moves: Sequence[Move],
    ) -> bool:
        """Return whether moves lead from state to state, by whatever is between them."""
        now = None if start is None else self._image(table, start)
        left = [None if s is None else self._image(table, s) for s in states]
        end = left[-1] if left else now
        for op, old, new in moves:
            if (op == "insert") != (now is None):
                return False
            if op == "delete" and self._form.key_only:
                if old is None or not set(old) <= set(now or ()):
                    return False
            elif op != "insert" and old != now and (op == "delete" or self._form.has_before):
                return False
            now = new
            if left and now == left[0]:
                left.pop(0)
            while left and len(left) > 1 and now == left[0]:
                left.pop(0)
        return now == end

    # --- images -----------------------------------------------------------------------------------

    def _image(self, table: TableFacts, image: Image) -> Cells:
        """Return an image of the database as the format must show it."""
        return tuple(
            (c.name, self._form.of_truth(c, image[c.name])) for c in table.columns if not c.virtual
        )

    def _cells(
        self,
        table: TableFacts,
        cells: Mapping[str, Any] | None,
        row: DeliveredRow | None,
        delete: bool = False,
    ) -> Cells | None:
        """Return a delivered image; `row` names it where its columns are wrong."""
        if cells is None:
            return None
        names = list(cells)
        right = names == table.sent or (delete and self._form.key_only)
        if not right and row is not None:
            self._fail(f"{_short(row)}: columns {names} instead of {table.sent}")
        known = {c.name: c for c in table.columns}
        return tuple(
            (n, self._form.of_cell(known[n], v) if n in known else "unknown")
            for n, v in cells.items()
        )

    def _described(
        self,
        table: TableFacts,
        wanted: Sequence[tuple[Image | None, Image | None]],
        moves: Sequence[Move],
    ) -> str:
        """Say in words what differs."""
        expected = [m for b, a in wanted for m in self._moves_of(table, b, a)[0]]
        if len(expected) == len(moves):
            for one, other in zip(expected, moves, strict=True):
                if self._same(one, other):
                    continue
                if one[0] != other[0]:
                    break
                parts = []
                for what, right, given in (
                    ("before", one[1], other[1]),
                    ("after", one[2], other[2]),
                ):
                    for (n, v), (_, g) in zip(right or (), given or (), strict=False):
                        if v != g:
                            kind = table.column(n).full
                            parts.append(f"{what} {n} {kind}: {_brief(g)} instead of {_brief(v)}")
                return f"{one[0]}: " + "; ".join(parts)
        return f"wanted {_brief(expected, 900)}, found {_brief(list(moves), 900)}"

    # --- schema changes ---------------------------------------------------------------------------

    def _check_ddls(self) -> None:
        if not self._case.ddl_form:
            return
        by_step: dict[int, list[Ddl]] = {}
        for e in self._events:
            if isinstance(e, Ddl) and e.ts > self._low and e.table != JOURNAL:
                step = self._step_at(e.ts)
                if step is not None:
                    by_step.setdefault(step.number, []).append(e)
                    self._check_columns(step, e)
        start = self._moments[0][1] if self._moments else len(self._truth.steps)
        for step in self._truth.steps:
            kinds = CANAL_KINDS.get(step.kind)
            if kinds is None or step.number < start:
                continue
            if not self._concerns(step):
                continue
            self._verdict.ddls += 1
            mine = by_step.get(step.number, [])
            if not mine:
                self._fail(f"step {step.number}: {step.ddl!r} was not told")
            elif self._case.ddl_form == "canal-json" and {d.kind for d in mine} != kinds:
                self._fail(f"step {step.number}: {step.ddl!r} is told as {[d.kind for d in mine]}")

    def _concerns(self, step: CommittedStep) -> bool:
        """Return whether a DDL changed something that a feed captures."""
        before = self._truth.steps[step.number - 1]
        if step.kind in ("create-database", "drop-database"):
            return True
        changed = {
            n for n in {*before.tables, *step.tables} if before.tables.get(n) != step.tables.get(n)
        }
        return step.kind == "truncate" or any(n[0] != OUTSIDE for n in changed)

    def _check_columns(self, step: CommittedStep, ddl: Ddl) -> None:
        if ddl.columns is None or ddl.table not in step.tables:
            return
        wanted = [c.name for c in step.tables[ddl.table].columns if not c.virtual]
        if list(ddl.columns) != wanted:
            self._verdict.inferred.append(f"{ddl.query}: {ddl.columns} instead of {wanted}")


def _entry_of(entries: Iterable[JoinedTable], row: DeliveredRow) -> JoinedTable | None:
    fitting = (e for e in entries if e.name == row.table and e.low == row.ts)
    return next((e for e in fitting if row.op == "insert"), None)


def _same_ends(wanted: Sequence[tuple[Image | None, Image | None]]) -> bool:
    return repr(wanted[0][0]) == repr(wanted[-1][1])


def _is_beginnings(moves: list[Move], whole: list[Move]) -> bool:
    """Return whether moves are beginnings of `whole`, one after the other."""
    if not moves:
        return True
    for size in range(min(len(moves), len(whole)), 0, -1):
        if moves[:size] == whole[:size] and _is_beginnings(moves[size:], whole):
            return True
    return False


def _net_of(moves: Sequence[Move]) -> Counter[Cells]:
    """Return what came (above 0) and went (below) by moves, all together."""
    net: Counter[Cells] = Counter()
    for _, old, new in moves:
        if new is not None:
            net[new] += 1
        if old is not None:
            net[old] -= 1
    return Counter({k: v for k, v in net.items() if v})


def _unlike(missing: Iterable[Any], extra: Iterable[Any]) -> str:
    wanted, surplus = list(missing), list(extra)
    if len(wanted) == len(surplus) == 1:  # one row, with other values
        pairs = [(w, f) for w, f in zip(wanted[0], surplus[0], strict=False) if w != f]
        return "; ".join(f"{_brief(f)} instead of {_brief(w)}" for w, f in pairs)
    return f"missing {_brief(wanted, 700)}, too many {_brief(surplus, 700)}"


def _brief(value: object, size: int = 160) -> str:
    text = repr(value)
    return text if len(text) <= size else f"{text[:size]}…"


def _short(row: DeliveredRow) -> str:
    image = row.after if row.after is not None else row.before
    return f"{row.where}: {row.op} {row.table} at {row.ts} {_brief(image)}"
