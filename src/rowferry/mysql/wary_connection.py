"""The client library's connection, made wary: an answer is bounded, and an odd one has one error.

The library trusts a server to send what the protocol allows. Nothing else may: a server that is
not the one it should be, or a proxy in front of it, can send rows without end, or packets that are
cut short. Both end here as the library's own error with the number for a malformed packet, which
every caller knows how to wrap.

What a text means in a statement depends on the session's sql_mode. The server tells in each answer
whether a backslash escapes; one that says otherwise than the session was told ends it here, before
another statement is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import SERVER_STATUS
from pymysql.protocol import MysqlPacket

T = TypeVar("T")

MALFORMED: Final = 2027
# Numbers of our own, among those of clients' errors, that no server and no library uses.
MODE_CHANGED: Final = 2950
MODE_REFUSED: Final = 2951
MOST_ANSWER: Final = 1 << 30  # bytes of one answer with what its rows take as objects
_PIECE_COST: Final = 64  # beside its bytes, a piece of a packet costs about that much
# What is no odd answer: errors of the server, of the network, and of what is installed.
_OTHERS: Final = (pymysql.err.MySQLError, OSError, RuntimeError, MemoryError)
_NO_ESCAPES: Final = SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES
_EOF, _EOF_SIZE = 0xFE, 5


class WaryConnection(Connection):
    """A connection whose answers end, one way or the other.

    Raises:
        pymysql.err.InternalError: with the number `MALFORMED`: the answer does not follow the
            protocol, or is longer than any that is asked for here. The connection is closed.
        pymysql.err.OperationalError: with the number `MODE_CHANGED`: somebody else has changed the
            session's sql_mode; a new connection may work. With `MODE_REFUSED`: the server did not
            take the one that it was given. The connection is closed.
    """

    server_status: int  # the library's; of the last answer
    _left = MOST_ANSWER
    _watched: bool | None = None  # whether backslashes are plain characters; None: not looked at

    def __init__(self, *args: Any, plain_backslashes: bool | None = None, **named: Any) -> None:
        """Connect, as the library does.

        Args:
            args: as the library's.
            plain_backslashes: whether the sql_mode that `init_command` sets has
                NO_BACKSLASH_ESCAPES; None: it sets none, and the server's own counts.
            named: as the library's.
        """
        self._plain_backslashes = plain_backslashes
        super().__init__(*args, **named)

    def connect(self, sock: Any = None) -> None:
        """Connect, as the library does; from its end on, the sql_mode is watched."""
        self._left, self._watched = MOST_ANSWER, None
        self._read_as(lambda: super(WaryConnection, self).connect(sock))
        plain = bool(self.server_status & _NO_ESCAPES)
        if self._plain_backslashes not in (None, plain):
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.err.OperationalError(
                MODE_REFUSED,
                f"the server {_has(plain)}, although the session's sql_mode was set otherwise; "
                "let what stands between (a proxy, a pooler) pass on SET sql_mode",
            )
        self._watched = plain

    def set_mode(self, mode: str, *more: str) -> None:
        """Set the session's sql_mode, and other variables in the same statement.

        This is the only way to set one that differs in NO_BACKSLASH_ESCAPES.
        """
        self._watched = "NO_BACKSLASH_ESCAPES" in mode
        self.query(", ".join((f"SET sql_mode = '{mode}'", *more)))

    def check_status(self, status: int) -> None:
        """Compare what the server says of the session with what the session was told.

        Raises:
            pymysql.err.OperationalError: with the number `MODE_CHANGED`; the connection is closed.
        """
        plain = bool(status & _NO_ESCAPES)
        if self._watched is None or plain is self._watched:
            return
        self._force_close()  # type: ignore[attr-defined]
        raise pymysql.err.OperationalError(
            MODE_CHANGED,
            f"somebody else has changed the session's sql_mode: it now {_has(plain)}; the "
            "connection is closed. Look for SET sql_mode in triggers, and in proxies and poolers "
            "on the way to the server",
        )

    def _execute_command(self, command: Any, sql: Any) -> None:
        self._left = MOST_ANSWER
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        call = super()._read_query_result  # type: ignore[misc]
        answer = self._read_as(lambda: call(unbuffered=unbuffered))
        self.check_status(self.server_status)
        return answer

    def _read_ok_packet(self) -> Any:
        packet = super()._read_ok_packet()  # type: ignore[misc]
        self.check_status(self.server_status)
        return packet

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        call = super()._read_packet
        packet = self._read_as(lambda: call(packet_type))  # type: ignore[no-untyped-call]
        data = packet._data
        if len(data) == _EOF_SIZE and data[0] == _EOF:  # no row of five bytes begins so
            self.check_status(int.from_bytes(data[3:5], "little"))
        return packet

    def _read_bytes(self, num_bytes: int) -> Any:
        self._left -= num_bytes + _PIECE_COST
        if self._left < 0:
            raise self._malformed(f"the answer is longer than {MOST_ANSWER} bytes")
        return super()._read_bytes(num_bytes)  # type: ignore[misc]

    def _read_as(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _OTHERS:
            raise
        except Exception as err:
            raise self._malformed(f"{type(err).__name__} while reading it") from None

    def _malformed(self, why: str) -> pymysql.err.InternalError:
        self._force_close()  # type: ignore[attr-defined]
        return pymysql.err.InternalError(
            MALFORMED, f"the answer is not what the protocol allows: {why}"
        )


def _has(plain_backslashes: bool) -> str:
    return "has NO_BACKSLASH_ESCAPES" if plain_backslashes else "has no NO_BACKSLASH_ESCAPES"
