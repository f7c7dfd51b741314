"""Random changes of keys: whoever keeps rows by key can follow them one by one.

An update that changes a column of any unique key comes as a delete and an insert, in this order.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "binlog"))  # its kit is used here

from feed_kit import Scene, Seen, scene_of

from rowferry.change.chunk import Op
from rowferry.testing.servers import Server

# Definition, the key by which rows are kept, and all columns of unique keys.
TABLES = {
    "both": ("id INT PRIMARY KEY, u INT, v INT, UNIQUE KEY (u)", "id", {"id", "u"}),
    "sole": ("id INT, u INT NOT NULL, v INT, UNIQUE KEY (u)", "u", {"u"}),
}


def follow(changes: list[Seen], key: str, unique: set[str]) -> dict[Any, Any]:
    """Return the rows that the changes make, each of which must fit those before it."""
    rows: dict[Any, Any] = {}
    for change in changes:
        old, new = change.before, change.after
        if change.op is Op.UPDATE:
            assert old is not None and new is not None
            assert all(old[name] == new[name] for name in unique), f"{change} changes a key"
        if change.op is not Op.INSERT:
            assert old is not None and rows.pop(old[key], None) == old, f"{change} of another row"
        if change.op is not Op.DELETE:
            assert new is not None and new[key] not in rows, f"{change} of a row that is there"
            rows[new[key]] = new
    return rows


def work(scene: Scene, dice: random.Random, table: str) -> None:
    """Write some rows; what a key forbids goes in vain."""
    for _ in range(30):
        one, other = dice.sample(range(8), 2)
        scene.sql(
            dice.choice(
                (
                    f"INSERT IGNORE INTO `{table}` VALUES ({one}, {other}, 0)",
                    f"UPDATE IGNORE `{table}` SET u = {other} WHERE id = {one}",
                    f"UPDATE IGNORE `{table}` SET id = {other} WHERE id = {one}",
                    f"UPDATE IGNORE `{table}` SET id = {other}, u = {one} WHERE u = {other}",
                    f"UPDATE `{table}` SET v = v + 1 WHERE id = {one}",
                    f"DELETE FROM `{table}` WHERE u = {one}",
                )
            )
        )


@pytest.mark.parametrize("table", TABLES)
def test_changes_of_keys_can_be_followed(source_server: Server, tmp_path: Path, table: str) -> None:
    definition, key, unique = TABLES[table]
    dice = random.Random(table)
    with scene_of(source_server, tmp_path, f"keys_{table}") as scene:
        scene.sql(f"CREATE TABLE `{table}` ({definition})")
        feed = scene.feed()
        feed.catch_up()
        for _ in range(2):
            work(scene, dice, table)
            feed.catch_up()
        rows = follow(feed.changes(table), key, unique)
        source = scene.server.execute(f"SELECT * FROM {scene.database}.`{table}`")
        assert sorted(map(str, (tuple(r.values()) for r in rows.values()))) == sorted(
            str(tuple(int(str(v)) for v in row)) for row in source
        )
        assert len(feed.changes(table)) >= 20
