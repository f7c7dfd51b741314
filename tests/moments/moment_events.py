"""What the outside may do in a gap, and which ends of it are good besides a feed that is equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moment_kit import Gap, Killed, World
from moment_targets import Downstream, LakeTables
from refusing_target import PARKS, Refusing

from rowferry.errors import (
    Fenced,
    LogLost,
    MetaUnavailable,
    RowferryError,
    RowRejected,
    SchemaChangeRefused,
    SinkUnavailable,
    SinkUnwritable,
    SourceUnavailable,
    SourceUnsupported,
    TargetLost,
    TargetUnfit,
    TargetWentBack,
    TaskFailed,
)

Act = Callable[[World, Gap], None]
_SRC = Path(__file__).parents[2] / "src" / "rowferry"
_NAMED = re.compile(r"^ *moment\(\"([^\"]+)\"\)", re.MULTILINE)


@dataclass(frozen=True)
class Event:
    """One thing that may happen.

    Attributes:
        drives: it makes steps of the feed itself, so it fits only where the feed's own thread is.
        stops: errors by which the feed may stop, as far as the words name the object.
        cure: what an operator does then, before the feed is run again.
        dangerous: among those that the ordinary suite tries everywhere.
        sink: it happens to this kind of target only.
        own: it happens to servers that nobody else uses.
        claims: it needs the sink's fence, so it would wait while the owner holds that.
    """

    name: str
    act: Act
    drives: bool = False
    stops: tuple[type[RowferryError], ...] = ()
    cure: Callable[[World], None] = lambda world: None
    dangerous: bool = False
    sink: str = ""
    own: bool = False
    claims: bool = False

    @property
    def shapes(self) -> bool:
        """Whether it changes which tables there are, or their columns."""
        return self in _TABLES or self in _ALTERS


def _sql(*statements: str) -> Act:
    return lambda world, gap: world.sql(*statements)


# --- rows and tables ------------------------------------------------------------------------------

_ROWS = (
    Event(
        "insert",
        _sql("INSERT INTO a (id, v) VALUES (4, 40), (95, 950)", "INSERT INTO k (v) VALUES (7)"),
    ),
    Event(
        "update",
        _sql("UPDATE a SET v = v + 1000 WHERE id IN (1, 5, 9)", "UPDATE b SET v = v + 1"),
        dangerous=True,
    ),
    Event(
        "delete",
        _sql(
            "DELETE FROM a WHERE id IN (1, 9, 15)",
            "DELETE FROM b WHERE name = 'c'",
            "DELETE FROM k LIMIT 1",
        ),
        dangerous=True,
    ),
    Event(
        "move keys",
        _sql("UPDATE a SET id = id + 100 WHERE id <= 5", "UPDATE a SET id = 2 WHERE id = 17"),
    ),
)
_GHOST = (
    "CREATE TABLE `_a_gho` LIKE a",
    "ALTER TABLE `_a_gho` ADD COLUMN extra int DEFAULT 5",
    "INSERT INTO `_a_gho` (id, v, t) SELECT id, v, t FROM a",
    "RENAME TABLE a TO `_a_del`, `_a_gho` TO a",
    "INSERT INTO a (id, v) VALUES (60, 61)",
    "DROP TABLE `_a_del`",
)
_PERCONA = (
    "CREATE TABLE `_a_new` LIKE a",
    "ALTER TABLE `_a_new` MODIFY v bigint",
    "INSERT INTO `_a_new` (id, v, t) SELECT id, v, t FROM a",
    "RENAME TABLE a TO `_a_old`, `_a_new` TO a",
    "UPDATE a SET v = 5000000000 WHERE id = 3",
    "DROP TABLE `_a_old`",
)
_TABLES = (
    Event(
        "create",
        _sql("CREATE TABLE n (id int PRIMARY KEY, v int)", "INSERT INTO n VALUES (1, 1), (2, 2)"),
        dangerous=True,
    ),
    Event(  # a table that nobody writes to any more
        "create quietly",
        _sql("CREATE TABLE q (id int PRIMARY KEY, v int)", "INSERT INTO q VALUES (1, 1)"),
    ),
    Event(  # the log tells neither the table nor its first row
        "create unseen",
        _sql(
            "SET sql_log_bin = 0",
            "CREATE TABLE u (id int PRIMARY KEY, v int)",
            "INSERT INTO u VALUES (1, 1)",
            "SET sql_log_bin = 1",
            "INSERT INTO u VALUES (2, 2)",
        ),
    ),
    Event("create as select", _sql("CREATE TABLE n (id int PRIMARY KEY) SELECT id, v FROM a")),
    Event("drop", _sql("DROP TABLE a"), dangerous=True),
    Event("drop two", _sql("DROP TABLE a, b")),
    Event("rename away", _sql("RENAME TABLE a TO x_a"), dangerous=True),
    Event(
        "rename into", _sql("RENAME TABLE x_r TO r", "INSERT INTO r VALUES (50, 1)"), dangerous=True
    ),
    Event(
        "rename within",
        _sql("RENAME TABLE a TO c", "UPDATE c SET v = v + 1 WHERE id = 7"),
        dangerous=True,
    ),
    Event("rename in turn", _sql("RENAME TABLE a TO x_t, x_r TO a, x_t TO x_r")),
    Event(
        "swap two",
        _sql(
            "RENAME TABLE b TO s, a TO b, s TO a",
            "UPDATE b SET v = v + 1 WHERE id = 7",
            "UPDATE a SET v = v + 1 WHERE name = 'e'",
        ),
    ),
    Event(
        "rename away and back",
        _sql(
            "RENAME TABLE a TO x_a",
            "UPDATE x_a SET v = v + 3 WHERE id < 8",
            "RENAME TABLE x_a TO a",
        ),
    ),
    Event("ghost swap", _sql(*_GHOST), dangerous=True),
    Event("swap with a captured copy", _sql(*(s.replace("_a_", "g_") for s in _GHOST))),
    Event("percona swap", _sql(*_PERCONA)),
    Event(
        "truncate", _sql("TRUNCATE TABLE a", "INSERT INTO a (id, v) VALUES (3, 33)"), dangerous=True
    ),
    Event("truncate without key", _sql("TRUNCATE TABLE k", "INSERT INTO k (v) VALUES (1)")),
    Event(
        "drop and create",
        _sql(
            "DROP TABLE a",
            "CREATE TABLE a (id int PRIMARY KEY, v int, t varchar(20))",
            "INSERT INTO a (id, v) VALUES (1, 71), (2, 72), (30, 73)",
        ),
        dangerous=True,
    ),
    Event(
        "drop and create other",
        _sql(
            "DROP TABLE a",
            "CREATE TABLE a (id int PRIMARY KEY, w datetime, u varchar(9))",
            "INSERT INTO a VALUES (1, '2024-01-02 03:04:05', 'x')",
        ),
        dangerous=True,
    ),
    Event(
        "drop and create without key",
        _sql("DROP TABLE a", "CREATE TABLE a (v int)", "INSERT INTO a VALUES (1), (1)"),
    ),
)
_ALTERS = (
    Event(
        "add column",
        _sql(
            "ALTER TABLE a ADD COLUMN n int NOT NULL DEFAULT 3", "UPDATE a SET n = 4 WHERE id > 6"
        ),
        dangerous=True,
    ),
    Event(
        "add first column",
        _sql("ALTER TABLE a ADD COLUMN n int DEFAULT 3 FIRST", "UPDATE a SET n = 4 WHERE id > 6"),
    ),
    Event(
        "drop column",
        _sql("ALTER TABLE a DROP COLUMN t", "UPDATE a SET v = 2 WHERE id > 6"),
        dangerous=True,
    ),
    Event(
        "modify column",
        _sql("ALTER TABLE a MODIFY v varchar(30)", "UPDATE a SET v = 'x' WHERE id > 6"),
        dangerous=True,
    ),
    Event(
        "rename column",
        _sql("ALTER TABLE a CHANGE v w int", "UPDATE a SET w = 2 WHERE id > 6"),
        dangerous=True,
    ),
    Event(
        "swap columns",
        _sql(
            "ALTER TABLE a CHANGE v t int, CHANGE t v varchar(20)",
            "UPDATE a SET t = 2 WHERE id > 6",
        ),
    ),
    Event(
        "add key",
        _sql("ALTER TABLE a ADD UNIQUE KEY byv (v)", "UPDATE a SET v = v - 1 WHERE id > 6"),
    ),
    Event(
        "other key",
        _sql(
            "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)",
            "UPDATE a SET v = v + 1 WHERE id > 6",
        ),
    ),
    Event(
        "drop key", _sql("ALTER TABLE a DROP PRIMARY KEY", "UPDATE a SET v = v + 1 WHERE id > 6")
    ),
    Event(
        "charset",
        _sql("ALTER TABLE a CONVERT TO CHARACTER SET latin1", "UPDATE a SET t = 'ü' WHERE id > 6"),
    ),
    Event("comment", _sql("ALTER TABLE a COMMENT = 'x'", "UPDATE a SET v = v + 1 WHERE id > 6")),
    Event(
        "drop database table",
        _sql(
            "DROP TABLE b",
            "CREATE TABLE b (name varchar(10) PRIMARY KEY, v int)",
            "INSERT INTO b VALUES ('q', 1)",
        ),
    ),
)


def _prepared(world: World, gap: Gap) -> None:
    """Prepare a transaction; it ends a few calls later, when the scene is over."""
    _prepare(world, "COMMIT")


def _in_vain(world: World, gap: Gap) -> None:
    """Prepare a transaction that will never be committed."""
    _prepare(world, "ROLLBACK")


def _prepare(world: World, end: str) -> None:
    session = world.session()
    xid = f"'{world.database}'"
    with session.cursor() as cursor:
        for one in (
            f"XA START {xid}",
            "INSERT INTO b (name, v) VALUES ('xa', 1)",
            f"XA END {xid}",
            f"XA PREPARE {xid}",
        ):
            cursor.execute(one)
    session.close()
    world.later(lambda: world.sql(f"XA {end} {xid}"))


def _xa_across(world: World, gap: Gap) -> None:
    xid = f"'{world.database}b'"
    world.sql(
        f"XA START {xid}",
        "INSERT INTO b (name, v) VALUES ('xb', 1)",
        f"XA END {xid}",
        f"XA PREPARE {xid}",
        f"XA COMMIT {xid}",
    )


def _lose_log(world: World, gap: Gap) -> None:
    """End every connection that reads the log."""
    for row in world.server.execute("SHOW PROCESSLIST"):
        if str(row[4]).startswith("Binlog Dump"):
            with suppress(RowferryError):  # it has gone by itself
                world.server.execute(f"KILL {row[0]!s}")


def _open_transaction(world: World, gap: Gap) -> None:
    """Leave a transaction open that commits when the scene is over."""
    session = world.session()
    with session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO b (name, v) VALUES ('open', 1)")
    world.later(session.commit)


_LOG = (
    Event(
        "rotate", _sql("FLUSH BINARY LOGS", "UPDATE a SET v = v + 1 WHERE id = 3"), dangerous=True
    ),
    Event(
        "prepared",
        _prepared,
        stops=(SourceUnsupported,),
        cure=lambda world: world.end_scene(),
    ),
    Event(
        "prepared in vain",
        _in_vain,
        stops=(SourceUnsupported,),
        cure=lambda world: world.end_scene(),
    ),
    Event("prepared and committed", _xa_across),
    Event("lose log", _lose_log),
    Event("open transaction", _open_transaction, dangerous=True),
)


# --- processes and connections --------------------------------------------------------------------


def _kill(world: World, gap: Gap) -> None:
    raise Killed


def _lose(world: World, gap: Gap) -> None:
    home = homes()[gap.name]
    words = f"the connection was lost at {gap}"
    if home.startswith("flow/capture/"):
        raise SourceUnavailable(words)
    if home.startswith("control/store/"):
        raise MetaUnavailable(words)
    if home.startswith("flow/"):
        raise SinkUnavailable(words)
    raise TaskFailed(words)


def _new_settings(world: World, gap: Gap) -> None:
    """Have settings by which the same rows have other bytes, and a new process."""
    if world.target.uri.startswith("file:"):
        world.target.uri += "&only-output-updated-columns=true"
    raise Killed


def _new_address(world: World, gap: Gap) -> None:
    """Have another address of the source, and a new process."""
    world.ferry.source = "retention-warning=2h"
    raise Killed


def _take_over(world: World, gap: Gap) -> None:
    world.ferry.board()
    world.ferry.catch_up()


def _take_claim(world: World, gap: Gap) -> None:
    world.ferry.board()


_PROCESSES = (
    Event("kill", _kill, drives=True, dangerous=True),
    Event("lose connection", _lose, drives=True, dangerous=True),
    Event("new settings", _new_settings, drives=True),
    Event("new address", _new_address, drives=True),
    Event("second owner", _take_over, drives=True, claims=True, dangerous=True),
    Event("second owner waits", _take_claim, drives=True, claims=True),
)

# --- operators ------------------------------------------------------------------------------------


def _pause(world: World, gap: Gap) -> None:
    world.ferry.at_border(lambda: None)


def _leave_out(world: World, gap: Gap) -> None:
    """Leave a table out for a while; it comes back when the scene is over."""
    ferry = world.ferry

    def change(*less: str) -> None:
        ferry.rules = world.rules(*less)

    def come_back() -> None:
        world.sql("DELETE FROM b WHERE name = 'e'")
        ferry.at_border(change)

    ferry.at_border(lambda: change("b"))
    world.later(come_back)


def _reset(world: World, gap: Gap) -> None:
    world.extra = True  # rows that went while nobody looked stay where they were delivered
    world.ferry.at_border(world.ferry.reset)


_VERBS = (
    Event("pause", _pause),
    Event("leave out", _leave_out),
    Event("reset", _reset),
)


# --- downstream -----------------------------------------------------------------------------------


def _downstream(*statements: str) -> Act:
    def act(world: World, gap: Gap) -> None:
        target = world.target
        assert isinstance(target, Downstream)
        if "a" in target.tables():  # before, there is nothing to lose
            named = {"db": world.database, "ledger": target.ledger}
            target.sql(*(s.format(**named) for s in statements))

    return act


def _anew(world: World) -> None:
    world.ferry.begin_anew()


_LOST_TARGET = (
    TargetLost,
    TargetUnfit,
    RowRejected,
    SchemaChangeRefused,
    TargetWentBack,
    Fenced,
    SinkUnwritable,
)
_TARGETS = (
    Event(
        "table lost downstream",
        _downstream("DROP TABLE {db}.a"),
        stops=_LOST_TARGET,
        cure=_anew,
        sink="mysql",
    ),
    Event(
        "column lost downstream",
        _downstream("ALTER TABLE {db}.a DROP COLUMN t"),
        stops=_LOST_TARGET,
        cure=_anew,
        sink="mysql",
    ),
    Event(
        "table emptied downstream",
        _downstream(
            "DROP TABLE {db}.a", "CREATE TABLE {db}.a (id int PRIMARY KEY, v int, t varchar(20))"
        ),
        stops=_LOST_TARGET,
        cure=_anew,
        sink="mysql",
    ),
    Event(
        "ledger lost downstream",
        _downstream("DROP {ledger}"),
        stops=_LOST_TARGET,
        cure=_anew,
        claims=True,
        sink="mysql",
    ),
)

# --- rows that are refused ------------------------------------------------------------------------


def _refusing(world: World) -> Refusing:
    assert isinstance(world.target, Refusing)
    return world.target


def _stop_parking(world: World, gap: Gap) -> None:
    """Have settings by which a refused row stops the feed, and a new process."""
    target = _refusing(world)
    target.config = target.config.replace(PARKS, "")
    raise Killed


def _park_again(world: World) -> None:
    target = _refusing(world)
    target.config = PARKS + target.config


_REFUSED = (
    Event("retry", lambda world, gap: _refusing(world).retry(world), sink="refusing"),
    Event("drop parked", lambda world, gap: _refusing(world).drop(world), sink="refusing"),
    Event("mended downstream", lambda world, gap: _refusing(world).mend(), sink="refusing"),
    Event(
        "stop parking",
        _stop_parking,
        drives=True,
        stops=(RowRejected,),
        cure=_park_again,
        sink="refusing",
    ),
)

# --- lakes ----------------------------------------------------------------------------------------


def _merge_files(world: World, gap: Gap) -> None:
    """Merge small files from outside, as `rowferry lake optimize` does beside a feed."""
    target = world.target
    assert isinstance(target, LakeTables)
    target.optimize()


def _remove_orphans(world: World, gap: Gap) -> None:
    """Have no process for a while, in which somebody removes what no commit names."""
    target = world.target
    assert isinstance(target, LakeTables)
    target.remove_orphans()
    raise Killed


_LAKES = (
    Event("files merged by others", _merge_files, sink="lake", claims=True),
    Event("orphans removed", _remove_orphans, sink="lake", drives=True),
)

# --- servers of a case's own ----------------------------------------------------------------------


def _purge(world: World, gap: Gap) -> None:
    world.sql("INSERT INTO b (name, v) VALUES ('old', 1)", "FLUSH BINARY LOGS")
    last = world.server.execute("SHOW BINARY LOGS")[-1][0]
    world.server.execute(f"PURGE BINARY LOGS TO '{last}'")


def _fail_over(world: World, gap: Gap) -> None:
    """Let a replica take the server's place; whoever reads it is started again with its address."""
    assert world.pair is not None
    world.server = world.pair.fail_over()
    world.sql("INSERT INTO b (name, v) VALUES ('fresh', 1)", "DELETE FROM a WHERE id = 5")
    raise Killed


_SERVERS = (
    Event("purge", _purge, stops=(LogLost,), cure=_anew, own=True),
    Event("fail over", _fail_over, drives=True, own=True),
)

EVENTS = {
    e.name: e
    for e in (
        *_SERVERS,
        *_VERBS,
        *_TARGETS,
        *_REFUSED,
        *_LAKES,
        *_ROWS,
        *_TABLES,
        *_ALTERS,
        *_LOG,
        *_PROCESSES,
    )
}


@cache
def homes() -> dict[str, str]:
    """Return the file of each name, relative to the package."""
    found: dict[str, str] = {}
    for path in sorted(_SRC.rglob("*.py")):
        for match in _NAMED.finditer(path.read_text()):
            found[match[1]] = path.relative_to(_SRC).as_posix()
    return found


def events_named(names: Sequence[str]) -> list[Event]:
    """Return events by their names."""
    return [EVENTS[name] for name in names]
