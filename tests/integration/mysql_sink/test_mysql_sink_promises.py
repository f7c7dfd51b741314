"""Random work with faults in between: at the end both sides have the same rows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mysql_sink_kit import Scene, scene_of

from rowferry.errors import SinkUnavailable
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.flow.sink.mysql import apply
from rowferry.testing.mysql_history import JOURNAL, SHAPES, MySqlWriters, make_tables, settled
from rowferry.testing.servers import MariaDb, MySql, Relay

UNIQUE = (
    "CREATE TABLE taken (id int PRIMARY KEY, a int, b varchar(20) COLLATE utf8mb4_general_ci, "
    "note varchar(40), UNIQUE KEY (a), UNIQUE KEY (b))"
)


@pytest.fixture
def flaky(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with (
        Relay(mariadb_server.port) as relay,
        scene_of(mysql_server, mariadb_server, tmp_path, request.node.name) as found,
    ):
        found.relay = relay
        yield found


def shuffle_unique_keys(scene: Scene, dice: random.Random, count: int) -> None:
    """Let rows take, leave and swap values of unique keys, many in one transaction."""
    with scene.source.connect(scene.database) as connection, connection.cursor() as cursor:
        for _ in range(count):
            connection.begin()
            for _ in range(dice.randint(1, 8)):
                one, a, b = (dice.randrange(12) for _ in range(3))
                name = dice.choice((f"n{b}", f"N{b}"))
                match dice.randrange(5):
                    case 0:
                        cursor.execute(f"DELETE FROM taken WHERE id = {one}")
                    case 1:
                        cursor.execute(f"UPDATE IGNORE taken SET a = {a} WHERE id = {one}")
                    case 2:
                        cursor.execute(f"UPDATE IGNORE taken SET id = {a} WHERE id = {one}")
                    case _:
                        verb = dice.choice(("REPLACE", "INSERT IGNORE"))
                        row = f"({one}, {a}, '{name}', '{dice.random()}')"
                        cursor.execute(f"{verb} INTO taken VALUES {row}")
            connection.commit()


@pytest.mark.parametrize(
    "query",
    [
        "",
        "exactly-once=true&max-txn-row=7",
        "transaction-atomicity=table&max-txn-row=5",
        "transaction-atomicity=global&safe-mode=true",
    ],
)
def test_equal_tables_whatever_fails(
    flaky: Scene, query: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(apply, "_WINDOW_BYTES", 4_000)
    scene, dice, relay = flaky, random.Random(seed), flaky.relay
    assert relay is not None
    scene.source.execute(f"DROP DATABASE {scene.database}")
    make_tables(scene.source, scene.database, 60)
    scene.at_target(*(f"CREATE TABLE {name} ({shape})" for name, shape in SHAPES.items()))
    scene.both(UNIQUE)
    shuffle_unique_keys(scene, dice, 10)
    feed = scene.feed(query)
    feed.run()
    schemas = {t.id: t for t in feed.prepare().tables if t.id.table != "taken"}
    writers = MySqlWriters(scene.source, schemas, prepare=lambda cursor, dice: time.sleep(0.01))

    def stumble(plan: object) -> None:
        if dice.random() < 0.2:
            raise SinkUnavailable("the answer was lost")

    feed.runner.after = stumble
    writers.start(2, seed)
    try:
        while len(writers.acknowledged) < 120 or len(feed.faults) < 3:
            shuffle_unique_keys(scene, dice, 2)
            relay.heal()
            if dice.random() < 0.4:
                relay.break_after(dice.randrange(20_000))
            feed.step()
            if dice.random() < 0.1:
                relay.heal()
                feed.run()
    finally:
        writers.stop()
    relay.heal()
    feed.catch_up()
    assert scene.assert_same(*SHAPES, "taken") > 200
    assert len(settled(writers)) >= 120
    found = scene.target.execute(f"SELECT COUNT(*) FROM {scene.copy}.{JOURNAL}")
    assert int(str(found[0][0])) >= 120
