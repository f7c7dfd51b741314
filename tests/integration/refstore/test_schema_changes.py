"""DDL and rows: each row is in the version in force at its commit-ts."""

from __future__ import annotations

import struct
import threading

import pytest
from log_kit import content, eventually, pulled, rebuilt, routes_of, whole_log
from test_transactions import fill

from rowferry.change.chunk import DdlKind
from rowferry.change.table import TableId
from rowferry.errors import BadInput, BadStatement, NoSuchTable, TransactionAborted
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.refstore.client import Store


def stored_columns(value: bytes) -> int:
    """Return how many columns a stored row holds, from its own header."""
    version, _, present, null = struct.unpack_from("<BBHH", value)
    assert version == 128
    return int(present + null)


def ddl_log(reader: RangeClient) -> list[tuple[int, DdlKind, str]]:
    """Return all DDLs in the catalog's log: commit-ts, kind, table."""
    route = reader.routes(catalog.START, catalog.END)[0]
    head = reader.heads([(route, 0)])[0]
    index, found = 0, []
    while index < head.last_index:
        page, index = reader.pull_log(route, index, head.last_index)
        for i in range(len(page)):
            for change in catalog.read_ddl(page.key(i), page.value(i), int(page.commit_ts[i])):
                found.append((change.commit_ts, change.kind, str(change.table)))
    return found


def test_rows_around_a_ddl_are_in_their_own_version(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []
    wrote: list[int] = []

    def write(number: int) -> None:
        n = number
        try:
            while not stop.is_set():
                try:
                    with store.transaction() as work:
                        rows = [{"id": n % 100 + n * 100, "v": n}, {"id": -n - 1, "v": n}]
                        work.insert(table, rows)
                except TransactionAborted:
                    continue  # the machine is so slow that it was taken for abandoned
                wrote.append(n)
                n += 3
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        stamps = []
        for n in range(4):
            wanted = len(wrote) + 4  # rows before, between and after
            eventually(lambda least=wanted: bool(errors) or len(wrote) >= least)  # type: ignore[misc]
            stamps.append(
                store.ddl(f"ALTER TABLE {table} ADD COLUMN c{n} int NOT NULL DEFAULT {n}")
            )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert stamps == sorted(stamps)
    log = whole_log(reader, store, table)
    base = 2  # v and note; the key is not stored again
    for row in log:
        assert row.commit_ts not in stamps
        assert stored_columns(row.value) == base + sum(ts < row.commit_ts for ts in stamps)
    assert len({stored_columns(r.value) for r in log}) > 3
    assert rebuilt(log) == content(store, table)
    mine = [ts for ts, _, name in ddl_log(reader) if name == str(table)]
    assert mine[1:] == stamps


def test_truncate_gives_new_ids_and_old_ranges_stay_readable(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    before, old_routes = store.table(table), routes_of(reader, store.table(table))
    store.ddl(f"TRUNCATE TABLE {table}")
    after = store.table(table)
    assert after.table_id != before.table_id
    assert content(store, table) == {}
    fill(store, table, 3)
    assert len(content(store, table)) == 3
    dropped = routes_of(reader, before)
    assert [r.range_id for r in dropped] == [r.range_id for r in old_routes]
    assert all(r.dropped for r in dropped)
    assert sum(len(pulled(reader, before, r)[0]) for r in dropped) == 100


def test_drop_and_rename(store: Store, reader: RangeClient, table: TableId) -> None:
    fill(store, table, 3)
    late = store.begin()
    late.insert(table, [{"id": 50}])
    moved = TableId(table.database, "moved")
    store.ddl(f"RENAME TABLE {table} TO {moved}")
    assert len(content(store, moved)) == 3
    with pytest.raises(NoSuchTable):
        late.commit()
    store.ddl(f"DROP DATABASE {table.database}")
    with pytest.raises(NoSuchTable, match="moved"):
        store.scan(moved)
    kinds = [kind for _, kind, name in ddl_log(reader) if name.startswith(table.database)]
    assert kinds[-3:] == [DdlKind.RENAME_TABLE, DdlKind.DROP_TABLE, DdlKind.DROP_DATABASE]


def test_statements_that_do_not_fit_change_nothing(store: Store, table: TableId) -> None:
    tables, ranges = store.tables(), store.ranges()
    for sql in (
        f"CREATE TABLE {table} (id int)",
        "CREATE TABLE nowhere.t (id int)",
        f"CREATE DATABASE {table.database}",
        f"ALTER TABLE {table} DROP COLUMN nothing",
        "GRANT ALL",
    ):
        with pytest.raises(BadStatement):
            store.ddl(sql)
    assert store.ddl(f"CREATE DATABASE IF NOT EXISTS {table.database}") == 0
    assert store.ddl(f"CREATE TABLE IF NOT EXISTS {table} (id int)") == 0
    assert (store.tables(), store.ranges()) == (tables, ranges)


def test_partitions_have_ranges_of_their_own(store: Store, table: TableId) -> None:
    by_hash, by_range = TableId(table.database, "h"), TableId(table.database, "r")
    store.ddl(
        f"CREATE TABLE {by_hash} (id bigint PRIMARY KEY, v int) PARTITION BY HASH (id) PARTITIONS 3"
    )
    store.ddl(
        f"CREATE TABLE {by_range} (id bigint PRIMARY KEY, v int) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))"
    )
    for name in (by_hash, by_range):
        with store.transaction() as work:
            work.insert(name, [{"id": n, "v": n} for n in range(-5, 20)])
        with store.transaction() as work:
            work.delete(name, [{"id": 7}])
        assert sorted(content(store, name)) == [n for n in range(-5, 20) if n != 7]
        physical = {r.physical_id for r in store.ranges(name)}
        assert physical == set(store.table(name).physical_ids)
        assert store.table(name).table_id not in physical
    with pytest.raises(BadInput, match="no partition"), store.transaction() as work:
        work.insert(by_range, [{"id": 20}])


def test_tables_without_a_primary_key(store: Store, table: TableId) -> None:
    keyless = TableId(table.database, "keyless")
    store.ddl(f"CREATE TABLE {keyless} (v int, note varchar(10))")
    for _ in range(2):
        with store.transaction() as work:
            work.insert(keyless, [{"v": 1, "note": "x"}, {"v": 1, "note": "x"}])
    store.load(keyless, [{"v": 2}])
    assert sorted(store.scan(keyless).column("v").to_pylist()) == [1, 1, 1, 1, 2]
    with pytest.raises(BadInput, match="no primary key"), store.transaction() as work:
        work.delete(keyless, [{"v": 1}])
