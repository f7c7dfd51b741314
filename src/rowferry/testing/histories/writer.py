"""The writer: one statement after the other, and a look at all tables after each."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql

from rowferry.errors import RowferryError
from rowferry.testing.histories.facts import Name, Rows, full_name, quoted
from rowferry.testing.histories.schemas import Taste, create_table
from rowferry.testing.histories.statements import DDL, DML, Statement, World, draw
from rowferry.testing.histories.truth import JOURNAL, OUTSIDE, Effect, Observer, Truth, differences
from rowferry.testing.servers import Server

_SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")
_GONE = (1213, 1180, 1614)  # errors after which nothing of a transaction is left


class Writer:
    """Writes a random history into a server that nobody else writes to.

    Every second step at the latest writes a token into the journal, so that a reader can tell
    which commit-ts belongs to which step.

    Attributes:
        truth: what was committed.
        counts: statements by kind; those that the server refused begin with `refused `.
        script: every statement that was sent, in order.
    """

    def __init__(self, server: Server, taste: Taste, dice: random.Random, folder: Path) -> None:
        self._server = server
        self._taste = taste
        self._dice = dice
        self.truth = Truth()
        self.counts: Counter[str] = Counter()
        self.script: list[str] = []
        self._token = 0
        self._made = 0
        clear(server)
        self._databases = ["h_main"]
        self._connection: Any = None
        self._other: Any = None
        self.sessions: set[int] = set()
        self._log_in()
        self._send(f"CREATE DATABASE {quoted(JOURNAL[0])}")
        self._send(f"CREATE TABLE {full_name(JOURNAL)} (token bigint PRIMARY KEY)")
        self._send("CREATE DATABASE h_main CHARACTER SET utf8mb4")
        self._send(f"CREATE DATABASE {OUTSIDE}")
        if server.flavour.value == "mysql" and dice.random() < 0.3:
            self._send("SET SESSION sql_generate_invisible_primary_key = ON")
        self._watch = Observer(self._ask, lambda: [*self._databases, OUTSIDE], {JOURNAL})
        self._world = World(dice, taste, folder, OUTSIDE, self._databases, {}, {})
        tables = self._watch.tables()
        self.truth.add([], tables, self._watch.rows(tables, {}), kind="beginning")
        self._look_around()

    def _log_in(self) -> None:
        self._connection = self._server.connect()
        self.sessions.add(_session_id(self._connection))
        self._send("SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1")

    def move_to(self, server: Server) -> None:
        """Go on with another server, which has all that was written."""
        self._disconnect()
        self._server, self._other = server, None
        self.script.append("-- another server from here on")
        self._log_in()

    # --- acts -------------------------------------------------------------------------------------

    def begin(self, tables: int) -> None:
        """Make the first tables, with some rows."""
        while len(self.truth.last.tables) < tables:
            place = ("h_main", self._taste.name(self._dice, {n[1] for n in self.truth.last.tables}))
            self._schema_change(Statement("create", create_table(self._dice, self._taste, place)))
        for _ in range(tables):
            self.transaction()

    def act(self, rows_only: bool = False) -> None:
        """Do something; `rows_only`: nothing that changes a table's definition."""
        roll = self._dice.random() * (0.76 if rows_only else 1.0)
        if roll < 0.62:
            self.transaction()
        elif roll < 0.70:
            self.alone()
        elif roll < 0.76:
            self.two_phases()
        elif roll < 0.79:
            self.settings()
        else:
            self.schema_change()

    def tick(self) -> None:
        """Write a token and nothing else."""
        self._run(f"INSERT INTO {full_name(JOURNAL)} VALUES ({self._next_token()})")
        last = self.truth.last
        self.truth.add([], last.tables, last.state, self._token, "tick")

    def transaction(self) -> None:
        """BEGIN, some statements, savepoints, COMMIT or ROLLBACK."""
        dice = self._dice
        self._run(dice.choice(("BEGIN", "START TRANSACTION")))
        token = self._next_token()
        self._run(f"INSERT INTO {full_name(JOURNAL)} VALUES ({token})")
        effects, state = self._statements(self._ask, dice.choice((1, 1, 2, 3, 5)))
        if state is None:
            return
        if dice.random() < 0.15:
            self._run("ROLLBACK")
            self.counts["rollback"] += 1
            self._look_around()
            return
        self._run("COMMIT")
        self.counts["commit"] += 1
        self.truth.add(effects, self.truth.last.tables, state, token)
        self._look_around()

    def alone(self) -> None:
        """One statement that is a transaction by itself."""
        statement = draw(self._world, DML)
        state = self.truth.last.state
        effect, after = self._one(self._ask, statement, state)
        if effect is not None and after is not None:
            self.truth.add([effect], self.truth.last.tables, after, kind="autocommit")
            self._look_around()
        self.tick()

    def two_phases(self) -> None:
        """An XA transaction, with others between its two phases."""
        dice = self._dice
        table = self._world.pick(lambda t: not t.triggers and not t.parents)
        if table is None:
            return
        if self._other is None:
            self._other = self._server.connect()
            self.sessions.add(_session_id(self._other))
            self._ask_other("SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1")
        self._made += 1
        name = f"'h{self._made}','b',7"
        token = self._next_token()
        self._ask_other(f"XA START {name}")
        self._ask_other(f"INSERT INTO {full_name(JOURNAL)} VALUES ({token})")
        tables = self.truth.last.tables
        own = {table.name: table}
        self._world.tables = own
        effects, state = self._statements(self._ask_other, dice.choice((1, 2)), own)
        self._world.tables = tables
        if state is None:
            return
        self._ask_other(f"XA END {name}")
        if dice.random() < 0.3:
            self._ask_other(f"XA COMMIT {name} ONE PHASE")
            self.counts["xa-one-phase"] += 1
            self._commit_other(effects, token)
            return
        self._ask_other(f"XA PREPARE {name}")
        rest = {n: t for n, t in tables.items() if n != table.name and not t.triggers}
        for _ in range(dice.choice((0, 0, 1, 2))):
            self._world.tables = rest
            if any(n[0] != OUTSIDE for n in rest):
                self.transaction()
        if dice.random() < 0.3:
            self._ask_other(f"XA ROLLBACK {name}")
            self.counts["xa-rollback"] += 1
        else:
            self._ask_other(f"XA COMMIT {name}")
            self.counts["xa-commit"] += 1
            self._commit_other(effects, token)
        self._look_around()

    def _commit_other(self, effects: list[Effect], token: int) -> None:
        last = self.truth.last
        state = self._watch.rows(last.tables, last.state)
        self.truth.add(effects, last.tables, state, token, "xa")
        self._look_around()

    def settings(self) -> None:
        """Change how the log is written."""
        if self._taste.mysql:
            choices = [
                "SET SESSION binlog_transaction_compression = ON",
                "SET SESSION binlog_transaction_compression = OFF",
                "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
                "SET SESSION binlog_row_value_options = ''",
                "SET SESSION binlog_rows_query_log_events = ON",
            ]
        else:
            choices = [
                "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10",
                "SET GLOBAL log_bin_compress = OFF",
                "SET SESSION binlog_annotate_row_events = OFF",
                "SET SESSION binlog_annotate_row_events = ON",
            ]
        self._send(self._dice.choice(choices))
        self.counts["log-setting"] += 1

    def rotate(self) -> None:
        """Begin a new file of the log."""
        self._send("FLUSH BINARY LOGS")

    def cut_others(self) -> None:
        """End every other session: those of the feeds."""
        for (number,) in self._server.execute(
            "SELECT id FROM information_schema.processlist WHERE user = %s "
            "AND id <> CONNECTION_ID()",
            self._server.login.user,
        ):
            if int(str(number)) not in self.sessions:
                with suppress(RowferryError):  # it may be gone by itself
                    self._server.execute(f"KILL CONNECTION {number!s}")

    def schema_change(self) -> None:
        """One DDL."""
        self._schema_change(draw(self._world, DDL))

    # --- pieces -----------------------------------------------------------------------------------

    def _schema_change(self, statement: Statement) -> None:
        before = self.truth.last
        if not self._run(statement.sql):
            self.counts[f"refused {statement.kind}"] += 1
            self._made += 1
            if self._watch.tables() == before.tables:
                return
        self.counts[statement.kind] += 1
        self._note_databases()
        tables = self._watch.tables()
        state = self._watch.rows(tables, before.state)
        effects = []
        if statement.kind == "create-select":
            fresh = {n: t for n, t in tables.items() if n not in before.tables}
            changes = differences(fresh, {}, state)
            effects = [Effect(statement.kind, statement.sql, changes, loose=False)]
        self.truth.add(effects, tables, state, kind=statement.kind, ddl=statement.sql)
        self._look_around()
        self.tick()

    def _note_databases(self) -> None:
        names = [str(row[0]) for row in self._ask("SHOW DATABASES")]
        hidden = {*_SYSTEM, JOURNAL[0], OUTSIDE}
        there = [d for d in names if d not in hidden]
        self._databases[:] = ["h_main"] + [d for d in there if d != "h_main"]

    def _statements(
        self, ask: Any, count: int, only: Any = None
    ) -> tuple[list[Effect], dict[Name, Rows] | None]:
        """Run statements in the open transaction; no state: the server rolled it back."""
        last = self.truth.last
        tables = only or last.tables
        state: Any = {n: r for n, r in last.state.items() if n in tables}
        effects: list[Effect] = []
        saved: tuple[int, Any] | None = None
        for _ in range(count):
            roll = self._dice.random()
            if roll < 0.08 and saved is None and only is None:
                self._run("SAVEPOINT `s p`")
                saved = (len(effects), state)
                continue
            if roll < 0.2 and saved is not None:
                self._run("ROLLBACK TO `s p`")
                self.counts["rollback-to-savepoint"] += 1
                del effects[saved[0] :]
                state, saved = saved[1], None
                self._world.state = {**last.state, **state}
                continue
            effect, after = self._one(ask, draw(self._world, DML), state, tables)
            if after is None:
                self._look_around()
                return [], None
            if effect is not None:
                effects.append(effect)
            state = after
            self._world.state = {**last.state, **state}
        return effects, {**last.state, **state}

    def _one(
        self, ask: Any, statement: Statement, state: Any, tables: Any = None
    ) -> tuple[Effect | None, dict[Name, Rows] | None]:
        """Run a statement and see what it did."""
        tables = tables or self.truth.last.tables
        try:
            ask(statement.sql)
        except pymysql.err.MySQLError as err:
            self.counts[f"refused {statement.kind}"] += 1
            if err.args and err.args[0] in _GONE:
                self._run("ROLLBACK")
                return None, None
            return None, state
        self.counts[statement.kind] += 1
        observer = self._watch if ask == self._ask else Observer(ask, list, set())
        after = observer.rows(tables, state)
        changes = differences(tables, state, after)
        return Effect(statement.kind, statement.sql, changes, statement.loose), after

    def _look_around(self) -> None:
        """Let later statements be made of what is there now."""
        last = self.truth.last
        self._world.tables, self._world.state = last.tables, last.state

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _ask(self, sql: str) -> Sequence[Sequence[Any]]:
        return _rows(self._connection, sql, self.script)

    def _ask_other(self, sql: str) -> Sequence[Sequence[Any]]:
        return _rows(self._other, sql, self.script, "/* second session */ ")

    def _run(self, sql: str) -> bool:
        """Run a statement; return whether the server took it."""
        try:
            self._ask(sql)
        except pymysql.err.MySQLError:
            self.script.append("-- the last one was refused")
            return False
        return True

    def _send(self, sql: str) -> None:
        self._ask(sql)

    def close(self) -> None:
        """Disconnect, and leave nothing."""
        self._disconnect()
        clear(self._server)

    def _disconnect(self) -> None:
        for connection in (self._connection, self._other):
            if connection is not None:
                with suppress(pymysql.err.MySQLError):
                    connection.close()


def clear(server: Server) -> None:
    """Drop every database of a history."""
    for number, length, _, name in server.execute("XA RECOVER"):
        raw = name if isinstance(name, bytes) else str(name).encode()
        first, second = raw[: int(str(length))].hex(), raw[int(str(length)) :].hex()
        server.execute(f"XA ROLLBACK X'{first}', X'{second}', {number!s}")
    for row in server.execute("SHOW DATABASES"):
        if str(row[0]) not in _SYSTEM:
            server.execute("SET SESSION foreign_key_checks = 0")
            server.execute(f"DROP DATABASE {quoted(str(row[0]))}")


def _session_id(connection: Any) -> int:
    return int(connection.thread_id())


def _rows(connection: Any, sql: str, script: list[str], mark: str = "") -> Sequence[Sequence[Any]]:
    if not sql.startswith(("SELECT", "SHOW")):
        script.append(mark + sql)
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
