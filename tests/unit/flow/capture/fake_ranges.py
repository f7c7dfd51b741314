"""A range store in memory that answers like `RangeClient`: planner tests without processes."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import pyarrow as pa

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import LogLost, SnapshotGone
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.capture.range_log.client import KnownRange, LogHead, Registration, Rerouted
from rowferry.flow.capture.range_log.page import Page, read_page
from rowferry.refstore.rows.kv_encode import encode_rows, table_end, table_prefix
from rowferry.wire import range_cdc_pb2 as pb


def simple_table(table_id: int = 10, name: str = "t", extra: tuple[str, ...] = ()) -> TableSchema:
    columns = [
        Column(1, "id", SqlType("bigint"), nullable=False),
        Column(2, "v", SqlType("varchar", length=60)),
    ]
    columns += [Column(3 + i, n, SqlType("varchar", length=60)) for i, n in enumerate(extra)]
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("db", name), table_id, 0, tuple(columns), (primary,))


@dataclass
class FakeRange:
    range_id: int
    start: bytes
    end: bytes
    physical_id: int
    log: list[tuple[int, int, list[pb.CdcChangeData]]] = field(default_factory=list)
    data: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    snapshots: dict[int, dict[bytes, tuple[bytes, int]]] = field(default_factory=dict)
    last_index: int = 0
    first_index: int = 0
    parent: int = 0
    split_index: int = 0
    version: int = 1
    conf_ver: int = 1
    dropped: bool = False


class FakeRanges:
    """Several tables and a catalog. Every write takes the next timestamp."""

    def __init__(self) -> None:
        self.cluster_id = 7
        self.now = 1 << 40
        self.ranges: dict[int, FakeRange] = {1: FakeRange(1, catalog.START, catalog.END, 0)}
        self.tables: dict[int, TableSchema] = {}
        self.page_rows = 3
        self.part_rows = 4
        self._next_range = 2
        self._jobs = 0

    # --- writing ---------------------------------------------------------------------------------

    def tick(self) -> int:
        self.now += 1
        return self.now

    def _put(self, commit_ts: int, changes: list[tuple[bytes, bytes | None]]) -> None:
        grouped: dict[int, list[pb.CdcChangeData]] = {}
        for key, value in sorted(changes):
            home = next(r for r in self.ranges.values() if r.start <= key < r.end and not r.dropped)
            old = home.data.get(key)
            if value is None and old is None:
                continue
            change = pb.CdcChangeData(key=key, commit_ts=commit_ts)
            if old is not None:
                change.old_value = old[0]
            if value is None:
                change.type = pb.CdcChangeData.DELETE
                home.data.pop(key, None)
            else:
                change.value = value
                home.data[key] = (value, commit_ts)
            grouped.setdefault(home.range_id, []).append(change)
        for range_id, entries in grouped.items():
            home = self.ranges[range_id]
            home.last_index += 1
            home.log.append((home.last_index, commit_ts, entries))

    def ddl(self, kind: DdlKind, schema: TableSchema, **more: object) -> int:
        ts = self.tick()
        self._jobs += 1
        change = SchemaChange(0, kind, f"ddl {self._jobs}", schema.id, schema, **more)  # type: ignore[arg-type]
        rows: list[tuple[bytes, bytes | None]] = [
            (catalog.ddl_key(self._jobs), catalog.ddl_value([change])),
            (catalog.table_key(schema.table_id), catalog.table_value(schema)),
        ]
        if change.dropped_table_id:
            if change.dropped_table_id != schema.table_id:
                rows.append((catalog.table_key(change.dropped_table_id), None))
            for one in self.ranges.values():
                one.dropped |= one.physical_id == change.dropped_table_id
        self.tables[schema.table_id] = schema.at(ts)
        if not any(r.physical_id == schema.table_id for r in self.ranges.values()):
            self._add_range(
                table_prefix(schema.table_id), table_end(schema.table_id), schema.table_id
            )
        self._put(ts, rows)
        return ts

    def drop(self, table_id: int) -> int:
        ts = self.tick()
        self._jobs += 1
        name = self.tables.pop(table_id).id
        query = f"ddl {self._jobs}"
        gone = SchemaChange(0, DdlKind.DROP_TABLE, query, name, None, dropped_table_id=table_id)
        for one in self.ranges.values():
            one.dropped |= one.physical_id == table_id
        rows = [
            (catalog.ddl_key(self._jobs), catalog.ddl_value([gone])),
            (catalog.table_key(table_id), None),
        ]
        self._put(ts, rows)
        return ts

    def _add_range(self, start: bytes, end: bytes, physical_id: int) -> FakeRange:
        made = FakeRange(self._next_range, start, end, physical_id)
        self.ranges[made.range_id] = made
        self._next_range += 1
        return made

    def key(self, table_id: int, row_id: int) -> bytes:
        return self._encode(table_id, [{"id": row_id}])[0][0]

    def _encode(self, table_id: int, rows: list[dict[str, object]]) -> list[tuple[bytes, bytes]]:
        table = self.tables[table_id]
        image = pa.array(rows, table.image)
        keys, values = encode_rows(table, table_id, image)
        return list(zip(keys.to_pylist(), values.to_pylist(), strict=True))

    def write(self, table_id: int, rows: list[dict[str, object]], delete: list[int] = []) -> int:  # noqa: B006
        ts = self.tick()
        changes: list[tuple[bytes, bytes | None]] = (
            list(self._encode(table_id, rows)) if rows else []
        )
        changes += [(self.key(table_id, i), None) for i in delete]
        self._put(ts, changes)
        return ts

    def split(self, range_id: int, at: bytes) -> int:
        left = self.ranges[range_id]
        right = self._add_range(at, left.end, left.physical_id)
        right.parent, right.split_index, right.last_index = (
            range_id,
            left.last_index,
            left.last_index,
        )
        right.first_index = left.first_index
        left.end, left.version = at, left.version + 1
        for index, ts, entries in left.log:
            right.log.append((index, ts, [e for e in entries if e.key >= at]))
        left.log = [(i, t, [e for e in es if e.key < at]) for i, t, es in left.log]
        for key in [k for k in left.data if k >= at]:
            right.data[key] = left.data.pop(key)
        for version, rows in left.snapshots.items():
            right.snapshots[version] = {k: v for k, v in rows.items() if k >= at}
            left.snapshots[version] = {k: v for k, v in rows.items() if k < at}
        return right.range_id

    def move_leader(self, range_id: int) -> None:
        self.ranges[range_id].snapshots.clear()
        self.ranges[range_id].conf_ver += 1

    def compact(self, range_id: int, through: int | None = None) -> None:
        home = self.ranges[range_id]
        through = home.last_index if through is None else through
        home.first_index = through + 1
        home.log = [entry for entry in home.log if entry[0] > through]

    def content(self, table_id: int) -> dict[bytes, bytes]:
        return {
            k: v
            for r in self.ranges.values()
            if r.physical_id == table_id and not r.dropped
            for k, (v, _) in r.data.items()
        }

    # --- RangeClient -----------------------------------------------------------------------------

    def routes(self, start_key: bytes = b"", end_key: bytes = b"") -> list[KnownRange]:
        found = [
            KnownRange(
                r.range_id,
                r.conf_ver,
                r.version,
                r.start,
                r.end,
                "x:1",
                r.parent,
                r.split_index,
                r.physical_id,
                r.dropped,
            )
            for r in self.ranges.values()
            if r.end > start_key and (not end_key or r.start < end_key)
        ]
        return sorted(found, key=lambda r: r.start_key)

    def _home(self, route: KnownRange) -> FakeRange:
        home = self.ranges[route.range_id]
        if (home.conf_ver, home.version) != (route.conf_ver, route.version):
            raise Rerouted("stale epoch")
        return home

    def timestamp(self) -> int:
        return self.tick()

    def register(self, route: KnownRange) -> Registration:
        home = self._home(route)
        home.snapshots[home.last_index] = dict(home.data)
        keys = sorted(home.data)
        cuts = tuple(k.hex() for k in keys[self.part_rows - 1 : -1 : self.part_rows])
        return Registration(home.last_index, self.tick(), cuts, False)

    def pull_snapshot(
        self, route: KnownRange, version: int, last_key: str, end_key: str, max_bytes: int = 0
    ) -> tuple[Page, bool]:
        home = self._home(route)
        if version not in home.snapshots:
            raise SnapshotGone("gone")
        rows = home.snapshots[version]
        end = bytes.fromhex(end_key)
        keys = [k for k in sorted(rows) if k > bytes.fromhex(last_key) and (not end or k < end)]
        taken = keys[: self.page_rows]
        answer = pb.CdcPullSnapshotResponse(
            snapshot_data=[
                pb.CdcChangeData(key=k, value=rows[k][0], commit_ts=rows[k][1]) for k in taken
            ]
        )
        return read_page(answer.SerializeToString(), 3, "fake")[0], len(taken) == len(keys)

    def pull_log(
        self, route: KnownRange, last_index: int, until_index: int, max_bytes: int = 0
    ) -> tuple[Page, int]:
        home = self._home(route)
        self._check_log(home, last_index)
        wanted = [e for e in home.log if last_index < e[0] <= until_index]
        taken: list[pb.CdcChangeData] = []
        reached = until_index
        for index, _, entries in wanted:
            if taken and len(taken) + len(entries) > self.page_rows:
                reached = index - 1
                break
            taken += entries
        answer = pb.CdcPullLogResponse(log_data=taken)
        return read_page(answer.SerializeToString(), 2, "fake")[0], reached

    def _check_log(self, home: FakeRange, last_index: int) -> None:
        if last_index + 1 < home.first_index:
            raise LogLost(f"range {home.range_id}: the log after index {last_index} is gone")

    def heads(
        self, asked: list[tuple[KnownRange, int]], at_ts: int = 0, mark_bytes: int = 0
    ) -> list[LogHead]:
        found = []
        for route, last_index in asked:
            home = self._home(route)
            self._check_log(home, last_index)
            log = [e for e in home.log if e[0] > last_index]
            times = [ts for _, ts, _ in log]
            upto = bisect.bisect_right(times, at_ts)
            marks, total = [], 0
            for index, ts, entries in log[:upto]:
                total += 100 * len(entries)
                marks.append((index, ts, total))
            at = log[upto - 1][0] if upto else last_index
            entries_count = sum(len(e) for *_, e in log[:upto])
            last_ts = home.log[-1][1] if home.log else 0
            found.append(
                LogHead(home.last_index, self.now, at, total, entries_count, last_ts, tuple(marks))
            )
        return found

    def close(self) -> None:
        pass
