"""What a feed goes through: each scene is a short life with all gaps that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moment_kit import Broken, World
from refusing_target import OWN, Refusing

from rowferry.errors import SnapshotGone
from rowferry.moment import watched

_MADE = (
    "CREATE TABLE a (id int PRIMARY KEY, v int, t varchar(20)) CHARACTER SET utf8mb4",
    "INSERT INTO a VALUES (1, 1, 'a'), (3, 3, 'b'), (5, 5, 'c'), (7, 7, 'd'), (9, 9, 'e'), "
    "(11, 11, 'f'), (13, 13, 'g'), (15, 15, NULL), (17, 17, 'ü')",
    "CREATE TABLE b (name varchar(10) PRIMARY KEY, v int)",
    "INSERT INTO b VALUES ('a', 1), ('c', 2), ('e', 3), ('g', 4), ('i', 5)",
    "CREATE TABLE k (v int, t varchar(20))",
    "INSERT INTO k VALUES (1, 'a'), (1, 'a'), (2, 'b')",
    "CREATE TABLE x_r (id int PRIMARY KEY, v int)",
    "INSERT INTO x_r VALUES (2, 2), (4, 4), (6, 6), (8, 8), (10, 10)",
)
_WRITES = (
    "UPDATE a SET v = v + 10 WHERE id < 8",
    "INSERT INTO a (id, v, t) VALUES (2, 2, 'new')",
    "DELETE FROM a WHERE id IN (3, 17)",
    "UPDATE b SET v = 20 WHERE name = 'c'",
    "DELETE FROM b WHERE name = 'a'",
    "INSERT INTO k VALUES (3, 'c')",
    "DELETE FROM k WHERE v = 1 LIMIT 1",
)
LAST = (
    "INSERT INTO a (id, v) VALUES (900, 1)",
    "UPDATE a SET v = v + 1 WHERE id = 11",
    "DELETE FROM a WHERE id = 13",
    "INSERT INTO a (id, w) VALUES (901, NULL)",
    "INSERT INTO b (name, v) VALUES ('last', 1)",
    "DELETE FROM b WHERE name = 'g'",
    "INSERT INTO k (v) VALUES (900)",
    "INSERT INTO r (id, v) VALUES (900, 1)",
    "DELETE FROM r WHERE id = 4",
    "INSERT INTO n (id, v) VALUES (900, 1)",
    "DELETE FROM n WHERE id = 2",
    "INSERT INTO c (id, v) VALUES (900, 1)",
    "DELETE FROM c WHERE id = 9",
)


@dataclass(frozen=True)
class Scene:
    """A life of a feed.

    Attributes:
        sink: the kind of its target: files, parquet, mysql, refusing, postgresql, kafka, delta or
            iceberg.
        prepare: what lies before the walk.
        sail: the walk; every gap in it is tried.
    """

    name: str
    sink: str
    prepare: Callable[[World], None]
    sail: Callable[[World], None]


def _make(world: World) -> None:
    world.sql(*_MADE)


def _begin(world: World) -> None:
    world.ferry.board()
    world.ferry.steps(2)
    world.sql(*_WRITES)
    world.ferry.catch_up()


def _make_and_run(world: World) -> None:
    _make(world)
    world.ferry.board()
    world.ferry.catch_up()


def _make_and_stop_in_snapshot(world: World) -> None:
    _make(world)
    world.ferry.board()
    world.ferry.steps(3)
    world.ferry.leave()
    world.sql(*_WRITES[:3])


def _go_on(world: World) -> None:
    world.ferry.board()
    world.ferry.steps(1)
    world.sql(*_WRITES[3:])
    world.ferry.catch_up()


def _make_few_and_run(world: World) -> None:
    _make(world)
    world.ferry.rules = world.rules("a", "k")
    world.ferry.board()
    world.ferry.catch_up()
    world.ferry.leave()
    world.ferry.rules = world.rules()


def _rename_into(world: World) -> None:
    world.sql("UPDATE a SET v = 77 WHERE id = 7", "RENAME TABLE x_r TO r", *_WRITES[:2])
    world.ferry.steps(1)
    world.sql("INSERT INTO r VALUES (51, 1)", "DELETE FROM r WHERE id = 2")
    world.ferry.catch_up()


def _follow(world: World) -> None:
    world.sql(*_WRITES, "ALTER TABLE a ADD COLUMN m int DEFAULT 1", "UPDATE a SET m = 2")
    world.ferry.steps(2)
    world.sql(
        "CREATE TABLE d (id int PRIMARY KEY)",
        "INSERT INTO d VALUES (1), (2)",
        "TRUNCATE TABLE b",
        "INSERT INTO b VALUES ('z', 1)",
        "DROP TABLE d",
    )
    world.ferry.catch_up()


def _follow_in_small_steps(world: World) -> None:
    """Touch rows of the same files in several micro-batches, then all else."""
    for key in (1, 5, 9):
        world.sql(f"UPDATE a SET v = v + 1 WHERE id = {key}", f"DELETE FROM a WHERE id = {key + 2}")
        world.ferry.steps(1)
    _follow(world)


def _plan_again(world: World) -> None:
    """Discard a plan whose job was done, and end the process before the next one."""
    world.ferry.runner.fault = SnapshotGone(f"a snapshot of {world.database} is gone")
    world.ferry.steps(1)
    world.sql(*_WRITES[:3])
    world.ferry.steps(1)
    world.ferry.leave()
    world.sql(*_WRITES[3:])
    world.ferry.catch_up()


def _make_and_begin(world: World) -> None:
    _make(world)
    world.ferry.board()
    world.ferry.steps(2)


def _make_keyed(world: World) -> None:
    """Without the table whose rows may come twice after a failure."""
    _make(world)
    world.sql("DROP TABLE k")


def _make_keyed_and_run(world: World) -> None:
    _make_keyed(world)
    world.ferry.board()
    world.ferry.catch_up()


def _write(world: World) -> None:
    world.sql(*_WRITES)
    world.ferry.steps(1)
    world.sql("UPDATE a SET v = 0 WHERE id > 10")
    world.ferry.catch_up()


def _make_and_guard(world: World) -> None:
    """Let the target refuse rows that it has not got yet."""
    _make_keyed(world)
    world.sql(
        f"CREATE TABLE {OWN} (id int PRIMARY KEY, n int, v int, t varchar(20))",
        f"INSERT INTO {OWN} VALUES (1, 1, 1, 'a'), (2, 1, 1, 'b'), (3, 1, 1, 'c'), (4, 1, 1, 'd')",
    )
    world.ferry.board()
    world.ferry.catch_up()
    _refusing(world).guard()


def _park(world: World) -> None:
    """Meet refused rows, let others wait behind them, send them again in vain, drop, mend, send."""
    target = _refusing(world)
    world.sql(
        f"UPDATE {OWN} SET n = 2, v = 500 WHERE id = 1",
        f"UPDATE {OWN} SET n = 2, t = 'longer' WHERE id = 2",
        f"INSERT INTO {OWN} VALUES (11, 2, 500, 'x'), (5, 2, 5, 'y')",
        f"UPDATE {OWN} SET n = 3 WHERE id = 3",
        "UPDATE a SET v = 500 WHERE id IN (5, 7)",
        "INSERT INTO a (id, v, t) VALUES (2, 2, 'new')",
        "UPDATE b SET v = 500 WHERE name = 'c'",
    )
    _see(world)
    world.sql(
        f"UPDATE {OWN} SET n = 4, v = 4 WHERE id = 1",
        f"DELETE FROM {OWN} WHERE id IN (2, 4)",
        f"UPDATE {OWN} SET n = 4 WHERE id IN (3, 11)",
        "UPDATE a SET v = v + 1 WHERE id < 8",
        "DELETE FROM b WHERE name = 'a'",
        "UPDATE b SET v = 501 WHERE name = 'c'",
    )
    _see(world)
    target.retry(world)
    _see(world)
    target.drop_first(world, 11)
    world.sql(
        f"UPDATE {OWN} SET n = 5, v = 5 WHERE id = 11", f"UPDATE {OWN} SET n = 5 WHERE id = 5"
    )
    world.ferry.steps(1)
    target.mend()
    target.retry(world)
    _see(world)


def _see(world: World) -> None:
    world.ferry.catch_up()
    with watched(lambda name: None):  # who judges is no part of the walk
        wrong = _refusing(world).wrong(world)
    if wrong:
        raise Broken(wrong)


def _refusing(world: World) -> Refusing:
    assert isinstance(world.target, Refusing)
    return world.target


def _idle(world: World) -> None:
    world.ferry.steps(4)


SCENES = {
    s.name: s
    for s in (
        Scene("begin", "files", _make, _begin),
        Scene("restart", "files", _make_and_stop_in_snapshot, _go_on),
        Scene("join", "files", _make_few_and_run, _go_on),
        Scene("rename", "files", _make_and_run, _rename_into),
        Scene("plan again", "files", _make_and_begin, _plan_again),
        Scene("log", "files", _make_and_run, _follow),
        Scene("idle", "files", _make_and_run, _idle),
        Scene("parquet log", "parquet", _make_and_run, _follow),
        Scene("tables begin", "mysql", _make_keyed, _begin),
        Scene("tables log", "mysql", _make_keyed_and_run, _follow),
        Scene("postgresql begin", "postgresql", _make_keyed, _begin),
        Scene("postgresql log", "postgresql", _make_keyed_and_run, _follow),
        Scene("refused rows", "refusing", _make_and_guard, _park),
        Scene("delta begin", "delta", _make_keyed, _begin),
        Scene("delta log", "delta", _make_keyed_and_run, _follow_in_small_steps),
        Scene("iceberg begin", "iceberg", _make_keyed, _begin),
        Scene("iceberg log", "iceberg", _make_keyed_and_run, _follow_in_small_steps),
        Scene("topic begin", "kafka", _make_keyed, _begin),
        Scene("topic log", "kafka", _make_keyed_and_run, _write),
    )
}
