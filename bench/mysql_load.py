"""Workloads in a server's log, made by the server itself; each lies in log files of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from rowferry.mysql import session
from rowferry.mysql.session import Flavour, Login
from rowferry.mysql.snapshot_position import log_end
from rowferry.testing.servers import Server

COLUMNS = 200
STEP = 10_000  # rows of one statement, where rows are wide
ROUNDS = 20
ROWS_A_ROUND = 10


@dataclass(frozen=True)
class Log:
    """A workload in the log.

    Attributes:
        changes: rows inserted, updated and deleted.
        images: row images in the log; an update has two.
        start: the first offset behind the tables' definitions.
        gtids: all transactions before it.
    """

    name: str
    database: str
    changes: int
    images: int
    file: str
    start: int
    end: int
    gtids: str

    @property
    def size(self) -> int:
        """Bytes of log."""
        return self.end - self.start


Run = Callable[[str], None]


def make(server: Server, name: str, scale: float) -> Log:
    """Write a workload; the server's log then ends with it."""
    shape, database = WORKLOADS[name], name.replace("-", "_")
    with closing(server.connect()) as connection, connection.cursor() as cursor:

        def run(sql: str) -> None:
            cursor.execute(sql)

        run(f"CREATE DATABASE {database}")
        run(f"USE {database}")
        write = shape(run, scale)
        run("FLUSH BINARY LOGS")
        file, start, gtids = _end(server.login)
        changes, images = write()
        last, end, _ = _end(server.login)
    if last != file:
        raise SystemExit(f"{name}: the log went on in {last}; the server needs a larger file limit")
    return Log(name, database, changes, images, file, start, end, gtids)


def make_numbers(server: Server, scale: float) -> None:
    """Make a table of numbers to select from; no trace of it comes into the log."""
    places = len(str(max(STEP, round(1_000_000 * scale)) - 1))
    digits = " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10))
    value = " + ".join(f"p{p}.d * {10**p}" for p in range(places))
    joined = ", ".join(f"({digits}) p{p}" for p in range(places))
    server.script(
        "SET sql_log_bin = 0",
        "CREATE DATABASE numbers",
        "CREATE TABLE numbers.n (i INT UNSIGNED PRIMARY KEY)",
        f"INSERT INTO numbers.n SELECT 1 + {value} AS i FROM {joined} ORDER BY i",
    )


def _end(login: Login) -> tuple[str, int, str]:
    """Return file, offset and GTIDs of the log's end."""
    name = "gtid_executed"
    with session.connected(login) as connection:
        flavour = session.facts(connection, login).flavour
        if flavour is Flavour.MARIADB:
            name = "gtid_binlog_pos"
        gtids = session.one_row(connection, login, f"SELECT @@global.{name}")[0]
        return (*log_end(connection, login, flavour), gtids.replace("\n", ""))


# --- the workloads: each makes its tables, and returns what writes the rows ----------------------


