"""Packets become transactions: windows of many packets, side by side where rows are apart."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet

PieceT = TypeVar("PieceT")
EffectT = TypeVar("EffectT", bound=Sized)
Chains: TypeAlias = list[list[Sequence[PieceT]]]
"""Chains of transactions, each of pieces: chains go side by side, those of one in order."""
Window: TypeAlias = tuple[list[RowFrame], int]
"""Frames of many packets, and the epoch of whoever sends them."""


class SqlWindows(ABC, Generic[PieceT]):
    """Applies what comes in windows; inside a window only the net effect of each key counts.

    The next window is gathered, and what to do with it is found, while one is applied; it is
    applied when that one is done.
    """

    def __init__(
        self, apply: Callable[[Sequence[PieceT], int, threading.Event], None], workers: int
    ) -> None:
        """Apply by `apply`: some pieces as one transaction of an epoch."""
        self._apply_one, self._workers = apply, workers

    @abstractmethod
    def _windows(self, packets: Iterator[Packet], stop: threading.Event) -> Iterator[Window]:
        """Yield windows; `stop` tells others that the work is given up."""

    @abstractmethod
    def _steps(self, frames: list[RowFrame]) -> Sequence[Chains[PieceT]]:
        """Return what is to be done with a window, step by step."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply all packets; on return they are durable."""
        stop = threading.Event()
        with ThreadPoolExecutor(self._workers) as pool, ThreadPoolExecutor(1) as gate:
            under_way: Future[None] | None = None
            try:
                for frames, epoch in self._windows(packets, stop):
                    steps = self._steps(frames)
                    if under_way is not None:
                        under_way.result()
                    under_way = gate.submit(self._apply, steps, epoch, pool, stop)
                if under_way is not None:
                    under_way.result()
            except BaseException:
                stop.set()
                raise

    def _apply(
        self,
        steps: Sequence[Chains[PieceT]],
        epoch: int,
        pool: ThreadPoolExecutor,
        stop: threading.Event,
    ) -> None:
        def run(chain: list[Sequence[PieceT]]) -> None:
            for pieces in chain:
                if stop.is_set():
                    return
                self._apply_one(pieces, epoch, stop)

        for chains in steps:
            if len(chains) == 1:
                run(chains[0])
                continue
            calls = [pool.submit(run, chain) for chain in chains]
            done, left = wait(calls, return_when=FIRST_EXCEPTION)
            failed = [error for call in done if (error := call.exception()) is not None]
            if failed:
                stop.set()
                wait(left)
                # What stops the changefeed is worth more than what others met on the way.
                raise min(failed, key=_is_passing)


def _is_passing(error: BaseException) -> bool:
    return not isinstance(error, RowferryError) or error.verdict is not Verdict.STOP


def frames_of(packet: Packet) -> Iterator[RowFrame]:
    """Yield the frames of a packet, in their order."""
    keys, values = packet.messages.keys, packet.messages.values
    for place in range(len(values)):
        key = None if keys is None else keys[place].as_py()
        yield RowFrame.from_message(key, values[place].as_buffer())


def gathered(
    frames: Iterable[tuple[RowFrame, int]], most: int, form: Callable[[TableSchema], object]
) -> Iterator[Window]:
    """Yield windows of about `most` bytes, in which a table has one form, such as its key."""
    held: list[RowFrame] = []
    size, epoch = 0, 0
    forms: dict[TableId, object] = {}
    for frame, epoch in frames:
        name, own = frame.table.written_as, form(frame.table)
        if size >= most or forms.setdefault(name, own) != own:
            yield held, epoch
            held, size, forms = [], 0, {name: own}
        held.append(frame)
        size += frame.nbytes
    if held:
        yield held, epoch


def by_table(frames: Iterable[RowFrame]) -> dict[TableId, list[RowFrame]]:
    """Return the frames of each table, in their order."""
    groups: dict[TableId, list[RowFrame]] = {}
    for frame in frames:
        groups.setdefault(frame.table.written_as, []).append(frame)
    return groups


def is_sole_key(table: TableSchema) -> bool:
    """Return whether rows can stand in each other's way by their handle key alone."""
    return sum(1 for i in table.indexes if i.primary or i.unique) == 1


def net_places(
    frames: list[RowFrame], op: npt.NDArray[np.int8], keys: pa.LargeBinaryArray, sole: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of keys to delete, and of rows to write, of changes in their order.

    Of each key the last change counts. A key that was deleted on the way is deleted first where
    the table has other unique keys, too (`sole`: it has none): the row that it became may have
    others' values in those.
    """
    codes = keys.dictionary_encode().indices.to_numpy()
    distinct = int(codes.max()) + 1 if len(codes) else 0
    last = np.zeros(distinct, np.int64)
    last[codes] = np.arange(len(codes))  # of equal codes the last one stays
    stays = op[last] != Op.DELETE
    gone = ~stays
    if not sole:
        gone[codes[op == Op.DELETE]] = True
    # Rows that were written together are often neighbours in the table: lanes come one after the
    # other, so the log's own order is restored.
    order = np.argsort(np.concatenate([f.seq for f in frames])[last], kind="stable")
    return last[order[gone[order]]], last[order[stays[order]]]


def together(effects: Iterable[EffectT], most: int) -> Iterator[list[EffectT]]:
    """Yield small effects, as many together as make up a transaction of `most` rows."""
    held: list[EffectT] = []
    rows = 0
    for effect in effects:
        if held and rows + len(effect) > most:
            yield held
            held, rows = [], 0
        held.append(effect)
        rows += len(effect)
    if held:
        yield held
