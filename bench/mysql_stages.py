"""Framing and decoding alone, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from mysql_load import Log
from mysql_profile import Spent, Stopwatch, in_this_process
from report import Figure

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog import read
from rowferry.flow.capture.binlog.client import server as source
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import MappedTable
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.scan import NONE_JOINED
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.start_lookup import position_at
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql.session import Login

BLOCK = 4 << 20
APPETITE = Appetite(lambda table: 32 << 20, 1 << 50, lambda commit_ts: "")


class Tables:
    """A scanner's table book: these tables are captured, and no statement concerns them."""

    def __init__(self, tables: dict[TableId, TableSchema]) -> None:
        self.tables = tables

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        return self.tables.get(mapped.table)

    def is_captured(self, table: TableId) -> bool:
        return table in self.tables

    def effects(self, query: ev.Query, excluded: set[int]) -> Effects | None:
        return None

    def named(self, query: ev.Query) -> str:
        return ""

    def is_mark(self, table: TableId) -> bool:
        return False

    def source_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Held:
    """A log in memory, given as a stream gives it: block by block."""

    def __init__(self, data: npt.NDArray[np.uint8], tail: int) -> None:
        self.data, self.tail = data, tail
        self.start = self.filled = 0
        self.joined = NONE_JOINED

    def fill(self) -> int:
        if self.filled == len(self.data):
            raise SourceUnavailable("the log in memory has ended")
        self.filled = min(len(self.data), self.filled + BLOCK)
        return 0

    def wait(self, _seconds: float) -> bool:
        return False  # a block is as much as a stream gives at once

    join_packets = LogStream.join_packets

    def error(self, packet: bytes) -> Exception:
        return SourceUnavailable(repr(packet))

    def close(self) -> None:
        pass


class OneCore:
    """Measures stages on a workload's log."""

    def __init__(self, login: Login, log: Log, tries: int) -> None:
        self._login, self._log, self._tries = login, log, tries
        server = source.BinlogServer(login)
        try:
            self._flavour = server.flavour
            self._position = position_at(server, log.file, log.start)
            numbers = count(1)
            found = server.tables(lambda t: t.database == log.database, lambda: next(numbers))
        finally:
            server.close()
        self._tables = {t.id: t.at(1) for t in found}

    def figures(self) -> Iterator[Figure]:
        """Measure, one after the other."""
        seconds, data, tail = self._fetch()
        yield self._figure("fetch: receive the log into memory", seconds)
        empty, full = Tables({}), Tables(self._tables)
        for words, book in (("nothing captured", empty), ("all captured", full)):
            seconds = self._best(lambda b=book: self._frame(self._stream(), b))  # type: ignore[misc]
            yield self._figure(f"frame, over the network, {words}", seconds)
        for words, book in (("nothing captured", empty), ("all captured", full)):
            seconds = self._best(lambda b=book: self._frame(Held(data, tail), b))  # type: ignore[misc]
            yield self._figure(f"frame, from memory, {words}", seconds)
        found = [self._decode(data, tail) for _ in range(self._tries)]
        yield self._decoded("decode rows events to Arrow", [d for d, _ in found])
        yield self._decoded("read as a task: frame, checksum, decode", [r for _, r in found])

    def _figure(self, name: str, seconds: float) -> Figure:
        return Figure(name, self._log.changes / seconds, self._log.size / seconds / 1e6)

    def _decoded(self, name: str, tries: list[Spent]) -> Figure:
        wall_s, cpu_s = min(t.wall_s for t in tries), min(t.cpu_s for t in tries)
        figure = self._figure(f"{name}, from memory", wall_s)
        images = self._log.images
        figure.other = {"images/s": round(images / wall_s), "per CPU s": round(images / cpu_s)}
        return figure

    def _best(self, work: Callable[[], float]) -> float:
        return min(work() for _ in range(self._tries))

    def _stream(self) -> LogStream:
        return LogStream(self._login, self._flavour, StartAt(self._log.file, self._log.start))

    def _fetch(self) -> tuple[float, npt.NDArray[np.uint8], int]:
        """Receive the log: the best time of several tries, and its bytes as they came."""
        pieces: list[bytes] = []
        best = float("inf")
        for _ in range(self._tries):
            stream, pieces = self._stream(), []
            began = last = time.perf_counter()
            while _more(stream):
                pieces.append(stream.data[stream.start : stream.filled].tobytes())
                stream.start = stream.filled
                last = time.perf_counter()
            stream.close()
            best = min(best, last - began)
        return best, np.frombuffer(bytearray().join(pieces), np.uint8), stream.tail

    def _frame(self, stream: Any, book: Tables) -> float:
        began = time.perf_counter()
        scanner = Scanner(stream, self._copy(), book, APPETITE)
        reached = scanner.frame_to(self._log.end)
        seconds = time.perf_counter() - began
        stream.close()
        if reached.offset < self._log.end:
            raise SystemExit(f"framing ended at {reached}, before {self._log.end}")
        return seconds

    def _copy(self) -> LogPosition:
        return LogPosition.from_json(self._position.to_json())

    def _decode(self, data: npt.NDArray[np.uint8], tail: int) -> tuple[Spent, Spent]:
        """Read the whole log as one segment; returns the decoder's time, and that of all."""
        segment, tables = self._segment(tail)
        watch, images = Stopwatch(), 0
        with in_this_process(watch), _from_memory(data, tail), watch.stage("the rest"):
            for rows in read.read_log(self._login, segment, tables):
                images += 2 * len(rows) - rows.before.null_count - rows.after.null_count
        if images != self._log.images:
            raise SystemExit(f"decoding gave {images} row images of {self._log.images}")
        spent = watch.spent.values()
        whole = Spent(sum(s.wall_s for s in spent), sum(s.cpu_s for s in spent))
        return watch.spent["decode"], whole

    def _segment(self, tail: int) -> tuple[Segment, dict[TableSlice, TableSchema]]:
        slices = {TableSlice(t.id, t.table_id, t.version): t for t in self._tables.values()}
        log, at = self._log, self._position
        reading = {
            "kind": "log",
            "server": at.server,
            "file": log.file,
            "from": log.start,
            "to": log.end,
            "last_ts": at.last_ts,
            "txn_ts": 0,
            "clamp_ms": time.time_ns() // 1_000_000 + 60_000,
            "fixed_ts": 0,
            "maria": at.flavour.value == "mariadb",
            "tail": tail,
            "maps": [],
            "names": [[*t.id, 0, place] for place, t in enumerate(slices.values())],
        }
        return Segment(0, reading, tuple(slices), 1, 1, log.size), slices


def _more(stream: LogStream) -> bool:
    """Wait for more of the log; False: the server has sent it all and closed the connection."""
    try:
        stream.fill()
    except SourceUnavailable:
        return False
    return True


@contextmanager
def _from_memory(data: npt.NDArray[np.uint8], tail: int) -> Iterator[None]:
    """Let tasks read a log that lies in memory."""
    with patch.object(read, "LogStream", lambda *_, **__: Held(data, tail)):
        yield
