"""How a changefeed marks what it writes into a database, so that another one can tell.

Both marks are seen in the log of MySQL and MariaDB, and need no privilege. A transaction with rows
also writes the mark table; a DDL, which is a transaction of its own and whose text a server may
rewrite, runs with a SQL mode that nobody else has a reason to set.
"""

from __future__ import annotations

from typing import Final

# Each of them is harmless to a DDL that was accepted by another server, in any mode.
MARK_SQL_MODE: Final = (
    "NO_DIR_IN_CREATE,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,ERROR_FOR_DIVISION_BY_ZERO"
)
_MARK_BITS: Final = 1 << 7 | 1 << 19 | 1 << 25 | 1 << 26
# Those above say what a server does with digits of a second, which it must do as the source did.
_COMPARED: Final = (1 << 32) - 1
# Set in sessions of a changefeed: triggers let their writes be.
SESSION_VARIABLE: Final = "@rowferry_writes"


def is_marked(sql_mode: int) -> bool:
    """Return whether a changefeed ran a DDL, by the SQL mode that the log has of its session."""
    return sql_mode & _COMPARED == _MARK_BITS
