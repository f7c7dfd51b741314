"""Transactions over ranges and processes: whole, ordered, and ended when their client dies."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest
from log_kit import content, eventually, pulled, rebuilt, routes_of, whole_log

from rowferry.change.table import TableId
from rowferry.errors import StoreError, TransactionAborted
from rowferry.flow.capture.range_log.client import RangeClient
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import START_BALANCE, Bank, Mixed, WorkloadPace, run


def fill(store: Store, table: TableId, count: int = 100) -> None:
    with store.transaction() as work:
        work.insert(table, [{"id": n, "v": 0, "note": f"n{n}"} for n in range(count)])


def test_rows_are_written_read_and_logged(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    with store.transaction() as work:
        work.update(table, [{"id": 3, "v": 33}, {"id": 98, "note": None}])
        work.delete(table, [{"id": 50}])
        work.update(table, [{"id": 200}], keys=[{"id": 60}])
        assert work.get(table, [{"id": 3}, {"id": 50}]) == [{"id": 3, "v": 33, "note": "n3"}, None]
    found = content(store, table)
    assert len(found) == 99
    assert found[3] == {"id": 3, "v": 33, "note": "n3"}
    assert found[98]["note"] is None
    assert found[200] == {"id": 200, "v": 0, "note": "n60"}
    log = whole_log(reader, store, table)
    assert len({r.commit_ts for r in log}) == 2
    assert rebuilt(log) == found


def test_a_refused_transaction_leaves_nothing(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    with pytest.raises(StoreError, match="exists already"), store.transaction() as work:
        work.update(table, [{"id": 1, "v": 1}])
        work.insert(table, [{"id": 99}])
    first, second = store.begin(), store.begin()
    first.update(table, [{"id": 1, "v": 1}, {"id": 99, "v": 1}])
    second.update(table, [{"id": 99, "v": 2}, {"id": 30, "v": 2}])
    first.commit()
    with pytest.raises(TransactionAborted):
        second.commit()
    found = content(store, table)
    assert (found[1]["v"], found[30]["v"], found[99]["v"]) == (1, 0, 1)
    assert rebuilt(whole_log(reader, store, table)) == found


@pytest.mark.parametrize("after_primary", [False, True])
def test_an_abandoned_transaction_is_resolved(
    store: Store, reader: RangeClient, table: TableId, after_primary: bool
) -> None:
    fill(store, table)
    work = store.begin()
    work.update(table, [{"id": n, "v": 7} for n in (1, 30, 60, 90)])
    commit_ts = work.abandon(after_primary)
    now = store.timestamp()
    routes = routes_of(reader, store.table(table))
    eventually(lambda: min(h.closed_ts for h in reader.heads([(r, 0) for r in routes])) > now)
    found = content(store, table)
    assert {found[n]["v"] for n in (1, 30, 60, 90)} == ({7} if after_primary else {0})
    log = whole_log(reader, store, table)
    assert sum(r.commit_ts == commit_ts for r in log) == (4 if after_primary else 0)
    assert rebuilt(log) == found


def test_the_log_is_ordered_and_closed_timestamps_hold(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    schema, stop = store.table(table), threading.Event()

    def write(number: int) -> None:
        dice = random.Random(number)
        while not stop.is_set():
            work = store.begin()
            try:
                ids = dice.sample(range(100), 3)
                work.update(table, [{"id": n, "v": dice.randrange(1000)} for n in ids])
                work.commit()
            except TransactionAborted:
                continue

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    routes = routes_of(reader, schema)
    state = {r.range_id: (0, 0, 0) for r in routes}  # index, last commit-ts, highest closed-ts
    seen = 0
    try:
        for _ in range(60):
            for route in routes:
                index, last_ts, closed = state[route.range_id]
                rows, index = pulled(reader, schema, route, index)
                for row in rows:
                    assert row.commit_ts >= last_ts
                    assert row.commit_ts > closed
                    last_ts = row.commit_ts
                seen += len(rows)
                head = reader.heads([(route, index)])[0]
                if head.last_index == index:
                    assert head.closed_ts >= closed
                    closed = head.closed_ts
                state[route.range_id] = (index, last_ts, closed)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert seen > 100
    assert rebuilt(whole_log(reader, store, table)) == content(store, table)


def test_the_banks_total_survives_a_killed_server(
    cluster: LocalCluster, store: Store, reader: RangeClient
) -> None:
    bank = Bank("killed_bank", accounts=40)
    bank.create(store, ranges=4)
    killed = threading.Event()

    def kill() -> None:
        cluster.kill(0)
        killed.set()

    timer = threading.Timer(0.7, kill)
    timer.start()
    done = run(store, bank, WorkloadPace(seconds=4, threads=3), lambda _: None)
    killed.wait()
    cluster.restart(0)
    cluster.wait_ready()
    assert done.failures == []
    assert bank.total(store) == 40 * START_BALANCE
    log = whole_log(reader, store, bank.table)
    sums: dict[int, int] = defaultdict(int)
    for row in log:
        if row.before is not None and row.after is not None:
            sums[row.commit_ts] += row.after["balance"] - row.before["balance"]
    assert len(sums) == done.committed
    assert set(sums.values()) == {0}
    assert rebuilt(log) == content(store, bank.table)


def test_every_column_type_goes_through(store: Store, reader: RangeClient) -> None:
    mixed = Mixed("all_types", keys=2000)
    mixed.create(store, ranges=2)
    done = run(store, mixed, WorkloadPace(transactions=60, threads=2, randomness=4), lambda _: None)
    assert done.failures == []
    assert done.committed == 60
    assert rebuilt(whole_log(reader, store, mixed.table)) == content(store, mixed.table)
