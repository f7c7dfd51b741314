"""The log as a stream: a replication connection and its packets in large blocks.

One kind of stream waits for new events and has a replica's server id (the planner's). The other
has server id 0, as a log reader without a replica's role: it registers nowhere, cannot clash, and
ends at the end of the log (the tasks').
"""

from __future__ import annotations

import select
import ssl
import struct
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from rowferry.errors import CorruptLog, SourceUnavailable
from rowferry.flow.capture.binlog.client.gtid import GtidSet
from rowferry.flow.capture.binlog.client.packets import FIRST_ROOM, PacketBuffer
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.session import Flavour, Login

_DUMP: Final = 0x12
_REGISTER: Final = 0x15
_DUMP_GTID: Final = 0x1E
_NON_BLOCK: Final = 1
_ANNOTATIONS: Final = 2
_THROUGH_GTID: Final = 4
# From here on MariaDB's events do not tell where they end inside a transaction. It is counted, so
# nothing may be left out of the stream that is in the file.
_NO_END_POSITIONS: Final = (11, 4, 0)
FAR: Final = 1 << 32  # a plain dump's offset has four bytes


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a stream begins: behind transactions (`gtids`), or at a place of a file."""

    file: str = ""
    offset: int = 4
    gtids: str = ""


class LogStream(PacketBuffer):
    """Packets of the log from a connection of its own."""

    def __init__(
        self,
        login: Login,
        flavour: Flavour,
        start: StartAt,
        server_id: int = 0,
        server: str = "",
        room: int = FIRST_ROOM,
    ) -> None:
        """Connect and ask for the log; `room` bytes of it are taken at once without moving them.

        Raises:
            LoginRefused, SourceUnavailable, SourceMoved: as `session.connect_to`; a refused start
                comes with the first packet.
        """
        moment("open log")
        super().__init__(login, max(room, FIRST_ROOM))
        self._connection = session.connect_to(login, server)
        try:
            self._ask(flavour, start, server_id)
        except BaseException:
            self._connection.close()
            raise
        self._socket = session.socket_of(self._connection)
        self._socket.settimeout(login.read_timeout_s)
        self._heard = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Return whether bytes have arrived, after waiting for some at most so long.

        Raises:
            SourceUnavailable: the server was silent for longer than it may, heartbeats included.
        """
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        if select.select([self._socket], [], [], seconds)[0]:
            self._heard = time.monotonic()
            return True
        if time.monotonic() - self._heard > self._login.read_timeout_s:
            raise SourceUnavailable(f"{self._login} has sent nothing, not even a heartbeat")
        return False

    def _receive(self, room: memoryview) -> int:
        moment("receive log")
        try:
            got = self._socket.recv_into(room)
        except (OSError, ValueError) as err:
            raise SourceUnavailable(f"{self._login} stopped sending the log: {err}") from None
        if not got:
            raise SourceUnavailable(f"{self._login} closed the log's connection")
        return got

    def close(self) -> None:
        """Close the connection; a waiting `fill` ends with an error."""
        try:
            self._socket.shutdown(2)
        except (OSError, AttributeError):
            pass
        self._connection.close() if self._connection.open else None

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, flavour: Flavour, start: StartAt, server_id: int) -> None:
        moment("ask for log")
        run = self._run
        kind, version = session.one_row(
            self._connection, self._login, "SELECT @@global.binlog_checksum, VERSION()"
        )
        self.tail = 0 if kind.upper() == "NONE" else 4
        period = max(1, int(self._login.read_timeout_s / 3 * 1_000_000_000))
        if flavour is Flavour.MARIADB:
            run(f"SET @master_heartbeat_period = {period}")
            run("SET @master_binlog_checksum = @@global.binlog_checksum")
            run("SET @mariadb_slave_capability = 4")
            if start.gtids or not start.file:
                run("SET @slave_connect_state = %s", start.gtids)
                run("SET @slave_gtid_strict_mode = 0, @slave_gtid_ignore_duplicates = 0")
        else:
            run(f"SET @source_heartbeat_period = {period}, @master_heartbeat_period = {period}")
            run(
                "SET @source_binlog_checksum = @@global.binlog_checksum, "
                "@master_binlog_checksum = @@global.binlog_checksum"
            )
            if server_id:
                me = str(uuid.uuid4())
                run("SET @replica_uuid = %s, @slave_uuid = %s", me, me)
        if server_id:
            self._register(server_id)
        flags = 0 if server_id else _NON_BLOCK
        if flavour is Flavour.MARIADB and session.version_numbers(version) >= _NO_END_POSITIONS:
            flags |= _ANNOTATIONS
        by_gtid = flavour is Flavour.MYSQL and (not start.file or start.offset >= FAR)
        if by_gtid:
            self._send(_DUMP_GTID, _dump_gtid(flags, server_id, start))
        else:
            file = "" if flavour is Flavour.MARIADB and start.gtids else start.file
            offset = 4 if not file else start.offset
            if offset >= FAR:
                raise CorruptLog(f"{file}:{offset} lies behind what a plain dump can name")
            head = struct.pack("<IHI", offset, flags, server_id)
            self._send(_DUMP, head + file.encode())

    def _register(self, server_id: int) -> None:
        body = (
            struct.pack("<I", server_id) + b"\x08rowferry" + b"\0\0" + struct.pack("<HII", 0, 0, 0)
        )
        self._send(_REGISTER, body)
        session.read_answer(self._connection, self._login)

    def _run(self, sql: str, *values: Any) -> None:
        session.rows(self._connection, self._login, sql, values)

    def _send(self, command: int, body: bytes) -> None:
        session.send_command(self._connection, self._login, command, body)


def _dump_gtid(flags: int, server_id: int, start: StartAt) -> bytes:
    file = start.file.encode()
    executed = (GtidSet.parse(start.gtids) if not start.file else GtidSet.parse("")).encode()
    if not start.file:
        flags |= _THROUGH_GTID
    return (
        struct.pack("<HII", flags, server_id, len(file))
        + file
        + struct.pack("<Q", start.offset)
        + struct.pack("<I", len(executed))
        + executed
    )
