"""Packets become transactions: windows of many packets, tables without a key packet by packet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Final

from rowferry.change.table import TableId
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.postgresql.effects import KeyEffect, cut, net_effect
from rowferry.flow.sink.postgresql.keyless import KeylessLanes
from rowferry.flow.sink.postgresql.transactions import MergeTransactions

_WINDOW_BYTES: Final = 32 << 20  # the next one is read meanwhile
_Chains = list[list[list[KeyEffect]]]
"""Chains of transactions: chains go side by side, the transactions of one in order."""


class CopyWindows:
    """Applies what comes in windows; inside a window only the net effect of each key counts.

    The next window is gathered while one is applied; it is applied when that one is done. Small
    effects share a transaction. A large one is cut: where no row can stand in another's way its
    parts are done side by side, else one after the other.
    """

    def __init__(
        self, transactions: MergeTransactions, keyless: KeylessLanes, rows: int, workers: int
    ) -> None:
        self._transactions, self._keyless = transactions, keyless
        self._rows, self._workers = rows, workers

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply all packets; on return they are durable."""
        stop = threading.Event()
        with ThreadPoolExecutor(self._workers) as pool, ThreadPoolExecutor(1) as gate:
            under_way: Future[None] | None = None
            try:
                for frames, epoch in self._gathered(packets, stop):
                    chains = self._chains(frames)
                    if under_way is not None:
                        under_way.result()
                    under_way = gate.submit(self._side_by_side, chains, epoch, pool, stop)
                if under_way is not None:
                    under_way.result()
            except BaseException:
                stop.set()
                raise

    def _gathered(
        self, packets: Iterator[Packet], stop: threading.Event
    ) -> Iterator[tuple[list[RowFrame], int]]:
        """Yield frames of many packets, and the epoch of whoever sends them.

        A window has one version of each table. Packets of keyless tables are applied meanwhile.
        """
        held: list[RowFrame] = []
        size, epoch = 0, 0
        versions: dict[TableId, object] = {}
        for packet in packets:
            epoch = packet.epoch
            frames = list(frames_of(packet))
            if frames and not frames[0].table.handle_key:
                self._keyless.apply(packet, frames, stop)
                continue
            for frame in frames:
                name, version = frame.table.written_as, (frame.table.table_id, frame.table.version)
                if size >= _WINDOW_BYTES or versions.setdefault(name, version) != version:
                    yield held, epoch
                    held, size, versions = [], 0, {name: version}
                held.append(frame)
                size += frame.nbytes
        if held:
            yield held, epoch

    def _chains(self, frames: list[RowFrame]) -> _Chains:
        by_table: dict[TableId, list[RowFrame]] = {}
        for frame in frames:
            by_table.setdefault(frame.table.written_as, []).append(frame)
        chains: _Chains = []
        small: list[KeyEffect] = []
        for group in by_table.values():
            effect = net_effect(group)
            if len(effect) <= self._rows:
                small.append(effect)
                continue
            parts = [[part] for part in cut(effect, self._rows)]
            chains += [[part] for part in parts] if effect.apart else [parts]
        return chains + [[part] for part in _together(small, self._rows)]

    def _side_by_side(
        self, chains: _Chains, epoch: int, pool: ThreadPoolExecutor, stop: threading.Event
    ) -> None:
        def run(chain: list[list[KeyEffect]]) -> None:
            for effects in chain:
                if stop.is_set():
                    return
                self._transactions.apply(effects, epoch, stop)

        if len(chains) == 1:
            run(chains[0])
            return
        calls = [pool.submit(run, chain) for chain in chains]
        done, left = wait(calls, return_when=FIRST_EXCEPTION)
        failed = [error for call in done if (error := call.exception()) is not None]
        if failed:
            stop.set()
            wait(left)
            # What stops the changefeed is worth more than what others met on the way.
            raise min(failed, key=_is_passing)


def frames_of(packet: Packet) -> Iterator[RowFrame]:
    """Yield the frames of a packet, in their order."""
    keys, values = packet.messages.keys, packet.messages.values
    for place in range(len(values)):
        key = None if keys is None else keys[place].as_py()
        yield RowFrame.from_message(key, values[place].as_buffer())


def _is_passing(error: BaseException) -> bool:
    return not isinstance(error, RowferryError) or error.verdict is not Verdict.STOP


def _together(effects: list[KeyEffect], most: int) -> Iterator[list[KeyEffect]]:
    """Yield small effects, as many together as make up a transaction."""
    held: list[KeyEffect] = []
    rows = 0
    for effect in effects:
        if held and rows + len(effect) > most:
            yield held
            held, rows = [], 0
        held.append(effect)
        rows += len(effect)
    if held:
        yield held
