"""The source's side of the nemesis: writers, and schema changes under their hands."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rowferry.change.chunk import SchemaChange
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import NoSuchTable, RowferryError, StoreUnavailable
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.flow.capture.range_log.reroute import patiently
from rowferry.refstore.client import Store
from rowferry.refstore.transaction import Transaction
from rowferry.refstore.workload import Bank, Hand, Mixed
from rowferry.testing.nemesis_notes import Notebook, settle

MADE: Final = "made"  # the database of the tables that come and go
_NAMES: Final = tuple(TableId(MADE, f"t{n}") for n in range(1, 6))
_SHAPES: Final = (
    "id bigint NOT NULL, name varchar(20), amount bigint, PRIMARY KEY (id)",
    "name varchar(20) NOT NULL, amount int, PRIMARY KEY (name)",
    "a int NOT NULL, b varchar(10) NOT NULL, amount decimal(10,2), PRIMARY KEY (a, b)",
    "id bigint NOT NULL, code bigint NOT NULL, note text, PRIMARY KEY (id), UNIQUE KEY (code)",
    "id bigint NOT NULL, amount bigint, PRIMARY KEY (id)) PARTITION BY HASH (id) PARTITIONS 3",
)
# Each added column's type, its default, and the type that MODIFY COLUMN gives it.
_ADDED: Final = (
    ("int", "7", "bigint"),
    ("varchar(20)", "'new'", "varchar(64)"),
    ("bigint unsigned", None, "bigint unsigned"),
    ("decimal(8,2)", "'1.50'", "decimal(12,2)"),
    ("datetime", None, "datetime"),
)
_KEYS: Final = 60
_TEXTS: Final = ("", "a", "it's", 'say "x"', "Grüße", "a,b\\c", "line\nline", "名前")


def _quoted(table: TableId) -> str:
    return f"`{table.database}`.`{table.table}`"


def random_value(column: Column, dice: random.Random, is_key: bool) -> Any:
    """Return a canonical value of a column; keys come from few values, so that they meet."""
    if column.nullable and not is_key and dice.random() < 0.15:
        return None
    match column.type.kind:
        case Kind.INTEGER:
            return dice.randrange(_KEYS if is_key else 1 << 31)
        case Kind.DECIMAL:
            return f"{dice.randrange(-9999, 9999)}.{dice.randrange(100):02d}"
        case Kind.DATETIME:
            return f"20{dice.randrange(10, 99)}-02-28 23:59:{dice.randrange(60):02d}"
    text = f"{dice.choice(_TEXTS)}{dice.randrange(_KEYS)}" if is_key else dice.choice(_TEXTS)
    return text[: column.type.length or len(text)]


class MadeTables:
    """The names of tables that are there now; writers ask, the nemesis changes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: list[TableId] = []

    def names(self) -> list[TableId]:
        """Return the names of now."""
        with self._lock:
            return list(self._names)

    def free(self) -> list[TableId]:
        """Return names that no table has now; some had one before."""
        with self._lock:
            return [n for n in _NAMES if n not in self._names]

    def replace(self, old: TableId | None, new: TableId | None) -> None:
        """Follow a table's creation (no old name), rename, or end (no new name)."""
        with self._lock:
            if old is not None:
                self._names.remove(old)
            if new is not None:
                self._names.append(new)


class MadeRows:
    """One writer's work on the tables that come and go: whatever their columns are."""

    def __init__(self, store: Store, tables: MadeTables, dice: random.Random) -> None:
        self._store, self._tables, self._dice = store, tables, dice

    def step(self, work: Transaction) -> int:
        """Insert, update, re-key or delete some rows of one table."""
        names = self._tables.names()
        if not names:
            raise NoSuchTable("none was made yet")
        table = self._dice.choice(names)
        schema = self._store.table(table)
        rows = {tuple(r[k] for k in schema.primary_key): r for r in self._rows(schema)}
        keys = [{k: r[k] for k in schema.primary_key} for r in rows.values()]
        for new, old in zip(rows.values(), work.get(table, keys), strict=True):
            if old is None:
                work.insert(table, [new])
            elif self._dice.random() < 0.3:
                work.delete(table, [old])
            else:
                work.update(table, [new])
        return len(rows)

    def done(self) -> None:
        """Nothing is remembered: the store knows which rows there are."""

    def _rows(self, schema: TableSchema) -> list[dict[str, Any]]:
        key = set(schema.primary_key)
        return [
            {c.name: random_value(c, self._dice, c.name in key) for c in schema.columns}
            for _ in range(self._dice.randint(1, 4))
        ]


