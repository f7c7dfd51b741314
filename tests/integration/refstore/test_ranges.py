"""Leader moves, splits, compaction, crashes: what a CDC reader sees of them."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from log_kit import content, eventually, pulled, rebuilt, routes_of, whole_log
from test_transactions import fill

from rowferry.change.table import TableId
from rowferry.errors import LogLost, SnapshotGone, StoreDamaged, StoreError
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster


def test_writes_survive_kill_and_a_torn_tail(
    cluster: LocalCluster, store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    with store.transaction() as work:
        work.update(table, [{"id": 1, "v": 1}, {"id": 99, "v": 1}])
    before = content(store, table)
    for number in (0, 1):
        cluster.kill(number)
    for meta in store.ranges(table):
        path = cluster.data_dir / "ranges" / meta.folder / "log"
        with open(path, "ab") as log:
            log.write(path.read_bytes()[-50:-7])
    cluster.restart(0, 1)
    cluster.wait_ready()
    assert content(store, table) == before
    with store.transaction() as work:
        work.update(table, [{"id": 1, "v": 2}, {"id": 99, "v": 2}])
    assert rebuilt(whole_log(reader, store, table)) == content(store, table)


def test_a_prepared_transaction_survives_a_restart(
    cluster: LocalCluster, store: Store, table: TableId
) -> None:
    fill(store, table)
    work = store.begin()
    work.update(table, [{"id": n, "v": 5} for n in (1, 30, 60, 90)])
    work.abandon(after_primary=True)
    for number in (0, 1):
        cluster.kill(number)
    cluster.restart(0, 1)
    cluster.wait_ready()
    assert {content(store, table)[n]["v"] for n in (1, 30, 60, 90)} == {5}


def test_a_split_keeps_log_indexes_and_snapshot(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    schema = store.table(table)
    parent = routes_of(reader, schema)[0]
    version = reader.register(parent).version
    with store.transaction() as work:
        work.update(table, [{"id": 2, "v": 2}, {"id": 20, "v": 2}])
    rows, last = pulled(reader, schema, parent)
    new = store.split(parent.range_id)
    with pytest.raises(Rerouted):
        pulled(reader, schema, parent)
    halves = routes_of(reader, schema)[:2]
    assert [h.range_id for h in halves] == [parent.range_id, new]
    assert (halves[1].parent_range_id, halves[1].split_index) == (parent.range_id, last)
    assert halves[0].end_key == halves[1].start_key
    found = []
    for half in halves:
        part, index = pulled(reader, schema, half)
        assert index == last
        found += [replace(r, range_id=parent.range_id) for r in part]
        page, end = reader.pull_snapshot(half, version, "", "")
        assert (len(page), end) == (12 if half is halves[0] else 13, True)
    key = lambda r: (r.commit_ts, r.after["id"])  # noqa: E731
    assert sorted(found, key=key) == sorted(rows, key=key)
    with store.transaction() as work:
        work.update(table, [{"id": 2, "v": 3}, {"id": 20, "v": 3}])
    assert pulled(reader, schema, halves[1], last)[1] == last + 1
    assert rebuilt(whole_log(reader, store, table)) == content(store, table)


def test_a_split_at_a_wrong_key_changes_nothing(store: Store, table: TableId) -> None:
    fill(store, table)
    meta = store.ranges(table)[0]
    with pytest.raises(StoreError, match="does not lie inside"):
        store.split(meta.range_id, b"zzz")
    with pytest.raises(StoreError, match="there is no range 999999"):
        store.split(999999)
    with store.transaction() as work:
        work.update(table, [{"id": 1, "v": 4}])
    assert store.ranges(table)[0] == meta


def test_a_moved_leader_loses_snapshots_and_keeps_the_log(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    schema = store.table(table)
    old = routes_of(reader, schema)[1]
    version = reader.register(old).version
    rows, last = pulled(reader, schema, old)
    address = store.move_leader(old.range_id)
    assert address != old.leader
    with pytest.raises(Rerouted, match="range"):
        reader.register(old)
    new = routes_of(reader, schema)[1]
    assert (new.leader, new.conf_ver) == (address, old.conf_ver + 1)
    eventually(lambda: _leads(reader, new))
    with pytest.raises(Rerouted, match="epoch"):
        reader.register(replace(new, conf_ver=old.conf_ver))
    with pytest.raises(SnapshotGone):
        reader.pull_snapshot(new, version, "", "")
    assert pulled(reader, schema, new) == (rows, last)
    assert store.move_leader(old.range_id, old.leader) == old.leader
    with pytest.raises(StoreError, match="cannot move"):
        store.move_leader(old.range_id, "127.0.0.1:1")


def _leads(reader: RangeClient, route: KnownRange) -> bool:
    try:
        return bool(reader.heads([(route, 0)]))
    except Rerouted:
        return False


def test_a_compacted_log_cannot_be_read_from_its_beginning(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    fill(store, table)
    with store.transaction() as work:
        work.update(table, [{"id": 1, "v": 1}])
    schema = store.table(table)
    route = routes_of(reader, schema)[0]
    assert store.compact(route.range_id, 1) == 2
    with pytest.raises(LogLost, match="begins at 2"):
        pulled(reader, schema, route)
    rows, last = pulled(reader, schema, route, 1)
    assert (len(rows), last) == (1, 2)
    assert len(content(store, table)) == 100


def test_a_closed_timestamp_advances_on_idle_ranges(
    store: Store, reader: RangeClient, table: TableId
) -> None:
    asked = [(r, 0) for r in routes_of(reader, store.table(table))]
    now = store.timestamp()
    eventually(lambda: all(h.closed_ts >= now for h in reader.heads(asked)))


def test_another_cluster_is_refused(cluster: LocalCluster, reader: RangeClient) -> None:
    route = reader.routes()[0]
    reader.cluster_id = 77
    for ask in (reader.routes, lambda: reader.register(route)):
        with pytest.raises(Exception, match="cluster"):
            ask()


def test_an_unknown_range_is_not_found(reader: RangeClient) -> None:
    route = reader.routes()[0]
    with pytest.raises(Rerouted, match="there is no range 4711"):
        reader.register(replace(route, range_id=4711))


def test_timestamps_and_tables_survive_a_killed_master(
    cluster: LocalCluster, store: Store, table: TableId
) -> None:
    fill(store, table)
    last = store.timestamp()
    cluster.kill_master()
    cluster.restart_master()
    assert store.timestamp() > last
    cluster.wait_ready()
    with store.transaction() as work:
        work.update(table, [{"id": 1, "v": 1}, {"id": 99, "v": 1}])
    assert content(store, table)[99]["v"] == 1
    store.ddl(f"ALTER TABLE {table} ADD COLUMN more int")
    assert "more" in store.table(table).by_name


def test_a_damaged_log_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1) as cluster, cluster.store() as store:
        store.ddl("CREATE DATABASE d")
        store.ddl("CREATE TABLE d.t (id bigint PRIMARY KEY, v bigint)", ranges=2, handles=(0, 9))
        table = TableId("d", "t")
        for n in range(3):
            with store.transaction() as work:
                work.insert(table, [{"id": 3 * n, "v": n}])
        first = store.ranges(table)[0]
        cluster.kill(0)
        path = tmp_path / "ranges" / first.folder / "log"
        broken = bytearray(path.read_bytes())
        broken[60] ^= 1
        path.write_bytes(bytes(broken))
        cluster.restart(0)
        eventually(lambda: first.range_id in store.failures())
        assert "RF-6003" in store.failures()[first.range_id]
        store.routing.patience_s = 0.5
        with pytest.raises(StoreDamaged, match="is damaged at byte"), store.transaction() as work:
            work.get(table, [{"id": 0}])
        with store.transaction() as work:
            work.insert(table, [{"id": 9, "v": 9}])


def test_servers_end_on_sigterm_and_give_their_ranges_back(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2) as cluster, cluster.store() as store:
        leaving = store.ranges()[0].leader
        number = cluster.addresses.index(leaving)
        assert cluster.stop_server(number, signal.SIGTERM) == 0
        eventually(lambda: store.ranges()[0].leader != leaving)
        assert store.servers() == [cluster.addresses[1 - number]]
