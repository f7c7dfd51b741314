"""What shops do to a database, lake tables that follow it, and what all readers have at the end.

Two loads of the kind that benchmarks of databases have: single rows read and written (`PointRows`,
as sysbench's oltp_read_write), and orders over several tables with keys of several columns
(`OrderEntry`, as TPC-C). They go on while `rowferry run` is killed and begun again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog

from lake_readers import delta_rows, iceberg_rows
from page_examples import carried_out
from rowferry.change.table import TableId
from rowferry.mysql.session import Connection
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.servers import Server
from rowferry.testing.servers.sysbench import sysbench_table

PATIENCE_S: Final = 600.0  # for a start on a machine under load; never reached by working code
_COMMITS: Final = {"delta": "_delta_log/*.json", "iceberg": "metadata/*.metadata.json"}
_GIVE_WAY: Final = frozenset({1205, 1213})  # lock wait, deadlock: rolled back, nothing else
Cursor: TypeAlias = Any
Rows: TypeAlias = "list[dict[str, Any]]"
Readers: TypeAlias = Callable[[TableId], Mapping[str, Rows]]


class Workload(Protocol):
    """A load on one database.

    Attributes:
        database: its name.
        tables: those that it fills.
    """

    database: str
    tables: tuple[str, ...]

    def create(self, server: Server) -> None:
        """Make the tables with their first rows."""

    def transact(self, cursor: Cursor, dice: random.Random) -> None:
        """Change something in the transaction that has begun."""


class PointRows:
    """sysbench's oltp_read_write: rows at random, read, changed, deleted and inserted again."""

    tables = ("sbtest1", "sbtest2")
    _ROWS: Final = 1_500

    def __init__(self, database: str) -> None:
        self.database = database

    def create(self, server: Server) -> None:
        """Make sysbench's own tables."""
        sysbench_table(server, len(self.tables), self._ROWS, self.database)

    def transact(self, cursor: Cursor, dice: random.Random) -> None:
        """Read a range, change an indexed column and another one, put a row in place of one."""
        table = dice.choice(self.tables)
        first = self._id(dice)
        cursor.execute(f"SELECT c FROM {table} WHERE id BETWEEN %s AND %s", (first, first + 9))
        cursor.fetchall()
        cursor.execute(f"UPDATE {table} SET k = k + 1 WHERE id = %s", (self._id(dice),))
        digits = "-".join(f"{dice.randrange(10**11):011}" for _ in range(10))
        cursor.execute(f"UPDATE {table} SET c = %s WHERE id = %s", (digits, self._id(dice)))
        again = self._id(dice)
        cursor.execute(f"DELETE FROM {table} WHERE id = %s", (again,))
        if dice.random() < 0.9:  # else it stays away until it is drawn again
            new = (again, dice.randrange(self._ROWS), digits, digits[:59])
            cursor.execute(f"INSERT INTO {table} (id, k, c, pad) VALUES (%s, %s, %s, %s)", new)

    def _id(self, dice: random.Random) -> int:
        # Half of all changes are of a few rows, as they are in shops.
        return dice.randint(1, 30) if dice.random() < 0.5 else dice.randint(1, self._ROWS)


_ORDER_TABLES: Final = {
    "warehouse": "w int PRIMARY KEY, ytd decimal(14,2) NOT NULL",
    "district": "w int, d int, next_order int NOT NULL, ytd decimal(14,2) NOT NULL, "
    "PRIMARY KEY (w, d)",
    "customer": "w int, d int, c int, credit char(2) NOT NULL, balance decimal(12,2) NOT NULL, "
    "payments int NOT NULL, deliveries int NOT NULL, data varchar(300), PRIMARY KEY (w, d, c)",
    "history": "id bigint AUTO_INCREMENT PRIMARY KEY, w int, d int, c int, paid datetime, "
    "amount decimal(6,2)",
    "orders": "w int, d int, o int, c int NOT NULL, entered datetime, carrier int, "
    "line_count int NOT NULL, PRIMARY KEY (w, d, o)",
    "new_order": "w int, d int, o int, PRIMARY KEY (w, d, o)",
    "order_line": "w int, d int, o int, line int, item varchar(12) NOT NULL, delivered datetime, "
    "quantity int, amount decimal(8,2), PRIMARY KEY (w, d, o, line)",
    "stock": "w int, item varchar(12) COLLATE utf8mb4_bin, quantity int, ytd int, "
    "PRIMARY KEY (w, item)",
}


