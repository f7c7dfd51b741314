"""The load of a soak run: transactions at a steady rate, and schema changes all along."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import pymysql
from pymysql.connections import Connection

from rowferry.errors import RowferryError
from rowferry.testing.servers import Server

ROWS = 10  # of a statement
DEFINITION = (
    "(id bigint AUTO_INCREMENT PRIMARY KEY, k int NOT NULL, c varchar(120) NOT NULL, "
    "pad char(60) NOT NULL)"
)
_AWAY = (RowferryError, pymysql.err.MySQLError, OSError)


class Source:
    """A server with the databases of its changefeeds, and who writes to it.

    A server that is away is waited for. Whether a transaction counts that was cut off is not known
    here, and need not be: what is there at the end is what must have arrived.

    Attributes:
        rate: transactions in a second; may be changed at any time, 0 is silence.
        ddl_every_s: seconds between schema changes; 0: none.
    """

    def __init__(self, server: Server, databases: Sequence[str], tables: int, dice: int) -> None:
        self.server, self.databases, self.tables = server, databases, tables
        self.rate = 0.0
        self.ddl_every_s = 0.0
        self.transactions = self.rows = self.schema_changes = 0
        self._dice, self._schema_dice = random.Random(dice), random.Random(dice + 1)
        self._numbers = iter(range(1, 1 << 40))
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), daemon=True)
            for work in (self._write, self._alter)
        ]

    def make_tables(self) -> None:
        """Create all databases and tables."""
        self.server.script(
            *(
                statement
                for name in self.databases
                for statement in (
                    f"CREATE DATABASE {name}",
                    *(f"CREATE TABLE {name}.t{i} {DEFINITION}" for i in range(self.tables)),
                )
            )
        )

    def start(self) -> None:
        """Begin to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all writing; on return nothing more is committed."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _keep(self, work: Callable[[Connection], None]) -> None:
        while not self._stop.is_set():
            with suppress(*_AWAY), closing(self.server.connect()) as connection:
                work(connection)
            self._stop.wait(0.5)

    # --- rows ------------------------------------------------------------------------------------

    def _write(self, connection: Connection) -> None:
        connection.autocommit(False)
        began, done, rate = time.monotonic(), 0, self.rate
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                if rate != self.rate or not rate:
                    began, done, rate = time.monotonic(), 0, self.rate
                if not rate:
                    self._stop.wait(0.1)
                    continue
                count = sum(cursor.execute(sql) for sql in self._transaction())
                connection.commit()
                self.transactions += 1
                self.rows += count
                done += 1
                late = time.monotonic() - began - done / rate
                if late > 1.0:  # what was missed is not made up for by a burst
                    began += late
                self._stop.wait(max(0.0, -late))

    def _transaction(self) -> list[str]:
        dice = self._dice
        name = dice.choice(self.databases)
        tables = dice.sample(range(self.tables), 2 if dice.random() < 0.1 else 1)
        return [self._statement(f"{name}.t{table}", dice.random()) for table in tables]

    def _statement(self, table: str, kind: float) -> str:
        number = next(self._numbers)
        if kind < 0.45:
            rows = ", ".join(
                f"({number}, '{number}-{n}-{'c' * 80}', 'pad {n}')" for n in range(ROWS)
            )
            return f"INSERT INTO {table} (k, c, pad) VALUES {rows}"
        if kind < 0.7:
            what = f"k = k + 1, c = '{number}-{'u' * 60}'"
            return f"UPDATE {table} SET {what} ORDER BY id DESC LIMIT {ROWS}"
        return f"DELETE FROM {table} ORDER BY id LIMIT {ROWS}"

    # --- schema changes --------------------------------------------------------------------------

    def _alter(self, connection: Connection) -> None:
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                if not self.ddl_every_s:
                    self._stop.wait(0.2)
                    continue
                for sql in self._schema_change(cursor):
                    cursor.execute(sql)
                    self.schema_changes += not sql.startswith("INSERT")
                self._stop.wait(self.ddl_every_s)

    def _schema_change(self, cursor: pymysql.cursors.Cursor) -> list[str]:
        dice, number = self._schema_dice, next(self._numbers)
        name = dice.choice(self.databases)
        first, second = (f"{name}.t{i}" for i in dice.sample(range(self.tables), 2))
        match dice.randrange(5):
            case 0 | 1:
                return [self._columns(cursor, name, first, number)]
            case 2:
                return self._whole_table(cursor, name, number)
            case 3:
                return [f"TRUNCATE TABLE {first}"]
            case _:
                between = f"{name}.swap{number}"
                swap = f"{first} TO {between}, {second} TO {first}, {between} TO {second}"
                return [f"RENAME TABLE {swap}"]

    def _columns(
        self, cursor: pymysql.cursors.Cursor, database: str, table: str, number: int
    ) -> str:
        found = self._names(
            cursor, "column", database, f"more%' AND table_name = '{table[len(database) + 1 :]}"
        )
        if len(found) >= 3 or (found and self._schema_dice.random() < 0.4):
            return f"ALTER TABLE {table} DROP COLUMN {self._schema_dice.choice(found)}"
        kind = self._schema_dice.choice(["int NULL", "varchar(20) NOT NULL DEFAULT 'new'"])
        return f"ALTER TABLE {table} ADD COLUMN more{number} {kind}"

    def _whole_table(self, cursor: pymysql.cursors.Cursor, database: str, number: int) -> list[str]:
        found = self._names(cursor, "table", database, "extra%")
        if len(found) >= 3 or (found and self._schema_dice.random() < 0.4):
            return [f"DROP TABLE {database}.{self._schema_dice.choice(found)}"]
        new = f"{database}.extra{number}"
        rows = ", ".join(f"({number}, 'c{n}', 'pad')" for n in range(ROWS))
        return [f"CREATE TABLE {new} {DEFINITION}", f"INSERT INTO {new} (k, c, pad) VALUES {rows}"]

    def _names(
        self, cursor: pymysql.cursors.Cursor, what: str, database: str, like: str
    ) -> list[str]:
        cursor.execute(
            f"SELECT {what}_name FROM information_schema.{what}s "
            f"WHERE table_schema = '{database}' AND {what}_name LIKE '{like}' ORDER BY 1"
        )
        return [str(row[0]) for row in cursor.fetchall()]