class StoreWriters:
    """Threads that write until stopped; every commit that the store acknowledged is noted.

    `failures` holds what ended a thread early.
    """

    def __init__(
        self,
        store: Store,
        works: Mapping[str, Bank | Mixed | MadeTables],
        weights: Mapping[str, int],
        notes: Notebook,
        dice: random.Random,
        threads: int = 3,
        rate: float = 60.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._store, self._notes = store, notes
        self._kinds = [k for k in works if weights.get(k)]
        self._weights = [weights[k] for k in self._kinds]
        self._pause_s = threads / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = []
        for number in range(threads):
            mine = random.Random(dice.getrandbits(64))
            hands = {k: _hand(works[k], store, number, threads, mine) for k in self._kinds}
            thread = threading.Thread(
                target=self._write, args=(hands, mine), name=f"writer-{number}", daemon=True
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when every thread has ended; the last transactions are finished."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, hands: Mapping[str, Hand], dice: random.Random) -> None:
        try:
            while not self._stop.wait(dice.uniform(0, 2 * self._pause_s)):
                kind = dice.choices(self._kinds, self._weights)[0]
                if self._one(hands[kind]):
                    with self._lock:
                        self.counts[kind] += 1
        except Exception as err:  # a writer that ends unnoticed would make every check weaker
            with self._lock:
                self.failures.append(f"a writer ended: {type(err).__name__}: {err}")

    def _one(self, hand: Hand) -> bool:
        try:
            work = self._store.begin()
            hand.step(work)
        except RowferryError:  # nothing was sent yet
            return False
        if not settle(work, self._notes):
            return False
        hand.done()
        return True


def _hand(
    work: Bank | Mixed | MadeTables, store: Store, number: int, hands: int, dice: random.Random
) -> Hand:
    if isinstance(work, MadeTables):
        return MadeRows(store, work, dice)
    return work.hand(store, number, hands, dice)


class SchemaEvents:
    """DDLs, one at a time. Each method returns whether it found something to do."""

    def __init__(
        self,
        store: Store,
        reader: RangeClient,
        fixed: list[TableId],
        made: MadeTables,
        notes: Notebook,
        dice: random.Random,
    ) -> None:
        self._store, self._reader, self._dice = store, reader, dice
        self._fixed, self._made, self._notes = fixed, made, notes
        self._added: dict[tuple[int, str], str] = {}  # (table id, column) -> type to become
        self._number = 0
        self.failures: list[str] = []

    def add_column(self) -> bool:
        """Add a column to any table."""
        table = self._dice.choice(self._fixed + self._made.names())
        kind, default, later = self._dice.choice(_ADDED)
        self._number += 1
        name = f"c{self._number}"
        more = f" DEFAULT {default}" if default else ""
        place = self._dice.choice(("", "", " FIRST"))
        self._run(f"ALTER TABLE {_quoted(table)} ADD COLUMN {name} {kind} NULL{more}{place}")
        self._added[self._store.table(table).table_id, name] = later
        return True

    def drop_column(self) -> bool:
        """Drop a column that was added."""
        candidates = self._added_columns()
        if not candidates:
            return False
        table, column = self._dice.choice(candidates)
        self._run(f"ALTER TABLE {_quoted(table.id)} DROP COLUMN {column}")
        return True

    def modify_column(self) -> bool:
        """Widen a column that was added."""
        candidates = self._added_columns()
        if not candidates:
            return False
        table, column = self._dice.choice(candidates)
        later = self._added[table.table_id, column]
        self._run(f"ALTER TABLE {_quoted(table.id)} MODIFY COLUMN {column} {later} NULL")
        return True

    def create_table(self) -> bool:
        """Make a table, sometimes under a name that another one had."""
        free = self._made.free()
        if not free:
            return False
        table = self._dice.choice(free)
        shape = self._dice.choice(_SHAPES)
        end = "" if "PARTITION BY" in shape else ")"
        sql = f"CREATE TABLE {_quoted(table)} ({shape}{end}"
        self._run(sql, ranges=self._dice.randint(1, 2))
        self._made.replace(None, table)
        return True

    def truncate(self) -> bool:
        """Empty a table that came later."""
        names = self._made.names()
        if not names:
            return False
        table = self._dice.choice(names)
        old = self._store.table(table).table_id
        self._run(f"TRUNCATE TABLE {_quoted(table)}")
        new = self._store.table(table).table_id
        for (table_id, column), later in list(self._added.items()):
            if table_id == old:
                self._added[new, column] = later
        return True

    def rename(self) -> bool:
        """Give a table that came later another name, sometimes one that another one had."""
        names, free = self._made.names(), self._made.free()
        if not names or not free:
            return False
        old, new = self._dice.choice(names), self._dice.choice(free)
        self._run(f"RENAME TABLE {_quoted(old)} TO {_quoted(new)}")
        self._made.replace(old, new)
        return True

    def drop_table(self) -> bool:
        """End a table that came later, but leave one to write to."""
        names = self._made.names()
        if len(names) < 2:
            return False
        table = self._dice.choice(names)
        self._made.replace(table, None)
        self._run(f"DROP TABLE {_quoted(table)}")
        return True

    def _added_columns(self) -> list[tuple[TableSchema, str]]:
        tables = [self._store.table(t) for t in self._fixed + self._made.names()]
        return [
            (t, c.name) for t in tables for c in t.columns if (t.table_id, c.name) in self._added
        ]

    def _run(self, sql: str, ranges: int = 1) -> None:
        """Run a DDL until it is in the catalog, and note what the catalog says."""
        while not self._note(sql, *self._try(sql, ranges)):
            continue

    def _try(self, sql: str, ranges: int) -> tuple[int, int]:
        """Return a timestamp from before the statement, and its commit-ts (0: unknown)."""
        before = self._store.timestamp()
        try:
            return before, self._store.ddl(sql, ranges=ranges, handles=(0, _KEYS))
        except StoreUnavailable:
            self._notes.note_doubt()
            # The master runs one DDL after the other: when it answers this one, that one has ended.
            settled = f"CREATE DATABASE IF NOT EXISTS `{MADE}`"
            self._store.routing.patiently(lambda: self._store.ddl(settled))
            return before, 0

    def _note(self, sql: str, before: int, commit_ts: int) -> bool:
        own_changes = [c for c in self._catalog() if c.commit_ts > before and c.query == sql]
        stamps = sorted({c.commit_ts for c in own_changes})
        if commit_ts and commit_ts not in stamps:
            self.failures.append(f"the store acknowledged {sql!r} at {commit_ts}, and has it not")
        if len(stamps) > 1:
            self.failures.append(f"the store ran {sql!r} more than once, at {stamps}")
        self._notes.note_schema_changes(own_changes)
        return bool(stamps) or bool(commit_ts)

    def _catalog(self) -> list[SchemaChange]:
        return patiently(self._read_catalog, "the catalog's log")

    def _read_catalog(self) -> list[SchemaChange]:
        route = self._reader.routes(catalog.START, catalog.END)[0]
        last = self._reader.heads([(route, 0)])[0].last_index
        changes: list[SchemaChange] = []
        index = 0
        while index < last:
            page, index = self._reader.pull_log(route, index, last)
            for place in range(len(page)):
                ts = int(page.commit_ts[place])
                changes += catalog.read_ddl(page.key(place), page.value(place), ts)
        return changes
