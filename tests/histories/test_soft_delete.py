"""Random histories of a table with soft delete: readers hold what lives, and nothing else.

The mode is off, so readers know nothing of soft delete. What each change means to them is told here
a second time, row by row.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "binlog"))  # its kit is used here

from feed_kit import scene_of

from rowferry.testing.servers import Server
from rowferry.testing.validators import StorageLayout

TIME = "_tidb_softdelete_time"
ZERO = "'0000-00-00 00:00:00'"
MARKS = {"NULL": False, ZERO: False, "NOW(6)": True}  # whether a row with it counts as deleted
ROUNDS, CHANGES = 5, 8


class Reader:
    """Rows as a reader has them, and as the table has them: value, and whether it is marked."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self._table: dict[int, tuple[int, bool]] = {}

    def change(self, dice: random.Random, number: int) -> str:
        """Return a statement, and follow it."""
        key, time = dice.randrange(6), dice.choice([*MARKS])
        if key not in self._table:
            self._table[key] = (number, MARKS[time])
            self.rows[key] = number  # also one that is marked already
            return f"INSERT INTO t VALUES ({key}, {number}, {time})"
        value, marked = self._table[key]
        if marked and dice.random() < 0.2:
            del self._table[key]
            return f"DELETE FROM t WHERE id = {key}"
        if dice.random() < 0.5:
            self._update(key, number, marked)
            return f"UPDATE t SET v = {number} WHERE id = {key}"
        self._update(key, value, MARKS[time])
        return f"UPDATE t SET {TIME} = {time} WHERE id = {key}"

    def _update(self, key: int, value: int, marked: bool) -> None:
        was = self._table[key][1]
        self._table[key] = (value, marked)
        if not marked:
            self.rows[key] = value
        elif not was:
            self.rows.pop(key, None)


@pytest.mark.parametrize("number", [1, 2])
def test_readers_hold_what_lives(source_server: Server, tmp_path: Path, number: int) -> None:
    dice, reader = random.Random(number), Reader()
    with scene_of(source_server, tmp_path, f"soft_delete_{number}") as scene:
        table = f"id INT PRIMARY KEY, v INT, {TIME} TIMESTAMP(6) NULL"
        scene.sql(f"CREATE TABLE t ({table}) COMMENT='rowferry:soft-delete'")
        feed = scene.feed()
        feed.catch_up()
        layout = StorageLayout(feed.root)
        for turn in range(ROUNDS):
            for place in range(CHANGES):
                scene.sql(reader.change(dice, CHANGES * turn + place))
                if place % 3 == 0:
                    feed.step()
                    layout.observe()
            feed.catch_up()
            layout.observe()
            assert {r["id"]: r["v"] for r in feed.rows("t")} == reader.rows
        layout.finish()
        assert layout.failures == []
        assert len(reader.rows) > 1
