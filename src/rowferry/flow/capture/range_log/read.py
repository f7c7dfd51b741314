"""The task's half: pull one segment's snapshot part or log stretch and decode it into chunks.

A segment names key spans and log indexes, not servers: the task asks the master who leads the span
now. A range that was split since is read from its children, which serve the parent's log below the
split under the parent's indexes; so a recorded segment gives the same rows in the same order,
however the ranges have moved. The order is: commit-ts; in a transaction deletes first; then keys (a
range's log has a transaction's entries in key order, and spans are merged in key order).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Segment
from rowferry.change.table import TableSchema
from rowferry.errors import CorruptLog, LogLost, SnapshotGone
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.flow.capture.range_log.page import DELETE, Page, join_pages, recut
from rowferry.flow.capture.range_log.reroute import patiently

SEQ_SHIFT = 40  # a segment's rows count from ordinal << 40
_END = int(np.iinfo(np.uint64).max)


@dataclass(slots=True)
class _Piece:
    """The part of a span that one range serves now, and how far it has been pulled."""

    route: KnownRange
    start: bytes
    end: bytes
    index: int
    until: int
    page: Page | None = None
    page_from: int = 0  # the index after which `page` was pulled
    last_ts: int = 0  # of the last row that was pulled

    @property
    def done(self) -> bool:
        return self.index >= self.until

    def pull(self, client: RangeClient) -> None:
        page, reached = client.pull_log(self.route, self.index, self.until)
        if reached <= self.index:
            # What was planned was there: a leader that lags behind will have it again.
            raise Rerouted(f"range {self.route.range_id}: the log ends at index {reached}")
        times = page.commit_ts
        if len(page) and (int(times[0]) < self.last_ts or (times[1:] < times[:-1]).any()):
            raise CorruptLog(
                f"range {self.route.range_id}: commit-ts decrease in the log after {self.index}"
            )
        self.page, self.page_from, self.index = page, self.index, reached
        self.last_ts = int(times[-1]) if len(page) else self.last_ts

    def span(self, after_index: int) -> dict[str, Any]:
        start, end = self.start.hex(), self.end.hex()
        return {"start": start, "end": end, "from": after_index, "until": self.until}


def read_segment(client: RangeClient, segment: Segment, table: TableSchema) -> Iterator[Rows]:
    """Yield a segment's chunks in log order; equal on every call."""
    how = segment.read
    client.cluster_id = how.get("cluster_id", client.cluster_id)
    make = _ChunkMaker(segment, table, how.get("without_old_value", False))
    if how["kind"] == "snapshot":
        pages = (page for part in how["parts"] for page in _pull_snapshot(client, part))
        for page in recut(pages):
            yield make.snapshot(page, how["commit_ts"])
        return
    try:
        for page in recut(_changes(client, how)):
            yield make.changes(page)
    except LogLost as lost:
        # Only the planner knows what to do about it: the plan may be older than its settings.
        raise SnapshotGone(f"what was planned can no longer be read: {lost.words}") from None


def _changes(client: RangeClient, how: dict[str, Any]) -> Iterator[Page]:
    windowed = any("window" in span for span in how["spans"])
    hidden = _overtaken(client, how) if windowed else None
    for page in _merge(client, how):
        kept = page if hidden is None else page.take(~hidden.mask(page))
        if len(kept):
            yield kept


# --- snapshots -----------------------------------------------------------------------------------


def _pull_snapshot(client: RangeClient, part: dict[str, Any]) -> Iterator[Page]:
    """Yield the rows of one part (last_key, end_key) of a range's snapshot, in key order."""
    end = bytes.fromhex(part["end"])
    last = part["last"]
    start = bytes.fromhex(max(part["last"], part["start"]))  # a split child may begin after `last`
    while True:

        def pull(start: bytes = start, last: str = last) -> tuple[Page, bool, KnownRange]:
            route = _covering(client, start, start + b"\0")[0]
            # The range may begin after `last` (it was split there): then read from its start.
            after = last if bytes.fromhex(last) >= route.start_key else ""
            stop = end if not route.end_key or (end and end < route.end_key) else b""
            page, ended = client.pull_snapshot(route, part["version"], after, stop.hex())
            return page, ended, route

        page, ended, route = patiently(pull, f"snapshot of range {part['range_id']}")
        if len(page):
            yield page
            start = page.key(len(page) - 1)
            if start.hex() <= last:
                raise CorruptLog(f"range {route.range_id}: a snapshot answer goes back to {last}")
            last = start.hex()
        elif not ended:
            raise CorruptLog(
                f"range {route.range_id}: an empty snapshot answer that is not the end"
            )
        if ended:
            if not route.end_key or (end and end <= route.end_key):
                return
            start = route.end_key  # the next child of a split range
            last = ""


# --- logs ----------------------------------------------------------------------------------------


