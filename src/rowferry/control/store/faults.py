"""Errors of the database libraries in our words, each with the verdict that fits it."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import ExceptionContext
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rowferry.errors import Fenced, MetaDamaged, MetaUnavailable, StateError

# SQLite's own codes for "this is not what you think it is"; other codes may pass with time.
_SQLITE_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The database ended the transaction because of another one: deadlock, serialization failure.
_YIELDED = (1020, 1213, 1614, "40001", "40P01")
# PostgreSQL's classes of what may pass with time: connection, transaction state (read-only after a
# failover), rollback, resources, locks, the operator, the system.
_PASSING = ("08", "25", "40", "53", "55", "57", "58")
# The server is read-only: it was the primary, and another one is now.
_DEMOTED = (1290, 1836, "25006")
# No such database, wrong user or password, no rights, no TLS, a sql_mode that is not taken (2951).
_REFUSED = (
    1044,
    1045,
    1049,
    1142,
    1227,
    1251,
    1698,
    2026,
    2951,
    3159,
    "28000",
    "28P01",
    "3D000",
    "42501",
)
# What goes wrong before a client is connected may have no code of its own.
_NO_CODE = (0, 2003)
_REFUSED_WORDS = (
    "authentication failed",
    "does not exist",
    "pg_hba.conf",
    "does not support SSL",
    "invalid sslmode value",
    "certificate",
    "CERTIFICATE",
)


def in_our_words(err: SQLAlchemyError, where: str) -> StateError:
    """Return the database library's error as ours."""
    if isinstance(err, PoolTimeout):
        return MetaUnavailable(f"{where}: all connections are busy")
    if not isinstance(err, DBAPIError):
        return MetaDamaged(f"{where}: {_one_line(err)}")
    words = _words(err.orig)
    if isinstance(err, IntegrityError):
        return Fenced(f"{where}: another process wrote the same rows: {words}")
    if isinstance(err.orig, sqlite3.Error):
        return sqlite_words(err.orig, where)
    code = _code(err)
    passing = isinstance(code, str) and code.startswith(_PASSING)
    if isinstance(err, OperationalError | InterfaceError) or err.connection_invalidated or passing:
        return MetaUnavailable(f"{where}: {words}")
    return MetaDamaged(f"{where}: {words}")


def was_undone(err: BaseException | None) -> bool:
    """Return whether a transaction failed only because of another one, and left no trace.

    Run again it sees what the other one did.
    """
    return isinstance(err, IntegrityError) or (
        isinstance(err, DBAPIError) and _code(err) in _YIELDED
    )


def leave_demoted(context: ExceptionContext) -> None:
    """Let go of all connections to a server that is not the primary any more.

    It may answer for as long as we like; only a new connection leads to where the name leads now.
    """
    err = context.sqlalchemy_exception
    if isinstance(err, DBAPIError) and _code(err) in _DEMOTED:
        context.is_disconnect = True


def is_refusal(err: BaseException | None) -> bool:
    """Return whether a server does not let us in: no retry will help."""
    if not isinstance(err, DBAPIError) or isinstance(err.orig, sqlite3.Error):
        return False
    code, message = _code(err), str(err.orig)
    return code in _REFUSED or (
        code in _NO_CODE and any(words in message for words in _REFUSED_WORDS)
    )


def is_busy(err: BaseException) -> bool:
    """Return whether SQLite says that somebody else has the file."""
    return getattr(err, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def sqlite_words(err: sqlite3.Error, where: str) -> StateError:
    """Return SQLite's error as ours."""
    if getattr(err, "sqlite_errorcode", 0) & 0xFF in _SQLITE_DAMAGED:
        return MetaDamaged(f"{where}: {err}")
    return MetaUnavailable(f"{where}: {err}")


def _code(err: DBAPIError) -> int | str:
    """Return MySQL's number or PostgreSQL's five letters; 0 where there is none."""
    first = err.orig.args[0] if err.orig is not None and err.orig.args else None
    if isinstance(first, int):
        return first
    return getattr(err.orig, "sqlstate", None) or 0


def _words(orig: Any) -> str:
    """Return what the database said, in one line and without the rows that it shows."""
    primary = getattr(getattr(orig, "diag", None), "message_primary", None)
    if primary:
        return _one_line(primary)
    if len(orig.args) > 1 and isinstance(orig.args[0], int):
        return f"{_one_line(orig.args[1])} ({orig.args[0]})"
    return _one_line(orig)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
