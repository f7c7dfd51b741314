"""What servers and connections refuse, judged once; the client library's errors end here.

A number of a server means the same to all who talk to it. What it means for a changefeed does not:
the source, the sink and others make an error of their own out of each kind.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

import pymysql

from rowferry.mysql.wary_connection import MALFORMED, MODE_REFUSED

NO_TLS: Final = 2026
DUPLICATE: Final = 1062
TOO_LONG: Final = 1153
GONE: Final = frozenset({1049, 1146})  # a database or a table, where it was seen before
# Of a row that is written: what it holds does not fit, and another row may.
OF_A_ROW: Final = frozenset(
    {
        1048,  # NULL in a column that takes none
        TOO_LONG,  # longer than the server takes in one statement
        1216,  # a foreign key
        1264,  # out of range
        1265,  # truncated
        1292,  # a wrong value
        1364,  # no default for a column that the row lacks
        1366,  # a wrong value for the column
        1367,  # a wrong number
        1406,  # too long for the column
        1416,  # no geometry
        1452,  # a foreign key
        1526,  # no partition for it
        1644,  # a trigger says no
        1690,  # out of range
        1748,  # not in the partitions that were named
        3140,  # no JSON
        3819,  # a CHECK of MySQL
        4025,  # a CHECK of MariaDB
    }
)
# Of a statement that names a captured table: it is not what it was when it was looked at.
ALTERED: Final = frozenset(
    {
        1049,  # no such database
        1054,  # no such column
        1146,  # no such table
        1176,  # no such key
        1347,  # a view now
        1412,  # altered since the transaction began
        1505,  # not partitioned any more
        1735,  # no such partition
        1747,  # the same
    }
)


class RefusalKind(Enum):
    """What is refused, as far as a number tells it."""

    NO_ANSWER = "no answer"  # nobody there, or the connection is lost
    MALFORMED = "an answer that is none"
    MODE = "the sql_mode"  # what stands between does not pass it on
    TLS = "TLS"  # it is not offered, or the certificate is not accepted
    TLS_BROKEN = "a broken TLS connection"
    LOGIN = "login"
    RIGHTS = "privileges"
    READ_ONLY = "a server that is read-only"
    CONFLICT = "a conflict"  # it met another transaction: the same may work
    PASSING = "for now"  # too many connections, a shutdown, a limit
    OTHER = "the statement"


_NUMBERS: Final = {
    # What a server says before it ends a session: somebody did (MariaDB), or it was silent (MySQL).
    RefusalKind.NO_ANSWER: {1927, 4031},
    RefusalKind.MALFORMED: {MALFORMED},
    RefusalKind.MODE: {MODE_REFUSED},
    RefusalKind.TLS: {NO_TLS, 3159},
    RefusalKind.LOGIN: {1044, 1045, 1130, 1251, 1698, 1820, 1862, 3118, 4151},
    # The last one is what XA RECOVER says to who may not use it.
    RefusalKind.RIGHTS: {1142, 1143, 1227, 1370, 1401},
    RefusalKind.READ_ONLY: {1290, 1792, 1836, 1881},
    # A deadlock, a lock that is not had in time, a write that met another (TiDB, a group).
    RefusalKind.CONFLICT: {1205, 1213, 3101, 8002, 8022, 8028, 9007},
    RefusalKind.PASSING: {
        *(1040, 1053, 1077, 1078, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1226, 1317, 3024),
        *(1047, 1969),  # a node of Galera that is not ready, a statement's time (MariaDB)
        *(8024, 9001, 9002, 9003, 9004, 9005),
    },
}
_KINDS: Final = {number: kind for kind, numbers in _NUMBERS.items() for number in numbers}


def kind_of_number(number: int) -> RefusalKind:
    """Return what a server's (or the client library's) error number means; 0: it has none."""
    kind = _KINDS.get(number)
    if kind is None:
        lost = number == 0 or 2000 <= number < 3000
        kind = RefusalKind.NO_ANSWER if lost else RefusalKind.OTHER
    return kind


@dataclass(frozen=True, slots=True)
class ServerRefusal:
    """An error of a server, or of the connection to it.

    Attributes:
        number: the server's; 0: the error is not the server's.
        server_text: the words of the server, or of the library.
        kind: what it means.
        heard: whether the client library had it; otherwise the network or the system.
    """

    number: int
    server_text: str
    kind: RefusalKind
    heard: bool = True

    def at(self, place: str) -> str:
        """Return it as the beginning of an error's text."""
        if not self.heard:
            return f"{place} did not answer: {self.server_text}"
        return (
            f"{place}: error {self.number}: {self.server_text}"
            if self.number
            else f"{place}: {self.server_text}"
        )


def refusal_of_number(number: int, server_text: str) -> ServerRefusal:
    """Return an error packet's content."""
    return ServerRefusal(number, server_text, kind_of_number(number))


def _refusal(err: pymysql.err.MySQLError) -> ServerRefusal:
    numbered = bool(err.args) and isinstance(err.args[0], int)
    number = int(err.args[0]) if numbered else 0
    server_text = str(err.args[1]) if len(err.args) > 1 and err.args[1] else str(err)
    kind = kind_of_number(number)
    cause = getattr(err, "original_exception", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        kind = RefusalKind.TLS
    elif isinstance(cause, ssl.SSLError) and kind is not RefusalKind.TLS:
        kind = RefusalKind.TLS_BROKEN
    return ServerRefusal(number, server_text or "the connection is lost", kind)


@contextmanager
def judged(judge: Callable[[ServerRefusal], Exception]) -> Iterator[None]:
    """Raise what `judge` makes of an error of the client library, of the network or the system."""
    try:
        yield
    except pymysql.err.MySQLError as err:
        raise judge(_refusal(err)) from None
    except (OSError, EOFError, RuntimeError) as err:
        server_text = str(err) or type(err).__name__
        raise judge(ServerRefusal(0, server_text, RefusalKind.NO_ANSWER, heard=False)) from None


@contextmanager
def accepted(numbers: Collection[int]) -> Iterator[None]:
    """Go on behind the block where the server refuses with one of these numbers."""
    try:
        yield
    except pymysql.err.MySQLError as err:
        if _refusal(err).number not in numbers:
            raise