def _pieces(client: RangeClient, span: dict[str, Any]) -> list[_Piece]:
    start, end = bytes.fromhex(span["start"]), bytes.fromhex(span["end"])
    return [
        _Piece(r, max(start, r.start_key), _least(end, r.end_key), span["from"], span["until"])
        for r in _covering(client, start, end)
    ]


def _covering(client: RangeClient, start: bytes, end: bytes) -> list[KnownRange]:
    """Return the ranges that hold all keys in [start, end); raises Rerouted if some are in none."""
    ranges = client.routes(start, end)
    reached = start
    for route in ranges:
        if route.start_key > reached:
            break
        reached = route.end_key
        if not reached or (end and reached >= end):
            return ranges
    raise Rerouted(f"no range holds key {reached.hex()}")


def _routed(client: RangeClient, span: dict[str, Any]) -> list[_Piece]:
    return patiently(partial(_pieces, client, span), "routes of a log segment")


def _least(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two upper bounds, where empty means "no bound"."""
    return min(a, b) if a and b else a or b


def _fill(client: RangeClient, piece: _Piece) -> list[_Piece]:
    """Pull until the piece holds rows or is done; returns it, or its successors after a split."""
    while (piece.page is None or len(piece.page) == 0) and not piece.done:
        try:
            piece.pull(client)
        except Rerouted:
            span = piece.span(piece.index)
            successors = patiently(partial(_settled, client, span), "routes of a log segment")
            return [p for s in successors for p in _fill(client, s)]
    return [piece] if piece.page is not None and len(piece.page) else []


def _settled(client: RangeClient, span: dict[str, Any]) -> list[_Piece]:
    """Return the span's pieces, each with a page pulled: proof that the routes are right."""
    pieces = _pieces(client, span)
    for piece in pieces:
        piece.pull(client)
    return pieces


def _merge(client: RangeClient, how: dict[str, Any]) -> Iterator[Page]:
    """Yield the changes of all spans in commit-ts order, deletes first inside a transaction."""
    after, until = np.uint64(how["after_ts"]), np.uint64(how["until_ts"])
    pieces = [p for span in how["spans"] for p in _routed(client, span)]
    while pieces := [p for piece in pieces for p in _fill(client, piece)]:
        frontier = min((_last_ts(p) for p in pieces if not p.done), default=_END)
        taken = [page for p in pieces if (page := _cut_below(p, frontier)) is not None]
        pages = [_in_order(join_pages(taken))] if taken else _large(client, pieces, frontier)
        for page in pages:
            keep = (page.commit_ts > after) & (page.commit_ts <= until)
            if keep.any():
                yield page if keep.all() else page.take(keep)
        if not taken:
            after = max(after, np.uint64(frontier))  # a piece that moved may bring it once more


def _cut_below(piece: _Piece, frontier: int) -> Page | None:
    """Take from a piece what no page that is still to come can precede.

    A piece that has more to pull may bring further rows at its page's last commit-ts, so only rows
    below the smallest such commit-ts (the frontier) are safe.
    """
    page = piece.page
    assert page is not None
    cut = len(page)
    if frontier != _END:
        cut = int(np.searchsorted(page.commit_ts, np.uint64(frontier), "left"))
    piece.page = page.slice(cut, len(page))
    return page.slice(0, cut) if cut else None


def _large(client: RangeClient, pieces: list[_Piece], commit_ts: int) -> Iterator[Page]:
    """Yield a transaction that is larger than a page, in the same order as a small one.

    It never gets below the frontier. It is pulled twice, first for its deletes and then for the
    rest, so that it is never held in memory; then the pieces continue behind it.
    """
    spans = [p.span(p.page_from) for p in pieces]
    for deletes in (True, False):
        for span in spans:
            for page in _pages_until(client, span, commit_ts):
                wanted = (page.commit_ts == commit_ts) & ((page.kind == DELETE) == deletes)
                if wanted.any():
                    yield page.take(wanted)
    for piece in pieces:
        while piece.page is not None and len(piece.page):
            page = piece.page
            cut = int(np.searchsorted(page.commit_ts, np.uint64(commit_ts), "right"))
            piece.page = page.slice(cut, len(page))
            if cut < len(page) or piece.done:
                break
            try:
                piece.pull(client)
            except Rerouted:
                break  # the next round asks for routes again


def _pages_until(client: RangeClient, span: dict[str, Any], commit_ts: int) -> Iterator[Page]:
    """Yield a span's pages up to the last row of that commit-ts, whatever becomes of its ranges."""
    waiting = _routed(client, span)
    while waiting:
        filled = _fill(client, waiting[0])
        waiting = filled + waiting[1:]
        if filled:
            page = filled[0].page
            assert page is not None
            yield page
            filled[0].page = None
            if int(page.commit_ts[-1]) > commit_ts:
                waiting = waiting[1:]


def _last_ts(piece: _Piece) -> int:
    assert piece.page is not None
    return int(piece.page.commit_ts[-1])


def _in_order(page: Page) -> Page:
    writes = (page.kind != DELETE).astype(np.int8)
    order = np.lexsort((writes, page.commit_ts))
    if (order == np.arange(len(order))).all():
        return page
    return page.take(order)


# --- older images of keys that a newer snapshot holds --------------------------------------------


class _Overtaken:
    """The keys that the newest snapshot holds although the log before it changed them.

    Their images in the log up to that snapshot are older than what was delivered from it. Keys that
    the newest snapshot lacks are not among them: their deletes must go out.
    """

    def __init__(self, until_ts: dict[bytes, int]) -> None:
        self._until_ts = until_ts
        self._latest = np.uint64(max(until_ts.values(), default=0))

    def mask(self, page: Page) -> npt.NDArray[np.bool_]:
        """Return which changes of a page are such older images."""
        is_older = np.zeros(len(page), np.bool_)
        for place in np.flatnonzero(page.commit_ts <= self._latest):
            until = self._until_ts.get(page.key(int(place)), 0)
            is_older[place] = int(page.commit_ts[place]) <= until
        return is_older


def _overtaken(client: RangeClient, how: dict[str, Any]) -> _Overtaken:
    """Find, for each span, the keys whose last change up to its newest snapshot is a write.

    Row by row: this happens only after a snapshot was lost, and only for the log in between.
    """
    until_ts: dict[bytes, int] = {}
    for span in how["spans"]:
        window = span.get("window")
        if window is None:
            continue
        first, last, newest_ts = window
        written: dict[bytes, bool] = {}
        for page in _pages_until(client, {**span, "from": first, "until": last}, _END):
            for place in range(len(page)):
                written[page.key(place)] = page.kind[place] != DELETE
        until_ts.update((key, newest_ts) for key, held in written.items() if held)
    return _Overtaken(until_ts)


# --- chunks --------------------------------------------------------------------------------------


class _ChunkMaker:
    """Decodes pages of one segment into chunks, numbering the rows."""

    def __init__(self, segment: Segment, table: TableSchema, without_old_value: bool) -> None:
        self._table = table
        self._decoder = RowDecoder(table)
        self._physical_id = segment.slices[0].physical_id
        self._seq = segment.ordinal << SEQ_SHIFT
        self._without_old_value = without_old_value

    def snapshot(self, page: Page, commit_ts: int) -> Rows:
        """Return a page of a snapshot: inserts with the table's one commit-ts."""
        count = len(page)
        after = self._image(page, page.value_at, page.value_len)
        op = pa.array(np.zeros(count, np.int8))
        times = pa.array(np.full(count, commit_ts, np.uint64))
        return self._rows(op, times, _nulls(self._before_type(), count), after)

    def changes(self, page: Page) -> Rows:
        """Return a page of a log."""
        gone = page.kind == DELETE
        op = np.where(gone, Op.DELETE, np.where(page.old_len >= 0, Op.UPDATE, Op.INSERT))
        after = self._image(page, page.value_at, np.where(gone, -1, page.value_len))
        if self._without_old_value:
            before = self._keys_of_deletes(page, gone)
        elif (page.old_len >= 0).any():
            before = self._image(page, page.old_at, page.old_len)
        else:
            before = _nulls(self._before_type(), len(page))
        return self._rows(pa.array(op.astype(np.int8)), pa.array(page.commit_ts), before, after)

    def _image(self, page: Page, at: npt.NDArray[Any], size: npt.NDArray[Any]) -> pa.StructArray:
        return self._decoder.decode(page.raw, page.key_at, page.key_len, at, size)

    def _keys_of_deletes(self, page: Page, gone: npt.NDArray[np.bool_]) -> pa.StructArray:
        keys = self._decoder.decode_keys(page.raw, page.key_at, page.key_len)
        return pa.StructArray.from_arrays(
            keys.flatten(), fields=list(keys.type), mask=pa.array(~gone)
        )

    def _before_type(self) -> pa.StructType:
        if not self._without_old_value:
            return self._table.image
        none = np.empty(0, np.int64)
        return self._decoder.decode_keys(np.empty(0, np.uint8), none, none).type

    def _rows(
        self, op: pa.Array, commit_ts: pa.Array, before: pa.StructArray, after: pa.StructArray
    ) -> Rows:
        count = len(op)
        seq = pa.array(np.arange(self._seq, self._seq + count, dtype=np.int64))
        self._seq += count
        return make_rows(self._table, op, commit_ts, seq, before, after, self._physical_id)


def _nulls(kind: pa.StructType, count: int) -> pa.StructArray:
    return pa.nulls(count, kind)
