"""Windows of packets become transactions: statements that do the net effect of each key."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
from rowferry.flow.sink.sql.windows import (
    Chains,
    SqlWindows,
    Window,
    by_table,
    frames_of,
    gathered,
    together,
)

_WINDOW_BYTES: Final = 16 << 20  # the next one is read meanwhile


class Windows(SqlWindows[SqlStatement]):
    """Applies the net effects of windows.

    What belongs together in a window is small enough for one transaction, or else is done by many
    connections side by side: all deletes, then all upserts where they may stand in each other's
    way.
    """

    def __init__(self, transactions: Transactions, limits: Limits, workers: int, how: Put) -> None:
        super().__init__(transactions.apply, workers)
        self._limits, self._how = limits, how

    def _windows(self, packets: Iterator[Packet], stop: threading.Event) -> Iterator[Window]:
        """Yield windows in which a table has one key."""
        frames = ((frame, packet.epoch) for packet in packets for frame in frames_of(packet))
        return gathered(frames, _WINDOW_BYTES, lambda table: table.handle_key)

    def _steps(self, frames: list[RowFrame]) -> Sequence[Chains[SqlStatement]]:
        small: list[NetEffect] = []
        first: Chains[SqlStatement] = []
        second: Chains[SqlStatement] = []
        for group in by_table(frames).values():
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
        for effects in together(small, self._limits.rows):
            first.append([[s for effect in effects for s in (*effect.deletes, *effect.upserts)]])
        return first, second


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


def one_transaction(
    frames: Iterable[RowFrame], limits: Limits, how: Put, batches: bool
) -> list[SqlStatement]:
    """Return statements that do all of some changes in one transaction."""
    statements: list[SqlStatement] = []
    for group in by_table(frames).values():
        if not batches or not group[0].table.handle_key:
            statements += [s for frame in group for s in in_order(frame, how)]
            continue
        effect = net_effect(group, limits, how)
        statements += [*effect.deletes, *effect.upserts]
    return statements
