"""Committing a transaction: one round trip in one range, else prepared everywhere and decided once.

The range of the first key decides. Its commit makes the transaction committed; the other ranges
follow, by the client or, if that dies, by asking the deciding range.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rowferry.errors import StoreUnavailable, TransactionAborted
from rowferry.refstore.meta import RangeMeta
from rowferry.refstore.routing import NotHere, Routing, SchemaMoved
from rowferry.refstore.rows.writes import Writes
from rowferry.refstore.rpc import gather
from rowferry.wire import store_pb2 as wire

_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class TableWrites:
    """What a transaction writes to one table version, ascending by key."""

    version: int
    writes: Writes


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a transaction that falls into one range."""

    meta: RangeMeta
    version: int
    writes: Writes

    @property
    def first_key(self) -> bytes:
        """The smallest key in it."""
        key: bytes = self.writes.keys[0].as_py()
        return key

    def request(self, start_ts: int, read_ts: int, primary_key: bytes) -> wire.WriteRequest:
        """Return the wire form."""
        return wire.WriteRequest(
            target=self.meta.target(),
            start_ts=start_ts,
            read_ts=read_ts,
            schema_version=self.version,
            mutations=self.writes.form(),
            primary_key=primary_key,
            primary=bool(primary_key) and self.meta.holds(primary_key),
        )


def cut(routing: Routing, parts: Sequence[TableWrites]) -> list[Piece]:
    """Cut writes at the borders of ranges."""
    pieces = []
    for part in parts:
        start, count = 0, len(part.writes)
        while start < count:
            meta = routing.at(part.writes.keys[start].as_py())
            end = part.writes.lower_bound(meta.end)
            pieces.append(Piece(meta, part.version, part.writes.slice(start, end)))
            start = end
    return pieces


class Committer:
    """Commits the writes of one transaction, through leader changes and splits.

    An attempt is named by its start-ts. One that was refused is rolled back under that name, so the
    next has another: `start_ts`, by default `read_ts`, is that of the first.
    """

    def __init__(
        self, routing: Routing, parts: Sequence[TableWrites], read_ts: int, start_ts: int = 0
    ) -> None:
        self._routing, self._parts, self._read_ts = routing, parts, read_ts
        self._start_ts = start_ts or read_ts
        self._end = time.monotonic() + routing.patience_s

    def commit(self) -> int:
        """Commit and return the commit-ts.

        Raises:
            TransactionAborted: nothing was written; the transaction may be run again.
            SchemaMoved: nothing was written; encode anew.
            StoreUnavailable: the text says whether the outcome is unknown.
        """
        while True:
            try:
                pieces = cut(self._routing, self._parts)
                if len(pieces) == 1:
                    return self._write(pieces[0])
                self.prepare(pieces)
                return self._decide(pieces)
            except NotHere as err:
                self._pause(str(err))

    def _pause(self, words: str) -> None:
        if time.monotonic() > self._end:
            raise StoreUnavailable(f"{words}; nothing was written") from None
        time.sleep(_PAUSE_S)
        self._routing.forget()
        self._start_ts = self._routing.timestamp()

    def _write(self, piece: Piece) -> int:
        request = piece.request(self._start_ts, self._read_ts, b"")
        try:
            return self._routing.call(piece.meta, "Write", request, wire.WriteReply, 60.0).commit_ts
        except StoreUnavailable as err:
            commit_ts = self._outcome(piece.first_key, err)
            if commit_ts:
                return commit_ts
            raise NotHere(str(err)) from None

    def outcome(self, patience_s: float) -> int:
        """Return the commit-ts of a commit that ended in doubt; 0: it can never come true.

        Raises:
            StoreUnavailable: the deciding range did not answer for so long.
        """
        first_key: bytes = self._parts[0].writes.keys[0].as_py()
        self._end = time.monotonic() + patience_s
        return self._outcome(first_key, StoreUnavailable("asked what became of it"))

    def _outcome(self, key: bytes, err: StoreUnavailable) -> int:
        """Return the commit-ts of a write whose answer was lost; 0: it is rolled back for good."""
        while True:
            try:
                meta = self._routing.at(key)
                request = wire.StatusRequest(key=key, start_ts=self._start_ts)
                reply = self._routing.call(meta, "Status", request, wire.StatusReply, 5.0)
                if reply.status != wire.StatusReply.PENDING:
                    return reply.commit_ts
            except (NotHere, StoreUnavailable):
                self._routing.forget()
            if time.monotonic() > self._end:
                words = "whether the transaction was committed is unknown"
                raise StoreUnavailable(f"{err.words}; {words}") from None
            time.sleep(_PAUSE_S)

    def prepare(self, pieces: list[Piece]) -> None:
        """Prepare in all ranges; on raise it is rolled back in those that can be reached."""
        primary_key = pieces[0].first_key

        def one(piece: Piece) -> None:
            request = piece.request(self._start_ts, self._read_ts, primary_key)
            self._routing.call(piece.meta, "Prepare", request, wire.EndReply)

        try:
            gather(self._routing.pool, [partial(one, piece) for piece in pieces])
        except (NotHere, SchemaMoved, StoreUnavailable, TransactionAborted) as err:
            self._roll_back(pieces)
            if isinstance(err, StoreUnavailable):
                raise NotHere(str(err)) from None
            raise
        except BaseException:
            self._roll_back(pieces)
            raise

    def _roll_back(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            request = wire.EndRequest(target=piece.meta.target(), start_ts=self._start_ts)
            try:
                self._routing.call(piece.meta, "Rollback", request, wire.EndReply, 2.0)
            except (NotHere, StoreUnavailable):
                continue  # it expires there

    def _decide(self, pieces: list[Piece]) -> int:
        commit_ts = self._routing.timestamp()
        self.end(pieces[0], commit_ts)
        try:
            jobs = [partial(self.end, piece, commit_ts) for piece in pieces[1:]]
            gather(self._routing.pool, jobs)
        except (StoreUnavailable, TransactionAborted):
            pass  # it is committed: these ranges will ask the deciding one
        return commit_ts

    def end(self, piece: Piece, commit_ts: int) -> None:
        """Commit a prepared piece, wherever its range is led now."""
        meta = piece.meta
        while True:
            try:
                request = wire.EndRequest(
                    target=meta.target(), start_ts=self._start_ts, commit_ts=commit_ts
                )
                self._routing.call(meta, "Commit", request, wire.EndReply)
                return
            except (NotHere, StoreUnavailable) as err:
                if time.monotonic() > self._end:
                    words = "whether the transaction was committed is unknown"
                    raise StoreUnavailable(f"{err}; {words}") from None
            time.sleep(_PAUSE_S)
            self._routing.forget()
            try:
                meta = self._routing.at(piece.first_key)
            except (NotHere, StoreUnavailable):
                continue
