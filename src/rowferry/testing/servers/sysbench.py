"""sysbench's tables, made and filled by the server itself."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from rowferry.testing.servers.server import Server

_STEP: Final = 100_000  # rows of one transaction
_DIGITS: Final = 11  # sysbench writes groups of eleven digits with hyphens between


def sysbench_table(
    server: Server, tables: int, rows: int, database: str = "sbtest", logged: bool = True
) -> list[str]:
    """Make `sbtest1` to `sbtestN` as sysbench does, each with so many rows; return their names.

    Ids are 1 to `rows`; the rest depends on table and id only, so that it is equal everywhere.

    Args:
        server: where to make them.
        tables: how many.
        rows: how many rows each table gets.
        database: made if it is not there.
        logged: whether the rows go to the binlog; the definitions always do.
    """
    server.execute(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    names = [f"sbtest{number}" for number in range(1, tables + 1)]
    with closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for number, name in enumerate(names, 1):
            cursor.execute(_definition(name))
            if not logged:
                cursor.execute("SET sql_log_bin = 0")
            for begin in range(0, rows, _STEP):
                cursor.execute(_fill(name, number, begin, rows))
            cursor.execute("SET sql_log_bin = 1")
    return [f"{database}.{name}" for name in names]


def _definition(name: str) -> str:
    return (
        f"CREATE TABLE `{name}` (id INT NOT NULL AUTO_INCREMENT, k INT NOT NULL DEFAULT 0, "
        "c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '', "
        f"PRIMARY KEY (id), KEY k_{name.removeprefix('sbtest')} (k)) ENGINE = InnoDB"
    )


def _fill(name: str, number: int, begin: int, rows: int) -> str:
    """Return a statement that inserts the ids above `begin`, one step of them, in order."""
    digits = " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10))
    places = range(len(str(_STEP - 1)))
    count = " + ".join(f"p{p}.d * {10**p}" for p in places)
    numbers = ", ".join(f"({digits}) p{p}" for p in places)
    return (
        f"INSERT INTO `{name}` (id, k, c, pad) "
        f"SELECT id, 1 + CRC32(CONCAT('{number} ', id)) MOD {rows}, "
        f"{_groups(10, number)}, {_groups(5, number + 1000)} "
        f"FROM (SELECT {begin} + 1 + {count} AS id FROM {numbers}) n "
        f"WHERE id <= {rows} ORDER BY id"
    )


def _groups(groups: int, salt: int) -> str:
    """Return an expression for groups of digits; it depends on `id` and the salt."""
    pieces = (
        f"LPAD(CRC32(CONCAT(id, ' {salt} {group}')) * 7, {_DIGITS}, '0')" for group in range(groups)
    )
    return f"CONCAT_WS('-', {', '.join(pieces)})"
