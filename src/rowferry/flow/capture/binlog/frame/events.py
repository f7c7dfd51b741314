"""Events of the binary log: their codes, and the few that are read one by one.

Row events are decoded elsewhere, in columns. Bodies come without the 19-byte header and without the
checksum.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.frame.compressed import inflate_query
from rowferry.mysql.charsets import charset_of, decoded

HEADER: Final = 19

QUERY: Final = 2
STOP: Final = 3
ROTATE: Final = 4
FORMAT: Final = 15
XID: Final = 16
EXECUTE_LOAD_QUERY: Final = 18
TABLE_MAP: Final = 19
INCIDENT: Final = 26
HEARTBEAT: Final = 27
GTID: Final = 33
ANONYMOUS_GTID: Final = 34
PREVIOUS_GTIDS: Final = 35
XA_PREPARE: Final = 38
TRANSACTION_PAYLOAD: Final = 40
HEARTBEAT_V2: Final = 41
GTID_TAGGED: Final = 42
MARIA_GTID: Final = 162
MARIA_GTID_LIST: Final = 163
QUERY_COMPRESSED: Final = 165

MOST_TRANSACTIONS: Final = 2**63 - 1  # no server numbers as many
_QUERY_HEAD: Final = 13
_LOAD_HEAD: Final = 26
# Status variables of a QUERY event up to the one with the client's character set.
_SQL_MODE: Final = 1
_CHARSETS: Final = 4
_STATUS_BYTES: Final = {0: 4, _SQL_MODE: 8, 3: 4}  # flags, sql_mode, auto_increment
_STATUS_TEXTS: Final = {2: 1, 6: 0}  # the catalog: bytes behind its text
_BY_SERVER: Final = re.compile(
    rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?(?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+` \(\n  `"
)

# What an event that stops a feed is called, for the error's words.
NAMES: Final[dict[int, str]] = {
    1: "START_EVENT_V3",
    2: "QUERY_EVENT",
    5: "INTVAR_EVENT",
    6: "LOAD_EVENT",
    7: "SLAVE_EVENT",
    8: "CREATE_FILE_EVENT",
    9: "APPEND_BLOCK_EVENT",
    10: "EXEC_LOAD_EVENT",
    11: "DELETE_FILE_EVENT",
    12: "NEW_LOAD_EVENT",
    17: "BEGIN_LOAD_QUERY_EVENT",
    18: "EXECUTE_LOAD_QUERY_EVENT",
    20: "PRE_GA_WRITE_ROWS_EVENT",
    21: "PRE_GA_UPDATE_ROWS_EVENT",
    22: "PRE_GA_DELETE_ROWS_EVENT",
    26: "INCIDENT_EVENT",
    38: "XA_PREPARE_LOG_EVENT",
    40: "TRANSACTION_PAYLOAD_EVENT",
    42: "GTID_TAGGED_LOG_EVENT",
}


def event_name(code: int) -> str:
    """Return an event's name for people."""
    return NAMES.get(code, "an event that is unknown here")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the log, with the database that was current."""

    database: str
    sql: str
    sql_mode: int = 0


def parse_query(body: bytes, compressed: bool = False) -> Query:
    """Read a QUERY event (MariaDB's compressed form too)."""
    if len(body) < _QUERY_HEAD:
        raise CorruptLog(f"a QUERY_EVENT of {len(body)} bytes is too short")
    name_length, status_length = body[8], struct.unpack_from("<H", body, 11)[0]
    start = _QUERY_HEAD + status_length
    end = start + name_length
    if end + 1 > len(body):
        raise CorruptLog("a QUERY_EVENT ends inside its database name")
    text = body[end + 1 :]
    if compressed:
        text = inflate_query(text)
    name = body[start:end].decode(errors="replace")
    sql_mode, collation = _session(body[_QUERY_HEAD:start])
    return Query(name, _text(text, collation), sql_mode)


def parse_load(body: bytes) -> Query:
    """Read an EXECUTE_LOAD_QUERY event: a QUERY whose head says more, of a file."""
    return parse_query(body[:_QUERY_HEAD] + body[_LOAD_HEAD:])


def _session(status: bytes) -> tuple[int, int]:
    """Return the session's sql_mode and its client's collation, from the first status variables."""
    sql_mode = at = 0
    while at < len(status):
        kind, at = status[at], at + 1
        if kind == _CHARSETS:
            return sql_mode, int.from_bytes(status[at : at + 2], "little")
        if kind == _SQL_MODE:
            sql_mode = int.from_bytes(status[at : at + 8], "little")
        if kind in _STATUS_BYTES:
            at += _STATUS_BYTES[kind]
        elif kind in _STATUS_TEXTS and at < len(status):
            at += 1 + status[at] + _STATUS_TEXTS[kind]
        else:
            break
    return sql_mode, 0


def _text(text: bytes, collation: int) -> str:
    """Return a statement as Python's text: the log has it as the client sent it.

    A definition that the server wrote itself (for CREATE TABLE … SELECT) is in UTF-8, whatever the
    client's character set is.
    """
    charset = charset_of(collation)
    if text.isascii() or charset in ("", "binary", "utf8mb3", "utf8mb4"):
        return text.decode(errors="replace")
    if _BY_SERVER.match(text):
        with suppress(UnicodeDecodeError):
            return text.decode()
    return decoded(charset, [text])[0]


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Return the next file's name and the offset in it."""
    if len(body) < 9:
        raise CorruptLog(f"a ROTATE_EVENT of {len(body)} bytes is too short")
    return body[8:].decode(errors="replace"), int.from_bytes(body[:8], "little")


def has_checksums(body: bytes) -> bool:
    """Return whether events end with a CRC-32, from a FORMAT event (its own checksum included)."""
    version = body[2:52].split(b"\0")[0].decode("ascii", "replace")
    if len(body) < 57 + 5:
        raise CorruptLog(f"a FORMAT_DESCRIPTION_EVENT of {len(body)} bytes ({version}) is short")
    algorithm = body[-5]
    if algorithm not in (0, 1):
        raise CorruptLog(f"the log uses checksum algorithm {algorithm}, which is unknown")
    return algorithm == 1


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    """What a GTID event with a tag says."""

    uuid: bytes
    tag: str
    number: int
    commit_us: int


def parse_tagged_gtid(body: bytes) -> TaggedGtid:
    """Read MySQL's GTID_TAGGED event: fields by number, in the server's serialization format.

    The message is: format version, serialized size, the last field that an old reader must know,
    then fields; each begins with its number. Integers have a variable length.
    """
    reader = _Varlen(body)
    reader.unsigned()  # format version
    reader.unsigned()  # size of the message
    reader.unsigned()  # last field that must not be ignored
    uuid, tag, number, immediate, original = b"", "", 0, 0, 0
    while reader.place < len(body):
        field = reader.unsigned()
        if field == 0:
            reader.unsigned()  # flags
        elif field == 1:
            octets = [reader.unsigned() for _ in range(16)]
            uuid = bytes(octets) if max(octets) < 256 else b""
        elif field == 2:
            number = reader.signed()
        elif field == 3:
            tag = reader.take(reader.unsigned()).decode("ascii", "replace")
        elif field in (4, 5):
            reader.signed()  # last committed, sequence number
        elif field == 6:
            immediate = reader.unsigned()
        elif field == 7:
            original = reader.unsigned()
        elif field in (8, 9, 10, 11):
            reader.unsigned()  # transaction length, server versions, commit group ticket
        else:
            break
    if len(uuid) != 16 or not 0 < number < MOST_TRANSACTIONS:
        raise CorruptLog("a GTID_TAGGED_LOG_EVENT names no transaction")
    return TaggedGtid(uuid, tag, number, original or immediate)


class _Varlen:
    """Reads MySQL's variable-length integers: the low bits of the first byte give the length."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.place = 0

    def take(self, count: int) -> bytes:
        content = self._body[self.place : self.place + count]
        if len(content) < count:
            raise CorruptLog("a GTID_TAGGED_LOG_EVENT is cut off")
        self.place += count
        return content

    def unsigned(self) -> int:
        first = self.take(1)[0]
        more = 0
        while more < 8 and first >> more & 1:
            more += 1
        rest = int.from_bytes(self.take(more), "little")
        if more == 8:
            return rest
        return (first >> (more + 1)) | (rest << (7 - more))

    def signed(self) -> int:
        number = self.unsigned()
        return (number >> 1) ^ -(number & 1)
