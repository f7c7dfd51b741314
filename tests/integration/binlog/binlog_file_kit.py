"""Reads rows out of a server's log file: the simplest way from a statement to its row images."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rowferry.change.chunk import Rows
from rowferry.change.table import TableSchema
from rowferry.flow.capture.binlog.decode.rows_events import RowEvents, RowsDecoder
from rowferry.flow.capture.binlog.decode.table_map import MappedTable, infer_schema, parse_table_map
from rowferry.flow.capture.binlog.frame.compressed import inflate_payload
from rowferry.mysql.session import Flavour
from rowferry.testing.servers import Server

_HEADER = 19
_TABLE_MAP, _PAYLOAD = 19, 40
ROWS = (23, 24, 25, 30, 31, 32, 39, *range(166, 172))


@dataclass
class Logged:
    """What the statements inside `logged` left: events as (code, body), in order."""

    flavour: Flavour
    events: list[tuple[int, bytes]] = field(default_factory=list)

    def codes(self) -> set[int]:
        return {code for code, _ in self.events}

    def plain(self) -> Iterator[tuple[int, bytes]]:
        """Give the events, those of compressed transactions too."""
        for code, body in self.events:
            if code != _PAYLOAD:
                yield code, body
                continue
            pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
            for block in inflate_payload(pieces):
                yield from _events(block.tobytes(), 0)

    def rows(
        self,
        schema_of: Callable[[MappedTable], TableSchema] = lambda m: infer_schema(m, None),
        allow_partial: bool = False,
        by_partition: bool = False,
    ) -> list[Rows]:
        """Decode all rows; each table's in log order."""
        maps: dict[int, MappedTable] = {}
        found: dict[MappedTable, list[tuple[int, bytes]]] = {}
        for code, body in self.plain():
            number = int.from_bytes(body[:6], "little")
            if code == _TABLE_MAP:
                maps[number] = parse_table_map(body, self.flavour)
            elif code in ROWS:
                found.setdefault(maps[number], []).append((code, body))
        chunks = []
        for mapped, events in found.items():
            decoder = RowsDecoder(mapped, schema_of(mapped), self.flavour, allow_partial)
            chunks += list(decoder.decode(row_events(events), by_partition))
        return chunks


def row_events(events: list[tuple[int, bytes]]) -> RowEvents:
    """Put events' bodies into one buffer."""
    end = np.cumsum([len(body) for _, body in events], dtype=np.int64)
    count = len(events)
    return RowEvents(
        data=np.frombuffer(b"".join(body for _, body in events), np.uint8),
        start=np.concatenate((np.zeros(1, np.int64), end[:-1])),
        end=end,
        code=np.array([code for code, _ in events], np.uint8),
        commit_ts=np.arange(1, count + 1, dtype=np.uint64),
        seq=np.arange(count, dtype=np.int64) << 20,
    )


@contextmanager
def logged(server: Server) -> Iterator[Logged]:
    """Collect what is logged inside; the log must be written by nobody else meanwhile."""
    server.execute("FLUSH BINARY LOGS")
    found = Logged(server.flavour)
    name = _newest(server)
    yield found
    server.execute("FLUSH BINARY LOGS")
    raw = (Path(server.datadir) / name).read_bytes()
    size = struct.unpack_from("<I", raw, 4 + 9)[0]
    checksum = 4 if raw[4 + size - 5] == 1 else 0
    found.events = [(code, body[: len(body) - checksum]) for code, body in _events(raw, 4)]


def _newest(server: Server) -> str:
    names = [str(row[0]) for row in server.execute("SHOW BINARY LOGS")]
    return names[-1]


def _events(raw: bytes, place: int) -> Iterator[tuple[int, bytes]]:
    while place < len(raw):
        size = struct.unpack_from("<I", raw, place + 9)[0]
        yield raw[place + 4], raw[place + _HEADER : place + size]
        place += size
