"""Writers on a MySQL or MariaDB server whose every transaction is known afterwards.

Each transaction reads what it changes under locks, and writes a number of its own, its token, into
the journal table as its last row. So the journal tells which transactions were committed, also
where a connection died inside COMMIT; its order is a serial order of the transactions; and its rows
in a feed tell the commit-ts that the feed gave to each.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from rowferry.change.chunk import Op
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import RowferryError
from rowferry.mysql.session import Connection
from rowferry.testing.model import Commit, History, Row, RowChange, key_of
from rowferry.testing.servers import Server

JOURNAL: Final = "journal"
SHAPES: Final = {
    "numbers": "id int PRIMARY KEY, n bigint unsigned, note varchar(200)",
    "names": "name varchar(30) COLLATE utf8mb4_general_ci PRIMARY KEY, n int, note text",
    "pairs": "a int, b varchar(10) COLLATE utf8mb4_bin, n decimal(20,4), note varchar(40), "
    "PRIMARY KEY (a, b)",
    JOURNAL: "seq bigint AUTO_INCREMENT PRIMARY KEY, token bigint",
}
_SPREAD: Final = {"numbers": 300, "names": 120, "pairs": 200}  # keys that writers fight for
_NOTES: Final = ("", "a", "it's", 'say "x"', "Grüße", "a,b\\c", "line\nline", "名前", "\x00\t")
_GIVE_WAY: Final = frozenset({1205, 1213})  # lock wait, deadlock: rolled back, nothing else
_MADE, _BEFORE = 2, 3  # commit-ts in the history of the first rows, and of what a snapshot shows
Cursor: TypeAlias = Any
Prepare: TypeAlias = Callable[[Cursor, random.Random], None]


@dataclass(slots=True)
class MySqlWriters:
    """Threads that change the tables of one database until they are stopped.

    Attributes:
        schemas: the tables by name, as the product reads them.
        most_rows: of one transaction.
        prepare: what a session does before each transaction, e.g. to set its clock.
        changes: by token, what each transaction changed; the journal tells which were committed.
        acknowledged: tokens of which the server said so at once.
        connections: the server's numbers of the threads' connections.
    """

    server: Server
    schemas: Mapping[TableId, TableSchema]
    most_rows: int = 6
    prepare: Prepare = lambda cursor, dice: None
    changes: dict[int, list[RowChange]] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    connections: set[int] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, count: int, seed: int) -> None:
        """Start threads; each has randomness of its own."""
        for number in range(count):
            thread = threading.Thread(
                target=self._run, args=(number, random.Random(seed * 1000 + number)), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads.

        Raises:
            BaseException: what ended one of them.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _run(self, number: int, dice: random.Random) -> None:
        token = number << 40
        while not self._stop.is_set():
            try:
                with closing(self.server.connect()) as connection:
                    self.connections.add(_number(connection))
                    while not self._stop.is_set():
                        token += 1
                        self._transaction(connection, token, dice)
            except (Connection.OperationalError, Connection.InterfaceError, RowferryError):
                self._stop.wait(0.05)  # the server is away: whether it committed is found out later
            except BaseException as err:
                self.failures.append(err)
                return

    def _transaction(self, connection: Connection[Any], token: int, dice: random.Random) -> None:
        work = Work(connection.cursor(), self.schemas)
        self.prepare(work.cursor, dice)
        connection.begin()
        try:
            for _ in range(dice.randint(1, self.most_rows)):
                work.change_something(dice)
            work.sign(token)
        except Connection.OperationalError as err:
            if err.args[0] not in _GIVE_WAY:
                raise
            connection.rollback()
            return
        if dice.random() < 0.05:
            connection.rollback()
            return
        self.changes[token] = work.changes
        connection.commit()
        self.acknowledged.add(token)


class Work:
    """One transaction under way; `changes` is what it did, in order."""

    def __init__(self, cursor: Cursor, schemas: Mapping[TableId, TableSchema]) -> None:
        self.cursor = cursor
        self.changes: list[RowChange] = []
        self._schemas = {t.table: s for t, s in schemas.items()}

    def change_something(self, dice: random.Random) -> None:
        """Change one row at random: insert, update (its key too), delete, or delete and insert."""
        schema = self._schemas[dice.choice(list(_SPREAD))]
        row = self._locked(schema, new_row(schema.id.table, dice))
        fresh = new_row(schema.id.table, dice)
        if row is None:
            if self._locked(schema, fresh) is None:
                self.insert(schema, fresh)
            return
        what = dice.random()
        if what < 0.45:
            self.update(schema, row, {**fresh, **_key(schema, row)})
        elif what < 0.65:
            there = self._locked(schema, fresh)
            if there is None or there == row:  # also a name that differs in case only
                self.update(schema, row, fresh)
        else:
            self.delete(schema, row)
            if what > 0.85:
                self.insert(schema, {**fresh, **_key(schema, row)})

    def insert(self, schema: TableSchema, row: Row) -> None:
        """Insert a row."""
        marks = ", ".join(["%s"] * len(row))
        self.cursor.execute(
            f"INSERT INTO {quoted(schema.id)} VALUES ({marks})", tuple(row.values())
        )
        self._note(schema, Op.INSERT, None, row)

    def update(self, schema: TableSchema, row: Row, fresh: Row) -> None:
        """Change a row; one that stays as it is gives no change."""
        if fresh == row:
            return
        sets = ", ".join(f"{name} = %s" for name in fresh)
        where, key = _where(schema, row)
        self.cursor.execute(
            f"UPDATE {quoted(schema.id)} SET {sets} WHERE {where}", (*fresh.values(), *key)
        )
        self._note(schema, Op.UPDATE, row, fresh)

    def delete(self, schema: TableSchema, row: Row) -> None:
        """Delete a row."""
        where, key = _where(schema, row)
        self.cursor.execute(f"DELETE FROM {quoted(schema.id)} WHERE {where}", key)
        self._note(schema, Op.DELETE, row, None)

    def sign(self, token: int) -> None:
        """Write the token; nothing may follow."""
        schema = self._schemas[JOURNAL]
        self.cursor.execute(f"INSERT INTO {quoted(schema.id)} (token) VALUES (%s)", (token,))
        self._note(schema, Op.INSERT, None, {"seq": self.cursor.lastrowid, "token": token})

    def _locked(self, schema: TableSchema, like: Row) -> Row | None:
        where, key = _where(schema, like)
        self.cursor.execute(f"SELECT * FROM {quoted(schema.id)} WHERE {where} FOR UPDATE", key)
        row = self.cursor.fetchone()
        return None if row is None else read_row(schema, row)

    def _note(self, schema: TableSchema, op: Op, before: Row | None, after: Row | None) -> None:
        key = key_of(schema, after or before or {})
        self.changes.append(RowChange(schema.id, op, key, before, after))


# --- tables --------------------------------------------------------------------------------------


def make_tables(server: Server, database: str, rows: int) -> None:
    """Make the database and its tables with so many rows each; the journal is empty."""
    server.script(
        f"CREATE DATABASE {database} CHARACTER SET utf8mb4",
        *(f"CREATE TABLE {database}.{name} ({shape})" for name, shape in SHAPES.items()),
    )
    columns: dict[str, Callable[[int], tuple[Any, ...]]] = {
        "numbers": lambda i: (i, i * 7, f"first {i}"),
        "names": lambda i: (f"Name {i}", -i, None),
        "pairs": lambda i: (i // 10, f"b{i % 10}", f"{i}.5000", "first"),
    }
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for name, values in columns.items():
            marks = ", ".join(["%s"] * len(values(0)))
            sql = f"INSERT INTO {database}.{name} VALUES ({marks})"
            cursor.executemany(sql, [values(i) for i in range(rows)])


def new_row(table: str, dice: random.Random) -> Row:
    """Return a row at random; keys come from few values, so that they meet."""
    i, note = dice.randrange(_SPREAD[table]), dice.choice(_NOTES)
    match table:
        case "numbers":
            return {"id": i, "n": dice.randrange(1 << 64), "note": note * 3}
        case "names":
            name = dice.choice((f"Name {i}", f"NAME {i}", f"näme {i}"))
            return {"name": name, "n": dice.choice((None, -i)), "note": note}
    amount = f"{dice.randrange(-(10**9), 10**9)}.{dice.randrange(10**4):04d}"
    return {"a": i // 10, "b": f"b{i % 10}", "n": amount, "note": note}


def read_row(schema: TableSchema, texts: Sequence[Any]) -> Row:
    """Return a row that the server gave as texts in canonical values."""
    return {
        c.name: int(v) if v is not None and c.type.kind is Kind.INTEGER else v
        for c, v in zip(schema.visible, texts, strict=True)
    }


def read_rows(server: Server, schema: TableSchema) -> dict[Any, Row]:
    """Return a table's rows of now, by key."""
    rows = [read_row(schema, r) for r in server.execute(f"SELECT * FROM {quoted(schema.id)}")]
    return {key_of(schema, row): row for row in rows}