class OrderEntry:
    """TPC-C's changes: orders, payments and deliveries, over tables with keys of columns."""

    tables = tuple(_ORDER_TABLES)
    _WAREHOUSES, _DISTRICTS, _CUSTOMERS, _ITEMS = 2, 3, 20, 60

    def __init__(self, database: str) -> None:
        self.database = database

    def create(self, server: Server) -> None:
        """Make the tables and what stands in them before the first order."""
        warehouses = range(1, self._WAREHOUSES + 1)
        districts = [(w, d) for w in warehouses for d in range(1, self._DISTRICTS + 1)]
        rows: dict[str, list[tuple[Any, ...]]] = {
            "warehouse": [(w, 0) for w in warehouses],
            "district": [(w, d, 1, 0) for w, d in districts],
            "customer": [
                (w, d, c, "BC" if c % 5 == 0 else "GC", -10, 0, 0, None)
                for w, d in districts
                for c in range(1, self._CUSTOMERS + 1)
            ],
            "stock": [(w, f"item {i}", 50, 0) for w in warehouses for i in range(self._ITEMS)],
        }
        server.script(
            f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4",
            *(f"CREATE TABLE {self.database}.{n} ({s})" for n, s in _ORDER_TABLES.items()),
        )
        with closing(server.connect(self.database)) as connection, connection.cursor() as cursor:
            for name, some in rows.items():
                marks = ", ".join(["%s"] * len(some[0]))
                cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", some)

    def transact(self, cursor: Cursor, dice: random.Random) -> None:
        """Do one of them, as often as the benchmark does, but that deliveries come more often."""
        w, d = dice.randint(1, self._WAREHOUSES), dice.randint(1, self._DISTRICTS)
        what = dice.random()
        if what < 0.45:
            self._order(cursor, dice, w, d)
        elif what < 0.88:
            self._pay(cursor, dice, w, d)
        else:
            self._deliver(cursor, dice, w)

    def _order(self, cursor: Cursor, dice: random.Random, w: int, d: int) -> None:
        cursor.execute("SELECT next_order FROM district WHERE w = %s AND d = %s FOR UPDATE", (w, d))
        order = int(cursor.fetchone()[0])
        cursor.execute(
            "UPDATE district SET next_order = next_order + 1 WHERE w = %s AND d = %s", (w, d)
        )
        items = sorted(dice.sample(range(self._ITEMS), dice.randint(3, 8)))
        cursor.execute(
            "INSERT INTO orders VALUES (%s, %s, %s, %s, NOW(), NULL, %s)",
            (w, d, order, self._customer(dice), len(items)),
        )
        cursor.execute("INSERT INTO new_order VALUES (%s, %s, %s)", (w, d, order))
        for line, item in enumerate(items, 1):
            name, quantity = f"item {item}", dice.randint(1, 10)
            cursor.execute(
                "UPDATE stock SET ytd = ytd + %s, quantity = "
                "IF(quantity >= %s + 10, quantity - %s, quantity - %s + 91) "
                "WHERE w = %s AND item = %s",
                (quantity, quantity, quantity, quantity, w, name),
            )
            cursor.execute(
                "INSERT INTO order_line VALUES (%s, %s, %s, %s, %s, NULL, %s, %s)",
                (w, d, order, line, name, quantity, f"{quantity * (item + 1)}.99"),
            )

    def _pay(self, cursor: Cursor, dice: random.Random, w: int, d: int) -> None:
        customer, amount = self._customer(dice), f"{dice.randint(1, 4999)}.{dice.randrange(100):02}"
        cursor.execute("UPDATE warehouse SET ytd = ytd + %s WHERE w = %s", (amount, w))
        cursor.execute("UPDATE district SET ytd = ytd + %s WHERE w = %s AND d = %s", (amount, w, d))
        cursor.execute(
            "UPDATE customer SET balance = balance - %s, payments = payments + 1, data = "
            "IF(credit = 'BC', LEFT(CONCAT_WS(' ', c, %s, data), 300), data) "
            "WHERE w = %s AND d = %s AND c = %s",
            (amount, amount, w, d, customer),
        )
        cursor.execute(
            "INSERT INTO history (w, d, c, paid, amount) VALUES (%s, %s, %s, NOW(), %s)",
            (w, d, customer, amount),
        )

    def _deliver(self, cursor: Cursor, dice: random.Random, w: int) -> None:
        """Carry the oldest order of each district out."""
        for d in range(1, self._DISTRICTS + 1):
            cursor.execute(
                "SELECT o FROM new_order WHERE w = %s AND d = %s ORDER BY o LIMIT 1 FOR UPDATE",
                (w, d),
            )
            row = cursor.fetchone()
            if row is None:
                continue
            where, key = "WHERE w = %s AND d = %s AND o = %s", (w, d, int(row[0]))
            cursor.execute(f"DELETE FROM new_order {where}", key)
            cursor.execute(f"UPDATE orders SET carrier = %s {where}", (dice.randint(1, 10), *key))
            cursor.execute(f"UPDATE order_line SET delivered = NOW() {where}", key)
            cursor.execute(
                "UPDATE customer, orders, (SELECT SUM(amount) AS paid FROM order_line "
                f"{where}) total SET balance = balance + paid, deliveries = deliveries + 1 "
                "WHERE orders.w = %s AND orders.d = %s AND orders.o = %s AND "
                "(customer.w, customer.d, customer.c) = (orders.w, orders.d, orders.c)",
                (*key, *key),
            )

    def _customer(self, dice: random.Random) -> int:
        return dice.randint(1, self._CUSTOMERS)


