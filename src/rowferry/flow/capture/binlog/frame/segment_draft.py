"""A segment while it is framed: where it begins, which tables occur, the bytes to take along."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.binlog.client.packets import PacketBuffer
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes, KeptRun, LogKeeper
from rowferry.flow.capture.binlog.frame.scan import Maps, SegmentPairs


@dataclass(slots=True)
class SegmentDraft:
    """An open segment.

    Attributes:
        server, file, start: where it is read.
        last_ts: the clock before its first transaction.
        txn_ts: commit-ts of the transaction inside which it begins; 0: it begins with one.
        clamp_ms: with which the clock ticks in it.
        carried_from: index in the stream's buffer of the first byte that was not carried yet.
        xa: its rows belong to an XA transaction that is being prepared.
        by_partition: each partition of a table is a slice.
        maps: TABLE_MAPs in force where it begins, of tables that are captured.
        others: the log's numbers of the other tables that are mapped there.
        names: (database, table, partition) as the log writes them, to the place of their slice.
        carried: its bytes, without rows that nobody reads; None: too many to take along.
        keeper: keeps them for tasks of this machine then; None: it does not, or has no room.
    """

    server: str
    file: str
    start: int
    last_ts: int
    txn_ts: int
    clamp_ms: int
    first_ts: int
    carried_from: int
    xa: bool
    by_partition: bool
    maps: list[str] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    names: dict[tuple[str, str, int], int] = field(default_factory=dict)
    slices: dict[TableSlice, int] = field(default_factory=dict)
    pairs: SegmentPairs = field(default_factory=SegmentPairs)
    carried: bytearray | None = field(default_factory=bytearray)
    keeper: LogKeeper | None = None
    kept: KeptRun | None = None

    def add(self, slot: int, name: TableId, schema: TableSchema, partition: int) -> bool:
        """Add what the log's table map `slot` names (`partition` + 1; 0: none); was it new?"""
        physical = partition - 1 if partition and self.by_partition else None
        one = TableSlice(schema.id, schema.table_id, schema.version, physical)
        new = one not in self.slices
        place = self.slices.setdefault(one, len(self.slices))
        self.names[(*name, partition)] = place
        self.pairs.put(slot, partition, place)
        return new

    def version_of(self, table_id: int) -> int | None:
        """Return the version with which a table occurs so far."""
        return next((s.version for s in self.slices if s.table_id == table_id), None)

    def bytes_of(self, seen: list[int]) -> dict[TableSlice, int]:
        """Return how much log each slice has that occurred; at least that, never less."""
        ordered = list(self.slices)
        return {ordered[p]: int(self.pairs.seen_bytes[p]) for p in seen}

    def carry(self, stream: PacketBuffer, behind: int, tail: int, maps: Maps, most: int) -> None:
        """Take along what a reader needs of a buffer, up to `behind`; `most` bytes at most.

        `maps` tells which tables are captured; `tail` is the size of a checksum.
        """
        begin = max(stream.start, self.carried_from)
        if behind <= begin or (self.carried is None and self.keeper is None):
            return
        self.carried_from = behind
        joined = _inside(stream.joined, begin, behind)
        # Of joined packets the headers tell no length: what follows would not be understood. And
        # where all is needed, looking for the rest costs as much as keeping it.
        if joined or (self.carried is None and maps.all_captured):
            needed = stream.data[begin:behind].data
        else:
            needed = maps.needed(stream.data, begin, behind, tail)
        if self.carried is not None:
            if not joined and len(self.carried) + len(needed) <= most:
                self.carried += needed
                return
            self._keep(self.carried)
            self.carried = None
        self._keep(needed, joined)

    def ask_for_bytes(self) -> None:
        """Take no bytes along: who reads the segment asks the server for them."""
        self.carried = self.keeper = self.kept = None

    def _keep(
        self, data: bytearray | memoryview, joined: list[tuple[int, int]] | None = None
    ) -> None:
        """Keep bytes for tasks of this machine, all of them or none."""
        if self.keeper is None:
            return
        if self.kept is None:
            self.kept = self.keeper.begin()
        if self.kept is None or not self.kept.append(memoryview(data), joined or ()):
            self.keeper = self.kept = None

    def finished(self, seen: list[int], end: int, last_ts: int, maria: bool, tail: int) -> Segment:
        """Return the segment up to a log offset, with the slices that occurred."""
        places = {old: new for new, old in enumerate(seen)}
        ordered = list(self.slices)
        read = {
            "kind": "log",
            "server": self.server,
            "file": self.file,
            "from": self.start,
            "to": end,
            "last_ts": self.last_ts,
            "txn_ts": self.txn_ts,
            "clamp_ms": self.clamp_ms,
            "fixed_ts": 0,
            "maria": maria,
            "tail": tail,
            "maps": self.maps,
            "others": self.others,
            "names": [[*n, places[p]] for n, p in self.names.items() if p in places],
            "halves": True,  # rows that move between slices leave the one and come to the other
        }
        return Segment(
            ordinal=0,
            read=read,
            slices=tuple(ordered[p] for p in seen),
            first_commit_ts=self.first_ts,
            last_commit_ts=max(self.first_ts, last_ts),
            log_bytes=end - self.start,
            near=self._near(end),
        )

    def _near(self, end: int) -> tuple[KeptBytes, ...]:
        """Return where its bytes are in this machine's memory, up to a log offset."""
        if self.carried:
            return (KeptBytes(self.start, end, data=bytes(self.carried)),)
        return (self.kept.finished(self.start, end),) if self.kept else ()


def _inside(joined: npt.NDArray[np.int64], begin: int, behind: int) -> list[tuple[int, int]]:
    """Return the joined packets of a part of the buffer, with their places in it."""
    if not len(joined):
        return []
    return [(int(at) - begin, int(size)) for at, size in joined if begin <= at < behind]