def quoted(table: TableId) -> str:
    """Return a table's name as SQL."""
    return f"`{table.database}`.`{table.table}`"


def _number(connection: Connection[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def _key(schema: TableSchema, row: Row) -> Row:
    return {name: row[name] for name in schema.handle_key}


def _where(schema: TableSchema, row: Row) -> tuple[str, tuple[Any, ...]]:
    key = _key(schema, row)
    return " AND ".join(f"{name} = %s" for name in key), tuple(key.values())


# --- afterwards ----------------------------------------------------------------------------------


def settled(writers: MySqlWriters) -> list[tuple[int, list[RowChange]]]:
    """Return the committed transactions by token, in a serial order, as the journal says.

    Raises:
        AssertionError: an acknowledged transaction is not in the journal.
    """
    (journal,) = (s for t, s in writers.schemas.items() if t.table == JOURNAL)
    rows = writers.server.execute(f"SELECT token FROM {quoted(journal.id)} ORDER BY seq")
    tokens = [int(str(row[0])) for row in rows]
    lost = writers.acknowledged - set(tokens)
    assert not lost, f"the server itself lost {len(lost)} transactions"
    return [(token, writers.changes[token]) for token in tokens]


def make_history(
    first_rows: Mapping[TableId, Iterable[Row]],
    schemas: Mapping[TableId, TableSchema],
    transactions: Iterable[tuple[int, list[RowChange]]],
    commit_ts: Mapping[int, int],
) -> History:
    """Return what was committed, with the feed's own commit-ts of each transaction.

    A transaction whose token is not in `commit_ts` was over when the feed began.
    """
    history = History()
    for schema in schemas.values():
        history.note_table(schema.at(1))
    made = [
        RowChange(table, Op.INSERT, key_of(schemas[table], row), None, row)
        for table, rows in first_rows.items()
        for row in rows
    ]
    history.note_commit(_MADE, made)
    for place, (token, changes) in enumerate(transactions):
        history.note_commit(commit_ts.get(token, _BEFORE + place), changes)
    return history


def broken_order(history: History) -> list[str]:
    """Return where the feed's commit order cannot be the source's.

    Every transaction saw the rows that it changed, so each must find them as it saw them when all
    are played in commit order.
    """
    faults: list[str] = []
    replay = history.replay()
    stamps: set[int] = set()
    for entry in history.entries():
        if isinstance(entry, Commit):
            if entry.commit_ts in stamps:
                faults.append(f"two transactions have the commit-ts {entry.commit_ts}")
            stamps.add(entry.commit_ts)
            for change in entry.changes:
                rows = replay.states.rows.get(change.table, {})
                old = replay.left_key(change) or change.key
                if rows.get(old) != change.before:
                    faults.append(
                        f"{change.table} {old} at {entry.commit_ts}: its transaction saw "
                        f"{change.before}, in commit order it was {rows.get(old)}"
                    )
                replay.play(Commit(entry.commit_ts, (change,)), {})
        else:
            replay.play(entry, {})
    return faults
