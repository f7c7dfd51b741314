"""Random histories of two clusters that write the same rows: they come to hold the same."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "mysql_sink"))  # its kits

from active_active_kit import HIDDEN, MARKED, clusters_of

from rowferry.testing.servers import MariaDb, MySql

ON = (
    "enable-active-active = true\nbdr-mode = true\nactive-active-emulation = true\n"
    "cluster-index = {index}\n"
)
PUT = "ON DUPLICATE KEY UPDATE v = VALUES(v), _tidb_softdelete_time = NULL"
ROUNDS = 4


@pytest.mark.parametrize("number", [1, 2])
def test_clusters_come_to_hold_the_same(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, number: int
) -> None:
    dice = random.Random(number)
    with clusters_of(mysql_server, mariadb_server, tmp_path, f"two clusters {number}") as clusters:
        clusters.both(f"CREATE TABLE acc (id INT PRIMARY KEY, v TEXT, {HIDDEN}) {MARKED}")
        clusters.prepare("acc")
        feeds = clusters.feeds(ON)
        for turn in range(ROUNDS):
            for place in range(6):
                key = dice.randrange(4)
                statement = dice.choice(
                    (
                        f"INSERT INTO acc (id, v) VALUES ({key}, '{turn} {place}') {PUT}",
                        f"UPDATE acc SET v = '{turn} {place}' WHERE id = {key}",
                        f"UPDATE acc SET _tidb_softdelete_time = NOW(6) WHERE id = {key}",
                    )
                )
                dice.choice(clusters.servers).script(f"USE {clusters.database}", statement)
            dice.choice(feeds).catch_up()
        for feed in (*feeds, feeds[0]):
            feed.catch_up()
        asked = (
            "SELECT id, v, _tidb_softdelete_time IS NULL, IFNULL(_tidb_origin_ts, _tidb_commit_ts) "
            f"FROM {clusters.database}.acc ORDER BY id"
        )
        here, there = (server.execute(asked) for server in clusters.servers)
        assert here == there and len(here) > 1
        for feed in feeds:  # and nothing goes round
            step = feed.step()
            assert step is not None and step.rows == 0
