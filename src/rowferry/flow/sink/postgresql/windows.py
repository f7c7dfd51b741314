"""Packets become transactions: windows of many packets, tables without a key packet by packet."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.postgresql.effects import KeyEffect, cut, net_effect
from rowferry.flow.sink.postgresql.keyless import KeylessLanes
from rowferry.flow.sink.postgresql.session import MOST_TABLES
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.sql.windows import (
    Chains,
    SqlWindows,
    Window,
    by_table,
    frames_of,
    gathered,
    together,
)

_WINDOW_BYTES: Final = 32 << 20  # the next one is read meanwhile


class CopyWindows(SqlWindows[KeyEffect]):
    """Applies the net effects of windows.

    Small effects share a transaction. A large one is cut: where no row can stand in another's way
    its parts are done side by side, else one after the other.
    """

    def __init__(
        self, transactions: MergeTransactions, keyless: KeylessLanes, rows: int, workers: int
    ) -> None:
        super().__init__(transactions.apply, workers)
        self._keyless, self._rows = keyless, rows

    def _windows(self, packets: Iterator[Packet], stop: threading.Event) -> Iterator[Window]:
        """Yield windows with one version of each table; keyless tables are written meanwhile."""

        def with_keys() -> Iterator[tuple[RowFrame, int]]:
            for packet in packets:
                frames = list(frames_of(packet))
                if frames and not frames[0].table.handle_key:
                    self._keyless.apply(packet, frames, stop)
                    continue
                for frame in frames:
                    yield frame, packet.epoch

        return gathered(with_keys(), _WINDOW_BYTES, lambda table: (table.table_id, table.version))

    def _steps(self, frames: list[RowFrame]) -> Sequence[Chains[KeyEffect]]:
        chains: Chains[KeyEffect] = []
        small: list[KeyEffect] = []
        for group in by_table(frames).values():
            effect = net_effect(group)
            if len(effect) <= self._rows:
                small.append(effect)
                continue
            parts = [[part] for part in cut(effect, self._rows)]
            chains += [[part] for part in parts] if effect.apart else [list(parts)]
        for first in range(0, len(small), MOST_TABLES):
            few = small[first : first + MOST_TABLES]
            chains += [[part] for part in together(few, self._rows)]
        return [chains]
