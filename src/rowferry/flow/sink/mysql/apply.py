"""Packets become transactions: windows side by side, or lane after lane in strict order."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Final, TypeAlias

from rowferry.change.table import TableId
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.mysql.statements import (
    Limits,
    NetEffect,
    Put,
    SqlStatement,
    in_order,
    net_effect,
)
from rowferry.flow.sink.mysql.transactions import Transactions

_WINDOW_BYTES: Final = 16 << 20  # the next one is read meanwhile
_Chains: TypeAlias = list[list[Sequence[SqlStatement]]]
"""Chains of transactions, each of statements: chains go side by side, those of one in order."""


def frames_of(packet: Packet) -> Iterator[RowFrame]:
    """Yield the frames of a packet, in their order."""
    keys, values = packet.messages.keys, packet.messages.values
    for place in range(len(values)):
        key = None if keys is None else keys[place].as_py()
        yield RowFrame.from_message(key, values[place].as_buffer())


class Windows:
    """Applies what comes in windows; inside a window only the net effect of each key counts.

    The next window is gathered, and its statements are made, while one is applied; it is applied
    when that one is done. What belongs together in a window is small enough for one transaction, or
    else is done by many connections side by side: all deletes, then all upserts where they may
    stand in each other's way.
    """

    def __init__(self, transactions: Transactions, limits: Limits, workers: int, how: Put) -> None:
        self._transactions, self._limits = transactions, limits
        self._workers, self._how = workers, how

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply all packets; on return they are durable."""
        stop = threading.Event()
        with ThreadPoolExecutor(self._workers) as pool, ThreadPoolExecutor(1) as gate:
            under_way: Future[None] | None = None
            try:
                for frames, epoch in _windows(packets):
                    steps = self._steps(frames)
                    if under_way is not None:
                        under_way.result()
                    under_way = gate.submit(self._apply, steps, epoch, pool, stop)
                if under_way is not None:
                    under_way.result()
            except BaseException:
                stop.set()
                raise

    def _steps(self, frames: list[RowFrame]) -> tuple[_Chains, _Chains]:
        """Return what is to be done with a window, and what after that."""
        small: list[NetEffect] = []
        first: _Chains = []
        second: _Chains = []
        for group in _by_table(frames).values():
            if not group[0].table.handle_key:
                one_by_one = (s for frame in group for s in in_order(frame, self._how))
                first.append(list(_portions(one_by_one, self._limits.rows)))
                continue
            effect = net_effect(group, self._limits, self._how)
            if len(effect) <= self._limits.rows:
                small.append(effect)
            else:
                first += [[[s]] for s in effect.deletes]
                (first if effect.apart else second).extend([[s]] for s in effect.upserts)
        first += [[part] for part in _together(small, self._limits.rows)]
        return first, second

    def _apply(
        self,
        steps: tuple[_Chains, _Chains],
        epoch: int,
        pool: ThreadPoolExecutor,
        stop: threading.Event,
    ) -> None:
        for step in steps:
            self._side_by_side(step, epoch, pool, stop)

    def _side_by_side(
        self,
        chains: _Chains,
        epoch: int,
        pool: ThreadPoolExecutor,
        stop: threading.Event,
    ) -> None:
        def run(chain: list[Sequence[SqlStatement]]) -> None:
            for statements in chain:
                if stop.is_set():
                    return
                self._transactions.apply(statements, epoch, stop)

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


def _is_passing(error: BaseException) -> bool:
    return not isinstance(error, RowferryError) or error.verdict is not Verdict.STOP


def _windows(packets: Iterator[Packet]) -> Iterator[tuple[list[RowFrame], int]]:
    """Yield frames of many packets, and the epoch of whoever sends them."""
    held: list[RowFrame] = []
    size, epoch = 0, 0
    keys: dict[TableId, tuple[str, ...]] = {}
    for packet in packets:
        epoch = packet.epoch
        for frame in frames_of(packet):
            name, key = frame.table.written_as, frame.table.handle_key
            if size >= _WINDOW_BYTES or keys.setdefault(name, key) != key:
                yield held, epoch
                held, size, keys = [], 0, {name: key}
            held.append(frame)
            size += frame.nbytes
    if held:
        yield held, epoch


def _by_table(frames: Iterable[RowFrame]) -> dict[TableId, list[RowFrame]]:
    by_table: dict[TableId, list[RowFrame]] = {}
    for frame in frames:
        by_table.setdefault(frame.table.written_as, []).append(frame)
    return by_table


def _portions(statements: Iterable[SqlStatement], most: int) -> Iterator[list[SqlStatement]]:
    """Yield so many statements at a time."""
    held: list[SqlStatement] = []
    for statement in statements:
        held.append(statement)
        if len(held) >= most:
            yield held
            held = []
    if held:
        yield held


def _together(effects: list[NetEffect], most: int) -> Iterator[list[SqlStatement]]:
    """Yield small effects, as many together as make up a transaction."""
    held: list[SqlStatement] = []
    rows = 0
    for effect in effects:
        if held and rows + len(effect) > most:
            yield held
            held, rows = [], 0
        held += [*effect.deletes, *effect.upserts]
        rows += len(effect)
    if held:
        yield held


def one_transaction(
    frames: Iterable[RowFrame], limits: Limits, how: Put, batches: bool
) -> list[SqlStatement]:
    """Return statements that do all of some changes in one transaction."""
    statements: list[SqlStatement] = []
    for group in _by_table(frames).values():
        if not batches or not group[0].table.handle_key:
            statements += [s for frame in group for s in in_order(frame, how)]
            continue
        effect = net_effect(group, limits, how)
        statements += [*effect.deletes, *effect.upserts]
    return statements
