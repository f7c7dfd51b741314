"""Workloads that write to the reference store: money transfers, and every column type."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from rowferry.change.table import TableId
from rowferry.errors import BadInput, TransactionAborted
from rowferry.refstore.client import Store
from rowferry.refstore.transaction import Transaction

START_BALANCE: Final = 1000
_LOAD_ROWS: Final = 500_000


@dataclass(frozen=True, slots=True)
class WorkloadPace:
    """How much to do: until so many transactions or seconds, at a rate per second (0: no limit)."""

    transactions: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    threads: int = 1
    randomness: int = 0

    def __post_init__(self) -> None:
        if not self.transactions and not self.seconds:
            raise BadInput("a workload needs --transactions or --seconds, or it would never end")


@dataclass(slots=True)
class Summary:
    """What a workload did."""

    committed: int = 0
    aborted: int = 0
    rows: int = 0
    seconds: float = 0.0
    last_commit_ts: int = 0
    failures: list[str] = field(default_factory=list)


class Workload(Protocol):
    """One kind of work: a table, and transactions on it."""

    table: TableId

    def create(self, store: Store, ranges: int) -> None:
        """Make the database, the table and its first rows, where they are missing."""

    def hand(self, store: Store, number: int, hands: int, dice: random.Random) -> Hand:
        """Return what one thread does."""


class Hand(Protocol):
    """One thread's work."""

    def step(self, work: Transaction) -> int:
        """Put one transaction's writes together; returns their number."""

    def done(self) -> None:
        """Take note that the last step was committed."""


