"""Names of databases and tables, for people who choose among them; nothing is looked at."""

from __future__ import annotations

from typing import Any, Final

from rowferry.moment import moment
from rowferry.mysql.session import Login, rows

_DATABASES: Final = (
    "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA ORDER BY SCHEMA_NAME LIMIT %s"
)
# What the server estimates, it has at hand: no table is read for it.
_TABLES: Final = (
    "SELECT TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND"
    " TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME LIMIT %s"
)


def listed_databases(connection: Any, login: Login, most: int) -> tuple[str, ...]:
    """Return the databases that the user may see, sorted, at most so many."""
    moment("list databases")
    return tuple(name for (name,) in rows(connection, login, _DATABASES, (most,)))


def listed_tables(
    connection: Any, login: Login, database: str, most: int
) -> tuple[tuple[str, int | None], ...]:
    """Return the base tables of a database with the server's estimate of their rows."""
    moment("list table names")
    listed = rows(connection, login, _TABLES, (database, most))
    return tuple((name, None if count is None else int(count)) for name, count in listed)
