"""A database that refuses some rows, behind a feed that parks them: judged while it goes on.

Table `p` belongs to the scene alone, whatever happens to others. Each change of it has a higher
`n`, and a trigger notes which ones the target has seen, so that the order is known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from moment_targets import Downstream

from rowferry.change.quarantine import WAITS, ParkedRow, RowPlace
from rowferry.control.operator.operations import Operations
from rowferry.control.operator.quarantine import Choice
from rowferry.errors import BadQuarantine, RowferryError
from rowferry.flow.assemble import Flow
from rowferry.flow.parking import shown_images
from rowferry.testing.servers import Server

if TYPE_CHECKING:
    from moment_kit import World

NAME = "feed"
PARKS = "on-bad-row = 'quarantine'\n"
OWN = "p"
KEYS = (1, 2, 3, 4, 5, 11)
_ROUNDS = 4
# What of a table that was altered since can only be dropped, and read again.
_FOR_GOOD = ("was altered since", "is not captured any more")


class Refusing(Downstream):
    """Tables of the same names on another server; some of them take less than the source does."""

    def __init__(self, server: Server, database: str) -> None:
        super().__init__(server, database)
        self.config = PARKS + self.config
        self.guarded = False
        self.dropped: set[int] = set()  # keys of which a change was dropped
        self._gone: set[RowPlace] = set()  # what was dropped
        self._headless: set[int] = set()  # keys of which only the first change was dropped

    def clear(self) -> None:
        """Drop all tables, and what was noted; nothing is refused any more."""
        super().clear()
        self.server.script(f"DROP DATABASE IF EXISTS {self._database}_seen")
        self.guarded = False

    def guard(self) -> None:
        """Refuse some rows from now on, and note which ones are taken."""
        seen, mine = f"{self._database}_seen", f"{self._database}.{OWN}"
        self.server.script(
            f"ALTER TABLE {self._database}.a ADD CONSTRAINT a_small CHECK (v < 400)",
            f"ALTER TABLE {self._database}.b ADD CONSTRAINT b_small CHECK (v < 400)",
            f"ALTER TABLE {mine} ADD CONSTRAINT p_small CHECK (v < 400)",
            f"ALTER TABLE {mine} MODIFY t varchar(4)",
            f"CREATE DATABASE {seen}",
            f"CREATE TABLE {seen}.{OWN} (at int AUTO_INCREMENT PRIMARY KEY, id int, n int)",
            *(
                f"CREATE TRIGGER {self._database}.p_{when} AFTER {when} ON {mine} FOR EACH ROW "
                f"INSERT INTO {seen}.{OWN} (id, n) VALUES (NEW.id, NEW.n)"
                for when in ("insert", "update")
            ),
        )
        self.guarded = True

    def mend(self) -> None:
        """Take everything from now on; what is gone or altered by others stays as it is."""
        database = self._database
        for one in (
            *(f"ALTER TABLE {database}.{t} DROP CONSTRAINT a_small" for t in ("a", "b", "c")),
            *(f"ALTER TABLE {database}.{t} DROP CONSTRAINT b_small" for t in ("a", "b", "s")),
            f"ALTER TABLE {database}.{OWN} DROP CONSTRAINT p_small",
            f"ALTER TABLE {database}.{OWN} MODIFY t varchar(20)",
        ):
            with suppress(RowferryError):
                self.server.script(one)

    # --- operators --------------------------------------------------------------------------------

    def retry(self, world: World) -> None:
        """Ask for all parked rows to be sent again."""
        world.ferry.asks(lambda desk: desk.retry_quarantined(NAME, Choice(every=True)))

    def drop(self, world: World) -> None:
        """Drop all that is parked of the scene's own table."""
        self._drop(world, lambda rows: Choice(table=f"{world.database}.{OWN}"))

    def drop_first(self, world: World, key: int) -> None:
        """Drop the first change that is parked of a key; the others stay."""
        self._headless.add(key)

        def first(rows: Sequence[ParkedRow]) -> Choice:
            mine = [str(row.place) for row in rows if row.key == str(key)]
            return Choice(row=mine[0] if mine else "none")

        self._drop(world, first)

    def _drop(self, world: World, choose: Callable[[Sequence[ParkedRow]], Choice]) -> None:
        def do(desk: Operations) -> None:
            rows = [row for row in desk.quarantined(NAME) if row.table.table == OWN]
            choice = choose(rows)
            gone = [row for row in rows if choice.row in ("", str(row.place))]
            desk.drop_quarantined(NAME, choice)
            self.dropped |= {int(row.key) for row in gone}
            self._gone |= {row.place for row in gone}
            rest = {row.place for row in desk.quarantined(NAME)}
            lost = [r.place for r in rows if not r.wanted and r.place not in self._gone | rest]
            if lost:
                raise AssertionError(f"rows {lost} were dropped with others")

        world.ferry.asks(do)

    # --- judging ----------------------------------------------------------------------------------

    def wrong(self, world: World) -> str:
        """Return what is wrong with the scene's own table when the feed has caught up.

        What is not parked is equal. What is parked is not delivered: the target has the row as it
        was before the first parked change, and the last one has what the source has.
        """
        store = world.ferry.store
        parked = store.parked(NAME)
        feed = store.feed(NAME)
        if feed is not None and feed.parked != len(parked):
            return f"{feed.parked} rows are counted, {len(parked)} are parked"
        if world.extra or not self.guarded:
            return ""  # it began anew
        back = [str(row.place) for row in parked if row.place in self._gone]
        if back:
            return f"rows {back} were dropped, and are parked again"
        here, there = self._states(world.server), self._states(self.server)
        mine: dict[int, list[ParkedRow]] = {}
        for row in store.parked(NAME, [r.place for r in parked if r.table.table == OWN]):
            mine.setdefault(int(row.key), []).append(row)
        for key in sorted({*here, *there, *mine}):
            rows = mine.get(key, [])
            want, have = here.get(key), there.get(key)
            if not rows:
                if want != have and key not in self.dropped:
                    return f"row {key} is {have}, not {want}, and nothing of it is parked"
                continue
            if any(row.wanted for row in rows):
                continue  # on its way
            shown = [shown_images(row.image) for row in rows]
            before, after = (image and image["n"] for image in (shown[0][0], shown[-1][1]))
            if have != before and key not in self.dropped:
                return f"row {key} is {have}, its first parked change was of {before}"
            if after != want:
                return f"row {key} is {want} at the source, its last parked change makes {after}"
            times = [row.commit_ts for row in rows]
            if times != sorted(times):
                return f"row {key} is parked out of order: {times}"
            causes = [row.cause for row in rows]
            if (causes[0] == WAITS and key not in self._headless) or any(
                cause != WAITS for cause in causes[1:]
            ):
                return f"row {key} is parked for {causes}"
        return ""

    def judge(self, world: World, flow: Flow, extra: bool) -> str:
        """Let an operator mend all, and compare the tables of both servers."""
        for key in KEYS:
            world.sql(f"REPLACE INTO {OWN} VALUES ({key}, 100, 1, 'x')")
        world.ferry.catch_up()
        self.dropped.clear()
        wrong = self.wrong(world)
        if wrong:
            return wrong
        self.mend()
        left = self._send_all(world)
        if left:
            return f"parked rows cannot be sent again: {left}"
        return self._disorder(world) or super().judge(world, world.ferry.flow, world.extra)

    def _send_all(self, world: World) -> list[str]:
        """Send all that is parked; what does not fit any more is dropped, and read again."""
        store, desk = world.ferry.store, Operations(world.ferry.store)
        for _ in range(_ROUNDS):
            if not store.parked(NAME):
                return []
            with suppress(BadQuarantine):  # none of them fits
                desk.retry_quarantined(NAME, Choice(every=True))
            world.ferry.catch_up()
            unfit = [row for row in store.parked(NAME) if self._is_unfit(world, row)]
            for row in unfit:
                desk.drop_quarantined(NAME, Choice(row=str(row.place)))
            for table in {str(row.table) for row in unfit}:
                world.ferry.read_again(table)
            world.ferry.catch_up()
        return [f"{row.table} {row.key}: {row.cause}" for row in store.parked(NAME)]

    def _is_unfit(self, world: World, row: ParkedRow) -> bool:
        """Return whether it can never be sent again, for its table's sake."""
        if any(words in row.cause for words in _FOR_GOOD):
            return True
        try:
            Operations(world.ferry.store).retry_quarantined(NAME, Choice(row=str(row.place)))
        except BadQuarantine as err:
            return any(words in str(err) for words in _FOR_GOOD)
        return False

    def _disorder(self, world: World) -> str:
        if world.extra or not self.guarded:
            return ""
        newest: dict[int, int] = {}
        found = self.server.execute(f"SELECT id, n FROM {self._database}_seen.{OWN} ORDER BY at")
        for key, n in ((int(str(key)), int(str(n))) for key, n in found):
            if n < newest.get(key, 0):
                return f"row {key} went back to change {n} after {newest[key]}"
            newest[key] = n
        return ""

    def _states(self, server: Server) -> dict[int, int]:
        rows = server.execute(f"SELECT id, n FROM {self._database}.{OWN}")
        return {int(str(key)): int(str(n)) for key, n in rows}