def run(
    store: Store, workload: Workload, pace: WorkloadPace, tick: Callable[[Summary], None]
) -> Summary:
    """Run a workload to its end; `tick` is called now and then with what was done so far.

    An aborted transaction is counted and put together anew.
    """
    summary, lock, began = Summary(), threading.Lock(), time.monotonic()
    turns = _turns(pace, began)
    stop = threading.Event()

    def hand(number: int) -> None:
        dice = random.Random(pace.randomness * 1_000_003 + number)
        mine = workload.hand(store, number, pace.threads, dice)
        try:
            while not stop.is_set():
                with lock:
                    start_at = next(turns, None)
                if start_at is None:
                    return
                stop.wait(max(start_at - time.monotonic(), 0))
                _one(store, mine, summary, lock)
        except Exception as err:
            with lock:
                summary.failures.append(str(err))
            stop.set()

    threads = [threading.Thread(target=hand, args=(n,), daemon=True) for n in range(pace.threads)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                summary.seconds = time.monotonic() - began
                tick(summary)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    summary.seconds = time.monotonic() - began
    return summary


def _turns(pace: WorkloadPace, began: float) -> Iterator[float]:
    """Yield when each transaction may start."""
    number = 0
    while not pace.transactions or number < pace.transactions:
        at = began + number / pace.rate if pace.rate else time.monotonic()
        if pace.seconds and max(at, time.monotonic()) > began + pace.seconds:
            return
        yield at
        number += 1


def _one(store: Store, mine: Hand, summary: Summary, lock: threading.Lock) -> None:
    while True:
        work = store.begin()
        try:
            rows = mine.step(work)
            commit_ts = work.commit()
        except TransactionAborted:
            with lock:
                summary.aborted += 1
            continue
        mine.done()
        with lock:
            summary.committed += 1
            summary.rows += rows
            summary.last_commit_ts = max(summary.last_commit_ts, commit_ts)
        return


# --- bank ----------------------------------------------------------------------------------------


class Bank:
    """Accounts and transfers between them; the sum of all balances never changes."""

    def __init__(self, database: str = "bank", accounts: int = 1000) -> None:
        if accounts < 2:
            raise BadInput("--accounts: a transfer needs at least 2")
        self.table = TableId(database, "accounts")
        self.accounts = accounts

    def create(self, store: Store, ranges: int) -> None:
        """Make the table and fill the accounts."""
        store.ddl(f"CREATE DATABASE IF NOT EXISTS `{self.table.database}`")
        made = store.ddl(
            f"CREATE TABLE IF NOT EXISTS `{self.table.database}`.`{self.table.table}` ("
            "id bigint NOT NULL, owner varchar(64) NOT NULL, balance bigint NOT NULL, "
            "transfers int NOT NULL DEFAULT 0, PRIMARY KEY (id))",
            ranges=ranges,
            handles=(0, self.accounts - 1),
        )
        if not made:
            return
        for start in range(0, self.accounts, _LOAD_ROWS):
            ids = np.arange(start, min(start + _LOAD_ROWS, self.accounts))
            columns = [
                pa.array(ids),
                pa.array([f"owner-{i}" for i in ids.tolist()], pa.large_utf8()),
                pa.array(np.full(ids.size, START_BALANCE)),
                pa.array(np.zeros(ids.size, np.int64)),
            ]
            names = ["id", "owner", "balance", "transfers"]
            store.load(self.table, pa.StructArray.from_arrays(columns, names=names))

    def hand(self, store: Store, number: int, hands: int, dice: random.Random) -> Hand:
        """Return one thread's transfers."""
        return _Transfers(self, dice)

    def total(self, store: Store) -> int:
        """Return the sum of all balances."""
        return int(sum(store.scan(self.table).column("balance").to_pylist()))


class _Transfers:
    def __init__(self, bank: Bank, dice: random.Random) -> None:
        self._bank, self._dice = bank, dice

    def step(self, work: Transaction) -> int:
        table = self._bank.table
        chosen = self._dice.sample(range(self._bank.accounts), 2)
        rows = work.get(table, [{"id": n} for n in chosen])
        amount = self._dice.randint(1, 100)
        new = [
            {"id": row["id"], "balance": row["balance"] + by, "transfers": row["transfers"] + 1}
            for row, by in zip(rows, (-amount, amount), strict=True)
            if row is not None
        ]
        work.update(table, new)
        return len(new)

    def done(self) -> None:
        pass


# --- mixed ---------------------------------------------------------------------------------------

_TEXTS: Final = ("", "a", "Grüße", "行列", "😀 \\ ' \" \n\t", "x" * 40)
_BLOBS: Final = (b"", b"\x00", b"\xff\xfe", bytes(range(32)))
_DATES: Final = ("0000-00-00", "1000-01-01", "1970-01-01", "2024-02-29", "9999-12-31")
# Column, type, values beside NULL: smallest, largest, zero, and what parsers trip over.
MIXED_COLUMNS: Final[tuple[tuple[str, str, Sequence[Any]], ...]] = (
    ("c_tinyint", "tinyint", (-128, 0, 127)),
    ("c_utinyint", "tinyint unsigned", (0, 255)),
    ("c_smallint", "smallint", (-32768, 0, 32767)),
    ("c_usmallint", "smallint unsigned", (0, 65535)),
    ("c_mediumint", "mediumint", (-8388608, 0, 8388607)),
    ("c_umediumint", "mediumint unsigned", (0, 16777215)),
    ("c_int", "int", (-2147483648, 0, 2147483647)),
    ("c_uint", "int unsigned", (0, 4294967295)),
    ("c_bigint", "bigint", (-(1 << 63), 0, (1 << 63) - 1)),
    ("c_ubigint", "bigint unsigned", (0, (1 << 64) - 1)),
    ("c_bit", "bit(1)", (0, 1)),
    ("c_bit64", "bit(64)", (0, 5, (1 << 64) - 1)),
    ("c_float", "float", (-1.5, 0.0, 3.4028234663852886e38)),
    ("c_double", "double", (-1.7976931348623157e308, 0.0, 2.5, 5e-324)),
    ("c_decimal", "decimal(10,2)", ("-99999999.99", "0.00", "12.30", "99999999.99")),
    ("c_decimal65", "decimal(65,30)", ("-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 30)),
    ("c_numeric", "decimal(20,0) unsigned", ("0", "9" * 20)),
    ("c_date", "date", _DATES),
    ("c_year", "year", (0, 1901, 2155)),
    ("c_time", "time", ("-838:59:59", "00:00:00", "838:59:59")),
    ("c_time6", "time(6)", ("-838:59:59.000000", "00:00:00.000001", "12:34:56.789000")),
    ("c_datetime", "datetime", tuple(f"{d} 00:00:00" for d in _DATES)),
    ("c_datetime6", "datetime(6)", tuple(f"{d} 23:59:59.999999" for d in _DATES[1:])),
    ("c_timestamp", "timestamp NULL", ("1970-01-01 00:00:01", "2038-01-19 03:14:07")),
    ("c_timestamp3", "timestamp(3) NULL", ("0000-00-00 00:00:00.000", "2024-02-29 12:00:00.123")),
    ("c_char", "char(40)", tuple(t.rstrip() for t in _TEXTS)),
    ("c_varchar", "varchar(255)", _TEXTS),
    ("c_tinytext", "tinytext", _TEXTS),
    ("c_text", "text", (*_TEXTS, "long " * 400)),
    ("c_mediumtext", "mediumtext", _TEXTS),
    ("c_longtext", "longtext", _TEXTS),
    ("c_binary", "binary(4)", (b"\x00" * 4, b"\x01\x02\x03\xff")),
    ("c_varbinary", "varbinary(64)", _BLOBS),
    ("c_tinyblob", "tinyblob", _BLOBS),
    ("c_blob", "blob", _BLOBS),
    ("c_mediumblob", "mediumblob", _BLOBS),
    ("c_longblob", "longblob", _BLOBS),
    ("c_json", "json", ("null", "{}", '{"a": [1, 2.5, "x", null, true]}', '"Grüße"', "[]")),
    ("c_enum", "enum('a','b','Grüße')", (1, 2, 3)),
    ("c_set", "set('a','b','c')", (0, 1, 7)),
)


class Mixed:
    """A wide table with every column type: inserts, updates, deletes, key changes."""

    def __init__(self, database: str = "mixed", keys: int = 1 << 20) -> None:
        self.table = TableId(database, "wide")
        self.keys = keys

    def create(self, store: Store, ranges: int) -> None:
        """Make the table, empty."""
        columns = ", ".join(f"{name} {sql}" for name, sql, _ in MIXED_COLUMNS)
        store.ddl(f"CREATE DATABASE IF NOT EXISTS `{self.table.database}`")
        store.ddl(
            f"CREATE TABLE IF NOT EXISTS `{self.table.database}`.`{self.table.table}` ("
            f"id bigint NOT NULL, {columns}, PRIMARY KEY (id))",
            ranges=ranges,
            handles=(0, self.keys - 1),
        )

    def hand(self, store: Store, number: int, hands: int, dice: random.Random) -> Hand:
        """Return one thread's changes, on keys that no other thread of this run uses."""
        here = [i for i in store.scan(self.table).column("id").to_pylist() if i % hands == number]
        return _Changes(self, number, hands, dice, here)


class _Changes:
    def __init__(
        self, mixed: Mixed, number: int, hands: int, dice: random.Random, here: list[int]
    ) -> None:
        self._mixed, self._dice = mixed, dice
        self._number, self._hands = number, hands
        self._here, self._taken = here, set(here)
        self._after: Callable[[], None] = lambda: None

    def _free_key(self) -> int:
        while True:
            key = self._dice.randrange(self._mixed.keys // self._hands) * self._hands + self._number
            if key not in self._taken:
                return key

    def _values(self, some: bool) -> dict[str, Any]:
        chosen = self._dice.sample(MIXED_COLUMNS, 5) if some else MIXED_COLUMNS
        return {name: self._dice.choice((None, *values)) for name, _, values in chosen}

    def step(self, work: Transaction) -> int:
        table, kind = self._mixed.table, self._dice.random()
        if kind < 0.4 or not self._here:
            keys = sorted({self._free_key() for _ in range(3)})
            work.insert(table, [{"id": k, **self._values(some=False)} for k in keys])
            self._after = lambda: self._add(keys)
            return len(keys)
        key = self._dice.choice(self._here)
        if kind < 0.8:
            work.update(table, [{"id": key, **self._values(some=True)}])
            self._after = lambda: None
        elif kind < 0.9:
            work.delete(table, [{"id": key}])
            self._after = lambda: self._remove(key)
        else:
            new = self._free_key()
            work.update(table, [{"id": new, **self._values(some=True)}], [{"id": key}])
            self._after = lambda: self._replace(key, new)
        return 1

    def _add(self, keys: list[int]) -> None:
        self._here += keys
        self._taken.update(keys)

    def _remove(self, key: int) -> None:
        place = self._here.index(key)
        self._here[place] = self._here[-1]
        self._here.pop()
        self._taken.discard(key)

    def _replace(self, key: int, new: int) -> None:
        self._remove(key)
        self._add([new])

    def done(self) -> None:
        self._after()
