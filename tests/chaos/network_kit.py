"""A load on a reference store, and what a bad network does to those who carry it elsewhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rowferry.change.table import TableId
from rowferry.refstore.client import Store
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import Relay

TABLES = [TableId("lake", f"t{n}") for n in range(3)]
SNAPSHOT_ROWS = 3_000
SHARE = 30  # transactions that a writer carries out in one life of the process
PATIENCE_S = 600.0  # for a start on a machine under load; never reached by working code


class Load:
    """Writes to all tables; counts the row changes that must be delivered."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self._alive = dict.fromkeys(TABLES, SNAPSHOT_ROWS)  # rows have the keys below
        self.changes = SNAPSHOT_ROWS * len(TABLES)
        store.ddl("CREATE DATABASE lake")
        for table in TABLES:
            store.ddl(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, v varchar(400))",
                ranges=2,
                handles=(0, 2 * SNAPSHOT_ROWS),
            )
            store.load(table, [self._row(key) for key in range(SNAPSHOT_ROWS)])

    def write(self) -> None:
        """One share: each transaction is in all tables."""
        for _ in range(SHARE):
            with self._store.transaction() as work:
                for table in TABLES:
                    end = self._alive[table]
                    new = [self._row(key) for key in range(end, end + 40)]
                    work.insert(table, new)
                    old = self._dice.sample(range(end // 2), 10)
                    work.update(table, [self._row(key) for key in old])
                    self._alive[table] = end + len(new)
                    self.changes += len(new) + len(old)
            time.sleep(0.05)  # so that a life has several micro-batches

    def _row(self, key: int) -> dict[str, object]:
        return {"id": key, "v": f'"{self._dice.random()}\r\n' * 8}


def _break_a_put(relay: Relay, dice: random.Random) -> None:
    relay.break_after(dice.randrange(300_000))
    wait_for(lambda: relay.broken, "a broken request", PATIENCE_S, 0.005)


def _lose_answers(relay: Relay, dice: random.Random) -> None:
    relay.lose_answers(dice.randrange(1, 5))
    wait_for(lambda: relay.broken, "lost answers", PATIENCE_S, 0.005)


def _slow_down_and_cut(relay: Relay, dice: random.Random) -> None:
    relay.delay_s = 0.05
    time.sleep(dice.uniform(0, 1))
    relay.cut()
    time.sleep(dice.uniform(0, 0.5))


Fault = Callable[[Relay, random.Random], None]
FAULTS: tuple[Fault, ...] = (
    _break_a_put,
    _slow_down_and_cut,
    _lose_answers,
)