def _sysbench(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
    rows = round(1_000_000 * scale)
    run(sysbench_table("t"))

    def write() -> tuple[int, int]:
        run(
            f"INSERT INTO t (k, c, pad) SELECT {sysbench_row('i')} FROM numbers.n WHERE i <= {rows}"
        )
        run(f"UPDATE t SET k = k + 1 WHERE id <= {rows // 2}")
        run(f"DELETE FROM t WHERE id <= {rows // 10}")
        return rows + rows // 2 + rows // 10, rows + 2 * (rows // 2) + rows // 10

    return write


def _single_rows(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
    """Half of the transactions insert one row, half update one."""
    rows = round(100_000 * scale)
    run(sysbench_table("t"))
    run(
        "CREATE PROCEDURE write_single_rows(count INT) BEGIN DECLARE n INT DEFAULT 0; "
        "WHILE n < count DO SET n = n + 1; "
        f"INSERT INTO t (k, c, pad) VALUES ({sysbench_row('n')}); "
        "END WHILE; WHILE n > 0 DO UPDATE t SET k = k + 1 WHERE id = n; SET n = n - 1; "
        "END WHILE; END"
    )

    def write() -> tuple[int, int]:
        run(f"CALL write_single_rows({rows})")
        return 2 * rows, 3 * rows

    return write


def sysbench_table(name: str) -> str:
    return (
        f"CREATE TABLE `{name}` (id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, "
        "k INT UNSIGNED NOT NULL DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '', "
        "pad CHAR(60) NOT NULL DEFAULT '', KEY (k))"
    )


def sysbench_row(i: str) -> str:
    """Return expressions for k, c (98 characters) and pad (32)."""

    def digest(n: str) -> str:
        return f"LEFT(SHA2({n}, 224), 32)"

    c = f"CONCAT_WS('-', {digest(i)}, {digest(i + ' + 1')}, {digest(i + ' + 2')})"
    return f"{i} MOD 5000, {c}, {digest(i)}"


_KINDS: tuple[tuple[str, str], ...] = (
    ("INT NOT NULL", "i * 7 + {c}"),
    ("BIGINT UNSIGNED NOT NULL", "i * 1000003 + {c}"),
    ("VARCHAR(40) NOT NULL", "CONCAT('value ', i, ' of column {c}')"),
    ("DECIMAL(12, 2) NOT NULL", "(i * 37 + {c}) / 100"),
    ("DATETIME NOT NULL", "TIMESTAMPADD(SECOND, i * 60 + {c}, '2024-01-01 00:00:00')"),
    ("DOUBLE NOT NULL", "i / {c}"),
    ("TINYINT", "IF((i + {c}) MOD 5 = 0, NULL, (i + {c}) MOD 100)"),
    ("CHAR(16)", "IF((i + {c}) MOD 3 = 0, NULL, LEFT(SHA2(i + {c}, 224), 16))"),
)


def _wide(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
    rows = round(40_000 * scale)
    chosen = [(n, *_KINDS[n % len(_KINDS)]) for n in range(1, COLUMNS)]
    columns = ", ".join(f"c{n} {kind}" for n, kind, _ in chosen)
    values = ", ".join(value.format(c=n) for n, _, value in chosen)
    run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")

    def write() -> tuple[int, int]:
        for first in range(0, rows, STEP):
            last = min(rows, first + STEP)
            run(
                f"INSERT INTO t SELECT i, {values} FROM numbers.n WHERE i > {first} AND i <= {last}"
            )
        run(f"UPDATE t SET c8 = c8 + 1, c2 = 'changed' WHERE id <= {rows // 4}")
        return rows + rows // 4, rows + 2 * (rows // 4)

    return write


def _many_tables(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
    tables = max(10, round(1000 * scale))
    for number in range(tables):
        run(sysbench_table(f"t{number}"))

    def write() -> tuple[int, int]:
        row = sysbench_row("i")
        for turn in range(ROUNDS):
            first, last = turn * ROWS_A_ROUND, (turn + 1) * ROWS_A_ROUND
            for number in range(tables):
                run(
                    f"INSERT INTO t{number} (k, c, pad) SELECT {row} FROM numbers.n "
                    f"WHERE i > {first} AND i <= {last}"
                )
        return tables * ROUNDS * ROWS_A_ROUND, tables * ROUNDS * ROWS_A_ROUND

    return write


WORKLOADS: dict[str, Callable[[Run, float], Callable[[], tuple[int, int]]]] = {
    "sysbench": _sysbench,
    "single-rows": _single_rows,
    "wide": _wide,
    "many-tables": _many_tables,
}
ABOUT = {
    "sysbench": "sysbench's table, three transactions: insert, update of half, delete of a tenth",
    "single-rows": "sysbench's table, every transaction inserts or updates one row",
    "wide": f"a table of {COLUMNS} columns of eight types, rows inserted, a quarter updated",
    "many-tables": f"tables like sysbench's, each transaction {ROWS_A_ROUND} rows of one of them",
}


# --- a steady load, for the lag ------------------------------------------------------------------


def steady(
    login: Login, table: str, rows_a_second: int, rows_a_transaction: int, seconds: float
) -> list[float]:
    """Insert rows at a steady pace; returns when each transaction was sent (wall clock)."""
    sql = (
        f"INSERT INTO {table} (k, c, pad) SELECT {sysbench_row('i')} FROM numbers.n "
        f"WHERE i <= {rows_a_transaction}"
    )
    period = rows_a_transaction / rows_a_second
    sent = []
    with session.connected(login) as connection:
        began = time.time()
        for turn in range(round(seconds / period)):
            wait = began + turn * period - time.time()
            if wait > 0:
                time.sleep(wait)
            sent.append(time.time())
            session.rows(connection, login, sql)
    return sent
