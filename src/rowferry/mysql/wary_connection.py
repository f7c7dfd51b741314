"""The client library's connection, made wary: an answer is bounded, and an odd one has one error.

The library trusts a server to send what the protocol allows. Nothing else may: a server that is
not the one it should be, or a proxy in front of it, can send rows without end, or packets that are
cut short. Both end here as the library's own error with the number for a malformed packet, which
every caller knows how to wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.protocol import MysqlPacket

T = TypeVar("T")

MALFORMED: Final = 2027
MOST_ANSWER: Final = 1 << 30  # bytes of one answer with what its rows take as objects
_PIECE_COST: Final = 64  # beside its bytes, a piece of a packet costs about that much
# What is no odd answer: errors of the server, of the network, and of what is installed.
_OTHERS: Final = (pymysql.err.MySQLError, OSError, RuntimeError, MemoryError)


class WaryConnection(Connection):
    """A connection whose answers end, one way or the other.

    Raises:
        pymysql.err.InternalError: with the number `MALFORMED`: the answer does not follow the
            protocol, or is longer than any that is asked for here. The connection is closed.
    """

    _left = MOST_ANSWER

    def connect(self, sock: Any = None) -> None:
        """Connect, as the library does."""
        self._left = MOST_ANSWER
        self._read_as(lambda: super(WaryConnection, self).connect(sock))

    def _execute_command(self, command: Any, sql: Any) -> None:
        self._left = MOST_ANSWER
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        call = super()._read_query_result  # type: ignore[misc]
        return self._read_as(lambda: call(unbuffered=unbuffered))

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        call = super()._read_packet
        return self._read_as(lambda: call(packet_type))  # type: ignore[no-untyped-call]

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