@dataclass
class Writers:
    """Threads that carry a load out, some transactions in a second each.

    Attributes:
        committed: how many transactions.
    """

    server: Server
    workload: Workload
    committed: int = 0
    _failures: list[BaseException] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def going_on(self, count: int, dice: random.Random) -> Iterator[None]:
        """Let so many write as long as the block lasts."""
        own = [random.Random(dice.random()) for _ in range(count)]
        threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in own]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        self.check()

    def check(self) -> None:
        """Raise what has ended one of them."""
        if self._failures:
            raise self._failures[0]

    def _run(self, dice: random.Random) -> None:
        try:
            with closing(self.server.connect(self.workload.database)) as connection:
                while not self._stop.wait(0.02):
                    self._transaction(connection, dice)
        except BaseException as err:
            self._failures.append(err)

    def _transaction(self, connection: Connection[Any], dice: random.Random) -> None:
        connection.begin()
        try:
            with connection.cursor() as cursor:
                self.workload.transact(cursor, dice)
        except Connection.OperationalError as err:
            if err.args[0] not in _GIVE_WAY:
                raise
            connection.rollback()
            return
        if dice.random() < 0.02:
            connection.rollback()
            return
        connection.commit()
        with self._counting:
            self.committed += 1


class FollowedLake:
    """Lake tables that follow one load; small files are merged every few commits.

    Attributes:
        root: the directory of the tables.
        catalog: the name of the catalog in it, if they are Iceberg's.
    """

    def __init__(
        self,
        kind: str,
        server: Server,
        workload: Workload,
        folder: Path,
        catalog: str = "rowferry",
    ) -> None:
        self.root, self.catalog = folder / "lake", catalog
        self._kind, self._server, self._workload, self._folder = kind, server, workload, folder
        own = "checkpoint-interval=4"
        if kind == "iceberg":
            own = f"history=12&catalog-name={catalog}"
        self.uri = f"{kind}+file://{self.root}?flush-interval=200ms&optimize-after=6&{own}"

    def follow(self, kills: int, dice: random.Random) -> None:
        """Deliver what writers do meanwhile, killed so often; at the end all is there."""
        self._workload.create(self._server)
        config = self._folder / "feed.toml"
        config.write_text(f"[filter]\nrules = ['{self._workload.database}.*']\n")
        arguments = ["--source", self._server.uri, "--sink-uri", self.uri, "--config", str(config)]
        arguments += ["--changefeed-id", "lake", "--until", "caught-up"]
        writers = Writers(self._server, self._workload)
        with writers.going_on(2, dice):
            while kills:
                kills -= self._kill_in_work(arguments, dice)
                writers.check()
        assert writers.committed, "the writers stood still"
        with RunProcess(arguments, self._folder / "work") as process:
            assert process.wait(PATIENCE_S) == 0, process.printed()[-2000:]

    def _kill_in_work(self, arguments: list[str], dice: random.Random) -> bool:
        """Let a process live until it has begun to write after some commits, and a moment longer.

        Return whether it was killed: one that had caught up before ends by itself.
        """
        commits = _COMMITS[self._kind]
        before, made = self._files(), self._files(commits)
        enough = dice.randint(0, len(self._workload.tables))

        def working() -> bool:
            return bool(self._files() - before) and len(self._files(commits) - made) >= enough

        with RunProcess(arguments, self._folder / "work") as process:
            wait_for(lambda: not process.alive or working(), "new commits", PATIENCE_S, 0.02)
            time.sleep(dice.uniform(0, 0.2))
            if process.alive:
                process.kill()
                print(f"killed after {len(self._files(commits) - made)} commits")
                return True
            assert process.wait(PATIENCE_S) == 0, process.printed()[-2000:]
            return False

    def _files(self, pattern: str = "*") -> set[Path]:
        """What is there; some may have gone while they were listed."""
        found: set[Path] = set()
        with suppress(FileNotFoundError):
            found.update(self.root.rglob(pattern))
        return found

    def place(self, table: TableId) -> Path:
        """The directory of a Delta table."""
        return self.root / table.database / table.table

    def rows(self, table: TableId) -> dict[str, Rows]:
        """A table's rows, by reader."""
        if self._kind == "delta":
            query = QueryBuilder().register("t", DeltaTable(str(self.place(table))))
            ours = pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()
            return {"delta-rs": ours, **delta_rows(self.place(table))}
        with closing(SqlCatalog(self.catalog, uri=f"sqlite:///{self.root}/catalog.db")) as catalog:
            one = catalog.load_table((table.database, table.table))
            return {"pyiceberg": one.scan().to_arrow().to_pylist(), **iceberg_rows(one)}

    def check(self, more: Readers = lambda table: {}) -> None:
        """Compare all tables with the source's: by `rowferry verify` and by readers of others.

        Args:
            more: readers beside those that are always there.
        """
        database = self._workload.database
        command = ["rowferry", "verify", self._server.uri, self.uri, "--tables", f"{database}.*"]
        said = carried_out(command, self._folder)
        for name in self._workload.tables:
            assert f"{database}.{name}: equal" in said, said
            table = TableId(database, name)
            source = self._source_rows(table)
            for reader, rows in {**self.rows(table), **more(table)}.items():
                found = Counter(tuple(map(_text, row.values())) for row in rows)
                missing, extra = source - found, found - source
                assert found == source, f"{reader}, {name}: less {missing}, more {extra}"

    def _source_rows(self, table: TableId) -> Counter[tuple[str | None, ...]]:
        rows = self._server.execute(f"SELECT * FROM `{table.database}`.`{table.table}`")
        found = Counter(tuple(map(_text, row)) for row in rows)
        assert found, f"nothing happened in {table}"
        return found


def _text(value: Any) -> str | None:
    """A value of any reader as the source's server writes it: numbers, texts, DATETIME."""
    return None if value is None else str(value)
